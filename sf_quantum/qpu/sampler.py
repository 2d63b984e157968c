"""Samplers that send each problem to a QPU, as a ``dimod.Sampler``."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence

from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler
from dimod.variables import iter_deserialize_variables

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, listing
from sf_quantum.protocol.tasks import JobParameters, Task
from sf_quantum.qpu import Qpu
from sf_quantum.samplers.energies import recompute


class QpuSampler(Sampler):
    """Sends each problem to a QPU and waits for its samples.

    :param qpu: QPU of a kind whose :meth:`~sf_quantum.qpu.Qpu.solve` calls no sampler
    """

    def __init__(self, qpu: Qpu) -> None:
        self._qpu = qpu

    @property
    def parameters(self) -> dict[str, list[str]]:
        return {"num_reads": [], "seed": [], "num_sweeps": []}

    @property
    def properties(self) -> dict[str, str]:
        return {"qpu": self._qpu.name, "type": self._qpu.type}

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int | None = None,
        seed: int | None = None,
        num_sweeps: int | None = None,
    ) -> SampleSet:
        """Submit the problem and wait; the QPU chooses omitted parameters.

        An interrupt cancels the job.

        :raises InputError: if the QPU rejects the problem or a parameter
        :raises QpuError: if the QPU fails or does not answer
        """
        parameters = {"num_reads": num_reads, "seed": seed, "num_sweeps": num_sweeps}
        return _sample_set(self._solved(_serialized(bqm), parameters), bqm)

    def sample_multiple(
        self,
        bqms: Iterable[BinaryQuadraticModel],
        *,
        num_reads: int | None = None,
        seed: int | None = None,
        num_sweeps: int | None = None,
    ) -> list[SampleSet]:
        """Sample several problems like :meth:`sample`, in one job if the QPU accepts lists.

        Each problem has ``num_reads`` reads. In a list with a seed, the first problem uses
        the seed, and each other problem a seed that is derived from it.
        """
        parameters = {"num_reads": num_reads, "seed": seed, "num_sweeps": num_sweeps}
        problems = [*bqms]
        serialized = [*map(_serialized, problems)]
        answers = self._solved_multiple(serialized, parameters)
        return [*map(_sample_set, answers, problems)]

    def _solved(
        self, bqm: dict[str, JSON], parameters: JobParameters
    ) -> dict[str, JSON]:
        return self._qpu.solve(bqm, parameters)

    def _solved_multiple(
        self, bqms: Sequence[dict[str, JSON]], parameters: JobParameters
    ) -> list[dict[str, JSON]]:
        return self._qpu.solve_multiple(bqms, parameters)


class JobSampler(QpuSampler):
    """Sends each problem to a QPU as a job, and waits for its samples.

    :param qpu: job's side of a QPU that accepts jobs of the kind ``problem``
    """

    def _solved(
        self, bqm: dict[str, JSON], parameters: JobParameters
    ) -> dict[str, JSON]:
        tag = f"sfq-{secrets.token_hex(8)}"
        task = Task(tag, "problem", json.dumps(bqm), parameters)
        outcome = self._qpu.run_job(task)
        if outcome.result is None:
            raise QpuError(f"QPU {self._qpu.name!r}: {outcome.failure}")
        samples: dict[str, JSON] = json.loads(outcome.result.whole)
        return samples

    def _solved_multiple(
        self, bqms: Sequence[dict[str, JSON]], parameters: JobParameters
    ) -> list[dict[str, JSON]]:
        return [self._solved(bqm, parameters) for bqm in bqms]


def _serialized(bqm: BinaryQuadraticModel) -> dict[str, JSON]:
    """Serialize a problem; JSON must preserve its labels, so that the samples have the same.

    :raises InputError: if a label changes when it is written in JSON and read
    """
    content: dict[str, JSON] = bqm.to_serializable()
    # dimod does not annotate this function, and may list the labels in another order
    read = iter_deserialize_variables(listing(content["variable_labels"]))  # type: ignore[no-untyped-call]
    for label in {*bqm.variables} - {*read}:
        right = "use strings, numbers or tuples of these"
        raise InputError(f"label {label!r:.40} cannot be written in JSON: {right}")
    return content


def _sample_set(serialized: dict[str, JSON], bqm: BinaryQuadraticModel) -> SampleSet:
    """Read samples, and recompute their energies from the problem."""
    # dimod does not annotate this method
    samples: SampleSet = SampleSet.from_serializable(serialized)  # type: ignore[no-untyped-call]
    if {*samples.variables} != {*bqm.variables}:
        raise QpuError("the QPU's samples have other variables than the problem")
    return recompute(samples, bqm)
