"""The content of the page, read at most once a second for all viewers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, islice

from sf_quantum.service.api.common import qpu_reason, qpu_status
from sf_quantum.service.api.page import calibration_history
from sf_quantum.service.api.page.models import (
    ActivityAnswer,
    CalibrationShown,
    DeviceShown,
    LeasesShown,
    MaintenanceShown,
    OtherJobs,
    Sees,
    ShownJob,
    ShownLease,
    Utilisation,
)
from sf_quantum.service.domain.jobs import CLASSES, Forecast, Identity, Job, JobClass
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.leases import visible
from sf_quantum.service.store.utilisation import UtilisationHistory

# how long an answer is reused
FRESH_SECONDS = 1.0
# pending jobs listed, a user's own jobs listed beyond these, and jobs searched for them
LISTED, OWN, SEARCHED = 200, 10, 20_000
ENDED = 10
LEASES = 100


@dataclass(frozen=True)
class _Snapshot:
    """The content that is the same for all viewers.

    :param pending: the first jobs in the order they will run
    :param own: by user, the numbers of the user's first jobs behind these
    :param waiting: the number of pending jobs
    """

    now: float
    device: DeviceShown
    running: tuple[Job, Forecast] | None
    pending: list[tuple[Job, Forecast]]
    own: dict[str, list[int]]
    waiting: dict[JobClass, int]
    utilisation: Utilisation
    calibration: CalibrationShown


class Activity:
    """Makes the answers for the page, in the event loop of the queue.

    However many viewers there are, the store is read once a second, and once more for
    each user among them; without viewers it is not read at all.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._history = UtilisationHistory(queue.store, queue.observations.interrupted)
        self._read_at = float("-inf")
        self._snapshot: asyncio.Task[_Snapshot] | None = None
        self._answers: dict[Identity | None, asyncio.Task[bytes]] = {}

    async def answer(self, who: Identity | None) -> bytes:
        """Return what a viewer may see, at most a second old.

        :param who: ``None`` for a viewer without a credential, who sees counts only
        """
        snapshot = self._fresh_snapshot()
        if who not in self._answers:
            self._answers[who] = asyncio.create_task(self._make(who, snapshot))
        # a viewer who leaves must not cancel it for the others
        return await asyncio.shield(self._answers[who])

    def _fresh_snapshot(self) -> asyncio.Task[_Snapshot]:
        now, snapshot = time.monotonic(), self._snapshot
        fresh = now - self._read_at < FRESH_SECONDS
        if snapshot is not None and (fresh or not snapshot.done()):
            return snapshot
        self._read_at = now
        self._answers = {}
        self._snapshot = asyncio.create_task(self._read())
        return self._snapshot

    async def _read(self) -> _Snapshot:
        queue, now = self._queue, time.time()
        numbers, own = self._pending_numbers()
        jobs = await asyncio.to_thread(queue.store.jobs_by_number, numbers)
        minutes = await asyncio.to_thread(self._history.minutes, now)
        calibration = await asyncio.to_thread(calibration_history.describe, queue)
        # from here on there is no await, so that all parts are of the same moment
        now, running = time.time(), queue.running
        if running is not None and running.state != "Running":
            running = None  # it is about to start, or has just ended
        positions = {number: position for position, number in enumerate(numbers)}
        jobs.sort(key=lambda job: positions[job.number])
        return _Snapshot(
            now=now,
            device=self._device(),
            running=next(iter(self._forecast([running] if running else [])), None),
            pending=[
                (job, forecast)
                for job, forecast in self._forecast(jobs)
                if running is None or job.number != running.number
            ],
            own=own,
            waiting={name: jobs for name, jobs in queue.lengths.items() if jobs},
            utilisation=Utilisation(
                until=now // 60 * 60,
                minutes=[round(minute, 3) for minute in minutes],
                mean=round(sum(minutes) / len(minutes), 3),
            ),
            calibration=calibration,
        )

    def _pending_numbers(self) -> tuple[list[int], dict[str, list[int]]]:
        numbers, others = list[int](), defaultdict[str, list[int]](list)
        for entry in islice(self._queue.policy.order(), SEARCHED):
            if len(numbers) < LISTED:
                numbers.append(entry.number)
            elif len(own := others[entry.user]) < OWN:
                own.append(entry.number)
        return numbers, others

    def _forecast(self, jobs: Iterable[Job]) -> list[tuple[Job, Forecast]]:
        """Forecast the jobs that are not over."""
        all_ = ((job, self._queue.forecast(job)) for job in jobs)
        return [(job, forecast) for job, forecast in all_ if forecast is not None]

    def _device(self) -> DeviceShown:
        device, now = self._queue.device, time.time()
        windows = self._queue.availability.windows
        announced = (
            MaintenanceShown.of(window) for window in windows if window.starts > now
        )
        return DeviceShown(
            name=device.name,
            technology=device.technology,
            qubits=device.qubits,
            out_of_service=len(device.out_of_service),
            status=qpu_status(self._queue),
            reason=qpu_reason(self._queue),
            maintenance=next(announced, None),
        )

    async def _make(
        self, who: Identity | None, reading: asyncio.Task[_Snapshot]
    ) -> bytes:
        snapshot, store = await asyncio.shield(reading), self._queue.store
        own, ended = list[Job](), list[Job]()
        if who is not None:
            user = None if who.admin else who.user
            if user is not None and (numbers := snapshot.own.get(user)):
                own = await asyncio.to_thread(store.jobs_by_number, numbers)
            ended = await asyncio.to_thread(store.last_ended, ENDED, user)
        now = snapshot.now
        answer = ActivityAnswer(
            viewer=who.user if who else None,
            sees=_sees(who),
            device=snapshot.device,
            waiting=snapshot.waiting,
            running=_running(who, snapshot),
            line=self._pending(who, snapshot, own) if who else [],
            ended=[
                ShownJob.of(job, None, now) for job in ended if (job.ended or 0) <= now
            ],
            leases=self._leases(who),
            utilisation=snapshot.utilisation,
            calibration=snapshot.calibration,
        )
        return answer.model_dump_json(by_alias=True).encode()

    def _leases(self, who: Identity | None) -> LeasesShown:
        held = self._queue.leases.held
        shown = [lease for lease in held if who is not None and visible(who, lease)]
        return LeasesShown(
            vqpus=self._queue.leases.vqpus,
            held=len(held),
            waiting=self._queue.leases.waiting,
            shown=[ShownLease.of(lease) for lease in shown[:LEASES]],
        )

    def _pending(
        self, who: Identity, snapshot: _Snapshot, own: list[Job]
    ) -> list[ShownJob | OtherJobs]:
        now, running = snapshot.now, snapshot.running
        rows = [_row(who, job, forecast, now) for job, forecast in snapshot.pending]
        first = 0 if running is None else 1
        position = first + len(rows)
        farther = self._forecast(
            job for job in own if running is None or job.number != running[0].number
        )
        for job, forecast in sorted(farther, key=lambda pair: pair[1].position):
            between = max(0, forecast.position - position)
            rows.append(OtherJobs(jobs=between, classes={}))
            rows.append(ShownJob.of(job, forecast, now))
            position += between + 1
        rest = max(0, first + sum(snapshot.waiting.values()) - position)
        rows.append(OtherJobs(jobs=rest, classes={}))
        return _merged(rows)


def _merged(rows: list[ShownJob | OtherJobs]) -> list[ShownJob | OtherJobs]:
    """Merge jobs without details that follow each other."""
    merged = list[ShownJob | OtherJobs]()
    for kind, group in groupby(rows, type):
        if kind is ShownJob:
            merged += group
            continue
        jobs, classes = 0, Counter[JobClass]()
        for row in group:
            if isinstance(row, OtherJobs):
                jobs += row.jobs
                classes.update(row.classes)
        if jobs:
            ordered = {name: classes[name] for name in CLASSES if classes[name]}
            merged.append(OtherJobs(jobs=jobs, classes=ordered))
    return merged


def _row(
    who: Identity | None, job: Job, forecast: Forecast, now: float
) -> ShownJob | OtherJobs:
    if who is not None and (who.admin or who.user == job.user):
        return ShownJob.of(job, forecast, now)
    return OtherJobs(jobs=1, classes={job.job_class: 1})


def _running(who: Identity | None, snapshot: _Snapshot) -> ShownJob | OtherJobs | None:
    if snapshot.running is None:
        return None
    job, forecast = snapshot.running
    return _row(who, job, forecast, snapshot.now)


def _sees(who: Identity | None) -> Sees:
    if who is None:
        return "counts"
    return "all" if who.admin else "own"
