"""Positions and ETAs of the jobs of a queue."""

from __future__ import annotations

import time

from sf_quantum.service.domain.jobs import Forecast, JobClass, Pattern
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.queue.live_jobs import LiveJobs
from sf_quantum.service.scheduling.work import PendingJob

# behind all jobs: the largest number of SQLite
LAST = 2**63 - 1


class Forecasts:
    """Forecasts from the work before a job, and the work expected meanwhile."""

    def __init__(self, jobs: LiveJobs, availability: Availability) -> None:
        self._jobs = jobs
        self._availability = availability

    def of(self, number: int) -> Forecast | None:
        """Forecast when a job runs; ``None`` for one that is over."""
        if (entry := self._jobs.pending.get(number)) is not None:
            return self._forecast(entry)
        running = self._jobs.running
        if running is None or running.number != number:
            return None
        return Forecast(0, 0.0, self._jobs.expected_seconds(running.entry))

    def new(
        self,
        job_class: JobClass,
        user: str,
        project: str | None,
        pattern: Pattern | None,
    ) -> Forecast:
        """Forecast when a user's problem with one shot, submitted now, would run."""
        device = self._jobs.device
        model_seconds = device.model_seconds({})
        entry = PendingJob(
            number=LAST,
            id="",
            user=user,
            lease="",
            job_class=job_class,
            kind="problem",
            seconds=model_seconds * device.time_scale,
            qpu_seconds=model_seconds,
            submitted=time.time(),
            project=project,
            pattern=pattern,
        )
        return self._forecast(entry)

    def _forecast(self, entry: PendingJob) -> Forecast:
        jobs, policy, pace = self._jobs, self._jobs.policy, self._jobs.pace
        works, coming = jobs.pending.ahead(entry)
        position = sum(work.jobs for work in works.values())
        seconds = pace.seconds(works)
        if coming:
            seconds += pace.job_seconds(entry.kind, coming)
        running = jobs.running
        if running is not None and not policy.preempts(entry, running.entry):
            position += 1
            passed = time.monotonic() - running.began
            seconds += max(0.0, jobs.expected_seconds(running.entry) - passed)
        wait = jobs.arrivals.wait(seconds, policy.passing(entry.job_class))
        expected = jobs.expected_seconds(entry)
        eta = None
        if not jobs.stopping:
            eta = self._availability.seconds_until_start(wait, expected)
        return Forecast(position, eta, expected)
