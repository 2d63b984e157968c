"""Telemetry: the device's drift, and quality jobs, whose problem has a known optimum."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import fmean, linear_regression

from sf_quantum.protocol.calibrations import calibration_id
from sf_quantum.service.device import quality_problem
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, Job, Lease, Submission
from sf_quantum.service.domain.settings import QualitySettings
from sf_quantum.service.queue.job_queue import JobQueue

# shortest pause between two readings of the device, in seconds
READING_SECONDS = 0.02
SERIES = "quality_success"
# not the name of a user, since users' names contain no colon
SERVICE_USER = Identity("service:quality", admin=True)
# longest wait for a job before its state is read again
WAIT_SECONDS = 60.0
# maximum number of results that a baseline is fitted to
MAX_LEARNED = 500
# range of calibration ages (0 to 1) that the results for a baseline must cover
SPREAD = 0.8
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class QualityResult:
    """The result of a quality job.

    :param time: time in seconds since the epoch
    :param age: age of the calibration, from 0 (new) to 1 (due for renewal)
    :param hits: number of reads that found the optimum
    """

    time: float
    age: float
    reads: int
    hits: int

    @property
    def success(self) -> float:
        return self.hits / self.reads

    @property
    def stabilized(self) -> float:
        """The success, transformed so that its standard deviation is 1.

        From Anscombe, Biometrika 35, 1948, p. 246.
        """
        share = (self.hits + 3 / 8) / (self.reads + 3 / 4)
        return math.sqrt(4 * self.reads + 2) * math.asin(math.sqrt(share))


@dataclass(frozen=True)
class Baseline:
    """The expected success: a straight line over the age of the calibration.

    :param spread: standard deviation from the line; at least 1, the deviation by sampling
    """

    intercept: float
    slope: float
    spread: float

    @classmethod
    def fit(cls, results: Sequence[QualityResult], learn: int) -> Baseline | None:
        """Fit the first results by least squares.

        :returns: ``None`` if there are fewer than ``learn`` results, or if fewer than
            :data:`MAX_LEARNED` results do not cover nearly all ages
        """
        for number in range(learn, len(results) + 1):
            ages = [result.age for result in results[:number]]
            max_results = max(learn, MAX_LEARNED)
            if max(ages) - min(ages) >= SPREAD or number == max_results:
                return cls._fit(results[:number])
        return None

    @classmethod
    def _fit(cls, results: Sequence[QualityResult]) -> Baseline:
        ages = [result.age for result in results]
        values = [result.stabilized for result in results]
        slope, intercept = 0.0, fmean(values)
        if min(ages) < max(ages):
            slope, intercept = linear_regression(ages, values)
        residual = sum((r.stabilized - intercept - slope * r.age) ** 2 for r in results)
        spread = math.sqrt(residual / max(1, len(results) - 2))
        return cls(intercept, slope, max(1.0, spread))

    def deviation(self, result: QualityResult) -> float:
        """Return a result's deviation from the line, in standard deviations."""
        expected = self.intercept + self.slope * result.age
        return (result.stabilized - expected) / self.spread


class QualityJobs:
    """Submits quality jobs when they are due, one at a time, and records the results.

    A quality job is queued like a user's job, but in a separate class, and under a lease that
    occupies no vQPU. A quality job that the end of the previous service process interrupted is
    cancelled, and a new job is submitted. The next job is due one pause after the last result.

    Once there is a baseline, each result is passed to the queue's drift alarm.
    """

    def __init__(self, queue: JobQueue, settings: QualitySettings) -> None:
        self.last: QualityResult | None = None
        #: expected success; ``None`` until there are enough results
        self.baseline: Baseline | None = None
        self._queue = queue
        self._settings = settings
        self._device = self._describe_device()
        self._results: list[QualityResult] = []

    async def work(self) -> None:
        await self._read()
        pause = self._settings.every_seconds or math.inf
        # the first pause begins with the last result, even if the service was not running
        # then
        since = time.time() - self.last.time if self.last else math.inf
        wait = min(max(0.0, pause - since), pause)
        while True:
            await asyncio.sleep(wait)
            await self._queue.availability.opened()
            try:
                await self._run()
            except Refused as error:
                logger.warning("a quality job was refused: %s", error.detail)
            except sqlite3.Error as error:
                message = "the result of a quality job could not be stored: %s"
                logger.warning(message, error)
            wait = pause

    def _describe_device(self) -> str:
        """Return a text that identifies device and settings; each has a separate baseline."""
        device = self._queue.device
        description = device.description
        return (
            f"{device.name}/{description.technology}/{description.qubits}/{device.variant}"
            f"/{self._settings.num_reads}"
        )

    async def _run(self) -> None:
        if (identity := self._describe_device()) != self._device:
            self._device = identity
            await self._read()
        bqm = quality_problem.problem(self._queue.device.description.qubits)
        now = time.time()
        lease = Lease(
            f"quality-{secrets.token_hex(8)}",
            SERVICE_USER.user,
            "quality",
            job="a quality job",
            opened=now,
            closed=now,
            reason="of the service itself",
        )
        parameters = {"num_reads": self._settings.num_reads}
        submission = Submission("problem", bqm, parameters, lease.id)
        job = await self._queue.submit_service_job(lease, submission)
        while not job.final:
            if self._queue.failure:
                return
            job = await self._queue.wait(SERVICE_USER, job.id, WAIT_SECONDS)
        if job.state == "Completed":
            await self._record(job, quality_problem.optimum(bqm))
        else:
            logger.warning("a quality job was %s: %s", job.state.lower(), job.note)

    async def _record(self, job: Job, optimum: float) -> None:
        if self._describe_device() != self._device:
            return  # unknown whether the job ran with the old or the new settings
        text = self._queue.store.jobs.result(job.number)
        if text is None:  # the result has been deleted meanwhile
            return
        sample_set = json.loads(text)
        hits, reads = quality_problem.hits(sample_set, optimum)
        device = self._queue.device
        id_ = calibration_id(job.calibration)
        is_same = id_ != "" and id_ == device.calibrations.data.id
        age = device.calibrations.wear if is_same else 1.0
        result = QualityResult(time.time(), age, reads, hits)
        row = (*astuple(result), self._device)
        query = (
            "INSERT INTO quality (time, age, reads, hits, device) "
            "VALUES (?, ?, ?, ?, ?)"
        )

        def insert(db: sqlite3.Connection) -> None:
            db.execute(query, row)

        await asyncio.wrap_future(self._queue.store.change(insert))
        self.last = result
        if self.baseline is None:
            self._results.append(result)
            self.baseline = Baseline.fit(self._results, self._settings.learn)
        elif is_same:
            self._queue.drift.renewed(id_)
            self._queue.drift.observe(SERIES, self.baseline.deviation(result))

    async def _read(self) -> None:
        query = (
            "SELECT time, age, reads, hits FROM quality WHERE device = ? "
            "ORDER BY number {} LIMIT ?"
        )
        report, device = self._queue.store.report, self._device
        limit = max(MAX_LEARNED, self._settings.learn)
        # in a thread, since a report waits for earlier reports
        first = await asyncio.to_thread(report, query.format("ASC"), device, limit)
        latest = await asyncio.to_thread(report, query.format("DESC"), device, 1)
        self._results = [QualityResult(*row) for row in first]
        self.baseline = Baseline.fit(self._results, self._settings.learn)
        self.last = next((QualityResult(*row) for row in latest), None)


class Telemetry:
    """Watches the device of a queue; belongs to the event loop's thread.

    :param public_metrics: whether ``/metrics`` can be read without a credential
    """

    def __init__(self, queue: JobQueue, *, public_metrics: bool = True) -> None:
        self.public_metrics = public_metrics
        quality = queue.settings.quality
        self.quality = QualityJobs(queue, quality) if quality.every_seconds else None
        self._queue = queue

    def start(self) -> None:
        run = self._queue.supervisor.run
        run("drift", self._follow)
        if self.quality is not None:
            run("quality", self.quality.work)

    async def _follow(self) -> None:
        while True:
            self._queue.drift.add_readings(self._queue.device)
            seconds = self._queue.device.calibrations.until_next_reading
            await asyncio.sleep(max(READING_SECONDS, seconds))
