"""ETAs of jobs, from the run times of the jobs ahead and of later jobs that overtake."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sf_quantum.service.domain.jobs import CLASSES, JobClass, Kind
from sf_quantum.service.scheduling.held import HeldLeases, Overtaking
from sf_quantum.service.scheduling.pace import Pace
from sf_quantum.service.scheduling.policies.base import Policy
from sf_quantum.service.scheduling.work import Clock, PendingJob, Work

# weight of a submission relative to the next submission; it halves after 34 submissions
DECAY = 0.98
# weight of an observed attempt relative to the next attempt; it halves after 69 attempts
MEMORY = 0.99
# prior: number of attempts without an arrival that are added to the observed attempts
PRIOR_ATTEMPTS = 3
# upper bound of the load from later arrivals, as a fraction of the device's time
MAX_LOAD = 0.9
# expected remainder of a busy period, relative to its length so far (Gott, Nature 363,
# 1993, p. 315)
LASTS_AGAIN = 0.5
# upper 95 % confidence bound of the number of arrivals in a period if an equal period
# had none (Hanley and Lippman-Hand, JAMA 249, 1983, p. 1743)
RULE_OF_THREE = 3


class Arrivals:
    """Estimates the arrival of jobs that will overtake a pending job.

    The load of a class is the total run time of the first job of the class to arrive during
    each attempt, divided by the attempts' total time. Later jobs of the same attempt are left
    out, because a batch does not imply that more jobs follow. On the job streams of
    ``tests/benchmarks/eta.py``, the estimate differs from queueing theory by at most three
    percentage points.

    :param clock: monotonic clock in seconds
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Exponentially weighted sums over attempts: their number and their seconds; by
        # class, the number of attempts during which a job of the class arrived, and the run
        # times of the first such jobs.
        self._attempts = self._seconds = 0.0
        self._arrivals = dict.fromkeys(CLASSES, 0.0)
        self._arriving_seconds = dict.fromkeys(CLASSES, 0.0)
        self._began = 0.0
        # run time of each class's first arrival during the current attempt; ``None``
        # between attempts
        self._first_arrivals: dict[JobClass, float] | None = None
        self._busy_since = self._last_arrival = clock()

    def submitted(self, job_class: JobClass, seconds: float) -> None:
        """Record a job that becomes pending, with its expected run time."""
        self._last_arrival = self._clock()
        if self._first_arrivals is None:
            self._busy_since = self._last_arrival
        else:
            self._first_arrivals.setdefault(job_class, seconds)

    def began(self) -> None:
        self._began, self._first_arrivals = self._clock(), {}

    def ended(self) -> None:
        """Record the end of the current attempt, regardless of its outcome."""
        arrived, self._first_arrivals = self._first_arrivals, None
        if arrived is None:
            return
        self._attempts = self._attempts * MEMORY + 1
        self._seconds = self._seconds * MEMORY + self._clock() - self._began
        for name in CLASSES:
            self._arrivals[name] = self._arrivals[name] * MEMORY + (name in arrived)
            previous = self._arriving_seconds[name] * MEMORY
            self._arriving_seconds[name] = previous + arrived.get(name, 0.0)

    def overtaking(self, seconds: float, classes: Collection[JobClass]) -> float:
        """Estimate the total run time of the later arrivals that overtake a job.

        :param seconds: total run time of the jobs that are now ahead of the job
        :param classes: classes whose later arrivals overtake the job
        """
        jobs = sum(self._arrivals[name] for name in classes)
        if not (jobs and self._seconds):
            return 0.0
        observed = self._seconds * (1 + PRIOR_ATTEMPTS / self._attempts)
        arriving = sum(self._arriving_seconds[name] for name in classes)
        load = arriving / observed * self._persistence(observed)
        capped_load = min(load, MAX_LOAD)
        overtaking = min(
            seconds * capped_load / (1 - capped_load),
            load * LASTS_AGAIN * (self._clock() - self._busy_since),
        )
        # less one job: few large numbers of arrivals raise the mean above the usual number
        return max(0.0, overtaking - arriving / jobs)

    def _persistence(self, observed: float) -> float:
        """Return the fraction of the load that persists after the time without arrivals."""
        rate = sum(self._arrivals.values()) / observed
        missed_arrivals = rate * (self._clock() - self._last_arrival)
        return min(1.0, RULE_OF_THREE / missed_arrivals) if missed_arrivals else 1.0


class Estimator:
    """Expected run times and waits of the jobs of a queue, from observed jobs.

    :param clock: see :meth:`Policy.from_config`
    """

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._pace = Pace()
        self._arrivals = Arrivals(clock)
        self.held = HeldLeases()
        # exponentially weighted sums over submissions
        self._jobs = self._run_seconds = self._qpu_seconds = 0.0
        # the jobs on the device; all but the first wait in the vendor's queue
        self._on_device: list[PendingJob] = []
        self._began = 0.0

    def run_seconds(self, job: PendingJob) -> float:
        """Estimate the time from a job's start until the next job can start."""
        return self.seconds(job.kind, job.seconds)

    def seconds(self, kind: Kind, modelled: float) -> float:
        """Estimate the run time of a job from its time by the device's model."""
        return self._pace.job_seconds(kind, modelled)

    def submitted(self, job: PendingJob) -> None:
        seconds = self.run_seconds(job)
        self._jobs = self._jobs * DECAY + 1
        self._run_seconds = self._run_seconds * DECAY + seconds
        self._qpu_seconds = self._qpu_seconds * DECAY + job.qpu_seconds
        self.held.submitted(job.lease, job.qpu_seconds)
        self._arrivals.submitted(job.job_class, seconds)

    def moved(self, job: PendingJob, previous: str) -> None:
        """Record that a job has moved from another lease to its present lease.

        :param previous: id of the lease under which the job was counted
        """
        self.held.submitted(previous, -job.qpu_seconds)
        self.held.submitted(job.lease, job.qpu_seconds)

    def cancelled(self, job: PendingJob, lease: str) -> None:
        """Record a cancellation.

        :param lease: id of the lease under which the job was counted
        """
        self.held.submitted(lease, -job.qpu_seconds)

    def began(self, job: PendingJob) -> None:
        """Record that a job was given to the device."""
        self._on_device.append(job)
        if len(self._on_device) == 1:
            self._next_began()

    def ended(self, job: PendingJob, *, completed: bool) -> None:
        """Record the end of an attempt."""
        first = job is self._on_device[0]
        self._on_device.remove(job)
        if not first:
            return
        if completed:
            self._pace.observe(job.kind, job.seconds, self._clock() - self._began)
        self._arrivals.ended()
        if self._on_device:
            self._next_began()

    def remaining_seconds(self, job: PendingJob) -> float:
        """Estimate the time until a job on the device ends."""
        seconds = -(self._clock() - self._began)
        for on_device in self._on_device:
            seconds = max(0.0, seconds + self.run_seconds(on_device))
            if on_device is job:
                break
        return seconds

    def _next_began(self) -> None:
        self._began = self._clock()
        self._arrivals.began()

    def wait(
        self,
        job: PendingJob,
        work_by_kind: Mapping[Kind, Work],
        overtaking: Sequence[Overtaking],
    ) -> tuple[int, float]:
        """Estimate the wait of a pending job.

        :param work_by_kind: pending work ahead of the job, by kind
        :param overtaking: held leases of the job's class whose later jobs overtake it
        :returns: the number of jobs ahead of the job, and its wait in seconds
        """
        position = sum(work.jobs for work in work_by_kind.values())
        seconds = self._pace.seconds(work_by_kind)
        preempts = self._policy.preempts
        not_preempted = [
            other
            for other in self._on_device
            if not (other.preemptible and preempts(job, other))
        ]
        if not_preempted:
            position += len(not_preempted)
            seconds += self.remaining_seconds(not_preempted[-1])
        classes = self._policy.overtaking_classes(job.job_class)
        arriving = self._arrivals.overtaking(seconds, classes)
        if self.held.measured:
            # use the mean of the estimates from arrivals and from held leases, since each
            # estimate alone is worse
            leases = self.held.of_classes(classes)
            arriving = (
                arriving + self._estimate_held([Overtaking(leases)], seconds)
            ) / 2
        return position, seconds + arriving + self._estimate_held(overtaking, seconds)

    def _estimate_held(self, overtaking: Iterable[Overtaking], seconds: float) -> float:
        """Estimate the run time of the jobs that held leases submit within a time."""
        if not self._qpu_seconds:
            return 0.0
        scale = self._run_seconds / self._qpu_seconds
        qpu_seconds = sum(leases.within(seconds / scale) for leases in overtaking)
        # less one job, as in Arrivals.overtaking()
        return max(0.0, qpu_seconds * scale - self._run_seconds / self._jobs)
