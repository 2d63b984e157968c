"""The runners of the emulated device, which compute jobs of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from sf_quantum.files import JSON
from sf_quantum.qpu import solver_parameters
from sf_quantum.qpu.jobs import Result
from sf_quantum.samplers import problem
from sf_quantum.service.device.emulator.circuit import CircuitSimulator
from sf_quantum.service.device.emulator.computation import (
    VARIABLE_UPDATES,
    Computation,
    SeparateRunner,
)
from sf_quantum.service.device.emulator.photonic import PhotonicSimulator
from sf_quantum.service.device.emulator.sequence import SequenceSimulator
from sf_quantum.service.domain.jobs import Kind, Size


class Runner(Protocol):
    """Computes jobs of one kind; must be thread-safe."""

    def check(self, content: JSON, *, qubits: int) -> Size:
        """Reject a payload that cannot run, before it is queued.

        :param qubits: number of qubits of the device
        :returns: its size
        :raises FieldError: naming the field of the request
        """

    def run(self, computation: Computation, interrupted: Callable[[], bool]) -> Result:
        """Compute the result; blocks.

        :param interrupted: polled; if true, ``run`` returns soon with an arbitrary result
        """


class ProblemRunner(SeparateRunner):
    """Simulated annealing of a BQM, with the ``neal`` sampler."""

    kind: ClassVar[Kind] = "problem"

    def check(self, content: JSON, *, qubits: int) -> Size:
        bqm = problem.check(content, "problem")
        if solver_parameters.given(bqm):
            where = f"problem.info.{solver_parameters.KEY}"
            raise problem.FieldError(
                where, "an emulated annealer takes these over SAPI"
            )
        size = problem_size(bqm)
        if size.values > qubits:
            detail = f"{size.values} variables do not fit on {qubits} qubits"
            raise problem.FieldError("problem.variable_labels", detail)
        return size


def problem_size(bqm: Mapping[str, JSON]) -> Size:
    """Return the size of a serialized BQM that was checked."""
    variables, pairs = problem.size(bqm), bqm["quadratic_head"]
    interactions = len(pairs) if isinstance(pairs, list) else 0
    return Size(variables, VARIABLE_UPDATES * variables + interactions)


def installed() -> dict[Kind, Runner]:
    """Return the runners by kind."""
    return {
        "problem": ProblemRunner(),
        "sequence": SequenceSimulator(),
        "circuit": CircuitSimulator(),
        "photonic": PhotonicSimulator(),
    }
