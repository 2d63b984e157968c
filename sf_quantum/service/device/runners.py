"""The runners of the emulated device, which compute jobs of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sf_quantum.files import JSON
from sf_quantum.samplers import problem
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.service.device.circuit import CircuitSimulator
from sf_quantum.service.device.sequence import SequenceSimulator
from sf_quantum.service.device.technologies import JobParameters
from sf_quantum.service.domain.jobs import Kind


class Runner(Protocol):
    """Computes jobs of one kind; must be thread-safe."""

    def check(self, content: JSON, *, qubits: int) -> None:
        """Reject a payload that cannot run, before it is queued.

        :param qubits: number of qubits of the device
        :raises FieldError: naming the field of the request
        """

    def run(
        self, content: JSON, parameters: JobParameters, interrupted: Callable[[], bool]
    ) -> dict[str, JSON]:
        """Compute the result; blocks.

        :param parameters: at least ``num_reads`` and ``seed``
        :param interrupted: polled; if true, ``run`` returns soon with an arbitrary result
        :returns: the result as JSON; ``info``, if present, is an object
        """


class ProblemRunner(Runner):
    """Simulated annealing of a BQM, with the ``neal`` sampler."""

    def check(self, content: JSON, *, qubits: int) -> None:
        size = problem.size(problem.check(content, "problem"))
        if size > qubits:
            detail = f"{size} variables do not fit on {qubits} qubits"
            raise problem.FieldError("problem.variable_labels", detail)

    def run(
        self, content: JSON, parameters: JobParameters, interrupted: Callable[[], bool]
    ) -> dict[str, JSON]:
        bqm = content if isinstance(content, dict) else {}
        return problem.sample(NealSampler(interrupted), bqm, parameters)


def installed() -> dict[Kind, Runner]:
    """Return the runners by kind."""
    return {
        "problem": ProblemRunner(),
        "sequence": SequenceSimulator(),
        "circuit": CircuitSimulator(),
    }
