"""When to request nodes for the jobs that follow a quantum step, from its earlier runs.

If nodes are requested ``t`` seconds too early, they are idle for ``t`` seconds; if too late,
the jobs wait for ``t`` seconds. With a second of waiting worth ``urgency`` idle node-seconds,
the expected cost is least at the quantile ``1 / (1 + urgency)`` of the time at which the
request is in time: the jobs' arrival less the time that an allocation is pending. This is the
newsvendor problem; the distribution consists of all differences of observed values.

The caller passes all times, as readings of a single clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

#: number of latest values of each kind that are used
LATEST = 10
#: jobs that arrive within this time after a quantum step are counted as its followers
FOLLOWS_SECONDS = 5.0
#: nodes are given back again if they turn out to be needed this much later
LATER_SECONDS = 5.0


@dataclass(frozen=True)
class StepTimes:
    """The seconds of a run of a quantum step.

    :param waited: time until the QPU began the step's jobs; 0 if unknown
    :param busy: time from the QPU's begin until the step's followers arrived
    """

    waited: float
    busy: float


@dataclass
class _QuantumStep:
    """A quantum step: its current run, and earlier ones.

    :param followers: the number of jobs that arrived after the last run, before the first
        of them ended; None if not counted yet
    :param arrived: the number of jobs that have arrived since the current run ended
    :param begins: when the QPU expects to begin each job, or has begun it
    :param pending: how long allocations were pending, as known at the start of the run; later
        values are not used, as nodes granted sooner would be given back and requested again
    :param due: whether nodes are requested and held
    :param passed: whether Slurm has granted nodes that depended on the end of the step's jobs
    :param jobs: ids of the step's Slurm jobs on which such requests depend
    """

    times: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=LATEST))
    followers: int | None = None
    arrived: int = 0
    running: bool = False
    completed: bool = False
    started: float = 0.0
    begins: dict[str, float] = field(default_factory=dict)
    pending: tuple[float, ...] = ()
    due: bool = False
    passed: bool = False
    jobs: tuple[str, ...] = ()

    def start(self, now: float, pending: tuple[float, ...]) -> None:
        self.running, self.started, self.pending = True, now, pending
        self.begins, self.jobs, self.due, self.passed = {}, (), False, False

    def arrivals(self) -> list[float]:
        """Equally likely arrival times of the followers; empty if unknown."""
        begins = max(self.begins.values(), default=None)
        if begins is None:
            return [self.started + one.waited + one.busy for one in self.times]
        return [begins + one.busy for one in self.times if begins < math.inf]

    def request_time(self, now: float, urgency: float) -> float:
        """When to request nodes, given that the step has not ended by now."""
        arrivals = [arrival for arrival in self.arrivals() if arrival > now]
        pairs = product(arrivals, self.pending or (0.0,))
        times = sorted(arrival - pending for arrival, pending in pairs)
        if not times:
            return math.inf
        # With few values, a lower one is taken, since the true distribution is wider.
        rank = math.floor((len(times) + 1) / (1 + urgency))
        return times[min(max(rank, 1), len(times)) - 1]

    def given_up(self, urgency: float) -> float:
        """Until when to hold nodes for a step that takes longer than any earlier run.

        Its end is then unknown, so nodes are held until that costs as much as a new request.
        """
        longest = urgency * max(self.pending, default=0.0)
        return max(self.arrivals(), default=-math.inf) + LATER_SECONDS + longest

    def update(self, now: float, urgency: float) -> None:
        """Determine whether nodes are due."""
        request = self.request_time(now, urgency)
        if self.passed or request <= now:
            self.due = True
        elif request == math.inf:
            self.due = now < self.given_up(urgency)
        elif request > now + LATER_SECONDS:
            self.due = False


class JobForecast:
    """Predicts the jobs after each quantum step.

    :param urgency: how many idle node-seconds a second of waiting is worth
    """

    def __init__(self, urgency: float) -> None:
        self._urgency = urgency
        self._pending: deque[float] = deque(maxlen=LATEST)
        self._steps: dict[str, _QuantumStep] = {}
        # the step whose followers are being counted, and the latest arrival of the first
        self._last: _QuantumStep | None = None
        self._until = 0.0

    @property
    def quantum(self) -> bool:
        """Whether a quantum step is running."""
        return any(step.running for step in self._steps.values())

    def learn(self, earlier: JobForecast) -> None:
        """Insert the values of earlier runs before those of this run."""
        self._pending = deque([*earlier._pending, *self._pending], maxlen=LATEST)
        for name, old in earlier._steps.items():
            step = self._steps.setdefault(name, _QuantumStep())
            step.times = deque([*old.times, *step.times], maxlen=LATEST)
            if step.followers is None:
                step.followers = old.followers

    def granted(self, seconds: float) -> None:
        """Record how long an allocation was pending."""
        self._pending.append(seconds)

    def started(self, name: str, now: float) -> None:
        """Record the start of a quantum step."""
        self.stop_counting()
        step = self._steps.setdefault(name, _QuantumStep())
        step.start(now, tuple(self._pending))

    def begins(self, name: str, job: str, at: float) -> None:
        """Record when the QPU expects to begin a job of a running step, or has begun it."""
        if name in self._steps:
            self._steps[name].begins[job] = at

    def submitted(self, name: str, slurm_job: str) -> None:
        """Record a Slurm job of the step, on whose end allocations can depend."""
        if name in self._steps:
            self._steps[name].jobs += (slurm_job,)

    def passed(self, dependency: str) -> None:
        """Record that the Slurm jobs of a dependency have ended."""
        for step in self._steps.values():
            if step.running and ":".join(step.jobs) == dependency:
                step.passed, step.jobs = True, ()

    def ended(self, name: str, now: float, *, completed: bool) -> None:
        """Record the end of a quantum step; the times of a failed step are not used."""
        self.stop_counting()
        if name in self._steps:
            self._last, self._until = self._steps[name], now + FOLLOWS_SECONDS
            self._last.running, self._last.arrived = False, 0
            self._last.completed = completed

    def forget(self) -> None:
        """Expect no jobs after any step until followers are counted again."""
        self._last = None
        for step in self._steps.values():
            step.followers = 0

    def job_arrived(self, now: float) -> None:
        step = self._last
        if step is None or not (step.arrived or now < self._until):
            return
        step.arrived += 1
        if step.arrived == 1 and step.completed:
            began = max(step.begins.values(), default=step.started)
            if began < math.inf:
                step.times.append(StepTimes(began - step.started, now - began))

    def job_ended(self) -> None:
        """Stop counting followers: jobs that arrive from now on can reuse nodes."""
        if self._last is not None and self._last.arrived:
            self.stop_counting()

    def due(self, now: float) -> int:
        """The number of jobs expected so soon that nodes may be held for them."""
        expected = self._still_to_come(now)
        for step in self._predicted():
            step.update(now, self._urgency)
            if step.due:
                expected += step.followers or 0
        return expected

    def held_seconds(self, now: float) -> float:
        """For how long nodes may be held until their jobs arrive, 0 if they have arrived."""
        ends = [step.given_up(self._urgency) for step in self._predicted() if step.due]
        return max(0.0, max(ends, default=now) - now)

    def dependent(self) -> dict[str, int]:
        """The number of jobs expected after Slurm jobs, by ids as in ``--dependency``."""
        return {
            ":".join(step.jobs): step.followers
            for step in self._steps.values()
            if step.running and step.jobs and step.followers
        }

    def changes(self, now: float) -> Iterator[float]:
        """The times at which :meth:`due` may change without an event."""
        for step in self._predicted():
            yield step.request_time(now, self._urgency)
            yield from step.arrivals()
            yield step.given_up(self._urgency)
        if self._still_to_come(now):
            yield self._until

    def stop_counting(self) -> None:
        """Count no more jobs as followers of the last step."""
        if self._last is not None:
            self._last.followers = self._last.arrived
            self._last = None

    def _predicted(self) -> Iterator[_QuantumStep]:
        """The running steps with expected followers whose nodes depend on no Slurm job."""
        for step in self._steps.values():
            if step.running and step.followers and not step.jobs:
                yield step

    def _still_to_come(self, now: float) -> int:
        if self._last is None or now >= self._until:
            return 0
        return max(0, (self._last.followers or 0) - self._last.arrived)
