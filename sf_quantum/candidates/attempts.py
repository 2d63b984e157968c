"""The attempts of the jobs whose targets a filter chooses.

An attempt has targets, failures and an expected usage.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from sf_quantum import journal
from sf_quantum.candidates.decision import (
    ClassicalTarget,
    Decision,
    Exclusion,
    Obstacle,
    QuantumTarget,
    Spending,
    StepRules,
    rounded,
)
from sf_quantum.candidates.history import History, JobTimes
from sf_quantum.qpu import JobSize, QpuStatus

#: a hint that differs from the service's estimate by more than this factor causes a remark
HINT_FACTOR = 2.0


@dataclass(frozen=True)
class Capacity:
    """The slots of a classical target; ``free`` is its free slots minus its waiting jobs."""

    slots: int = 1
    free: int = 1


@dataclass(frozen=True)
class BudgetReservation:
    """The part of a budget that a job on a QPU is expected to use.

    :param seconds: expected QPU seconds; ``None`` until an estimate exists
    """

    step: str
    target: str
    seconds: float | None


@dataclass
class Attempt:
    """The latest attempt of a job: running, then exited, then completed or failed.

    If the attempt fails after its command has ended, for example because outputs are missing,
    this is noticed only when StreamFlow begins the next attempt.

    :param number: number of the attempt, from 1
    :param targets: targets chosen for the attempt; empty once its command has ended
    :param reserved: part of the budget that is reserved for the attempt, if it is on a QPU
    :param unconfirmed: the chosen target, and the failure that is recorded for it if the job
        does not complete
    :param failures: failures of all attempts of the job, by target
    :param quantum: whether the target is quantum; ``None`` before the decision, and after a
        failure
    :param size: size of the QPU job
    :param reported: by target, the QPU seconds and elapsed seconds that the QPU's service
        estimates for a job of this size
    """

    job: str
    step: str
    rules: StepRules
    number: int = 0
    targets: tuple[str, ...] = ()
    reserved: BudgetReservation | None = None
    unconfirmed: tuple[str, Exclusion] | None = None
    failures: dict[str, Exclusion] = field(default_factory=dict)
    quantum: bool | None = None
    size: JobSize = field(default_factory=JobSize)
    reported: dict[str, tuple[float, float]] = field(default_factory=dict)


class SharedState:
    """The state that all filters of a run share.

    :param history: times and usage of earlier attempts; by default empty, until the journals
        are read
    """

    def __init__(self, history: History | None = None) -> None:
        self.history = history or History()
        #: latest attempt of each job that was sent to a target and has not completed
        self.sent: dict[str, Attempt] = {}
        #: cost of a second of QPU time, by target, reported by QPUs or set in filters
        self.costs: dict[str, float] = {}
        # Reservations of ended jobs, each with the journal's size when the job ended.
        self._ended_reservations: list[tuple[int, BudgetReservation]] = []

    def release(self, attempt: Attempt) -> None:
        """Let an attempt's reservation end as soon as the history contains its usage."""
        record = journal.current()
        if attempt.reserved is not None and record is not None:
            self._ended_reservations.append((record.size, attempt.reserved))
        attempt.reserved = None

    def reservations(self, step: str | None = None) -> list[BudgetReservation]:
        """Return the reservations of a step, or of the whole run."""
        self._ended_reservations = [
            ended
            for ended in self._ended_reservations
            if ended[0] > self.history.offset
        ]
        sent = (attempt.reserved for attempt in self.sent.values())
        all_reservations = [
            *(reserved for _, reserved in self._ended_reservations),
            *filter(None, sent),
        ]
        return [
            reservation
            for reservation in all_reservations
            if step in (None, reservation.step)
        ]


# A run's state is dropped with its journal: a process may drive several runs in sequence.
_states: WeakKeyDictionary[journal.Journal, SharedState] = WeakKeyDictionary()


def shared_state() -> SharedState:
    """Return the state that this run's filters share; if there is no journal, a new state."""
    record = journal.current()
    if record is None:
        return SharedState()
    return _states.setdefault(record, SharedState())


class Estimates:
    """The best known estimates of jobs' times and costs on QPUs.

    :param costs: cost of a second of QPU time, by target
    """

    def __init__(self, state: SharedState, costs: Mapping[str, float]) -> None:
        self._history = state.history
        self._costs = dict(costs)
        self._shared_costs = state.costs
        state.costs |= {**costs, **state.costs}

    def learn(self, attempt: Attempt, target: str, status: QpuStatus) -> None:
        """Record a QPU's price, and the service's estimate for a job."""
        if status.cost_per_second is not None:
            self._shared_costs[target] = status.cost_per_second
        if status.job_qpu_seconds is not None and status.job_run_seconds is not None:
            jobs = attempt.rules.qpu_jobs
            reported = (status.job_qpu_seconds * jobs, status.job_run_seconds * jobs)
            attempt.reported[target] = reported

    def times(self, attempt: Attempt, target: str) -> tuple[JobTimes | None, bool]:
        """Return the expected times of an attempt on a QPU, and whether they are reliable.

        The first of these that is known is used: the times of earlier jobs, if the QPU reports
        its usage; the service's estimate for a job of this size; the hint, which is not
        reliable; the times of earlier jobs on a QPU that does not report its usage.
        """
        measured = self._history.times(attempt.step, target)
        if measured is not None and target not in self._history.unmetered:
            return measured, True
        other = measured.other_seconds if measured is not None else 0.0
        if (estimate := attempt.reported.get(target)) is not None:
            charged, elapsed = estimate
            return JobTimes(elapsed, charged, other), True
        if (hint := attempt.rules.expected_seconds) is not None:
            return JobTimes(hint, hint, other), False
        return measured, measured is not None

    def total_seconds(
        self, attempt: Attempt, target: str, times: JobTimes | None
    ) -> float | None:
        """Return the time of a job from its start to its end, if known.

        The service's estimate covers only the time on the device. So a target without earlier
        jobs is regarded as not measured in spite of an estimate, and is tried once.
        """
        measured = self._history.times(attempt.step, target) is not None
        if times is None or (not measured and target in attempt.reported):
            return None
        return times.total_seconds

    def cost(self, target: str) -> float | None:
        """Return the cost of a QPU second on a target, if known."""
        return self._costs.get(target, self._shared_costs.get(target))

    def remark(self, attempt: Attempt, target: str) -> str:
        """Return a remark if a service's estimate replaces a very different hint, else ""."""
        hint, estimate = attempt.rules.expected_seconds, attempt.reported.get(target)
        if hint is None or estimate is None:
            return ""
        smaller, larger = sorted((hint, estimate[0]))
        if larger <= HINT_FACTOR * smaller:
            return ""
        return (
            f"expectedSeconds: {hint:g} is not used, since the service of "
            f"{target} estimates {rounded(estimate[0])} QPU seconds "
            f"({rounded(estimate[1])} s elapsed) for a job of {attempt.size.reads} reads"
        )


class Attempts:
    """The jobs of one filter that have not completed, and the state of their targets.

    :param costs: cost of a second of QPU time, by target
    :param cooldown: seconds for which a target is not used after a failure
    :param state: state shared by all filters of the run; by default, a new state
    """

    def __init__(
        self,
        costs: Mapping[str, float],
        cooldown: float,
        state: SharedState | None = None,
    ) -> None:
        self._cooldown = cooldown
        self._jobs: dict[str, Attempt] = {}
        # end of the cooldown on the monotonic clock, and the failure, by target
        self._cooldowns: dict[str, tuple[float, Exclusion]] = {}
        # an event that is set, and replaced, when a job ends
        self._job_ended = asyncio.Event()
        # numbers of completed jobs of this run, by step and by whether they ran on a QPU
        self._completed: defaultdict[str, Counter[bool]] = defaultdict(Counter)
        self._state = state or SharedState()
        self.history = self._state.history
        self.estimates = Estimates(self._state, costs)

    def begin(self, job: str, step: str, rules: StepRules) -> Attempt:
        """Begin an attempt; if the previous attempt did not complete, record it as failed."""
        attempt = self._jobs.setdefault(job, Attempt(job, step, rules))
        if attempt.unconfirmed is not None:
            target, failure = attempt.unconfirmed
            if failure.cause is Obstacle.FAILED:
                self.record_failure(job, target, failure.detail)
            else:  # no cooldown begins, since the job itself may be the cause
                attempt.failures.setdefault(target, failure)
        self._end_attempt(attempt)
        attempt.quantum = None
        attempt.number += 1
        return attempt

    def record_start(self, attempt: Attempt, decision: Decision) -> None:
        """Record that an attempt starts on its target, and reserve its budget."""
        target = decision.targets[0]
        attempt.targets = decision.targets
        attempt.quantum = decision.quantum
        attempt.unconfirmed = (target, Exclusion(Obstacle.NO_RESULT))
        if decision.quantum:
            times, _ = self.estimates.times(attempt, target)
            seconds = times.qpu_seconds if times else None
            attempt.reserved = BudgetReservation(attempt.step, target, seconds)
        self._state.sent[attempt.job] = attempt

    def record_exit(self, job: str, target: str, error: str | None = None) -> None:
        """Record that a job's command has ended.

        :param error: message of the failure; ``None`` if the exit status is a success
        """
        failure = Exclusion(Obstacle.OUTPUTS_MISSING)
        if error is not None:
            failure = Exclusion(Obstacle.FAILED, detail=error)
        if (attempt := self._jobs.get(job)) is not None:
            attempt.targets, attempt.unconfirmed = (), (target, failure)
            reserved = attempt.reserved
            if error is not None or (reserved and reserved.seconds is not None):
                self._state.release(attempt)
            # A reservation of unknown size is kept until the job completes or its next attempt
            # begins.
        self._notify_end()

    def _end_attempt(self, attempt: Attempt) -> None:
        attempt.targets, attempt.unconfirmed = (), None
        self._state.release(attempt)

    async def wait_for_job_end(self, seconds: float) -> None:
        """Wait until any job ends, for at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._job_ended.wait()

    def _notify_end(self) -> None:
        self._job_ended.set()
        self._job_ended = asyncio.Event()

    def record_completion(self, job: str) -> None:
        """Record that a job has completed, and that its outputs exist."""
        attempt = self._jobs.pop(job, None)
        if attempt is not None:
            self._state.release(attempt)
            self._state.sent.pop(job, None)
            if attempt.quantum is not None:
                self._completed[attempt.step][attempt.quantum] += 1
        self._notify_end()

    def record_reuse(self, step: str, quantum: bool) -> None:
        """Record that a job reuses the result of an earlier run.

        :param quantum: whether a QPU produced the result
        """
        self._completed[step][quantum] += 1

    def counts_by_kind(self, step: str) -> tuple[int, int]:
        """Count a step's running and completed jobs: on QPUs, and on classical targets."""
        counts = Counter(self._completed[step])
        counts.update(
            attempt.quantum
            for attempt in self._jobs.values()
            if attempt.step == step and attempt.quantum is not None
        )
        return counts[True], counts[False]

    def rule_out(self, job: str, target: str, why: Exclusion) -> None:
        """Record that a target cannot run this job; it stays available to other jobs."""
        if (attempt := self._jobs.get(job)) is not None:
            self._end_attempt(attempt)
            attempt.quantum = None
            attempt.failures[target] = why
        self._notify_end()

    def record_failure(
        self, job: str, target: str, error: str, cause: Obstacle = Obstacle.FAILED
    ) -> None:
        """Record that an attempt has failed on a target, which begins a cooldown."""
        failure = Exclusion(cause, detail=error)
        if (attempt := self._jobs.get(job)) is not None:
            self._end_attempt(attempt)
            attempt.quantum = None
            attempt.failures[target] = failure
        self._cooldowns[target] = (time.monotonic() + self._cooldown, failure)
        self._notify_end()

    def attempt_number(self, job: str) -> int:
        return self._jobs[job].number if job in self._jobs else 0

    def failures(self, job: str) -> Mapping[str, Exclusion]:
        return self._jobs[job].failures if job in self._jobs else {}

    def running_on(self, target: str) -> list[str]:
        """List the run's jobs that were sent to a target and have not ended."""
        return [job for job, a in self._state.sent.items() if target in a.targets]

    def quantum_target(
        self, attempt: Attempt, name: str, status: QpuStatus | Exclusion | None
    ) -> QuantumTarget:
        """Return the current state of a quantum target.

        :param status: ``None`` if the QPU was not queried because of a cooldown
        """
        failed, cooldown = attempt.failures.get(name), self.cooldown_of(name)
        if status is None:
            # the cooldown may have ended after the other QPUs were queried
            cooldown = cooldown or Exclusion(Obstacle.NOT_QUERIED)
        if not isinstance(status, QpuStatus):
            return QuantumTarget(name, status, cooldown, failed, wait=None)
        self.estimates.learn(attempt, name, status)
        times, measured = self.estimates.times(attempt, name)
        running = len(self.running_on(name))
        self._reserve(attempt.step, name, times)
        wait, wait_known = expected_wait(status, running, times, measured=measured)
        offline = Exclusion(Obstacle.OFFLINE, detail=status.reason)
        return QuantumTarget(
            name,
            offline=None if status.online else offline,
            cooldown=cooldown,
            failed=failed,
            qubits=status.qubits,
            wait=wait,
            seconds=self.estimates.total_seconds(attempt, name, times),
            qpu_seconds=times.qpu_seconds if times else None,
            cost=self.estimates.cost(name) or 0.0,
            maintenance=status.maintenance_seconds,
            load=(max(status.leases, running) + status.queue_length) / status.vqpus,
            wait_known=wait_known,
            eta=status.eta_seconds or 0.0,
        )

    def classical_target(
        self,
        attempt: Attempt,
        name: str,
        capacity: Capacity,
        predicted: float | None = None,
    ) -> ClassicalTarget:
        """Return the current state of a classical target.

        :param predicted: predicted seconds for which the Slurm job would be pending; without
            a prediction, the target's ``seconds`` include the time for which earlier jobs
            were pending
        """
        times = self.history.times(attempt.step, name)
        seconds = times.total_seconds if times else None
        if times is not None and predicted is not None:
            seconds = times.total_seconds - times.pending_seconds
        # number of jobs that must end before this job starts
        ahead = max(0, 1 - capacity.free)
        rounds = -(-ahead // capacity.slots)
        return ClassicalTarget(
            name,
            free=capacity.free > 0,
            cooldown=self.cooldown_of(name),
            failed=attempt.failures.get(name),
            wait=max(rounds * (seconds or 0.0), predicted or 0.0),
            seconds=seconds,
        )

    def spending(self, step: str | None = None) -> Spending:
        """Return the spending of a step or of the run, including all filters' reservations."""
        spent, reserved = self.spent(step), self._state.reservations(step)
        costs = (
            self.estimates.cost(reservation.target) or 0.0 for reservation in reserved
        )
        seconds = [reservation.seconds or 0.0 for reservation in reserved]
        return Spending(
            spent.seconds + sum(seconds),
            spent.cost + sum(s * cost for s, cost in zip(seconds, costs, strict=True)),
            unmeasured=any(reservation.seconds is None for reservation in reserved),
        )

    def spent(self, step: str | None = None) -> Spending:
        """Return the past spending of a step or of the run."""
        spent = self.history.spent(step)
        costs = [
            seconds * (self.estimates.cost(target) or 0.0)
            for target, seconds in spent.items()
        ]
        return Spending(sum(spent.values()), sum(costs))

    def cooldown_of(self, target: str) -> Exclusion | None:
        """Return the reason for a target's cooldown; ``None`` if none is in effect."""
        if target not in self._cooldowns:
            return None
        until, failure = self._cooldowns[target]
        left = until - time.monotonic()
        if left <= 0 or failure.cause is Obstacle.SLURM_REFUSED:
            return failure if left > 0 else None
        return Exclusion(Obstacle.COOLDOWN, left, detail=failure.detail)

    def _reserve(self, step: str, target: str, times: JobTimes | None) -> None:
        """Reserve the expected usage of running jobs for which it was unknown until now."""
        if times is None:
            return
        unknown = BudgetReservation(step, target, None)
        for attempt in self._jobs.values():
            # The history already contains the usage of ended jobs.
            if attempt.targets and attempt.reserved == unknown:
                attempt.reserved = replace(unknown, seconds=times.qpu_seconds)


def expected_wait(
    status: QpuStatus, running: int, times: JobTimes | None, *, measured: bool = True
) -> tuple[float | None, bool]:
    """Return the seconds until a job that is submitted to a QPU now would start.

    :param running: number of jobs that this run has sent to the QPU
    :param times: expected times of a job on the QPU
    :param measured: whether ``times`` are reliable, see :meth:`Estimates.times`
    :returns: the seconds, or ``None`` if they cannot be estimated; and whether they are
        certain, that is, follow only from the service's ETA and this run's jobs and do not
        depend on the leases or jobs of others
    """
    queue, is_known = status.eta_seconds, True
    if queue is None and (status.queue_length == 0 or times is not None):
        queue = status.queue_length * (times.total_seconds if times else 0.0)
        is_known = status.queue_length == 0
    if queue is not None:
        # jobs sent by this run may not be queued yet; the device runs one job at a time
        device_seconds = times.device_seconds if times else 0.0
        unqueued_seconds = max(0, running - status.queue_length) * device_seconds
        queue += unqueued_seconds
        is_known = is_known and (measured or unqueued_seconds == 0)
    taken = max(status.leases, running)
    if taken < status.vqpus:
        return queue, is_known and queue is not None
    if times is None:
        return None, False
    # Ends of leases are unknown: each lease is assumed to last as long as a job of this run.
    rounds = 1 + (taken - status.vqpus) // status.vqpus
    is_known = is_known and measured and status.leases <= running
    return max(queue or 0.0, rounds * times.total_seconds), is_known
