"""The job queue of one QPU, as used by dialects, operators and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.drift import DriftWatch
from sf_quantum.service.device.problems import VARIABLE_UPDATES
from sf_quantum.service.device.processes import Busy
from sf_quantum.service.device.protocol import Cost, Device
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    LEASELESS,
    Dialect,
    Forecast,
    Identity,
    Job,
    JobClass,
    Kind,
    Lease,
    LeaseRequest,
    Size,
    Submission,
)
from sf_quantum.service.domain.reasons import CANCELLED, Cause, Interruption
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue import entitlements
from sf_quantum.service.queue.events import log_recovered
from sf_quantum.service.queue.given_up import Search
from sf_quantum.service.queue.leases import STOPPING, Leases
from sf_quantum.service.queue.live_jobs import WRITE_SECONDS, LiveJob, LiveJobs
from sf_quantum.service.queue.long_work import LongWork
from sf_quantum.service.queue.observations import DeviceState
from sf_quantum.service.queue.results import finished
from sf_quantum.service.queue.supervisor import Supervisor
from sf_quantum.service.scheduling.held import Overtaking
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.work import PendingJob, Work
from sf_quantum.service.store import audit, operation
from sf_quantum.service.store.accounting import lease_seconds, recent_use
from sf_quantum.service.store.retention import purge_regularly, trim_regularly
from sf_quantum.service.store.store import NO_JOB, Store
from sf_quantum.threads import in_thread

T = TypeVar("T")
# a job with its forecast, None once it is over
Listed: TypeAlias = tuple[Job, Forecast | None]
STOP_SECONDS = 3.0
# After which a submission is tried again that this machine was too busy to check.
BUSY_SECONDS = 10
# for a device to tell how it is, before the first request is answered
ASKED_SECONDS = 5.0
# whose results are handed out one by one
PARTS: Mapping[Kind, str] = {"circuit": "circuits", "problem": "BQMs"}
# of an answer with these, of which there is at least one
RESULT_CHARACTERS = 1_000_000
# of a list, before other requests have their turn
FORECASTS_AT_ONCE = 20
# for a list, the order of very many jobs may be old: by this much per second that it
# took the event loop, which is then as free as before to 95 %
ORDER_REUSED = 20
# an order that took less is not reused
ORDER_SECONDS = 0.005
# of the start of a job that waits with its lease
WAITS = "waits for a vQPU: not before another lease ends"
# the number of a job behind all jobs: the largest of SQLite
LAST = 2**63 - 1
logger = logging.getLogger(__name__)


class JobQueue:
    """The jobs of one device, and the leases they are submitted under.

    Its parts, each of which knows only those before it: availability, live jobs and
    leases. It belongs to the event loop that ran :meth:`start`; only
    :meth:`request_stop` may be called from another thread.
    """

    def __init__(
        self, store: Store, device: Device, settings: ServiceSettings | None = None
    ) -> None:
        self.store = store
        self.settings = settings or ServiceSettings()
        self.drift = DriftWatch(device.name, self.settings.drift)
        self.jobs = LiveJobs(store, device, self.settings)
        self.policy = self.jobs.policy
        self.availability = self.jobs.availability
        self.observations = self.jobs.observations
        self.between_jobs = self.jobs.between_jobs
        self.leases = Leases(self.settings, self.jobs)
        self.lists = LongWork("lists")
        self.bodies = LongWork("bodies")
        self._order = _Order()
        #: the search for jobs that may run on at the vendor
        self.given_up = Search(store, lambda: self.device)
        # set when the device has been asked how it is
        self._asked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        #: of the tasks beside the worker
        self.supervisor = Supervisor()

    def reconfigure(self, settings: ServiceSettings) -> None:
        """Take other users, shares, classes and limits; jobs and leases stay as they are."""
        self.settings = self.jobs.counts.settings = settings
        self.leases.reconfigure(settings)
        self.policy.set_shares(settings.shares)

    def start(self) -> None:
        """Recover the state of the previous service, and start."""
        self._loop = asyncio.get_running_loop()
        device, deaths = self.device, self.settings.service_deaths
        device.keep_in(self.store.path.parent)
        # the graph of an emulated annealer is made now, and not during a request
        logger.debug("device %s: %s", device.name, device.description.technology)
        recovering = self.store.recover(deaths, device.identity, device.recovery)
        for job in recovering.result():
            log_recovered(job)
        operation.record(self.store, self.availability.operation, starts=True).result()
        since = self.store.clock() - self.policy.remembers_seconds()
        for used in recent_use(self.store, since):
            self.policy.used(used)
        self.leases.start()
        self.jobs.resume()
        self._work = self._loop.create_task(self.jobs.work())
        run = self.supervisor.run
        run("availability", self._follow_availability)
        if self.device.refresh_seconds is not None:
            self.availability.device_reason = self._device_reason()
            run("device", self._follow_device)
        else:
            self._asked.set()
        run("given up", self.given_up.run)
        run("operation", self._record_operation)
        run("slurm", self.leases.follow_slurm)
        if (seconds := self.settings.retention_seconds) is not None:
            run("retention", partial(purge_regularly, self.store, seconds))
        run("kept", partial(trim_regularly, self.store, lambda: self.settings.limits))

    @property
    def device(self) -> Device:
        return self.jobs.device

    @property
    def length(self) -> int:
        """The number of pending jobs, and of those on the device."""
        return len(self.jobs.pending) + len(self.jobs.on_device)

    @property
    def running(self) -> Job | None:
        running = self.jobs.running
        return None if running is None else self.store.job(running.number)

    @property
    def failure(self) -> str | None:
        """Why no job can run any more; ``None`` if jobs can."""
        if self.broken is not None:
            return f"the queue broke: {self.broken}"
        return STOPPING if self.jobs.stopping else None

    @property
    def broken(self) -> BaseException | None:
        """The error that ended the worker."""
        work = self._work
        if work is None or not work.done() or work.cancelled():
            return None
        return work.exception()

    def device_states(self) -> tuple[DeviceState, Mapping[DeviceState, float]]:
        """Return the state of the device, and its seconds in each state."""
        state = self.jobs.device_state
        self.observations.enter(state)
        return state, self.observations.seconds

    def request_stop(self, drain_seconds: float = 0.0) -> None:
        """Begin to stop: the running job has some seconds to end; jobs stay on disk."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: stopped already
                self._loop.call_soon_threadsafe(self._stop, drain_seconds)

    async def finished(self) -> None:
        """Wait until the worker has ended, after a stop or an error."""
        await self.jobs.finished.wait()

    async def stopped(self) -> None:
        """Wait until no job runs and everything is on disk."""
        self.supervisor.stop()
        if self._work is not None:
            await asyncio.wait([self._work], timeout=STOP_SECONDS)
            # the next service finds a job that the device does not end as interrupted
            self._work.cancel()

    async def submit(
        self, who: Identity, lease_id: str | None, submission: Submission
    ) -> tuple[Job, bool]:
        """Submit a job; it is on disk when this returns.

        :returns: the job, and whether it is new; the same key of the same user is the
            same job, also after its end and that of its lease
        :raises Refused: 403 without a lease that is held, 409 for a key of another job,
            422 for a job that cannot run or is too large, 429 for too many, 503 while
            the QPU takes none
        """
        waiting = submission.dialect in LEASELESS
        lease = self.leases.active(who, lease_id, waiting=waiting)
        known = self.store.job_by_key(lease.user, submission)
        if known is not None and known.lease == lease.id:
            return known, False
        cost = Cost(0.0)
        if known is None:
            self._check_open()
            if submission.repeatable is None and (
                lease.user in self.settings.repeatable_users
            ):
                submission = replace(submission, repeatable=True)
            cost = self._cost(submission, await self._check_size(lease, submission))
        else:  # a cancellation ends before the job moves
            await self.jobs.settled(known.number)
            if not known.final and (lease.max_shots or lease.max_qubits):
                await self._check_size(lease, submission)
        if lease.max_qpu_seconds is not None:
            await self.jobs.added(lease.id)
        # no await before the write: the end of the lease is written after it
        lease = self.leases.active(who, lease.id, waiting=waiting)
        if known is None:
            shots = submission.parameters.get("num_reads") or 1
            payload_bytes = len(submission.payload)
            self._check_run_seconds(submission.kind, cost)
            self._check_budget(lease, cost.qpu_seconds)
            self.jobs.counts.check(lease, shots, cost.qpu_seconds, payload_bytes)
        elif not self.find(who, known.number).final:
            self._check_budget(lease, known.model_seconds)
        known_before = known is not None
        return await self.jobs.submit(lease, submission, cost, known=known_before)

    async def _check_size(self, lease: Lease, submission: Submission) -> Size:
        """Refuse a job that cannot run, or is larger than those of its lease may be."""
        size = await self._check_device(lease.user, submission)
        shots = submission.parameters.get("num_reads") or 1
        entitlements.check_sizes(lease, submission.kind, shots, size)
        return size

    def _check_run_seconds(self, kind: Kind, cost: Cost) -> None:
        most = self.settings.limits.run_seconds
        if most is not None:
            expected = self.jobs.estimator.seconds(
                kind, self.device.elapsed_seconds(cost)
            )
            entitlements.check_run_seconds(most, expected)

    def _check_budget(self, lease: Lease, seconds: float) -> None:
        if lease.max_qpu_seconds is not None:
            taken = sum(lease_seconds(self.store, lease.id))
            entitlements.check_budget(lease.max_qpu_seconds, taken, seconds)

    def _cost(self, submission: Submission, size: Size) -> Cost:
        cost = self.device.cost(submission.parameters, size)
        if size.problems and not self.device.takes_lists:
            return cost.times(size.problems)
        return cost

    async def submit_service_job(self, lease: Lease, submission: Submission) -> Job:
        """Submit a job of the service itself, under a lease that takes no vQPU.

        :param lease: a closed one, whose job is cancelled if the service restarts
        :raises Refused: 503 while the QPU takes no job
        """
        self._check_open()
        await asyncio.wrap_future(self.store.add_lease(lease))
        cost = self.device.cost(submission.parameters)
        job, _ = await self.jobs.submit(lease, submission, cost)
        return job

    def find(self, who: Identity, job_id: str | int) -> Job:
        """Find a job by its id or number; an unknown or another user's is refused with 404."""
        job = self.store.job(job_id)
        if job is None or not (who.admin or who.user == job.user):
            raise Refused(404, NO_JOB)
        return job

    def list_jobs(
        self,
        who: Identity,
        *,
        lease: str | None = None,
        key: str | None = None,
        label: str | None = None,
        dialect: Dialect | None = None,
        before: int | None = None,
        live: bool = False,
        limit: int = 1000,
    ) -> list[Job]:
        """List the latest jobs of the caller, or of all users for an admin; oldest first."""
        user = None if who.admin else who.user
        return self.store.jobs(
            lease=lease,
            user=user,
            key=key,
            label=label,
            dialect=dialect,
            before=before,
            live=live,
            limit=limit,
        )

    async def page(
        self,
        who: Identity,
        show: Callable[[Sequence[Listed]], T],
        *,
        lease: str | None = None,
        key: str | None = None,
        before: str | None = None,
        live: bool = False,
        limit: int = 1000,
    ) -> T:
        """List jobs as :meth:`list_jobs` does, with their forecasts.

        :param show: makes the answer; called in another thread
        :param key: lists only the caller's own job with this key, under any lease
        :param before: id of a job; lists only those submitted before it
        """
        if key is not None:
            # not an admin's view of all jobs
            who, lease = Identity(who.user, admin=False), None
        if lease is not None:
            self.leases.find(who, lease)
            self.leases.touch(lease)
        last = None if before is None else self.find(who, before).number
        async with self.lists.turn(who.user):
            jobs = await self.lists.run(
                lambda: self.list_jobs(
                    who, lease=lease, key=key, before=last, live=live, limit=limit
                )
            )
            forecasts = await self.forecasts(jobs)
            return await self.lists.run(lambda: show(forecasts()))

    def order(self) -> Sequence[PendingJob]:
        """List the pending jobs in the order they will run; of very many, a while ago."""
        return self._order.of(self.jobs.pending)

    def waiting(self) -> Iterator[PendingJob]:
        """Iterate over the jobs that wait with their leases, in the order of these."""
        for lease_id in self.leases.waiting_on_disk:
            for live in self.jobs.waiting_with(lease_id).values():
                yield live.entry

    async def forecasts(self, jobs: Sequence[Job]) -> Callable[[], list[Listed]]:
        """Forecast jobs in one pass over the pending ones.

        :returns: what makes the pass; for another thread
        """
        coming: dict[int, Sequence[Overtaking]] = {}
        held = self.jobs.estimator.held
        for index, job in enumerate(jobs):
            if index % FORECASTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if (entry := self.jobs.pending.get(job.number)) is not None:
                coming[job.number] = self.policy.overtaking(entry, held)
        waiting = self._forecast_waiting({job.number for job in jobs})
        order = self.order() if coming else []
        on_device = {
            live.number: self._forecast_on_device(live) for live in self.jobs.on_device
        }

        def forecast() -> list[Listed]:
            known = {**waiting, **dict(self._in_one_pass(order, coming)), **on_device}
            return [(job, None if job.final else known.get(job.number)) for job in jobs]

        return forecast

    def _in_one_pass(
        self, order: Sequence[PendingJob], coming: Mapping[int, Sequence[Overtaking]]
    ) -> Iterator[tuple[int, Forecast]]:
        left = len(coming)
        jobs, seconds = Counter[Kind](), defaultdict[Kind, float](float)
        for entry in order:
            if not left:
                return
            if entry.number in coming:
                left -= 1
                works = {kind: Work(jobs[kind], seconds[kind]) for kind in jobs}
                yield (
                    entry.number,
                    self._forecast_after(entry, works, coming[entry.number]),
                )
            jobs[entry.kind] += 1
            seconds[entry.kind] += entry.seconds

    async def wait(self, who: Identity, job_id: str | int, seconds: float) -> Job:
        """Wait for the end of a job, for a limited time, and return the job."""
        job = self.find(who, job_id)
        self.leases.touch(job.lease)
        if not job.final:
            await self.jobs.wait(job.number, seconds)
        return self.find(who, job_id)

    async def result(self, who: Identity, job_id: str | int) -> StoredResult:
        """Find a job's result; refuse with 409 if the job has none."""
        job = self.find(who, job_id)
        self.leases.touch(job.lease)
        size = await asyncio.to_thread(self.store.result_bytes, job.number)
        if size is None:
            why = f": {job.note}" if job.note else ""
            raise Refused(409, f"the job is {job.state} and has no result{why}")
        return StoredResult(self.store, job.number, size)

    async def show(self, who: Identity, job: Job, make: Callable[[], T]) -> T:
        """Make an answer with a job's content in another thread, a large one in its turn."""
        if job.bytes <= RESULT_CHARACTERS:
            return await asyncio.to_thread(make)
        async with self.lists.turn(who.user):
            return await self.lists.run(make)

    async def results(
        self,
        who: Identity,
        job_id: str,
        kind: Kind,
        first: int,
        seconds: float,
        make: Callable[[Job, list[str]], T],
    ) -> T:
        """Read the results of a job's circuits or BQMs, from one on, as they finish.

        Waits for some, for a limited time.

        :param kind: a key of :data:`PARTS`; a job of another one is refused with 409
        :param make: makes an answer, in another thread, of the job as it was before, and
            of JSON texts of about :data:`RESULT_CHARACTERS`, or one, which may be large
        """
        if (job := self.find(who, job_id)).kind != kind:
            raise Refused(409, f"the job is a {job.kind}, it has no {PARTS[kind]}")
        deadline = time.monotonic() + seconds

        def read(job: Job) -> tuple[bool, T]:
            found = finished(self.store, job.number, first, RESULT_CHARACTERS)
            return bool(found), make(job, found)

        while True:
            job = self.find(who, job_id)
            self.leases.touch(job.lease)
            change = self.jobs.next_change(job.number)
            async with self.bodies.turn(who.user):
                reading = in_thread(partial(read, job))
                found, answer = await asyncio.wrap_future(reading)
            left = deadline - time.monotonic()
            if found or job.final or left <= 0:
                return answer
            if change is None:  # it is being written
                await asyncio.sleep(min(left, WRITE_SECONDS))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await change.wait()

    async def cancel(self, who: Identity, job_id: str | int) -> Job:
        """Cancel a job, and wait until the device has interrupted it."""
        job = self.find(who, job_id)
        if job.final:
            return job
        # the cancellation and its audit entry are written even if the caller is cancelled
        return await asyncio.shield(asyncio.create_task(self._cancel(who, job)))

    async def _cancel(self, who: Identity, job: Job) -> Job:
        await self.jobs.cancel(job.number, CANCELLED)
        found = self.find(who, job.number)
        if job.user != who.user:
            # it may have ended by itself, or still be on the device
            done = found.state == "Cancelled"
            outcome = audit.DONE if done else f"not done: the job is {found.state}"
            about: dict[str, JSON] = {"job": job.id, "of": job.user}
            old, new = {"state": job.state}, {"state": found.state}
            entry = audit.AuditEntry(who.user, "cancel", about, old, new, outcome)
            await audit.append(self.store, entry)
        return found

    def forecast(self, job: Job) -> Forecast | None:
        """Forecast when a job runs; ``None`` for one that is over."""
        if job.final:  # the worker may still hold it
            return None
        if (entry := self.jobs.pending.get(job.number)) is not None:
            return self._forecast(entry)
        for live in self.jobs.on_device:
            if live.number == job.number:
                return self._forecast_on_device(live)
        return self._forecast_waiting({job.number}).get(job.number)

    def _forecast_waiting(self, wanted: Set[int]) -> dict[int, Forecast]:
        """Forecast jobs that wait with their leases, as if each got a vQPU in its turn.

        Those of leases that are before theirs take as long as the first of their lease.
        """
        known: dict[int, Forecast] = {}
        before = Work()
        for lease_id in self.leases.waiting_on_disk:
            waiting = self.jobs.waiting_with(lease_id)
            if not waiting:
                continue
            first = next(iter(waiting.values())).entry
            each = self.jobs.estimator.run_seconds(first)
            if found := wanted & waiting.keys():
                ahead = self.jobs.pending.ahead(first, self.jobs.estimator.held)
                for index, number in enumerate(waiting):
                    if number in found:
                        entry, work = waiting[number].entry, Work(index, index * each)
                        known[number] = self._forecast_after(
                            entry, *ahead, before + work
                        )
            before += Work(len(waiting), len(waiting) * each)
        return known

    def _forecast_on_device(self, live: LiveJob) -> Forecast:
        on_device, estimator = self.jobs.on_device, self.jobs.estimator
        place, wait = on_device.index(live), 0.0
        if place:
            wait = estimator.left(on_device[place - 1].entry)
        if live.attempt is not None and live.started is None:
            # as the vendor tells
            wait = max(wait, live.attempt.progress.eta_seconds or 0.0)
        run_seconds = estimator.run_seconds(live.entry)
        # a vendor's queue stands still then
        offline = self.availability.device_reason if live.started is None else ""
        eta = None if offline else wait
        return Forecast(place, eta, live.entry.qpu_seconds, run_seconds, offline)

    def forecast_new(
        self,
        job_class: JobClass,
        user: str = "",
        *,
        variables: int | None = None,
        reads: int = 1,
    ) -> Forecast:
        """Forecast the run of a problem of a user, if submitted now.

        :param variables: of the problem, whose interactions are not known
        :param reads: of the job
        """
        held = reversed(self.leases.held)
        lease = next((lease for lease in held if lease.user == user), None)
        hints = lease or entitlements.with_share(self.settings, user, LeaseRequest())
        values = variables or 0
        size = Size(values, updates=VARIABLE_UPDATES * values, qubits=values)
        cost = self.device.cost({"num_reads": reads}, size)
        entry = PendingJob(
            number=LAST,
            id="",
            user=user,
            lease="",
            job_class=job_class,
            kind="problem",
            seconds=self.device.elapsed_seconds(cost),
            qpu_seconds=cost.qpu_seconds,
            submitted=self.store.clock(),
            project=hints.project,
            pattern=hints.pattern,
        )
        return self._forecast(entry)

    def _forecast(self, entry: PendingJob) -> Forecast:
        held = self.jobs.estimator.held
        return self._forecast_after(entry, *self.jobs.pending.ahead(entry, held))

    def _forecast_after(
        self,
        entry: PendingJob,
        works: Mapping[Kind, Work],
        overtaking: Sequence[Overtaking],
        waiting: Work | None = None,
    ) -> Forecast:
        """Forecast a job after others.

        :param waiting: if it waits with its lease, what waits with leases before it
        """
        position, wait = self.jobs.estimator.wait(entry, works, overtaking)
        if waiting is not None:
            position, wait = position + waiting.jobs, wait + waiting.seconds
        run_seconds = self.jobs.estimator.run_seconds(entry)
        eta = None
        if not self.jobs.stopping:
            if not self.jobs.on_device:  # else the vendor's queue is behind these
                wait += self.device.status.eta_seconds
            eta = self.availability.seconds_until_start(wait, run_seconds)
        why = "" if waiting is None else WAITS
        why = self.availability.reason if eta is None else why
        return Forecast(position, eta, entry.qpu_seconds, run_seconds, why)

    def _check_open(self) -> None:
        if self.failure:
            raise Refused(503, self.failure)
        self.availability.check_open()

    async def _check_device(self, user: str, submission: Submission) -> Size:
        kind, content = submission.kind, submission.content
        device, parameters = self.device, submission.parameters
        try:
            if (within := submission.calibrated_within) is not None:
                self._check_calibration(within)
            if kind == "problem":
                if submission.written is None:
                    return device.check(kind, content, parameters)
                device.check_parameters(kind, parameters)
                device.check_size(submission.written.size, parameters)
                return submission.written.size
            if submission.written is not None:
                device.check_parameters(kind, parameters)

            def check() -> Size:
                written = submission.written
                given = content if written is None else json.loads(written.payload)
                return device.check(kind, given, parameters)

            async with self.bodies.turn(user):
                # in a thread of its own: many of them must not fill the loop's pool,
                # which checks credentials
                return await asyncio.wrap_future(in_thread(check))
        except FieldError as error:
            raise Refused(422, error.detail, error.field) from error
        except Busy as error:
            retry = {"Retry-After": f"{BUSY_SECONDS}"}
            raise Refused(503, str(error), headers=retry) from error

    def _check_calibration(self, within: float) -> None:
        age = self.device.calibration_age
        if age is None:
            detail = "the device does not tell when it was calibrated"
            raise FieldError("calibrated_within", detail)
        if age > within:
            detail = f"the device was calibrated {age:,.0f} s ago"
            raise FieldError("calibrated_within", detail)
        self.drift.look(self.device)
        if self.drift.alarms:
            drifting = " and ".join(self.drift.alarms)
            raise FieldError("calibrated_within", f"the device drifts: {drifting}")

    async def _follow_availability(self) -> None:
        window = None
        while True:
            if window != (window := self.availability.window):
                logger.info("%s", window.reason if window else "maintenance is over")
            self.observations.enter(self.jobs.device_state)
            if self.availability.status == "closed":
                closed = Interruption(Cause.QPU_CLOSED)
                self.jobs.take_back([*self.jobs.on_device], closed)
            self.jobs.look()
            self.leases.availability_changed()
            await self.availability.changed(window)

    async def device_asked(self) -> None:
        """Wait until the device has told how it is, for a limited time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ASKED_SECONDS):
                await self._asked.wait()

    def _device_reason(self) -> str:
        status = self.device.status
        return "" if status.online else status.reason or "the device is offline"

    async def _follow_device(self) -> None:
        """Follow what the vendor says of the device."""
        while (seconds := self.device.refresh_seconds) is not None:
            asked = asyncio.wrap_future(in_thread(self.device.refresh))
            while not asked.done():  # what is known grows old meanwhile
                await asyncio.wait([asked], timeout=seconds)
                if asked.done() or self._asked.is_set():
                    self._note_device()
            asked.result()
            await asyncio.sleep(seconds)

    def _note_device(self) -> None:
        self._asked.set()
        availability, reason = self.availability, self._device_reason()
        # with its figures, a reason is another one each time
        if bool(reason) != bool(availability.device_reason):
            logger.info("%s: %s", self.device.name, reason or "online again")
            self.observations.enter(self.jobs.device_state)
        if reason != availability.device_reason:
            availability.device_reason = reason
            self.leases.availability_changed()
            self.jobs.look()

    async def _record_operation(self) -> None:
        while True:
            window = self.availability.window
            recording = operation.record(self.store, self.availability.operation)
            # at once, so that no change is missed
            with suppress(TimeoutError):
                async with asyncio.timeout(operation.SEEN_SECONDS):
                    await self.availability.changed(window)
            try:
                await asyncio.wrap_future(recording)
            except sqlite3.Error as error:
                logger.warning("the times of operation could not be stored: %s", error)

    def _stop(self, drain_seconds: float) -> None:
        self.supervisor.stop()
        self.leases.stop()
        self.jobs.stop(drain_seconds)


@dataclass(frozen=True)
class StoredResult:
    """A result on disk, JSON text.

    :param size: its bytes
    """

    store: Store
    number: int
    size: int

    def part(self, first: int, most: int) -> bytes:
        """Read some bytes from one on; nothing if it has been deleted; blocks."""
        return self.store.result_part(self.number, first, most)


class _Order:
    """The order of the pending jobs for lists; one that took long is reused for a while."""

    def __init__(self) -> None:
        self._order: Sequence[PendingJob] = ()
        self._until = 0.0

    def of(self, pending: PendingJobs) -> Sequence[PendingJob]:
        began = time.monotonic()
        if began >= self._until:
            self._order = pending.order()
            ended = time.monotonic()
            took = ended - began
            self._until = ended + ORDER_REUSED * took * (took > ORDER_SECONDS)
        return self._order
