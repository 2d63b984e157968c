"""Quality jobs: from time to time the device is given a problem with a known optimum."""

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

from sf_quantum.service.device import quality_problem
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.domain.jobs import Job, Lease, Submission
from sf_quantum.service.domain.settings import QualitySettings
from sf_quantum.service.queue.job_queue import JobQueue

SERIES = "quality_success"
# no user's name has a colon in it
WHO = Identity("service:quality", admin=True)
# how long to wait for a job before asking again whether it is over
WAIT_SECONDS = 60.0
# what is usual is learned from no more than so many jobs
LEARNED = 500
# of a calibration's age, from 0 to 1, that they have to be spread over
SPREAD = 0.8
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """How a quality job went.

    :param age: of the calibration, from 0 to 1
    :param hits: reads that found the optimum
    """

    time: float
    age: float
    reads: int
    hits: int

    @property
    def success(self) -> float:
        """The part of the reads that found the optimum."""
        return self.hits / self.reads

    @property
    def evened(self) -> float:
        """The success, on a scale where its standard deviation is 1 whatever it is.

        Anscombe, Biometrika 35, 1948, p. 246.
        """
        share = (self.hits + 3 / 8) / (self.reads + 3 / 4)
        return math.sqrt(4 * self.reads + 2) * math.asin(math.sqrt(share))


@dataclass(frozen=True)
class Usual:
    """What success is usual: a straight line over the age of the calibration.

    :param spread: the standard deviation about it, 1 if chance is all there is
    """

    begin: float
    slope: float
    spread: float

    @classmethod
    def of(cls, samples: Sequence[Sample], learn: int) -> Usual | None:
        """Learn from the first samples that suffice, by least squares.

        They suffice if there are so many of them, from nearly all ages; or, where a
        restart or the pause between two jobs allows no such spread, :data:`LEARNED`.

        :returns: ``None`` while they do not suffice
        """
        for number in range(learn, len(samples) + 1):
            ages = [sample.age for sample in samples[:number]]
            if max(ages) - min(ages) >= SPREAD:
                return cls._fitted(samples[:number])
        if len(samples) >= max(learn, LEARNED):
            return cls._fitted(samples[: max(learn, LEARNED)])
        return None

    @classmethod
    def _fitted(cls, samples: Sequence[Sample]) -> Usual:
        number = len(samples)
        age = sum(sample.age for sample in samples) / number
        mean = sum(sample.evened for sample in samples) / number
        squares = sum((sample.age - age) ** 2 for sample in samples)
        products = sum((one.age - age) * (one.evened - mean) for one in samples)
        slope = products / squares if squares else 0.0
        begin = mean - slope * age
        rest = sum((one.evened - begin - slope * one.age) ** 2 for one in samples)
        return cls(begin, slope, max(1.0, math.sqrt(rest / max(1, number - 2))))

    def deviation(self, sample: Sample) -> float:
        """Tell how far off a sample is, in standard deviations."""
        return (sample.evened - self.begin - self.slope * sample.age) / self.spread


class QualityJobs:
    """Submits quality jobs when they are due, one at a time, and remembers how they went.

    A job enters the queue like a user's, of a class of its own, under a lease that takes
    no vQPU. One that a service leaves behind is cancelled by the next, which runs
    another; those that were over count for when the next is due.

    The queue's drift alarm is told of each, once it is known what is usual.
    """

    def __init__(self, queue: JobQueue, settings: QualitySettings) -> None:
        self.last: Sample | None = None
        #: ``None`` while it is being learned
        self.usual: Usual | None = None
        self._queue = queue
        self._settings = settings
        self._device = self._described()
        self._samples: list[Sample] = []

    async def work(self) -> None:
        """Run jobs until cancelled."""
        await self._read()
        begun = self.last.time if self.last else 0.0
        while True:
            due = begun + (self._settings.every_seconds or math.inf)
            await asyncio.sleep(max(0.0, due - time.time()))
            await self._queue.availability.opened()
            try:
                await self._run()
            except Refused as error:
                logger.warning("no quality job: %s", error.detail)
            except sqlite3.Error as error:
                logger.warning("a quality job is lost: %s", error)
            begun = time.time()

    def _described(self) -> str:
        """Tell what the device is: what is usual for one is not for another."""
        device = self._queue.device
        return (
            f"{device.name}/{device.technology}/{device.size}/{device.noise:g}"
            f"/{self._settings.num_reads}"
        )

    async def _run(self) -> None:
        if (described := self._described()) != self._device:  # it was set otherwise
            self._device = described
            await self._read()
        bqm = quality_problem.problem(self._queue.device.size)
        lease = _closed_lease()
        parameters = {"num_reads": self._settings.num_reads}
        asked = Submission("problem", bqm, parameters, lease.id)
        job = await self._queue.submit_service_job(lease, asked)
        while not job.final:
            if self._queue.failure:
                return
            job = await self._queue.wait(WHO, job.id, WAIT_SECONDS)
        if job.state == "Completed":
            await self._remember(job, quality_problem.optimum(bqm))
        else:
            logger.warning("a quality job: %s: %s", job.state.lower(), job.note)

    async def _remember(self, job: Job, optimum: float) -> None:
        if self._described() != self._device:  # nobody knows which one it ran on
            return
        result = json.loads(self._queue.store.result(job.number) or "null")
        hits, reads = quality_problem.hits(result, optimum)
        present = self._queue.device.calibration
        same = (job.calibration or {}).get("id") == present.id
        sample = Sample(time.time(), present.age if same else 1.0, reads, hits)
        await asyncio.wrap_future(
            self._queue.store.change(lambda db: self._insert(db, sample))
        )
        self.last = sample
        if self.usual is None:
            self._samples.append(sample)
            self.usual = Usual.of(self._samples, self._settings.learn)
        elif same:
            self._queue.drift.renewed(present.id)
            self._queue.drift.observe(SERIES, self.usual.deviation(sample))

    def _insert(self, db: sqlite3.Connection, sample: Sample) -> None:
        db.execute(
            "INSERT INTO quality (time, age, reads, hits, device) "
            "VALUES (?, ?, ?, ?, ?)",
            (*astuple(sample), self._device),
        )

    async def _read(self) -> None:
        """Find what was learned of the device before, and its last job."""
        query = (
            "SELECT time, age, reads, hits FROM quality WHERE device = ? "
            "ORDER BY number {} LIMIT ?"
        )
        report, learn = self._queue.store.report, self._settings.learn
        most = max(LEARNED, learn)
        # in a thread: all reports are made one after the other
        first = await asyncio.to_thread(report, query.format("ASC"), self._device, most)
        latest = await asyncio.to_thread(report, query.format("DESC"), self._device, 1)
        self._samples = [Sample(*row) for row in first]
        self.usual = Usual.of(self._samples, learn)
        self.last = next((Sample(*row) for row in latest), None)


def _closed_lease() -> Lease:
    now = time.time()
    return Lease(
        id=f"quality-{secrets.token_hex(8)}",
        user=WHO.user,
        job_class="quality",
        job="a quality job",
        slurm_job_id=None,
        partition=None,
        expected_seconds=None,
        pattern=None,
        key=None,
        opened=now,
        expires=None,
        closed=now,
        reason="of the service itself",
    )
