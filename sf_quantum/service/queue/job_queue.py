"""The jobs of one QPU: who may submit, what runs next, who waits for what."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from sf_quantum.files import JSON
from sf_quantum.service.device.drift import DriftWatch
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.identities import Identity
from sf_quantum.service.domain.jobs import (
    Forecast,
    Job,
    JobClass,
    Lease,
    LeaseRequest,
    Submission,
)
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue import admission
from sf_quantum.service.queue import entitlements as share_policy
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.queue.cancelling import Cancelling
from sf_quantum.service.queue.entitlements import JobCounts
from sf_quantum.service.queue.forecasts import Forecasts
from sf_quantum.service.queue.leases import Leases
from sf_quantum.service.queue.observations import DeviceState, Observations
from sf_quantum.service.queue.waiters import Waiters
from sf_quantum.service.queue.worker import CLOSED, Stop, Worker
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies import make
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store import audit
from sf_quantum.service.store.accounting import recent_use
from sf_quantum.service.store.retention import purge_regularly
from sf_quantum.service.store.store import Store

CANCELLED = "cancelled"
RELEASED = "cancelled: its lease was released"
STOPPING = "the service is being stopped"
STOP_SECONDS = 3.0
logger = logging.getLogger(__name__)


class JobQueue:
    """The jobs of one device, and the leases they come under.

    It belongs to the event loop that ran :meth:`start`; only :meth:`request_stop` may be
    called from another thread.

    :param store: where everything is kept
    :param device: what runs jobs
    """

    def __init__(
        self, store: Store, device: Device, settings: ServiceSettings | None = None
    ) -> None:
        self.store = store
        self.device = device
        self.settings = settings or ServiceSettings()
        self.availability = Availability(store)
        chosen = self.settings.policy
        self.policy = make(chosen.type, chosen.options, self.settings.shares)
        self.leases = Leases(store, self.settings, self.availability, self, self.policy)
        self.on_end: Callable[[], None] | None = None
        self.observations = Observations(self._resting)
        self.drift = DriftWatch(device.name, self.settings.drift)
        self._line = PendingJobs(self.policy, may_start=self._may_start)
        self._worker = Worker(
            *(store, device, self._line),
            may_start=lambda: self.availability.is_open and not self._stopping,
            ended=self._attempt_ended,
            observed=self.observations,
        )
        self._forecasts = Forecasts(self._line, self._worker, self._starts_in)
        self._counts = JobCounts(self.settings)
        self._cancelling = Cancelling(
            *(store, self._line, self._worker),
            holds=self.leases.holds,
            over=self._cancelled,
        )
        self._waiters = Waiters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Go on where a service before this one ended, however it did.

        When no job can run any more, asked for or not, :attr:`on_end` is called.
        """
        self._loop = asyncio.get_running_loop()
        self.store.recover(RELEASED).result()
        since = time.time() - self.policy.remembers_seconds()
        for used in recent_use(self.store, since):
            self.policy.used(used)
        for job in self.store.live():
            self._counts.take(job.user, job.job_class)
            self._join(job)
        self.leases.start()
        self._work = self._loop.create_task(self._worker.work())
        self._work.add_done_callback(lambda _: self._ended())
        self._following = self._loop.create_task(self._follow_availability())
        if self.settings.retention_seconds is not None:
            forgetting = purge_regularly(self.store, self.settings.retention_seconds)
            self._forgetting = self._loop.create_task(forgetting)

    @property
    def length(self) -> int:
        """Count the jobs that wait or run."""
        return len(self._line) + (self._worker.running is not None)

    @property
    def lengths(self) -> Mapping[JobClass, int]:
        """Count the jobs of each class that wait."""
        return self._line.lengths

    @property
    def running(self) -> Job | None:
        """The job on the device."""
        running = self._worker.running
        return None if running is None else self.store.job(running.entry.number)

    @property
    def failure(self) -> str | None:
        """Why no job can run any more, or ``None`` while all is well."""
        if self.broken is not None:
            return f"the queue broke: {self.broken}"
        return STOPPING if self._stopping else None

    @property
    def broken(self) -> BaseException | None:
        """What ended the work, if it was not asked to end."""
        work = self._work
        if work is None or not work.done() or work.cancelled():
            return None
        return work.exception()

    def request_stop(self, drain_seconds: float = 0.0) -> None:
        """Begin to stop; what waits stays on disk, and the running job is put back.

        :param drain_seconds: how long the running job may take to end by itself
        """
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: stopped already
                self._loop.call_soon_threadsafe(self._stop, drain_seconds)

    async def stopped(self) -> None:
        """Wait until no job runs and everything is on disk."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        if self._work is not None:
            # a device that does not let go: its job was interrupted, the file says
            _, left = await asyncio.wait([self._work], timeout=STOP_SECONDS)
            for task in left:
                task.cancel()

    async def submit(
        self, who: Identity, lease_id: str | None, asked: Submission
    ) -> tuple[Job, bool]:
        """Let a job wait; it is on disk when this returns.

        :returns: the job, and whether it is new; the same key of the same user is the
            same job, whatever became of it and of its lease
        :raises Refused: 403 without a lease that is held, 409 for a key of another job,
            422 for a job that cannot run or is too large, 429 for too many, 503 while
            the QPU takes none
        """
        lease = self.leases.active(who, lease_id)
        known = self.store.job_by_key(lease.user, asked)
        if known is None:
            self._check_open()
            await admission.check(self.device, self.drift, asked)
        elif known.lease == lease.id:
            return known, False
        else:  # one that is being cancelled is over before it moves
            await self._cancelling.wait(known.number)
        return await self._admit(who, lease.id, asked, new=known is None)

    async def submit_service_job(self, lease: Lease, asked: Submission) -> Job:
        """Let a job of the service itself wait, under a lease that takes no vQPU.

        :param lease: closed from the start, so that nobody comes under it and a job that
            a service left behind is cancelled by the next one
        :raises Refused: 503 while the QPU takes no job
        """
        self._check_open()
        seconds = self.device.model_seconds(asked.parameters)
        self._counts.take(lease.user, lease.job_class)
        try:
            await asyncio.wrap_future(self.store.add_lease(lease))
            added = self.store.add_job(lease, asked, seconds)
            job, _ = await asyncio.wrap_future(added)
        except (Refused, sqlite3.Error):
            self._counts.give_back(lease.user, lease.job_class)
            raise
        self._join(job)
        return job

    def find(self, who: Identity, job_id: str | int) -> Job:
        """Find a job by its id or its number.

        :raises Refused: 404, also for another user's
        """
        job = self.store.job(job_id)
        if job is None or not (who.admin or who.user == job.user):
            raise Refused(404, "no such job")
        return job

    def list_jobs(
        self, who: Identity, *, lease: str | None = None, limit: int = 1000
    ) -> list[Job]:
        """List the latest jobs, oldest first: the caller's, an admin's everybody's.

        :param lease: only those of a lease, held or not
        :raises Refused: 404 for a lease that is not the caller's
        """
        if lease is not None:
            self.leases.find(who, lease)
            self.leases.touch(lease)
        user = None if who.admin else who.user
        return self.store.jobs(lease=lease, user=user, limit=limit)

    async def wait(self, who: Identity, job_id: str | int, seconds: float) -> Job:
        """Wait until a job is over, at most so long.

        :returns: the job as it is then
        :raises Refused: 404
        """
        job = self.find(who, job_id)
        self.leases.touch(job.lease)
        # while the service drains, the running job may still end well
        over = self._work is not None and self._work.done()
        if job.final or seconds <= 0 or over:
            return job
        await self._waiters.wait(job.id, seconds)
        return self.find(who, job_id)

    def result(self, who: Identity, job_id: str | int) -> str:
        """Read a job's result, JSON text.

        :raises Refused: 404, or 409 for a job that has none
        """
        job = self.find(who, job_id)
        self.leases.touch(job.lease)
        result = self.store.result(job.number)
        if result is None:
            why = f": {job.note}" if job.note else ""
            raise Refused(409, f"the job is {job.state} and has no result{why}")
        return result

    async def cancel(
        self, who: Identity, job_id: str | int, why: str = CANCELLED
    ) -> Job:
        """Cancel a job; one that runs has left the device when this returns.

        :param why: what the job's note is to say
        :raises Refused: 404
        """
        job = self.find(who, job_id)
        if job.final:
            return job
        await asyncio.shield(
            asyncio.create_task(self._cancelling.cancel(job.number, why))
        )
        found = self.find(who, job_id)
        if job.user != who.user:
            # it may have ended by itself, or not have left the device yet
            done = found.state == "Cancelled"
            about: dict[str, JSON] = {"job": job.id, "of": job.user}
            entry = audit.AuditEntry(
                *(who.user, "cancel", about),
                old={"state": job.state},
                new={"state": found.state},
                outcome=audit.DONE if done else f"not done: the job is {found.state}",
            )
            await audit.append(self.store, entry)
        return found

    def forecast(self, job: Job) -> Forecast | None:
        """Say when a job will run; ``None`` for one that is over."""
        # the worker holds one that has ended until the next is taken
        return None if job.final else self._forecasts.of(job.number)

    def forecast_new(self, job_class: JobClass, user: str = "") -> Forecast:
        """Say when a user's problem with one shot would run that joined now."""
        held = reversed(self.leases.held)
        lease = next((lease for lease in held if lease.user == user), None)
        if lease is not None:
            return self._forecasts.new(job_class, user, lease.project, lease.pattern)
        asked = share_policy.with_share(self.settings, user, LeaseRequest())
        return self._forecasts.new(job_class, user, asked.project, None)

    @property
    def between_jobs(self) -> asyncio.Lock:
        """What the job that runs holds; who has it may :meth:`replace_device`."""
        return self._worker.between_jobs

    def replace_device(self, device: Device) -> None:
        """Run the next jobs on a device that is set otherwise."""
        self.device = device
        self._worker.device = device
        for entry in self._line.order():
            self._line.remove(entry.number)
            entry.seconds = entry.qpu_seconds * device.time_scale
            self._line.add(entry)
        self._worker.look()

    def busy(self, lease_id: str) -> bool:
        """Say whether a lease has jobs that are not over."""
        running = self._worker.running
        if running is not None and running.entry.lease == lease_id:
            return True
        return bool(self._line.of_lease(lease_id))

    def drop(self, lease_id: str, note: str) -> Callable[[], Awaitable[None]]:
        """See :meth:`sf_quantum.service.queue.leases.Jobs.drop`."""
        return self._cancelling.drop(lease_id, note)

    def _check_open(self) -> None:
        if self.failure:
            raise Refused(503, self.failure)
        self.availability.check()

    async def _admit(
        self, who: Identity, lease_id: str, asked: Submission, *, new: bool
    ) -> tuple[Job, bool]:
        # from here to the write there is no await: a lease that ends does so after it
        lease = self.leases.active(who, lease_id)
        share = lease.user, lease.job_class
        seconds = self.device.model_seconds(asked.parameters)
        if new:
            shots = asked.parameters.get("num_reads") or 1
            self._counts.check(*share, shots=shots, seconds=seconds)
        self._counts.take(*share)
        adding = asyncio.wrap_future(self.store.add_job(lease, asked, seconds))
        # who gives up waiting does not leave a job on disk that no line knows of
        moving: list[asyncio.Task[Job]] = []
        adding.add_done_callback(lambda added: moving.extend(self._added(added, share)))
        job, new = await asyncio.shield(adding)
        for moved in moving:
            job = await asyncio.shield(moved)
        return job, new

    def _added(
        self, adding: asyncio.Future[tuple[Job, bool]], share: tuple[str, JobClass]
    ) -> list[asyncio.Task[Job]]:
        """Take note that a job is on disk, or not.

        :returns: of a job that was there before, what moves it to its lease
        """
        if adding.exception() is not None:
            self._counts.give_back(*share)
            return []
        job, new = adding.result()
        if not new:
            self._counts.give_back(*share)
            return [asyncio.create_task(self._moved(job))]
        if self.leases.holds(job.lease):
            self._join(job)
        else:  # it has ended, and cancelled the job, on disk
            self._cancelled(PendingJob.of(job, self.device.time_scale))
        return []

    async def _moved(self, job: Job) -> Job:
        """Take note that a job has come under another lease.

        :returns: the job as it is then
        """
        await self._cancelling.wait(job.number)
        # read again: it may be over, or under yet another lease; no await until it joins
        job = self.store.job(job.number) or job
        running = self._worker.running
        if running is not None and running.entry.number == job.number:
            self._move_running(running.entry, job.lease)
        elif self._line.get(job.number) is not None:
            if (lease := self.leases.get(job.lease)) is not None:
                self._line.move(job.number, lease)
        elif job.state == "Queued" and self.leases.holds(job.lease):
            # its former lease has just let it go
            self._counts.take(job.user, job.job_class)
            self._join(job)
        if not (job.final or self.leases.holds(job.lease)):
            # the lease did not know of the job when it ended
            await self._cancelling.cancel(job.number, RELEASED)
        return self.store.job(job.number) or job

    def _move_running(self, entry: PendingJob, lease_id: str) -> None:
        lease = self.leases.get(lease_id)
        if lease is None:
            entry.lease = lease_id
        else:  # whose share it uses, as the accounts will say
            self.policy.ended(entry, 0.0)
            entry.move_to(lease)
            self.policy.began(entry)

    def _join(self, job: Job) -> None:
        lease = self.leases.get(job.lease)
        entry = PendingJob.of(job, self.device.time_scale, lease)
        seconds = self._worker.pace.job_seconds(entry.kind, entry.seconds)
        self._worker.arrivals.submitted(entry.job_class, seconds)
        self._line.add(entry)
        self._worker.look()

    def _attempt_ended(self, job: Job) -> None:
        self.leases.touch(job.lease)
        if job.final:
            self.observations.over(job.job_class, job.state)
            self._over(PendingJob.of(job, self.device.time_scale))

    def _cancelled(self, job: PendingJob) -> None:
        self.observations.over(job.job_class, "Cancelled")
        self._over(job)

    def _resting(self) -> DeviceState:
        if self.failure:
            return "offline"
        return (
            "idle" if self.availability.status == "open" else self.availability.status
        )

    def _over(self, job: PendingJob) -> None:
        self._counts.give_back(job.user, job.job_class)
        self._waiters.over(job.id)

    def _may_start(self, entry: PendingJob) -> bool:
        seconds = self._worker.pace.job_seconds(entry.kind, entry.seconds)
        return self.availability.ends_before_maintenance(seconds)

    def _starts_in(self, wait: float, seconds: float) -> float | None:
        return (
            None
            if self._stopping
            else self.availability.seconds_until_start(wait, seconds)
        )

    async def _follow_availability(self) -> None:
        window = None
        while True:
            if window != (window := self.availability.window):
                logger.info("%s", window.reason if window else "maintenance is over")
            self.observations.look()
            if self.availability.status == "closed":
                self._worker.interrupt(Stop(CLOSED, cancel=False))
            self._worker.look()
            self.leases.availability_changed()
            await self.availability.changed()

    def _stop(self, drain_seconds: float) -> None:
        self._stopping = True
        if self._following is not None:
            self._following.cancel()
        self.leases.stop()
        self._worker.stop(drain_seconds)

    def _ended(self) -> None:
        self._waiters.all_over()
        if self.on_end is not None:
            self.on_end()
