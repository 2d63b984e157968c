"""Counters since the start of the service, for its metrics and its page."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from sf_quantum.service.domain.jobs import Job, JobClass, State
from sf_quantum.service.domain.reasons import Cause

# "waiting": jobs wait in the vendor's queue or are being submitted, and no job is known to
# run; "held": no pending job would end before the next maintenance
DeviceState: TypeAlias = Literal[
    "busy", "waiting", "idle", "held", "draining", "closed", "offline"
]
STATES: tuple[DeviceState, ...] = get_args(DeviceState)
Reason: TypeAlias = Literal["preempted", "interrupted"]
# maximum age in seconds and maximum number of the interrupted attempts that are kept
REMEMBERED_SECONDS, REMEMBERED = 3600.0, 100_000
# upper bounds of waits in seconds
WAITS = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


@dataclass
class Histogram:
    """Counts of values by bucket; the last bucket has no upper bound."""

    bounds: tuple[float, ...] = WAITS
    total: float = 0.0
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Observations:
    """Counters of one queue and its device; belongs to the event loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: number of jobs that have ended, by class and state
        self.jobs: Counter[tuple[JobClass, State]] = Counter()
        self.interruptions: Counter[tuple[JobClass, Reason]] = Counter()
        #: QPU seconds of all attempts, including those whose results were lost.
        self.qpu_seconds: defaultdict[JobClass, float] = defaultdict(float)
        self.waits: defaultdict[JobClass, Histogram] = defaultdict(Histogram)
        #: begin and end of interrupted attempts, by the store's clock
        self.interrupted: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        #: seconds that the device was in each state, until the last call of :meth:`enter`
        self.seconds = dict.fromkeys(STATES, 0.0)
        self._clock = clock
        self._state: DeviceState = "offline"
        self._since = clock()

    def enter(self, state: DeviceState) -> None:
        now = self._clock()
        self.seconds[self._state] += now - self._since
        self._state, self._since = state, now

    def attempt_started(self, job: Job) -> None:
        if job.attempt == 1 and job.queued_seconds is not None:
            self.waits[job.job_class].observe(job.queued_seconds)

    def recovered(self, job: Job) -> None:
        """Count a job that the end of the previous service process ended or interrupted."""
        if job.final:
            self.jobs[job.job_class, job.state] += 1
        else:
            self.interruptions[job.job_class, "interrupted"] += 1

    def attempt_interrupted(
        self, job_class: JobClass, cause: Cause, began: float, ended: float
    ) -> None:
        """Count an attempt whose job is pending again; times are by the store's clock."""
        oldest = ended - REMEMBERED_SECONDS
        while self.interrupted and self.interrupted[0][1] < oldest:
            self.interrupted.popleft()
        self.interrupted.append((began, ended))
        preempted = cause is Cause.PREEMPTION
        self.interruptions[job_class, "preempted" if preempted else "interrupted"] += 1
