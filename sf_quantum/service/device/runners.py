"""The runners of the emulated device: what computes a job, by the kind of its payload."""

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
    """Computes one kind of payload; its methods may be called from several threads."""

    def check(
        self, content: JSON, parameters: Mapping[str, int | None], *, qubits: int
    ) -> None:
        """Refuse a payload that cannot run, before it is queued.

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
        :param interrupted: once it returns true, run returns soon, whatever it has
        :returns: JSON whose ``info``, if it has any, is an object
        """


class ProblemRunner:
    """Anneals a BQM by the same sampler that runs without a QPU."""

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
    """Return the runners by kind."""
    return {
        "problem": ProblemRunner(),
        "sequence": SequenceRunner(),
        "circuit": CircuitRunner(),
    }
