"""The job queue of one QPU, as used by dialects, operators and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from sf_quantum.files import JSON
from sf_quantum.service.device.drift import DriftWatch
from sf_quantum.service.device.interface import Cost, Device
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    Lease,
    Submission,
)
from sf_quantum.service.domain.reasons import CANCELLED
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.admission import Admission
from sf_quantum.service.queue.events import log_recovered
from sf_quantum.service.queue.forecasts import Forecasts
from sf_quantum.service.queue.jobs.job_control import JobControl
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.jobs.worker import Worker
from sf_quantum.service.queue.leases.lease_table import LeaseTable
from sf_quantum.service.queue.leases.live_leases import Leases
from sf_quantum.service.queue.leases.slurm_jobs import OwnCluster
from sf_quantum.service.queue.leases.vqpus import STOPPING, VQpus
from sf_quantum.service.queue.observations import DeviceState
from sf_quantum.service.queue.reading import JobReader
from sf_quantum.service.queue.upkeep.endless_tasks import EndlessTasks
from sf_quantum.service.store import audit
from sf_quantum.service.store.recovery import recover
from sf_quantum.service.store.reports import operation
from sf_quantum.service.store.reports.usage import recent_use
from sf_quantum.service.store.store import Store

# longest wait for the worker to end when the service stops
STOP_SECONDS = 3.0
logger = logging.getLogger(__name__)


class JobQueue:
    """The jobs of one device, and the leases they are submitted under.

    Its parts are the table of jobs, worker, job control, vQPUs, leases, forecasts, reader,
    admission and endless tasks, in this order; each part uses only earlier parts. The queue
    belongs to the event loop that ran :meth:`start`; only :meth:`request_stop` may be called
    from another thread.
    """

    def __init__(
        self, store: Store, device: Device, settings: ServiceSettings | None = None
    ) -> None:
        self.store = store
        self.settings = settings or ServiceSettings()
        self.drift = DriftWatch(device.name, self.settings.drift)
        leases, cluster = LeaseTable(), OwnCluster()
        self.jobs = JobTable(store, device, self.settings, leases)
        self.worker = Worker(self.jobs, self.settings)
        self.control = JobControl(self.jobs, leases)
        self.policy = self.jobs.policy
        self.availability = self.jobs.availability
        self.observations = self.jobs.observations
        self.device_lock = self.worker.device_lock
        self.vqpus = VQpus(self.settings, leases, self.control)
        self.leases = Leases(self.vqpus, store, cluster)
        self.forecasts = Forecasts(self.jobs, self.worker, self.leases)
        self.reader = JobReader(self.jobs, self.leases, self.forecasts)
        bodies = self.reader.bodies
        self.admission = Admission(self.jobs, bodies, self.drift, self.settings)
        self.tasks = EndlessTasks(self.worker, self.vqpus, cluster)
        self.supervisor = self.tasks.supervisor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None

    def reconfigure(self, settings: ServiceSettings) -> None:
        """Apply new users, shares, classes and limits; jobs and leases do not change."""
        self.settings = self.jobs.counts.settings = self.admission.settings = settings
        self.vqpus.reconfigure(settings)
        self.policy.set_shares(settings.shares)

    def start(self) -> None:
        """Recover the state of the previous service process, and start.

        Does nothing if called again.

        :raises sqlite3.Error: if the state cannot be read or written
        """
        if self._work is not None:
            return
        self._loop = asyncio.get_running_loop()
        device, deaths = self.device, self.settings.service_deaths
        device.keep_in(self.store.path.parent)
        # reading the description builds an emulated annealer's graph before any request
        logger.debug("device %s: %s", device.name, device.description.technology)
        recovering = recover(self.store, deaths, device.identity, device.jobs.recovery)
        for job in recovering.result():
            log_recovered(job)
            self.observations.recovered(job)
        operation.record(self.store, self.availability.operation, starts=True).result()
        since = self.store.clock() - self.policy.usage_window_seconds()
        for used in recent_use(self.store, since):
            self.policy.add_usage(used)
        self.vqpus.start()
        self.worker.start()
        self._work = self._loop.create_task(self.worker.work())
        self.tasks.start()

    @property
    def device(self) -> Device:
        return self.jobs.device

    @property
    def length(self) -> int:
        """The number of jobs that are pending or on the device."""
        return len(self.jobs.pending) + len(self.jobs.on_device)

    @property
    def running(self) -> Job | None:
        """The job that the device runs, or runs next."""
        on_device = self.jobs.on_device
        return self.store.jobs.get(on_device[0].number) if on_device else None

    @property
    def failure(self) -> str | None:
        """The reason why no job can run any more; ``None`` if jobs can run."""
        if self.broken is not None:
            return f"the queue broke: {self.broken}"
        return STOPPING if self.worker.stopping else None

    @property
    def broken(self) -> BaseException | None:
        """The error that ended the worker; ``None`` if the worker did not fail."""
        work = self._work
        if work is None or not work.done() or work.cancelled():
            return None
        return work.exception()

    def device_states(self) -> tuple[DeviceState, Mapping[DeviceState, float]]:
        """Return the state of the device, and its seconds in each state."""
        state = self.worker.device_state
        self.observations.enter(state)
        return state, self.observations.seconds

    def request_stop(self, drain_seconds: float = 0.0) -> None:
        """Begin to stop; unfinished jobs stay on disk.

        :param drain_seconds: time that the running job has to finish
        """
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the queue has stopped
                self._loop.call_soon_threadsafe(self._stop, drain_seconds)

    async def finished(self) -> None:
        """Wait until the worker has ended, after a stop or an error."""
        await self.worker.finished.wait()

    async def stopped(self) -> None:
        """Wait until the worker has ended, for a limited time; then cancel it."""
        self.supervisor.stop()
        if self._work is not None:
            await asyncio.wait([self._work], timeout=STOP_SECONDS)
            # a job that the device has not ended is recovered by the next service process
            self._work.cancel()

    async def submit(
        self, who: Identity, lease_id: str | None, submission: Submission
    ) -> tuple[Job, bool]:
        """Submit a job; the job is on disk when this returns.

        :returns: the job, and whether it is new; a user's submissions with the same
            idempotency key are one job, even after the job and its lease have ended
        :raises Refused: 403 if the lease is not active, 409 if the key belongs to another
            job, 422 if the job cannot run or is too large, 429 if there are too many jobs,
            503 if the QPU accepts no jobs
        """
        waiting = submission.implicit_lease
        lease = self.leases.use(who, lease_id, waiting=waiting)
        stored = self.store.jobs.with_key(lease.user, submission)
        if stored is not None and stored.lease == lease.id:
            return stored, False
        cost = Cost(0.0)
        if stored is None:
            self._check_open()
            if submission.repeatable is None and (
                lease.user in self.settings.repeatable_users
            ):
                submission = replace(submission, repeatable=True)
            cost = await self.admission.cost(lease, submission)
        else:  # a cancellation in progress must end before the job moves to this lease
            await self.control.settled(stored.number)
            if not stored.final and (lease.max_shots or lease.max_qubits):
                await self.admission.check_size(lease, submission)
        if lease.max_qpu_seconds is not None:
            await self.control.added(lease.id)
        # No await from here until the write of the job is queued: it must precede a write of
        # the lease's end.
        lease = self.leases.use(who, lease.id, waiting=waiting)
        if stored is None:
            self.admission.check_limits(lease, submission, cost)
        elif not self.find(who, stored.number).final:
            self.admission.check_budget(lease, stored.model_seconds)
        is_stored = stored is not None
        return await self.control.submit(lease, submission, cost, is_stored=is_stored)

    async def submit_service_job(self, lease: Lease, submission: Submission) -> Job:
        """Submit a job of the service itself, under a lease that occupies no vQPU.

        :param lease: lease that has ended already, so a restart of the service cancels the
            job
        :raises Refused: 503 if the QPU accepts no jobs
        """
        self._check_open()
        await asyncio.wrap_future(self.store.leases.add(lease))
        cost = self.device.cost(submission.parameters)
        job, _ = await self.control.submit(lease, submission, cost)
        return job

    def find(self, who: Identity, job_id: str | int) -> Job:
        """Find a job by id or number; refuse with 404 if the sender has no such job."""
        return self.reader.find(who, job_id)

    async def wait(self, who: Identity, job_id: str | int, seconds: float) -> Job:
        """Wait for the end of a job, for a limited time, and return the job."""
        job = self.reader.use(who, job_id)
        if not job.final:
            await self.control.wait(job.number, seconds)
        return self.find(who, job_id)

    async def cancel(self, who: Identity, job_id: str | int) -> Job:
        """Cancel a job, and wait until the device has interrupted it."""
        job = self.find(who, job_id)
        if job.final:
            return job
        # shielded: the cancellation and its audit entry are written even if the request is
        # cancelled
        return await asyncio.shield(asyncio.create_task(self._cancel(who, job)))

    async def _cancel(self, who: Identity, job: Job) -> Job:
        await self.control.cancel(job.number, CANCELLED)
        cancelled = self.find(who, job.number)
        if job.user != who.user:
            # the job may have ended without the cancellation, or may still be on the device
            state = cancelled.state
            done = state == "Cancelled"
            outcome = audit.DONE if done else f"not done: the job is {state}"
            about: dict[str, JSON] = {"job": job.id, "of": job.user}
            old, new = {"state": job.state}, {"state": state}
            entry = audit.AuditEntry(who.user, "cancel", about, old, new, outcome)
            await audit.append(self.store, entry)
        return cancelled

    def _check_open(self) -> None:
        if self.failure:
            raise Refused(503, self.failure)
        self.availability.check_open()

    def _stop(self, drain_seconds: float) -> None:
        self.supervisor.stop()
        self.vqpus.stop()
        self.worker.stop(drain_seconds)
