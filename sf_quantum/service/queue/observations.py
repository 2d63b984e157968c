"""What happened since the service began, counted as it happens."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from sf_quantum.service.domain.jobs import Job, JobClass, State

# held: jobs wait, but none that would end before the next maintenance
DeviceState: TypeAlias = Literal[
    "busy", "idle", "held", "draining", "closed", "offline"
]
STATES: tuple[DeviceState, ...] = get_args(DeviceState)
Reason: TypeAlias = Literal["preempted", "interrupted"]
# how far back attempts are remembered that were interrupted, and how many at most
REMEMBERED_SECONDS, REMEMBERED = 3600.0, 100_000
# from what nobody notices to a night
WAITS = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


@dataclass
class Histogram:
    """How many values there were up to each bound.

    :param counts: by bound, those between it and the one before; the last has no bound
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(WAITS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(WAITS, value)] += 1
        self.total += value


class Observations:
    """Counters of one queue and its device; belongs to the event loop's thread.

    :param resting: tells the device's state while no job runs
    :param clock: seconds, monotonic
    """

    def __init__(
        self,
        resting: Callable[[], DeviceState],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs: Counter[tuple[JobClass, State]] = Counter()
        self.interruptions: Counter[tuple[JobClass, Reason]] = Counter()
        self.qpu_seconds: defaultdict[JobClass, float] = defaultdict(float)
        self.waits: defaultdict[JobClass, Histogram] = defaultdict(Histogram)
        #: attempts that were interrupted, from when to when, in seconds since the epoch
        self.lost: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        #: says whether jobs wait of which none may start
        self.holds: Callable[[], bool] = lambda: False
        self._resting = resting
        self._clock = clock
        self._seconds = dict.fromkeys(STATES, 0.0)
        self._busy = False
        # until the queue has started, which looks
        self._state: DeviceState = "offline"
        self._since = clock()

    @property
    def seconds(self) -> dict[DeviceState, float]:
        """How long the device was in each state."""
        self.look()
        return self._seconds.copy()

    @property
    def state(self) -> DeviceState:
        """The state the device is in."""
        if self._busy:
            return "busy"
        resting = self._resting()
        return "held" if resting == "idle" and self.holds() else resting

    def look(self) -> None:
        """Take note that the device's state may be another one."""
        now, state = self._clock(), self.state
        self._seconds[self._state] += now - self._since
        self._state, self._since = state, now

    def began(self, job: Job) -> None:
        """Take note that an attempt begins, and how long its job waited for the first."""
        if job.attempt == 1 and job.started is not None:
            self.waits[job.job_class].observe(max(0.0, job.started - job.submitted))
        self._busy = True
        self.look()

    def left(self, job_class: JobClass, qpu_seconds: float) -> None:
        """Take note that the device is free again.

        :param qpu_seconds: as modelled, of the attempt
        """
        self.qpu_seconds[job_class] += qpu_seconds
        self._busy = False
        self.look()

    def waits_again(self, job: Job, started: float) -> None:
        """Count a job that was put back; its note says why.

        :param started: when the attempt began, in seconds since the epoch
        """
        now = time.time()
        while self.lost and self.lost[0][1] < now - REMEMBERED_SECONDS:
            self.lost.popleft()
        self.lost.append((started, now))
        preempted = (job.note or "").startswith("pre-empted")
        reason: Reason = "preempted" if preempted else "interrupted"
        self.interruptions[job.job_class, reason] += 1

    def over(self, job_class: JobClass, state: State) -> None:
        """Count a job that is over."""
        self.jobs[job_class, state] += 1
