"""The jobs that have not ended, and where they are: waiting, pending or on the device."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from sf_quantum.service.device.interface import Cost, Device
from sf_quantum.service.domain.jobs import Job, Lease
from sf_quantum.service.domain.jobs import State as StoredState
from sf_quantum.service.domain.reasons import Interruption
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.queue.events import log_done, log_interrupted, log_job
from sf_quantum.service.queue.job_limits import JobCounts
from sf_quantum.service.queue.jobs.job_states import (
    Dispatched,
    Done,
    Fitting,
    Interrupted,
    LiveJob,
    Pending,
    Taken,
    Undispatched,
    Waiting,
    Withdrawn,
)
from sf_quantum.service.queue.leases.lease_table import LeaseTable
from sf_quantum.service.queue.observations import Observations
from sf_quantum.service.scheduling.estimator import Estimator
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies import make
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store.store import Store


class JobTable:
    """The live jobs of one device; belongs to the event loop's thread.

    The table reports all events of jobs to policy, estimator, counts and observations.

    :ivar on_device: jobs that the worker has taken; all but the first wait in the
        vendor's queue
    :ivar changed: set when a job may have become the next to run
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        settings: ServiceSettings,
        leases: LeaseTable,
    ) -> None:
        self.store = store
        self.device = device
        chosen = settings.policy
        self.policy = make(chosen.type, chosen.options, settings.shares, store.clock)
        self.availability = Availability(store)
        self.observations = Observations()
        self.counts = JobCounts(settings)
        self.estimator = Estimator(self.policy, store.clock)
        self.pending = PendingJobs(self.policy, may_start=self._ends_before_maintenance)
        self.on_device: list[LiveJob] = []
        self.changed = asyncio.Event()
        self._leases = leases
        self._jobs: dict[int, LiveJob] = {}
        # waiting jobs by the id of their lease, then by number
        self._waiting: defaultdict[str, dict[int, LiveJob]] = defaultdict(dict)

    def __iter__(self) -> Iterator[LiveJob]:
        return iter(self._jobs.values())

    def get(self, number: int) -> LiveJob | None:
        return self._jobs.get(number)

    def waiting_with(self, lease_id: str) -> Mapping[int, LiveJob]:
        """Return the jobs that wait with a lease, by number, in ascending order."""
        return self._waiting.get(lease_id, {})

    def queued_under(self, lease_id: str) -> list[LiveJob]:
        """Return the waiting and pending jobs of a lease."""
        pending = [self._jobs[number] for number in self.pending.of_lease(lease_id)]
        return [*self.waiting_with(lease_id).values(), *pending]

    def busy(self, lease_id: str) -> bool:
        """Return whether a lease has waiting, pending or running jobs."""
        is_running = any(live.entry.lease == lease_id for live in self.on_device)
        return (
            is_running
            or lease_id in self._waiting
            or bool(self.pending.of_lease(lease_id))
        )

    # events: each docstring says what has happened

    def added(self, job: Job, checked_for: Fitting | None = None) -> LiveJob:
        """A new job, or a job of the previous process, is on disk and not on the device."""
        live = self._make_live(job, checked_for)
        self._place(live)
        return live

    def recovered(self, job: Job) -> None:
        """A job of the previous service process is on disk and may be on the device."""
        live = self._make_live(job)
        self._count(live)
        self._move_to_device(live, live.expect(Waiting).recovered())

    def lease_granted(self, live: LiveJob) -> None:
        """The lease of a waiting job now has its vQPU."""
        self._take_out(live)
        self._place(live)

    def withdrawn(self, live: LiveJob, interruption: Interruption) -> None:
        """A job off the device is being cancelled; the cancellation is not on disk yet."""
        self._take_out(live)
        live.move(live.expect(Undispatched).withdrawn(interruption))

    def restored(self, live: LiveJob) -> None:
        """A withdrawn job is not cancelled on disk, so it may run."""
        live.move(live.expect(Withdrawn).restored())
        self._place(live)

    def cancelled(self, live: LiveJob) -> None:
        """The cancellation of a withdrawn job is on disk."""
        withdrawn = live.expect(Withdrawn)
        log_job("cancelled", live.entry, reason=withdrawn.interruption.note())
        self._remove_ended(live, withdrawn.written(), "Cancelled")

    def moved(self, live: LiveJob, lease: Lease) -> None:
        """A job was submitted again under another lease."""
        entry = live.entry
        if isinstance(live.state, Dispatched):  # charge the new lease for the job
            self.policy.ended(entry, 0.0)
            entry.move_to(lease)
            self.policy.began(entry)
            self._count(live)
            return
        self._take_out(live)
        entry.move_to(lease)
        if isinstance(live.state, Pending):
            live.move(live.state.moved())
        if isinstance(live.state, Waiting):
            self._place(live)
        # its previous lease is ending, but on disk the job belongs to the new lease
        elif live.ends_with_lease:
            self.restored(live)

    def take(self) -> LiveJob | None:
        """Take the job that the device runs next; return ``None`` if no job may start."""
        if (entry := self.pending.pop()) is None:
            return None
        live = self._jobs[entry.number]
        self._move_to_device(live, live.expect(Pending).taken())
        return live

    def attempt_ended(self, live: LiveJob, job: Job, qpu_seconds: float) -> None:
        """The end of an attempt is on disk.

        :param qpu_seconds: QPU seconds that are charged for the attempt
        """
        live.entry.seconds = self._seconds_left(job)
        self.estimator.ended(live.entry, completed=job.state == "Completed")
        self.policy.ended(live.entry, qpu_seconds)
        if job.final:
            log_done(job)
            self._remove_ended(live, live.expect(Dispatched).ended(), job.state)
        else:
            interrupted = live.expect(Interrupted)
            log_interrupted(job, interrupted.interruption)
            live.move(interrupted.put_back())
            self._place(live)
            self._leases.touch(live.entry.lease)

    def replace_device(self, device: Device) -> None:
        """Have another device run the pending jobs, and estimate their durations again."""
        self.device = device
        for entry in self.pending.order():
            self.pending.remove(entry.number)
            entry.seconds = self._seconds(entry.qpu_seconds, entry.compute_seconds)
            self.pending.add(entry)
        self.changed.set()

    def _seconds_left(self, job: Job) -> float:
        """Return how long the rest of a job is expected to occupy the device."""
        total = self._seconds(job.model_seconds, job.compute_seconds)
        return total * (1 - job.shots_done / job.shots)

    def _seconds(self, qpu_seconds: float, compute_seconds: float) -> float:
        cost = Cost(qpu_seconds, compute_seconds=compute_seconds)
        return self.device.elapsed_seconds(cost)

    def _place(self, live: LiveJob) -> None:
        """Make a job wait with its lease, or make it pending if the lease does not wait."""
        lease = self._leases.accepting(live.entry.lease)
        if lease is not None and lease.jobs_wait:
            self._waiting[live.entry.lease][live.number] = live
            return
        live.move(live.expect(Waiting).lease_granted())
        self._count(live)
        self.pending.add(live.entry)
        self.changed.set()

    def _make_live(self, job: Job, checked_for: Fitting | None = None) -> LiveJob:
        self.counts.take(job.user, job.job_class, job.bytes)
        accepting = self._leases.accepting(job.lease)
        lease = None if accepting is None else accepting.lease
        entry = PendingJob.of(job, self._seconds_left(job), lease)
        live = self._jobs[job.number] = LiveJob(entry, checked_for)
        return live

    def _count(self, live: LiveJob) -> None:
        """Make the estimator count a job under its current lease, and under no other lease."""
        if live.counted is None:
            self.estimator.submitted(live.entry)
        elif live.counted != live.entry.lease:
            self.estimator.moved(live.entry, live.counted)
        live.counted = live.entry.lease

    def _take_out(self, live: LiveJob) -> None:
        """Remove a job from the pending jobs or from the jobs that wait with their lease."""
        self.pending.remove(live.number)
        waiting = self._waiting.get(live.entry.lease, {})
        if waiting.pop(live.number, None) and not waiting:
            del self._waiting[live.entry.lease]

    def _move_to_device(self, live: LiveJob, taken: Taken) -> None:
        live.move(taken)
        self.on_device.append(live)
        self.estimator.began(live.entry)
        self.policy.began(live.entry)

    def _remove_ended(self, live: LiveJob, done: Done, state: StoredState) -> None:
        entry = live.entry
        live.move(done)
        del self._jobs[entry.number]
        if state == "Cancelled" and live.counted is not None:
            self.estimator.cancelled(entry, live.counted)
        self.counts.give_back(entry.user, entry.job_class, entry.payload_bytes)
        self.observations.jobs[entry.job_class, state] += 1
        self._leases.job_ended(entry.lease)

    def _ends_before_maintenance(self, entry: PendingJob) -> bool:
        before = (
            self.estimator.remaining_seconds(self.on_device[-1].entry)
            if self.on_device
            else 0
        )
        end = time.time() + before + self.estimator.run_seconds(entry)
        return end <= (self.availability.next_maintenance or math.inf)
