"""What computes a job on the emulated device, by the kind of its payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from sf_quantum.files import JSON
from sf_quantum.samplers import problem
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.service.device.circuit import CircuitRunner
from sf_quantum.service.device.sequence import SequenceRunner
from sf_quantum.service.domain.jobs import Kind


class Runner(Protocol):
    """One kind of payload; safe to use from several threads."""

    def check(
        self, content: JSON, parameters: Mapping[str, int | None], *, qubits: int
    ) -> None:
        """Refuse what cannot run, before it is queued.

        :param qubits: of the device
        :raises FieldError: naming the field of the request
        """

    def run(
        self,
        content: JSON,
        parameters: Mapping[str, int | None],
        interrupted: Callable[[], bool],
    ) -> dict[str, JSON]:
        """Compute the result; blocks.

        :param parameters: ``num_reads`` and ``seed`` are given
        :param interrupted: once it says yes, anything may be returned, soon
        :returns: JSON whose ``info``, if it has any, is an object
        """


class ProblemRunner:
    """A BQM, annealed by the same sampler that runs without a QPU."""

    def check(
        self, content: JSON, parameters: Mapping[str, int | None], *, qubits: int
    ) -> None:
        """See :meth:`Runner.check`."""
        size = problem.size(problem.check(content, "problem"))
        if size > qubits:
            detail = f"{size} variables do not fit on {qubits} qubits"
            raise problem.FieldError("problem.variable_labels", detail)

    def run(
        self,
        content: JSON,
        parameters: Mapping[str, int | None],
        interrupted: Callable[[], bool],
    ) -> dict[str, JSON]:
        """See :meth:`Runner.run`."""
        bqm = content if isinstance(content, dict) else {}
        return problem.sample(NealSampler(interrupted), bqm, parameters)


def installed() -> dict[Kind, Runner]:
    """Name what can run here."""
    return {
        "problem": ProblemRunner(),
        "sequence": SequenceRunner(),
        "circuit": CircuitRunner(),
    }
