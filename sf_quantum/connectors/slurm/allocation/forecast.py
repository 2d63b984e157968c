"""Forecast of when to request nodes for the jobs that follow a quantum step.

If nodes are requested ``t`` seconds too early, they are idle for ``t`` seconds; if too late,
the jobs wait for ``t`` seconds. The ideal time is the jobs' arrival minus the time for which
an allocation is pending. Both are known only as distributions from earlier runs. If a second
of waiting costs as much as ``urgency`` idle node-seconds, the expected cost is least at the
quantile ``1 / (1 + urgency)`` of the ideal time (the newsvendor problem). The distribution of
the ideal time consists of all differences of observed values.

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
#: time after a quantum step within which its first follower must arrive
FOLLOWS_SECONDS = 5.0
#: nodes are released again if the new forecast needs them more than this much later
LATER_SECONDS = 5.0


@dataclass(frozen=True)
class StepTimes:
    """The times of a run of a quantum step, in seconds.

    :param waited: time until the QPU began the step's jobs; 0 if unknown
    :param busy: time from this beginning until the step's followers arrived
    """

    waited: float
    busy: float


@dataclass
class _QuantumStep:
    """A quantum step: its current run, and earlier runs.

    :param followers: number of jobs that arrived after the previous run, before the first of
        them ended; ``None`` if not counted yet
    :param arrived: number of jobs that have arrived since the current run ended
    :param begins: time at which the QPU is expected to begin each job, or has begun it
    :param pending: times for which allocations were pending, as known at the start of the run.
        Later values are not used, since nodes that are granted sooner would be released and
        requested again
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
        """Return equally likely arrival times of the followers; empty if unknown."""
        begins = max(self.begins.values(), default=None)
        if begins is None:
            return [self.started + times.waited + times.busy for times in self.times]
        return [begins + times.busy for times in self.times if begins < math.inf]

    def request_time(self, now: float, urgency: float) -> float:
        """Return when to request nodes, given that the step has not ended by now."""
        arrivals = [arrival for arrival in self.arrivals() if arrival > now]
        pairs = product(arrivals, self.pending or (0.0,))
        times = sorted(arrival - pending for arrival, pending in pairs)
        if not times:
            return math.inf
        # If there are few values, the rank is lower, since the true distribution is wider.
        rank = math.floor((len(times) + 1) / (1 + urgency))
        return times[min(max(rank, 1), len(times)) - 1]

    def given_up(self, urgency: float) -> float:
        """Return until when nodes are held for a step that takes longer than in earlier runs.

        The end of such a step is unknown, so nodes are held until holding them has cost as
        much as a new request would.
        """
        longest = urgency * max(self.pending, default=0.0)
        return max(self.arrivals(), default=-math.inf) + LATER_SECONDS + longest

    def update(self, now: float, urgency: float) -> None:
        """Determine whether nodes should be requested and held now."""
        request = self.request_time(now, urgency)
        if self.passed or request <= now:
            self.due = True
        elif request == math.inf:
            self.due = now < self.given_up(urgency)
        elif request > now + LATER_SECONDS:
            self.due = False


class JobForecast:
    """Predicts the jobs after each quantum step.

    :param urgency: number of idle node-seconds that cost as much as a second of waiting
    """

    def __init__(self, urgency: float) -> None:
        self._urgency = urgency
        self._pending: deque[float] = deque(maxlen=LATEST)
        self._steps: dict[str, _QuantumStep] = {}
        # the step whose followers are being counted, and the latest time for the first of them
        self._counted_step: _QuantumStep | None = None
        self._counting_ends = 0.0

    @property
    def quantum(self) -> bool:
        """Whether a quantum step is running."""
        return any(step.running for step in self._steps.values())

    def learn(self, earlier: JobForecast) -> None:
        """Insert the values of earlier runs before the values of this run."""
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
        """Record when the QPU is expected to begin a job of a running step, or began it."""
        if name in self._steps:
            self._steps[name].begins[job] = at

    def submitted(self, name: str, slurm_job: str) -> None:
        """Record a Slurm job of the step; allocations can depend on the job's end."""
        if name in self._steps:
            self._steps[name].jobs += (slurm_job,)

    def passed(self, dependency: str) -> None:
        """Record that the Slurm jobs of a dependency have ended."""
        for step in self._steps.values():
            if step.running and ":".join(step.jobs) == dependency:
                step.passed, step.jobs = True, ()

    def ended(self, name: str, now: float, *, completed: bool) -> None:
        """Record the end of a quantum step, and count the jobs that follow it.

        :param completed: whether the step succeeded; otherwise its times are not used
        """
        self.stop_counting()
        if name in self._steps:
            self._counted_step, self._counting_ends = (
                self._steps[name],
                now + FOLLOWS_SECONDS,
            )
            self._counted_step.running, self._counted_step.arrived = False, 0
            self._counted_step.completed = completed

    def forget(self) -> None:
        """Predict no jobs after any step, until followers are counted again."""
        self._counted_step = None
        for step in self._steps.values():
            step.followers = 0

    def job_arrived(self, now: float) -> None:
        """Count a job as a follower of the latest step; the first one determines the times."""
        step = self._counted_step
        if step is None or not (step.arrived or now < self._counting_ends):
            return
        step.arrived += 1
        if step.arrived == 1 and step.completed:
            began = max(step.begins.values(), default=step.started)
            if began < math.inf:
                step.times.append(StepTimes(began - step.started, now - began))

    def job_ended(self) -> None:
        """Stop counting followers, since jobs that arrive from now on can reuse nodes."""
        if self._counted_step is not None and self._counted_step.arrived:
            self.stop_counting()

    def due(self, now: float) -> int:
        """Return the number of jobs that are expected so soon that nodes are held for them."""
        expected = self._outstanding_followers(now)
        for step in self._predicted():
            step.update(now, self._urgency)
            if step.due:
                expected += step.followers or 0
        return expected

    def held_seconds(self, now: float) -> float:
        """Return how long nodes may be held until the due jobs arrive; 0 if none are due."""
        ends = [step.given_up(self._urgency) for step in self._predicted() if step.due]
        return max(0.0, max(ends, default=now) - now)

    def dependent(self) -> dict[str, int]:
        """Return the numbers of jobs that are expected after Slurm jobs.

        The keys are ids of Slurm jobs in the format of ``--dependency``.
        """
        return {
            ":".join(step.jobs): step.followers
            for step in self._steps.values()
            if step.running and step.jobs and step.followers
        }

    def changes(self, now: float) -> Iterator[float]:
        """Yield the times at which the result of :meth:`due` may change without an event."""
        for step in self._predicted():
            yield step.request_time(now, self._urgency)
            yield from step.arrivals()
            yield step.given_up(self._urgency)
        if self._outstanding_followers(now):
            yield self._counting_ends

    def stop_counting(self) -> None:
        """Stop counting jobs as followers of the latest step, and keep the count."""
        if self._counted_step is not None:
            self._counted_step.followers = self._counted_step.arrived
            self._counted_step = None

    def _predicted(self) -> Iterator[_QuantumStep]:
        """Yield the running steps whose followers are predicted from times.

        Steps whose followers' nodes depend on Slurm jobs are left out.
        """
        for step in self._steps.values():
            if step.running and step.followers and not step.jobs:
                yield step

    def _outstanding_followers(self, now: float) -> int:
        if self._counted_step is None or now >= self._counting_ends:
            return 0
        return max(0, (self._counted_step.followers or 0) - self._counted_step.arrived)
