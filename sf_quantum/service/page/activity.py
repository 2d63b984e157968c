"""``GET /v1/activity``, the content of the page; times are seconds since the epoch."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field

from sf_quantum.service.dialects.common import qpu_reason, qpu_status
from sf_quantum.service.dialects.v1.models import Strict
from sf_quantum.service.domain.jobs import (
    CLASSES,
    Forecast,
    Identity,
    Job,
    JobClass,
    Kind,
    Lease,
    State,
)
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.leases.live_leases import visible
from sf_quantum.service.store.reports.operation import Operation
from sf_quantum.service.store.reports.usage import used_by_leases
from sf_quantum.service.store.reports.utilisation import Minute, UtilisationHistory

# time for which a response is reused
FRESH_SECONDS = 1.0
# LISTED: number of pending jobs that are listed. OWN: number of a viewer's own jobs that are
# listed in addition. SEARCHED: number of pending jobs that are searched for a viewer's jobs.
LISTED, OWN, SEARCHED = 200, 10, 20_000
ENDED = 10
LEASES = 100
WINDOWS = 10
Sees: TypeAlias = Literal["all", "own", "counts"]


class ShownJob(Strict):
    """A job whose details the caller may see."""

    id: str
    short_id: str = Field(
        description="A short name for users: the beginning of the job's id, or the "
        "number of a job of warden's API."
    )
    label: str | None = Field(
        description="The user's name for the job: the label of a SAPI problem, or "
        "otherwise the purpose of the job or of its lease."
    )
    user: str
    job_class: JobClass = Field(alias="class")
    kind: Kind
    idempotency_key: str
    shots: int
    state: State
    attempt: int
    note: str | None = Field(
        description="Why the job ended in this state, was started again, or cannot "
        "start now."
    )
    position: int | None = Field(
        description="Number of jobs that run before this job, including the running "
        "job; null after the job has ended."
    )
    starts: float | None = Field(
        description="Expected start of the job; null unless the job is pending and "
        "may start."
    )
    ends: float | None = Field(
        description="Expected end of the job; null unless the job is running."
    )
    submitted: float
    started: float | None
    ended: float | None
    seconds: float = Field(
        description="Time on the device of the attempt with which the job ended."
    )
    lost_seconds: float = Field(
        description="Time on the device of the job's interrupted attempts."
    )
    cost: float | None = Field(
        description="Cost of the job, in the site's unit; null if the device had no "
        "price."
    )


class OtherJobs(Strict):
    """Consecutive jobs whose details the caller may not see."""

    jobs: int
    classes: dict[JobClass, int] = Field(
        description="How many of each class; jobs far back in the queue are left out."
    )


class ShownLease(Strict):
    """A lease without its id, since the id is a secret."""

    user: str
    job_class: JobClass = Field(alias="class")
    job: str | None
    slurm_job_id: str | None
    opened: float
    ends: float | None = Field(
        description="Time at which the lease ends at the latest, or earlier unless it "
        "is used; null: no limit."
    )
    qpu_seconds: float = Field(description="QPU time of the lease's ended jobs.")


class LeasesShown(Strict):
    """The leases that are held."""

    vqpus: int = Field(description="Number of leases that may be held at once.")
    held: int
    waiting: int = Field(description="Pending requests for a lease.")
    shown: list[ShownLease] = Field(
        description="The leases that the caller may see, at most 100."
    )


class MaintenanceShown(Strict):
    """A maintenance window."""

    starts: float
    ends: float | None = Field(
        description="End of the window; null: the window lasts until the operator "
        "opens the QPU."
    )
    message: str


class DeviceShown(Strict):
    """The device."""

    name: str
    technology: str
    qubits: int
    out_of_service: int = Field(description="Number of qubits that are out of service.")
    status: str = Field(description="online, draining, closed or offline")
    reason: str = Field(
        description="Why the device is not online; empty if it is online."
    )
    trouble: str = Field(
        description="A problem that impairs the device although it is online; empty "
        "if there is none."
    )
    closed_by: str | None = Field(
        description="The operator who has drained or closed the QPU; null if there is "
        "none, or if the viewer sees only counts."
    )
    in_maintenance: bool = Field(
        description="Whether the device is not online because of a maintenance "
        "window."
    )
    maintenance: MaintenanceShown | None = Field(
        description="The next maintenance window, if there is one."
    )
    windows: list[MaintenanceShown] = Field(
        description="The present maintenance window and the next ones, at most 10."
    )


class Utilisation(Strict):
    """How busy the device was."""

    until: float = Field(description="The beginning of the last minute.")
    minutes: list[float | None] = Field(
        description="The share of each of the last 60 minutes, 0 to 1, in which the "
        "device was busy; the last minute has not ended yet. Null for "
        "minutes in which the service did not run."
    )
    statuses: list[Operation | None] = Field(
        description="Status of the QPU during most of each of these minutes; null if "
        "unknown."
    )
    mean: float = Field(
        description="The mean over the time within these minutes in which the service "
        "ran."
    )


class CalibrationValue(Strict):
    """One error of the device."""

    name: str
    value: float
    history: list[float] = Field(
        description="The values at the times in `times` of the calibration."
    )


class CalibrationShown(Strict):
    """The present calibration, and the history of its values."""

    id: str
    made: float
    times: list[float] = Field(
        description="Times of the values in `history`; the last is now."
    )
    renewals: list[float] = Field(
        description="Times within this period at which the calibration was renewed."
    )
    values: list[CalibrationValue]
    alarms: list[str] = Field(
        description="The values that drift, in the order of the alarms."
    )


class ActivityAnswer(Strict):
    """The content of the page: admins see all jobs, other users their own jobs and counts."""

    viewer: str | None = Field(description="The caller; null without a credential.")
    sees: Sees
    device: DeviceShown
    waiting: dict[JobClass, int]
    running: ShownJob | OtherJobs | None
    line: list[ShownJob | OtherJobs] = Field(
        description="The pending jobs in the order in which they will run, followed "
        "by the jobs that wait with their lease for a vQPU; empty if the "
        "viewer sees only counts."
    )
    ended: list[ShownJob] = Field(description="The latest ended jobs, newest first.")
    leases: LeasesShown
    utilisation: Utilisation
    calibration: CalibrationShown | None


class _Moment(NamedTuple):
    """A moment by the system's clock and by the store's clock."""

    wall: float
    steady: float

    def by_wall(self, steady: float) -> float:
        """Convert a time to the system's clock; rounded, so that responses do not differ."""
        return steady + round(self.wall - self.steady, 1)


@dataclass(frozen=True)
class _Snapshot:
    """The state of the queue from which the responses to all viewers are made.

    :param counts: the response to viewers who only see counts
    :param running: the running job, if there is one
    :param pending: the first pending jobs, in the order they will run
    :param farther: numbers of each user's first jobs behind ``pending``, by user
    :param labels: labels of the running and the pending jobs, by number
    """

    now: _Moment
    counts: ActivityAnswer
    running: list[tuple[Job, Forecast]]
    pending: list[tuple[Job, Forecast]]
    farther: dict[str, list[int]]
    labels: Mapping[int, str]


class Activity:
    """Makes the responses for the page, in the event loop of the queue.

    The store is read at most once a second for all viewers together, and once more for each
    user among the viewers; without viewers, it is not read at all.
    """

    def __init__(self, queue: JobQueue, numbered: frozenset[str] = frozenset()) -> None:
        """Create the activity of a queue.

        :param numbered: dialects whose users identify jobs by their numbers
        """
        self._queue = queue
        self._numbered = numbered
        self._history = UtilisationHistory(queue.store, queue.observations.interrupted)
        self._read_at = float("-inf")
        self._snapshot: asyncio.Task[_Snapshot] | None = None
        self._answers: dict[Identity | None, asyncio.Task[bytes]] = {}

    async def answer(self, who: Identity | None) -> bytes:
        """Return the response to a viewer; it is at most a second old.

        :param who: the viewer; ``None`` without a credential: such a viewer only sees counts
        """
        snapshot = self._fresh_snapshot()
        if who not in self._answers:
            self._answers[who] = asyncio.create_task(self._make(who, snapshot))
        # a viewer who disconnects must not cancel the response to other viewers
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
        queue, steady = self._queue, self._queue.store.clock()
        numbers, farther = self._pending_numbers()
        jobs = await asyncio.to_thread(queue.store.jobs.by_number, numbers)
        forecasts = await queue.forecasts.of_all(jobs)
        minutes = await asyncio.to_thread(self._history.minutes, steady)
        calibration = await asyncio.to_thread(_calibration, queue)
        # no await until the counts are made, so all their parts show the same moment
        now, job = _Moment(time.time(), queue.store.clock()), queue.running
        # a job in another state is about to start, or has just ended
        forecast = queue.forecasts.of(job) if job and job.state == "Running" else None
        running = [(job, forecast)] if job and forecast else []
        waiting = [*islice(queue.forecasts.waiting(), SEARCHED)]
        still_waiting = {entry.number for entry in waiting}
        still_pending = [
            number
            for number in numbers
            if queue.jobs.pending.get(number) or number in still_waiting
        ]
        lengths = queue.jobs.pending.lengths
        lengths = lengths + Counter(entry.job_class for entry in waiting)
        availability, description = queue.availability, queue.device.description
        windows = [
            MaintenanceShown.model_validate(window, from_attributes=True)
            for window in availability.windows[:WINDOWS]
        ]
        counts = ActivityAnswer(
            viewer=None,
            sees="counts",
            device=DeviceShown(
                name=queue.device.name,
                technology=description.technology,
                qubits=description.qubits + len(description.out_of_service),
                out_of_service=len(description.out_of_service),
                status=qpu_status(queue),
                reason=qpu_reason(queue),
                trouble=queue.device.status.trouble,
                closed_by=None,
                in_maintenance=availability.in_maintenance,
                maintenance=next((w for w in windows if w.starts > now.wall), None),
                windows=windows,
            ),
            waiting=dict(lengths),
            running=_hidden_job(running[0][0]) if running else None,
            line=[],
            ended=[],
            leases=self._leases(None, {}),
            utilisation=_utilisation(now.by_wall(now.steady // 60 * 60), minutes),
            calibration=calibration,
        )
        listed = await asyncio.to_thread(forecasts)
        forecast_of = {job.number: (job, f) for job, f in listed if f}
        pending = [
            forecast_of[number] for number in still_pending if number in forecast_of
        ]
        numbers = [job.number for job, _ in (*running, *pending)]
        labels = await asyncio.to_thread(queue.store.jobs.labels, numbers)
        return _Snapshot(now, counts, running, pending, farther, labels)

    def _pending_numbers(self) -> tuple[list[int], dict[str, list[int]]]:
        numbers, farther = list[int](), defaultdict[str, list[int]](list)
        entries = chain(self._queue.forecasts.order(), self._queue.forecasts.waiting())
        for entry in islice(entries, SEARCHED):
            if len(numbers) < LISTED:
                numbers.append(entry.number)
            elif len(user_numbers := farther[entry.user]) < OWN:
                user_numbers.append(entry.number)
        return numbers, farther

    async def _make(
        self, who: Identity | None, reading: asyncio.Task[_Snapshot]
    ) -> bytes:
        snapshot = await asyncio.shield(reading)
        if who is None:
            return await asyncio.to_thread(_dump, snapshot.counts)
        far_jobs, ended = await asyncio.to_thread(self._read_for, who, snapshot)
        forecasts = await self._queue.forecasts.of_all(far_jobs)
        held = [lease.id for lease in self._visible(who)]
        used = await asyncio.to_thread(used_by_leases, self._queue.store, held)
        leases = self._leases(who, used)
        closed_by = {"closed_by": self._queue.availability.user}
        running_numbers = {job.number for job, _ in snapshot.running}

        def make() -> bytes:
            numbers = [job.number for job in (*far_jobs, *ended)]
            labels = {**snapshot.labels, **self._queue.store.jobs.labels(numbers)}
            rows = _Rows(who, snapshot.now, labels, self._numbered)
            farther = [
                (job, f)
                for job, f in forecasts()
                if f and job.number not in running_numbers
            ]
            running = [rows.row(*pair) for pair in snapshot.running]
            changes = {
                "viewer": who.user,
                "sees": "all" if who.admin else "own",
                "device": snapshot.counts.device.model_copy(update=closed_by),
                "running": running[0] if running else None,
                "line": _pending_rows(rows, snapshot, farther),
                "ended": [
                    rows.shown(job, None)
                    for job in ended
                    if (job.ended_steady or 0) <= snapshot.now.steady
                ],
                "leases": leases,
            }
            return _dump(snapshot.counts.model_copy(update=changes))

        return await asyncio.to_thread(make)

    def _read_for(
        self, who: Identity, snapshot: _Snapshot
    ) -> tuple[list[Job], list[Job]]:
        """Read the user's jobs far back in the queue, and the latest ended jobs."""
        store, user = self._queue.store, None if who.admin else who.user
        numbers = [] if user is None else snapshot.farther.get(user, [])
        return store.jobs.by_number(numbers), store.jobs.last_ended(ENDED, user)

    def _visible(self, who: Identity | None) -> list[Lease]:
        held = self._queue.leases.held
        shown = [lease for lease in held if who is not None and visible(who, lease)]
        return shown[:LEASES]

    def _leases(self, who: Identity | None, used: Mapping[str, float]) -> LeasesShown:
        """Describe the leases for a viewer.

        :param used: QPU seconds of the jobs that have ended, by lease
        """
        leases = self._queue.leases
        return LeasesShown(
            vqpus=self._queue.vqpus.number,
            held=len(leases.held),
            waiting=leases.waiting,
            shown=[
                ShownLease(
                    user=lease.user,
                    **{"class": lease.job_class},
                    job=lease.job,
                    slurm_job_id=lease.slurm_job_id,
                    opened=lease.opened,
                    ends=self._end(lease),
                    qpu_seconds=round(used.get(lease.id, 0.0), 1),
                )
                for lease in self._visible(who)
            ],
        )

    def _end(self, lease: Lease) -> float | None:
        """Return when a lease ends if it is not used; rounded, so that it rarely changes."""
        ends = [lease.expires, self._queue.leases.idle_expires_at(lease)]
        times = [end for end in ends if end is not None]
        return min(times) // 60 * 60 if times else None


@dataclass(frozen=True)
class _Rows:
    """Describes jobs for one viewer.

    :param labels: labels of the jobs, by number
    :param numbered: dialects whose users identify jobs by their numbers
    """

    who: Identity
    now: _Moment
    labels: Mapping[int, str]
    numbered: frozenset[str]

    def row(self, job: Job, forecast: Forecast) -> ShownJob | OtherJobs:
        if self.who.admin or self.who.user == job.user:
            return self.shown(job, forecast)
        return _hidden_job(job)

    def shown(self, job: Job, forecast: Forecast | None) -> ShownJob:
        now, starts, started, ends = self.now, None, job.started, None
        if forecast is not None and job.state == "Running":
            # correct even if the system's clock was set since the start
            started = now.by_wall(job.started_steady or now.steady)
            ends = round(started + forecast.expected_run_seconds, 1)
        elif forecast is not None and forecast.eta_seconds is not None:
            starts = round(now.wall + forecast.eta_seconds, 1)
        shown = vars(job) | {
            "short_id": str(job.number) if job.dialect in self.numbered else job.id[:8],
            "label": self.labels.get(job.number),
            "idempotency_key": job.key,
            "shots": job.shots,
            "note": job.note or (forecast and forecast.reason) or None,
            "position": forecast.position if forecast else None,
            "started": started,
            "starts": starts,
            "ends": ends,
        }
        return ShownJob(**{name: shown[name] for name in ShownJob.model_fields})


def _dump(answer: ActivityAnswer) -> bytes:
    return answer.model_dump_json(by_alias=True).encode()


def _pending_rows(
    shown: _Rows, snapshot: _Snapshot, farther: list[tuple[Job, Forecast]]
) -> list[ShownJob | OtherJobs]:
    """List the first pending jobs, and the viewer's own jobs farther back."""
    rows = [shown.row(*pair) for pair in snapshot.pending]
    position = first = len(snapshot.running)
    position += len(rows)
    for job, forecast in sorted(farther, key=lambda pair: pair[1].position):
        hidden = max(0, forecast.position - position)
        rows.append(OtherJobs(jobs=hidden, classes={}))
        rows.append(shown.shown(job, forecast))
        position += hidden + 1
    hidden_behind = max(0, first + sum(snapshot.counts.waiting.values()) - position)
    rows.append(OtherJobs(jobs=hidden_behind, classes={}))
    return _merge_hidden(rows)


def _merge_hidden(rows: list[ShownJob | OtherJobs]) -> list[ShownJob | OtherJobs]:
    """Merge consecutive jobs without details."""
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


def _hidden_job(job: Job) -> OtherJobs:
    return OtherJobs(jobs=1, classes={job.job_class: 1})


def _utilisation(until: float, minutes: Sequence[Minute]) -> Utilisation:
    parts = [minute.part for minute in minutes]
    busy = sum(minute.busy for minute in minutes)
    observed = sum(minute.seconds for minute in minutes)
    return Utilisation(
        until=until,
        minutes=[None if part is None else round(part, 3) for part in parts],
        statuses=[minute.status for minute in minutes],
        mean=round(min(1.0, busy / max(1.0, observed)), 3),
    )


def _calibration(queue: JobQueue) -> CalibrationShown | None:
    """Describe the errors of the latest calibrations; ``None`` without any."""
    if (history := queue.device.calibrations.history()) is None:
        return None
    return CalibrationShown(
        id=history.id,
        made=history.made,
        times=[*history.times],
        renewals=[*history.renewals],
        values=[
            CalibrationValue(name=name, value=values[-1], history=[*values])
            for name, values in history.values.items()
        ],
        alarms=[*queue.drift.alarms],
    )
