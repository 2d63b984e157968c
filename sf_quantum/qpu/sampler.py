"""Samplers that send each problem to a QPU, as a ``dimod.Sampler``."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler

from sf_quantum import backoff
from sf_quantum.backoff import Deadline
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.jobs import (
    OVER,
    JobParameters,
    NotAccepted,
    Outcome,
    Task,
    UnknownJob,
)

# how long a vendor may be busy, or not answer
RETRY_SECONDS = 60.0
T = TypeVar("T")


class QpuSampler(Sampler):
    """Sends each problem to a QPU and waits for its samples.

    :param qpu: a kind whose :meth:`~sf_quantum.qpu.Qpu.solve` does not call its sampler
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
        """Submit the problem and wait; the QPU chooses parameters that are left out.

        Interrupted, the job is cancelled.

        :raises InputError: if the QPU refuses the problem or a parameter
        :raises QpuError: if the QPU fails or does not answer
        """
        parameters = {"num_reads": num_reads, "seed": seed, "num_sweeps": num_sweeps}
        samples = self._solved(bqm.to_serializable(), parameters)
        # dimod leaves this one untyped
        sample_set: SampleSet = SampleSet.from_serializable(samples)  # type: ignore[no-untyped-call]
        return sample_set

    def _solved(
        self, bqm: dict[str, JSON], parameters: JobParameters
    ) -> dict[str, JSON]:
        return self._qpu.solve(bqm, parameters)


class JobSampler(QpuSampler):
    """Sends each problem to a QPU as a job, and waits for its samples.

    A submission is repeated as the vendor asks, if there is certainly no job yet. Later
    requests that are not answered are repeated too.

    :param qpu: the job's side of a kind that takes jobs of the kind ``problem``
    """

    def _solved(
        self, bqm: dict[str, JSON], parameters: JobParameters
    ) -> dict[str, JSON]:
        tag = f"sfq-{secrets.token_hex(8)}"
        task = Task(tag, "problem", json.dumps(bqm), parameters)
        job_id = _submitted(self._qpu, task)
        try:
            outcome = self._ended(job_id, task)
        except BaseException:
            with suppress(QpuError, InputError):
                self._qpu.cancel(job_id)
            raise
        if outcome.result is None:
            how = outcome.failure or "cancelled"
            raise QpuError(f"QPU {self._qpu.name!r}: job {job_id}: {how}")
        samples: dict[str, JSON] = json.loads(outcome.result.whole)
        return samples

    def _ended(self, job_id: str, task: Task) -> Outcome:
        for pause in backoff.JOB.pauses():
            if _repeated(lambda: self._qpu.poll(job_id)).state in OVER:
                break
            time.sleep(pause)
        return _repeated(lambda: self._qpu.result(job_id, task))


def _submitted(qpu: Qpu, task: Task) -> str:
    deadline, pauses = Deadline(RETRY_SECONDS), backoff.REQUEST.pauses()
    while True:
        try:
            return qpu.submit(task)
        except NotAccepted as error:
            pause = max(error.retry_seconds or 0.0, next(pauses))
            # nor is there anything to wait for if the vendor does not say so
            if error.retry_seconds is None or pause > deadline.left:
                raise
        time.sleep(pause)


def _repeated(request: Callable[[], T]) -> T:
    deadline, pauses = Deadline(RETRY_SECONDS), backoff.REQUEST.pauses()
    while True:
        try:
            return request()
        except UnknownJob:
            raise
        except QpuError:
            if (pause := next(pauses)) > deadline.left:
                raise
        time.sleep(pause)
