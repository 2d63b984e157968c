"""A QPU service on a virtual clock: the service's real policies, and a model of the device."""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import simpy

from sf_quantum.service.domain.jobs import RANKS, Lease, LeaseRequest, UserClass
from sf_quantum.service.domain.settings import PolicyChoice, Shares
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies import make
from sf_quantum.service.scheduling.work import PendingJob

Process: TypeAlias = Generator[simpy.Event, None, None]
# class of requests without a class, the service's default
_DEFAULT: UserClass = "development"


@dataclass(frozen=True)
class Window:
    """A maintenance window, in which no job runs.

    :param every_seconds: time from the beginning of one window to the beginning of the next;
        infinite for a single window
    """

    at_seconds: float
    seconds: float
    every_seconds: float = math.inf

    def begins(self, now: float) -> float:
        """Return the beginning of the current window, or else of the next window."""
        if now < self.at_seconds + self.seconds:
            return self.at_seconds
        if math.isinf(self.every_seconds):
            return math.inf
        passed = math.floor((now - self.at_seconds) / self.every_seconds)
        begins = self.at_seconds + passed * self.every_seconds
        return begins if now < begins + self.seconds else begins + self.every_seconds


@dataclass(frozen=True)
class Device:
    """The times at which a device runs no jobs, in seconds.

    :param calibration_every: time from the end of one calibration to the beginning of the
        next; a calibration begins only after a running job has ended
    :param between_failures: mean of the exponentially distributed times between failures; a
        failure interrupts the running job, which is then pending again
    """

    calibration_every: float = math.inf
    calibration_seconds: float = 0.0
    windows: Sequence[Window] = ()
    between_failures: float = math.inf
    repair_seconds: float = 0.0


@dataclass(order=True)
class _WaitingRequest:
    """See ``WaitingRequest`` of the service's queue."""

    rank: int
    position: int
    user: str = field(compare=False)
    request: LeaseRequest = field(compare=False)
    granted: simpy.Event = field(compare=False)
    passed: int = field(compare=False, default=0)


@dataclass
class QpuUsage:
    """The device's use of time, in seconds.

    :param busy: time with jobs, including interrupted attempts
    :param lost: time in interrupted attempts
    :param gaps: length of each idle time between two attempts
    """

    busy: float = 0.0
    lost: float = 0.0
    gaps: list[float] = field(default_factory=list)
    last_end: float | None = None

    def forget_gaps(self) -> None:
        """Forget the gaps so far, for example after a warm-up."""
        self.gaps.clear()
        self.last_end = None


class QpuService:
    """A QPU with its job queue and lease queue, both ordered by the service's policy.

    :param vqpus: number of leases that may be held at the same time
    :param seed: seed of the device's failures
    """

    def __init__(
        self,
        env: simpy.Environment,
        device: Device,
        vqpus: int,
        *,
        policy: PolicyChoice | None = None,
        shares: Shares | None = None,
        seed: str = "",
    ) -> None:
        chosen = policy or PolicyChoice()
        self._env = env
        self._device = device
        self._vqpus = vqpus
        self._policy = make(
            chosen.type, chosen.options, shares or Shares(), lambda: env.now
        )
        self._pending = PendingJobs(self._policy, may_start=self._may_start)
        self._held: dict[str, Lease] = {}
        self._waiting: list[_WaitingRequest] = []
        self._requests = self._jobs = 0
        self._done: dict[int, simpy.Event] = {}
        self._on_device: PendingJob | None = None
        self._began = 0.0
        self._broken = False
        self._wake = env.event()
        self.usage = QpuUsage()
        self._worker = env.process(self._work())
        if not math.isinf(device.between_failures):
            env.process(self._fail(random.Random(f"failures {seed}")))

    def acquire(self, user: str, request: LeaseRequest) -> simpy.Event:
        """Request a lease; the event occurs at the grant, and its value is the lease."""
        self._requests += 1
        rank = RANKS[request.job_class or _DEFAULT]
        granted = self._env.event()
        waiting = _WaitingRequest(rank, self._requests, user, request, granted)
        insort(self._waiting, waiting)
        self._grant()
        return granted

    def release(self, lease: Lease) -> None:
        """End a lease, whose jobs must have ended."""
        del self._held[lease.id]
        self._policy.released(lease)
        self._grant()

    def submit(self, lease: Lease, seconds: float) -> simpy.Event:
        """Submit a job under a lease; the event occurs when the job has ended.

        :param seconds: time for which the job occupies the device
        """
        self._jobs += 1
        job = PendingJob(
            number=self._jobs,
            id=str(self._jobs),
            user=lease.user,
            lease=lease.id,
            job_class=lease.job_class,
            kind="problem",
            seconds=seconds,
            qpu_seconds=seconds,
            submitted=self._env.now,
        )
        job.move_to(lease)
        self._pending.add(job)
        self._done[job.number] = done = self._env.event()
        running = self._on_device
        if running is None:
            self._notify()
        elif self._policy.preempts(job, running):
            self._on_device = None
            self._worker.interrupt()
        return done

    def busy_seconds(self) -> float:
        """Return the total time in which the device has run jobs."""
        running = self._env.now - self._began if self._on_device else 0.0
        return self.usage.busy + running

    def _grant(self) -> None:
        """Grant leases to waiting requests while vQPUs are free."""
        while self._waiting and len(self._held) < self._vqpus:
            rank = self._waiting[0].rank
            first = [waiting for waiting in self._waiting if waiting.rank == rank]
            index = self._policy.choose_request(first, [*self._held.values()])
            for passed in first[:index]:
                passed.passed += 1
            chosen = first[index]
            self._waiting.remove(chosen)
            request = chosen.request
            lease = Lease(
                id=str(chosen.position),
                user=chosen.user,
                job_class=request.job_class or _DEFAULT,
                expected_seconds=request.expected_seconds,
                pattern=request.pattern,
                opened=self._env.now,
                project=request.project,
            )
            self._held[lease.id] = lease
            self._policy.leased(lease)
            chosen.granted.succeed(lease)

    def _notify(self) -> None:
        if not self._wake.triggered:
            self._wake.succeed()

    def _work(self) -> Process:
        """Run the pending jobs, one at a time."""
        device, calibrated = self._device, self._env.now
        while True:
            if self._env.now >= calibrated + device.calibration_every:
                yield self._env.timeout(device.calibration_seconds)
                calibrated = self._env.now
            job = None if self._broken else self._pending.pop()
            if job is None:
                yield from self._idle()
                continue
            begin = self._began = self._env.now
            if self.usage.last_end is not None and begin > self.usage.last_end:
                self.usage.gaps.append(begin - self.usage.last_end)
            self._on_device = job
            self._policy.began(job)
            try:
                yield self._env.timeout(job.seconds)
            except simpy.Interrupt:
                self.usage.lost += self._env.now - begin
                self._policy.ended(job, 0.0)
                self._pending.add(job)
            else:
                self._on_device = None
                self._policy.ended(job, job.qpu_seconds)
                self._done.pop(job.number).succeed()
            self.usage.busy += self._env.now - begin
            self.usage.last_end = self._env.now

    def _idle(self) -> Process:
        """Wait for a job, or for the end of a window before which no pending job can run."""
        self._wake = self._env.event()
        if len(self._pending) and not self._broken:
            now = self._env.now
            ends = [
                window.begins(now) + window.seconds for window in self._device.windows
            ]
            yield self._wake | self._env.timeout(min(ends) - now)
        else:
            yield self._wake

    def _may_start(self, job: PendingJob) -> bool:
        now = self._env.now
        return all(
            now + job.seconds <= window.begins(now) for window in self._device.windows
        )

    def _fail(self, draws: random.Random) -> Process:
        device = self._device
        while True:
            yield self._env.timeout(draws.expovariate(1 / device.between_failures))
            self._broken = True
            if self._on_device is not None:
                self._on_device = None
                self._worker.interrupt()
            yield self._env.timeout(device.repair_seconds)
            self._broken = False
            self._notify()
