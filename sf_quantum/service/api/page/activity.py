"""What goes on, as the page shows it: read once a second for all who look."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from sf_quantum.service.api.page import calibration_history
from sf_quantum.service.api.page.models import (
    ActivityAnswer,
    CalibrationShown,
    DeviceShown,
    LeasesShown,
    MaintenanceShown,
    OtherJobs,
    ShownJob,
    ShownLease,
    Utilisation,
)
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.domain.jobs import CLASSES, Forecast, Job, JobClass
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.leases import visible
from sf_quantum.service.store.utilisation import UtilisationHistory

# how long a view stays as it is
FRESH_SECONDS = 1.0
# of the line; of each user's own jobs that are farther back; and how far that is at most
LISTED, OWN, FAR = 200, 10, 20_000
ENDED = 10
LEASES = 100
Sees: TypeAlias = Literal["all", "own", "counts"]


@dataclass(frozen=True)
class View:
    """An answer, ready to be sent.

    :param etag: tells it from others, as HTTP writes it
    """

    etag: str
    body: bytes


@dataclass(frozen=True)
class _Common:
    """What is the same for all who look, at one moment.

    :param line: the first jobs that wait, in the order they will run
    :param back: by user, the numbers of the first jobs that are farther back
    :param waiting: how many jobs wait
    """

    now: float
    device: DeviceShown
    running: tuple[Job, Forecast] | None
    line: list[tuple[Job, Forecast]]
    back: dict[str, list[int]]
    waiting: dict[JobClass, int]
    utilisation: Utilisation
    calibration: CalibrationShown


class Activity:
    """Makes the views; belongs to the event loop of the queue.

    However many look, the store is read once a second, and once more for each user among
    them; and not at all while nobody looks.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._busy = UtilisationHistory(queue.store, queue.observations.interrupted)
        self._read_at = float("-inf")
        self._common: asyncio.Task[_Common] | None = None
        self._views: dict[Identity | None, asyncio.Task[View]] = {}

    async def view(self, who: Identity | None) -> View:
        """Tell what somebody may see, as of at most a second ago.

        :param who: ``None`` for those who are not known, who see counts only
        """
        common = self._current()
        if who not in self._views:
            self._views[who] = asyncio.create_task(self._view(who, common))
        # who goes away does not take it from the others
        return await asyncio.shield(self._views[who])

    def _current(self) -> asyncio.Task[_Common]:
        now, common = time.monotonic(), self._common
        fresh = now - self._read_at < FRESH_SECONDS
        if common is not None and (fresh or not common.done()):
            return common
        self._read_at = now
        self._views = {}
        self._common = asyncio.create_task(self._read())
        return self._common

    async def _read(self) -> _Common:
        queue, now = self._queue, time.time()
        numbers, back = self._numbers()
        jobs = await asyncio.to_thread(queue.store.jobs_by_number, numbers)
        utilisation = await asyncio.to_thread(self._utilisation, now)
        calibration = await asyncio.to_thread(calibration_history.tell, queue)
        # from here on there is no await: no part contradicts another
        now, running = time.time(), queue.running
        if running is not None and running.state != "Running":
            running = None  # it is about to begin, or has just ended
        order = {number: place for place, number in enumerate(numbers)}
        jobs.sort(key=lambda job: order[job.number])
        return _Common(
            now,
            self._device(),
            next(iter(self._forecast([running] if running else [])), None),
            [
                (job, forecast)
                for job, forecast in self._forecast(jobs)
                if running is None or job.number != running.number
            ],
            back,
            {name: jobs for name, jobs in queue.lengths.items() if jobs},
            utilisation,
            calibration,
        )

    def _numbers(self) -> tuple[list[int], dict[str, list[int]]]:
        numbers, back = list[int](), defaultdict[str, list[int]](list)
        for place, entry in enumerate(islice(self._queue.policy.order(), FAR)):
            if place < LISTED:
                numbers.append(entry.number)
            elif len(own := back[entry.user]) < OWN:
                own.append(entry.number)
        return numbers, back

    def _forecast(self, jobs: Iterable[Job]) -> list[tuple[Job, Forecast]]:
        """Forecast those that are not over."""
        all_ = ((job, self._queue.forecast(job)) for job in jobs)
        return [(job, forecast) for job, forecast in all_ if forecast is not None]

    def _utilisation(self, now: float) -> Utilisation:
        minutes = self._busy.minutes(now)
        return Utilisation(
            until=now // 60 * 60,
            minutes=[round(minute, 3) for minute in minutes],
            mean=round(sum(minutes) / len(minutes), 3),
        )

    async def _view(self, who: Identity | None, reading: asyncio.Task[_Common]) -> View:
        common, store = await asyncio.shield(reading), self._queue.store
        own, ended = list[Job](), list[Job]()
        if who is not None:
            user = None if who.admin else who.user
            if user is not None and (back := common.back.get(user)):
                own = await asyncio.to_thread(store.jobs_by_number, back)
            ended = await asyncio.to_thread(store.last_ended, ENDED, user)
        told = self._tell(who, common, own, ended).model_dump_json(by_alias=True)
        body = told.encode()
        return View(f'"{hashlib.sha256(body).hexdigest()[:32]}"', body)

    def _tell(
        self, who: Identity | None, common: _Common, own: list[Job], ended: list[Job]
    ) -> ActivityAnswer:
        now = common.now
        return ActivityAnswer(
            viewer=who.user if who else None,
            sees=_sees(who),
            device=common.device,
            waiting=common.waiting,
            running=_running(who, common),
            line=self._line(who, common, own) if who else [],
            ended=[
                ShownJob.of(job, None, now) for job in ended if (job.ended or 0) <= now
            ],
            leases=self._leases(who),
            utilisation=common.utilisation,
            calibration=common.calibration,
        )

    def _device(self) -> DeviceShown:
        queue, availability = self._queue, self._queue.availability
        status = "online" if availability.is_open else availability.status
        coming = (
            MaintenanceShown(starts=one.starts, ends=one.ends, message=one.message)
            for one in availability.windows
            if one.starts > time.time()
        )
        return DeviceShown(
            name=queue.device.name,
            technology=queue.device.technology,
            qubits=queue.device.qubits,
            out_of_service=len(queue.device.out_of_service),
            status="offline" if queue.failure else status,
            reason=queue.failure or availability.reason,
            maintenance=next(coming, None),
        )

    def _leases(self, who: Identity | None) -> LeasesShown:
        held = self._queue.leases.held
        shown = [lease for lease in held if who is not None and visible(who, lease)]
        return LeasesShown(
            vqpus=self._queue.leases.vqpus,
            held=len(held),
            waiting=self._queue.leases.waiting,
            shown=[ShownLease.of(lease) for lease in shown[:LEASES]],
        )

    def _line(
        self, who: Identity, common: _Common, own: list[Job]
    ) -> list[ShownJob | OtherJobs]:
        line = _Line(int(common.running is not None))
        for job, forecast in common.line:
            if sees(who, job):
                line.show(ShownJob.of(job, forecast, common.now))
            else:
                line.count(job.job_class)
        running = common.running[0].number if common.running else None
        rest = self._forecast(job for job in own if job.number != running)
        rest.sort(key=lambda pair: pair[1].position)
        for job, forecast in rest:
            line.skip_to(forecast.position)
            line.show(ShownJob.of(job, forecast, common.now))
        return line.finish(sum(common.waiting.values()))


class _Line:
    """Puts a line together; jobs that are not shown become a number.

    :param before: how many run already
    """

    def __init__(self, before: int) -> None:
        self._rows = list[ShownJob | OtherJobs]()
        self._before = before
        self._waiting = 0
        self._classes: Counter[JobClass] = Counter()
        self._jobs = 0

    def skip_to(self, position: int) -> None:
        """Count those of whom nothing else is known, up to a job's place."""
        missing = position - self._before - self._waiting
        if missing > 0:
            self._waiting += missing
            self._jobs += missing

    def count(self, job_class: JobClass) -> None:
        """Add a job without its details."""
        self._waiting += 1
        self._jobs += 1
        self._classes[job_class] += 1

    def show(self, job: ShownJob) -> None:
        """Add a job with its details."""
        self._end_count()
        self._waiting += 1
        self._rows.append(job)

    def finish(self, waiting: int) -> list[ShownJob | OtherJobs]:
        """Give the line, of so many jobs in all."""
        self.skip_to(self._before + waiting)
        self._end_count()
        return self._rows

    def _end_count(self) -> None:
        if self._jobs:
            classes = {name: self._classes[name] for name in CLASSES}
            told = {name: jobs for name, jobs in classes.items() if jobs}
            self._rows.append(OtherJobs(jobs=self._jobs, classes=told))
        self._classes.clear()
        self._jobs = 0


def sees(who: Identity | None, job: Job) -> bool:
    """Say whether somebody may see the details of a job."""
    return who is not None and (who.admin or who.user == job.user)


def _running(who: Identity | None, common: _Common) -> ShownJob | OtherJobs | None:
    if common.running is None:
        return None
    job, forecast = common.running
    if sees(who, job):
        return ShownJob.of(job, forecast, common.now)
    return OtherJobs(jobs=1, classes={job.job_class: 1})


def _sees(who: Identity | None) -> Sees:
    if who is None:
        return "counts"
    return "all" if who.admin else "own"
