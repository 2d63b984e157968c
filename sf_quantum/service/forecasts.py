"""Positions and ETAs of the jobs of a queue."""

from __future__ import annotations

import time

from sf_quantum.service.device import Device
from sf_quantum.service.line import Entry, Line
from sf_quantum.service.records import Forecast, JobClass
from sf_quantum.service.worker import Worker, preempts


class Forecasts:
    """Adds up what runs before a job, and what is likely to come in between."""

    def __init__(self, line: Line, worker: Worker, device: Device) -> None:
        self._line = line
        self._worker = worker
        self._device = device

    def of(self, number: int) -> Forecast | None:
        """Say when a job will run; ``None`` for one that is over."""
        if (entry := self._line.get(number)) is not None:
            return self._forecast(entry.job_class, number, self._expected(entry))
        running = self._worker.running
        if running is None or running.entry.number != number:
            return None
        return Forecast(0, 0.0, self._expected(running.entry))

    def new(self, job_class: JobClass) -> Forecast:
        """Say when a problem with one shot would run that joined now."""
        one_shot = self._device.model_seconds({}) * self._device.time_scale
        expected = self._worker.pace.job_seconds("problem", one_shot)
        return self._forecast(job_class, None, expected)

    def _forecast(
        self, job_class: JobClass, number: int | None, expected: float
    ) -> Forecast:
        works = self._line.ahead(job_class, number)
        jobs = sum(work.jobs for work in works.values())
        seconds = self._worker.pace.seconds(works)
        running = self._worker.running
        if running is not None and not preempts(job_class, running.entry.job_class):
            jobs += 1
            passed = time.monotonic() - running.began
            seconds += max(0.0, self._expected(running.entry) - passed)
        eta = self._worker.arrivals.wait(job_class, seconds)
        return Forecast(jobs, eta if self._worker.may_start() else None, expected)

    def _expected(self, entry: Entry) -> float:
        return self._worker.pace.job_seconds(entry.kind, entry.seconds)
