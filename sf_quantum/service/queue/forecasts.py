"""Forecasts of jobs: their positions, starts and run times."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from sf_quantum.service.device.problems import VARIABLE_UPDATES
from sf_quantum.service.domain.jobs import (
    Forecast,
    Job,
    JobClass,
    Kind,
    LeaseRequest,
    Size,
)
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.queue.jobs.job_states import LiveJob
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.jobs.worker import Worker
from sf_quantum.service.queue.leases import entitlements
from sf_quantum.service.queue.leases.live_leases import Leases
from sf_quantum.service.scheduling.held import Overtaking
from sf_quantum.service.scheduling.work import PendingJob, Work

# a job with its forecast; the forecast is None once the job has ended
Listed: TypeAlias = tuple[Job, Forecast | None]
# number of jobs in a list that are forecast before the event loop serves other requests
FORECASTS_AT_ONCE = 20
# The order of the pending jobs is reused for this many times the time it took to compute:
# the event loop is then free for at least 95 % of the time.
ORDER_REUSED = 20
# an order that took less time than this to compute is not reused
ORDER_SECONDS = 0.005
# reason in the forecast of a job that waits with its lease
WAITS = "waits for a vQPU: not before another lease ends"
# number of a job that is behind all others: the largest integer of SQLite
LAST = 2**63 - 1


class Forecasts:
    """Forecasts the jobs of one queue; belongs to the event loop's thread."""

    def __init__(self, jobs: JobTable, worker: Worker, leases: Leases) -> None:
        self._jobs = jobs
        self._worker = worker
        self._leases = leases
        self._order: Sequence[PendingJob] = ()
        self._order_expires = 0.0

    def of(self, job: Job) -> Forecast | None:
        """Forecast a job; ``None`` if it has ended."""
        if job.final:  # the job table may still contain the job
            return None
        if (entry := self._jobs.pending.get(job.number)) is not None:
            return self._of_entry(entry)
        for live in self._jobs.on_device:
            if live.number == job.number:
                return self._on_device(live)
        return self._waiting({job.number}).get(job.number)

    async def of_all(self, jobs: Sequence[Job]) -> Callable[[], list[Listed]]:
        """Forecast jobs in one pass over the pending jobs.

        :returns: a function that does the pass; call it in another thread
        """
        overtaking: dict[int, Sequence[Overtaking]] = {}
        held = self._jobs.estimator.held
        for index, job in enumerate(jobs):
            if index % FORECASTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if (entry := self._jobs.pending.get(job.number)) is not None:
                overtaking[job.number] = self._jobs.policy.overtaking_leases(
                    entry, held
                )
        waiting = self._waiting({job.number for job in jobs})
        order = self.order() if overtaking else []
        on_device = {
            live.number: self._on_device(live) for live in self._jobs.on_device
        }

        def forecast() -> list[Listed]:
            pending = dict(self._in_one_pass(order, overtaking))
            forecasts = {**waiting, **pending, **on_device}
            return [
                (job, None if job.final else forecasts.get(job.number)) for job in jobs
            ]

        return forecast

    def of_new(
        self,
        job_class: JobClass,
        user: str = "",
        *,
        variables: int | None = None,
        reads: int = 1,
    ) -> Forecast:
        """Forecast a user's problem as if it were submitted now.

        :param variables: number of the problem's variables; interactions are unknown
        :param reads: number of reads
        """
        held = reversed(self._leases.held)
        lease = next((lease for lease in held if lease.user == user), None)
        settings, device = self._leases.settings, self._jobs.device
        hints = lease or entitlements.with_share(settings, user, LeaseRequest())
        values = variables or 0
        size = Size(values, updates=VARIABLE_UPDATES * values, qubits=values)
        cost = device.cost({"num_reads": reads}, size)
        entry = PendingJob(
            number=LAST,
            id="",
            user=user,
            lease="",
            job_class=job_class,
            kind="problem",
            seconds=device.elapsed_seconds(cost),
            qpu_seconds=cost.qpu_seconds,
            submitted=self._jobs.store.clock(),
            project=hints.project,
            pattern=hints.pattern,
        )
        return self._of_entry(entry)

    def order(self) -> Sequence[PendingJob]:
        """List the pending jobs in the order they will run; a long list may be outdated."""
        began = time.monotonic()
        if began >= self._order_expires:
            self._order = self._jobs.pending.order()
            ended = time.monotonic()
            took = ended - began
            reused = ORDER_REUSED * took if took > ORDER_SECONDS else 0.0
            self._order_expires = ended + reused
        return self._order

    def waiting(self) -> Iterator[PendingJob]:
        """Iterate over the jobs that wait with their leases, in the order of the leases."""
        for lease_id in self._leases.waiting_on_disk:
            for live in self._jobs.waiting_with(lease_id).values():
                yield live.entry

    def _in_one_pass(
        self,
        order: Sequence[PendingJob],
        overtaking: Mapping[int, Sequence[Overtaking]],
    ) -> Iterator[tuple[int, Forecast]]:
        jobs_left = len(overtaking)
        jobs, seconds = Counter[Kind](), defaultdict[Kind, float](float)
        for entry in order:
            if not jobs_left:
                return
            if (later := overtaking.get(entry.number)) is not None:
                jobs_left -= 1
                work_by_kind = {kind: Work(jobs[kind], seconds[kind]) for kind in jobs}
                yield entry.number, self._after(entry, work_by_kind, later)
            jobs[entry.kind] += 1
            seconds[entry.kind] += entry.seconds

    def _waiting(self, numbers: Set[int]) -> dict[int, Forecast]:
        """Forecast jobs that wait with their leases, as if leases ran one after the other.

        It is assumed that each job of a lease takes as long as the first job of the lease.
        """
        forecasts: dict[int, Forecast] = {}
        before = Work()
        for lease_id in self._leases.waiting_on_disk:
            waiting = self._jobs.waiting_with(lease_id)
            if not waiting:
                continue
            first = next(iter(waiting.values())).entry
            seconds_per_job = self._jobs.estimator.run_seconds(first)
            if matches := numbers & waiting.keys():
                ahead = self._jobs.pending.work_ahead(first, self._jobs.estimator.held)
                for index, number in enumerate(waiting):
                    if number in matches:
                        entry, work = waiting[number].entry, Work(
                            index, index * seconds_per_job
                        )
                        forecasts[number] = self._after(entry, *ahead, before + work)
            before += Work(len(waiting), len(waiting) * seconds_per_job)
        return forecasts

    def _on_device(self, live: LiveJob) -> Forecast:
        on_device, estimator = self._jobs.on_device, self._jobs.estimator
        position, wait = on_device.index(live), 0.0
        if position:
            wait = estimator.remaining_seconds(on_device[position - 1].entry)
        if live.attempt is not None and live.started is None:
            # the vendor's estimate may be longer
            wait = max(wait, live.attempt.progress.eta_seconds or 0.0)
        run_seconds = estimator.run_seconds(live.entry)
        # while the device is offline, the vendor's queue does not advance
        reason = self._jobs.availability.device_reason if live.started is None else ""
        eta = None if reason else wait
        return Forecast(position, eta, live.entry.qpu_seconds, run_seconds, reason)

    def _of_entry(self, entry: PendingJob) -> Forecast:
        held = self._jobs.estimator.held
        return self._after(entry, *self._jobs.pending.work_ahead(entry, held))

    def _after(
        self,
        entry: PendingJob,
        work_by_kind: Mapping[Kind, Work],
        overtaking: Sequence[Overtaking],
        waiting: Work | None = None,
    ) -> Forecast:
        """Forecast a job from the work ahead of it.

        :param work_by_kind: pending work ahead of the job, by kind
        :param overtaking: held leases whose later jobs overtake the job
        :param waiting: if the job waits with its lease: the work ahead of it that also waits
            with leases
        """
        availability, estimator = self._jobs.availability, self._jobs.estimator
        position, wait = estimator.wait(entry, work_by_kind, overtaking)
        if waiting is not None:
            position, wait = position + waiting.jobs, wait + waiting.seconds
        run_seconds = estimator.run_seconds(entry)
        eta = None
        if not self._worker.stopping:
            # jobs of the vendor's other customers are ahead, unless a job of the service is
            # on the device already
            if not self._jobs.on_device:
                wait += self._jobs.device.status.eta_seconds
            eta = seconds_until_start(availability, wait, run_seconds)
        reason = "" if waiting is None else WAITS
        reason = availability.reason if eta is None else reason
        return Forecast(position, eta, entry.qpu_seconds, run_seconds, reason)


def seconds_until_start(
    availability: Availability, wait: float, seconds: float
) -> float | None:
    """Estimate the start of a job; no job runs during maintenance.

    :param wait: seconds of work before the job
    :param seconds: duration of the job
    :returns: seconds from now; ``None`` if unknown
    """
    is_open = availability.is_open or availability.in_maintenance
    if not is_open or availability.device_reason:
        return None
    now = at = time.time()
    for window in availability.windows:
        if at + wait + seconds <= window.starts:
            break
        if window.ends is None:
            return None
        # the part of the work that runs before the window does not delay the job afterwards
        wait -= min(wait, max(0.0, window.starts - at))
        at = window.ends
    return at + wait - now
