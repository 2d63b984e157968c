"""The runners of the emulated device, each of which computes jobs of one kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Result
from sf_quantum.service.device import problems
from sf_quantum.service.device.emulator.atoms.runner import SequenceSimulator
from sf_quantum.service.device.emulator.circuits.circuit import CircuitSimulator
from sf_quantum.service.device.emulator.computation import Computation, SeparateRunner
from sf_quantum.service.device.emulator.photons.photonic import PhotonicSimulator
from sf_quantum.service.domain.jobs import Kind, Size


class Runner(Protocol):
    """Computes jobs of one kind; must be thread-safe."""

    def check(self, content: JSON, *, qubits: int) -> Size:
        """Reject a payload that cannot run, before it is queued.

        :param qubits: number of qubits of the device
        :returns: size of the payload
        :raises FieldError: if the payload cannot run; the error names the field of the request
        """

    def run(self, computation: Computation, interrupted: Callable[[], bool]) -> Result:
        """Compute the result; blocks.

        :param interrupted: function that ``run`` polls; once it returns true, ``run``
            returns soon, with an arbitrary result
        """


class ProblemRunner(SeparateRunner):
    """Simulated annealing of BQMs, with the ``neal`` sampler."""

    kind: ClassVar[Kind] = "problem"

    def check(self, content: JSON, *, qubits: int) -> Size:
        size = problems.check(content, qubits)
        return problems.with_solver(size, content, {}, None)


def installed() -> dict[Kind, Runner]:
    """Return the runners by kind."""
    return {
        "problem": ProblemRunner(),
        "sequence": SequenceSimulator(),
        "circuit": CircuitSimulator(),
        "photonic": PhotonicSimulator(),
    }
