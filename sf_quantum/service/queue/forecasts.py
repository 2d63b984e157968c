"""Positions and ETAs of the jobs of a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from sf_quantum.service.domain.jobs import Forecast, JobClass, Pattern
from sf_quantum.service.queue.worker import Worker
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.work import PendingJob

# more than any job's number: SQLite's largest
LAST = 2**63 - 1

# from a wait for the device and the seconds on it to the seconds until that starts
StartsIn: TypeAlias = Callable[[float, float], float | None]


class Forecasts:
    """Adds up what runs before a job, and what is likely to come in between."""

    def __init__(self, line: PendingJobs, worker: Worker, starts_in: StartsIn) -> None:
        self._line = line
        self._worker = worker
        self._starts_in = starts_in

    def of(self, number: int) -> Forecast | None:
        """Say when a job will run; ``None`` for one that is over."""
        if (entry := self._line.get(number)) is not None:
            return self._forecast(entry)
        running = self._worker.running
        if running is None or running.entry.number != number:
            return None
        return Forecast(0, 0.0, self._expected(running.entry))

    def new(
        self,
        job_class: JobClass,
        user: str,
        project: str | None,
        pattern: Pattern | None,
    ) -> Forecast:
        """Say when a user's problem with one shot would run that joined now."""
        device = self._worker.device
        model_seconds = device.model_seconds({})
        entry = PendingJob(
            *(LAST, "", user, "", job_class, "problem"),
            seconds=model_seconds * device.time_scale,
            qpu_seconds=model_seconds,
            submitted=time.time(),
            project=project,
            pattern=pattern,
        )
        return self._forecast(entry)

    def _forecast(self, entry: PendingJob) -> Forecast:
        jobs, wait = self._before(entry)
        expected = self._expected(entry)
        return Forecast(jobs, self._starts_in(wait, expected), expected)

    def _before(self, entry: PendingJob) -> tuple[int, float]:
        """Count the jobs that run before one, and their seconds with those to come."""
        (works, coming), policy = self._line.ahead(entry), self._line.policy
        jobs = sum(work.jobs for work in works.values())
        seconds = self._worker.pace.seconds(works)
        if coming:
            seconds += self._worker.pace.job_seconds(entry.kind, coming)
        running = self._worker.running
        if running is not None and not policy.preempts(entry, running.entry):
            jobs += 1
            passed = time.monotonic() - running.began
            seconds += max(0.0, self._expected(running.entry) - passed)
        passing = policy.passing(entry.job_class)
        return jobs, self._worker.arrivals.wait(seconds, passing)

    def _expected(self, entry: PendingJob) -> float:
        return self._worker.pace.job_seconds(entry.kind, entry.seconds)
