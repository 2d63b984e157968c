"""The decision on the target of an attempt: rules, decision, explanation.

Everything is computed from plain values, without I/O, clocks or StreamFlow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import chain
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON, KeyPath, integer, mapping
from sf_quantum.protocol.leases import LeaseHints, latest_start
from sf_quantum.text import utc

Prefer: TypeAlias = Literal["quantum", "classical", "earliest"]
WaitFrom: TypeAlias = Literal["journal", "plan"]
Mixed: TypeAlias = Literal["refuse", "warn", "allow"]
# the unit of budgets that are not in seconds
COST = "cost"


class Impossible(QuantumError):
    """No target of the binding can ever run the job, so a retry is pointless."""


@dataclass(frozen=True)
class Budget:
    """Limits on the seconds of QPU time and on their cost; ``None`` for no limit."""

    seconds: float | None = None
    cost: float | None = None

    @classmethod
    def read(cls, config: JSON) -> Budget:
        keys = mapping(config)
        return cls(_number(keys.get("qpuSeconds")), _number(keys.get("cost")))

    def completed(self, other: Budget) -> Budget:
        """Return this budget; limits that it lacks are taken from another one."""
        return Budget(
            other.seconds if self.seconds is None else self.seconds,
            other.cost if self.cost is None else self.cost,
        )


@dataclass(frozen=True)
class StepRules:
    """The filter's configuration for one step; the schema describes the keys.

    :param forecast: source of the waits of classical targets
    :param latest_start: time by which a QPU must grant the lease, in seconds since the epoch
    :param variables: name of the input with the number of variables
    :param run: the filter's budget for the whole run
    :param step: the budget of this step
    :param expected_seconds: hint for the lease; ``pattern``, ``priority`` and ``reservation``
        are further hints
    :param reuses_classical: whether a resumed run reuses the result of a classical target
        although a QPU would accept the job
    :param reads: name of the input with the number of reads
    :param qpu_jobs: number of QPU jobs that each job of the step submits
    :param mixed: whether jobs of the step may run on targets of both kinds in a run
    """

    prefer: Prefer = "quantum"
    forecast: WaitFrom = "journal"
    max_wait: float | None = None
    latest_start: float | None = None
    max_variables: int | None = None
    min_variables: int | None = None
    variables: str | None = None
    run: Budget = Budget()
    step: Budget = Budget()
    fallback: bool = True
    expected_seconds: float | None = None
    pattern: str | None = None
    priority: int | None = None
    reservation: str | None = None
    mixed: Mixed = "warn"
    reads: str | None = None
    qpu_jobs: int = 1
    reuses_classical: bool = False

    def longest_wait(self, now: float) -> float | None:
        """Return the seconds within which a QPU must start a job; ``None`` for no limit.

        :param now: seconds since the epoch
        """
        if self.latest_start is None:
            return self.max_wait
        left = max(0.0, self.latest_start - now)
        return left if self.max_wait is None else min(left, self.max_wait)

    @property
    def hints(self) -> LeaseHints:
        """The hints for the QPU service."""
        return LeaseHints(
            self.expected_seconds,
            self.pattern,
            self.latest_start,
            self.priority,
            self.reservation,
        )

    @property
    def predicts(self) -> bool:
        """Whether the rules need predictions of classical targets' waits by the simulator."""
        return self.prefer == "earliest" and self.forecast == "plan"

    @property
    def has_budget(self) -> bool:
        return self.run != Budget() or self.step != Budget()

    @property
    def limits_cost(self) -> bool:
        return self.run.cost is not None or self.step.cost is not None


class FilterRules:
    """A filter's configuration; its key ``steps`` has overrides for single steps."""

    def __init__(self, config: Mapping[str, JSON]) -> None:
        #: values of ``latestStart`` that are not times, by path; the rules ignore them
        self.wrong_times: dict[KeyPath, JSON] = {}
        self._filter = self._read(config, ())
        self._steps = {
            step: self._read(mapping(entry), ("steps", step))
            for step, entry in mapping(config.get("steps")).items()
        }

    def _read(self, config: Mapping[str, JSON], where: KeyPath) -> _Entry:
        """Read an entry; values of a wrong type are left out, as the schema rejects them."""
        rules = {
            name: value
            for key, (name, read) in _KEYS.items()
            if (value := read(config.get(key))) is not None
        }
        if (text := config.get("latestStart")) is not None:
            try:
                rules["latest_start"] = latest_start(text)
            except InputError:
                self.wrong_times[*where, "latestStart"] = text
        return _Entry(rules, Budget.read(config.get("budget")))

    def of(self, step: str) -> StepRules:
        """Return a step's rules; each key is from the nearest entry at or above the step."""
        rules, budget = {**self._filter.rules}, Budget()
        for name in sorted(name for name in self._steps if is_within(step, name)):
            rules |= self._steps[name].rules
            budget = self._steps[name].budget.completed(budget)
        make: Callable[..., StepRules] = StepRules
        return make(**rules, run=self._filter.budget, step=budget)


@dataclass(frozen=True)
class _Entry:
    """The configuration of a filter, or of one of its steps.

    :param rules: the values that it has, by field of :class:`StepRules`
    """

    rules: Mapping[str, _Value]
    budget: Budget


def is_within(step: str, top: str) -> bool:
    """Return whether a step is ``top``, or a step of the subworkflow ``top``."""
    return PurePosixPath(step).is_relative_to(top)


def _number(value: JSON) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _text(value: JSON) -> str | None:
    return value if isinstance(value, str) else None


def _flag(value: JSON) -> bool | None:
    return value if isinstance(value, bool) else None


_Value: TypeAlias = str | float
# Field of StepRules for each key, and the function that reads its value.
_KEYS: Mapping[str, tuple[str, Callable[[JSON], _Value | None]]] = {
    "prefer": ("prefer", _text),
    "forecast": ("forecast", _text),
    "maxWait": ("max_wait", _number),
    "maxVariables": ("max_variables", integer),
    "minVariables": ("min_variables", integer),
    "variables": ("variables", _text),
    "onFailure": ("fallback", lambda value: None if value is None else value != "fail"),
    "expectedSeconds": ("expected_seconds", _number),
    "pattern": ("pattern", _text),
    "priority": ("priority", integer),
    "reservation": ("reservation", _text),
    "mixed": ("mixed", _text),
    "reads": ("reads", _text),
    "qpuJobs": ("qpu_jobs", lambda value: integer(value) or None),
    "reuseClassical": ("reuses_classical", _flag),
}


class Obstacle(Enum):
    """A reason to exclude a target; the value is the template for its description."""

    TOO_LARGE = "takes up to {limit} variables, the problem has {value}"
    ABOVE_MAX_VARIABLES = (
        "is limited to {limit} variables (maxVariables), the problem has {value}"
    )
    BELOW_MIN_VARIABLES = (
        "requires {limit} variables (minVariables), the problem has {value}"
    )
    BUDGET_EXCEEDED = (
        "would exceed the {scope}'s budget: {value} of {limit} {unit} left"
    )
    BUDGET_OVERRUN = (
        "may not be used: the {scope}'s budget of {limit} {unit} is exceeded by {value}, "
        "jobs that run included"
    )
    NO_BUDGET = "may not be used: the {scope}'s budget is 0 {unit}"
    USAGE_UNREADABLE = (
        "might exceed the {scope}'s budget: past usage cannot be read from the journal"
    )
    USAGE_UNMEASURED = (
        "might exceed the {scope}'s budget: the usage of a running job is not known yet"
    )
    FAILED = "failed an earlier attempt of this job ({detail})"
    UNFIT = "cannot run this job ({detail})"
    SLURM_REFUSED = "does not take this job ({detail})"
    OUTPUTS_MISSING = (
        "failed an earlier attempt of this job (exit status 0, but outputs are missing)"
    )
    NO_RESULT = "failed an earlier attempt of this job (no result)"
    COOLDOWN = "is in cooldown for {value} s after a failure ({detail})"
    NOT_QUERIED = "was in cooldown when the QPUs were queried"
    OFFLINE = "is offline: {detail}"
    NO_ANSWER = "did not answer within {limit} s"
    STILL_SILENT = "did not answer in time and is queried again in {value} s"
    UNREACHABLE = "could not be queried: {detail}"
    REFUSED = "refuses its user: {detail}"
    WAITED = "did not start this job within {limit} s (maxWait)"
    MIXED = "is left out, since other jobs of this step ran on {detail} (mixed: refuse)"
    TOO_LATE = "did not start this job by {detail} (latestStart)"
    LONG_WAIT = "would start in {value} s, maxWait is {limit} s"
    LATE = "would start in {value} s, after {detail} (latestStart)"
    MAINTENANCE = "goes into maintenance in {value} s"


# Text of Exclusion.brief, by obstacle.
_BRIEF = {
    Obstacle.TOO_LARGE: "problem too large",
    Obstacle.ABOVE_MAX_VARIABLES: "more than maxVariables",
    Obstacle.BELOW_MIN_VARIABLES: "less than minVariables",
    Obstacle.BUDGET_EXCEEDED: "budget spent",
    Obstacle.BUDGET_OVERRUN: "budget exceeded",
    Obstacle.NO_BUDGET: "budget is 0",
    Obstacle.USAGE_UNREADABLE: "spending unknown",
    Obstacle.USAGE_UNMEASURED: "usage not measured yet",
    Obstacle.FAILED: "failed there",
    Obstacle.UNFIT: "job refused there",
    Obstacle.SLURM_REFUSED: "refused by Slurm",
    Obstacle.OUTPUTS_MISSING: "outputs missing",
    Obstacle.NO_RESULT: "no result",
    Obstacle.COOLDOWN: "cooldown after a failure",
    Obstacle.NOT_QUERIED: "cooldown after a failure",
    Obstacle.OFFLINE: "QPU offline",
    Obstacle.NO_ANSWER: "no reply from the QPU",
    Obstacle.STILL_SILENT: "no reply from the QPU",
    Obstacle.UNREACHABLE: "no reply from the QPU",
    Obstacle.REFUSED: "user refused",
    Obstacle.WAITED: "not started within maxWait",
    Obstacle.MIXED: "as the others",
    Obstacle.TOO_LATE: "not started by latestStart",
    Obstacle.LONG_WAIT: "wait above maxWait",
    Obstacle.LATE: "would start after latestStart",
    Obstacle.MAINTENANCE: "maintenance",
}
# Failures; the other obstacles are limits, or states that users or operators have set.
_FAILURES = {
    *(Obstacle.FAILED, Obstacle.OUTPUTS_MISSING, Obstacle.NO_RESULT, Obstacle.COOLDOWN),
    *(Obstacle.NOT_QUERIED, Obstacle.NO_ANSWER, Obstacle.STILL_SILENT),
    *(Obstacle.UNREACHABLE, Obstacle.REFUSED, Obstacle.SLURM_REFUSED, Obstacle.UNFIT),
}
# start of the reason that sfq serve reports if its QPU is not online
_STATE = re.compile(r"the QPU is (\w+)")


@dataclass(frozen=True)
class Exclusion:
    """The reason why a target does not get the job.

    :param value: measured figure, if the cause has one
    :param limit: limit on the figure
    :param budget: scope (run or step) and unit of the budget
    :param detail: text for the description, such as the message of the failed command
    """

    cause: Obstacle
    value: float = 0.0
    limit: float = 0.0
    budget: tuple[str, str] = ("", "")
    detail: str = ""

    @property
    def brief(self) -> str:
        """The reason in a few words, without figures, so that many jobs share one text."""
        if self.cause is Obstacle.OFFLINE and (state := _STATE.match(self.detail)):
            return f"QPU {state[1]}"
        if self.cause is Obstacle.BUDGET_EXCEEDED and self.value == self.limit:
            return "budget below a job's cost"
        return _BRIEF[self.cause]


@dataclass(frozen=True)
class TargetState:
    """The current state of a target.

    :param name: deployment/service, as in the StreamFlow file
    :param offline: reason why the QPU accepts no jobs, or could not be queried
    :param cooldown: cause of the cooldown, which is a failure of any job on the target
    :param failed: failure of an earlier attempt of this job on the target
    :param wait: seconds until a job submitted now would start; ``None`` if unknown
    :param seconds: time from the job's start to its end; ``None`` if never measured
    """

    name: str
    offline: Exclusion | None = None
    cooldown: Exclusion | None = None
    failed: Exclusion | None = None
    wait: float | None = 0.0
    seconds: float | None = None

    @property
    def end(self) -> float:
        """Seconds from now to the job's end; infinite if the wait for its start is unknown.

        A run time that was never measured is taken as 0, so that each target is tried once.
        """
        return math.inf if self.wait is None else self.wait + (self.seconds or 0.0)


@dataclass(frozen=True)
class QuantumTarget(TargetState):
    """The current state of a quantum target.

    :param qubits: largest number of variables that the QPU accepts; 0 if unknown
    :param qpu_seconds: QPU seconds that the job will probably be charged; ``None`` if unknown
    :param cost: cost of a second of QPU time
    :param maintenance: seconds until a maintenance window, if announced
    :param load: leases and queued jobs per vQPU
    :param wait_known: whether ``wait`` follows from the service's ETA and this run's own jobs;
        otherwise it is a guess, which excludes no target
    :param eta: the ETA that the service reports, in seconds; the wait is at least this long,
        and others' leases may prolong it by an unknown time
    :param max_wait: limit on a job's wait for the target, if the wait is unknown
    """

    qubits: int = 0
    qpu_seconds: float | None = None
    cost: float = 0.0
    maintenance: float | None = None
    load: float = 0.0
    wait_known: bool = True
    eta: float = 0.0
    max_wait: float | None = None

    def within(self, max_wait: float | None) -> QuantumTarget:
        """Return this target with ``max_wait`` as the limit of an unknown wait."""
        if max_wait is None or (self.wait_known and self.wait is not None):
            return self
        wait = max_wait if self.wait is None else min(self.wait, max_wait)
        return replace(self, wait=wait, wait_known=False, max_wait=max_wait)

    @property
    def known_wait(self) -> float:
        """Seconds from now before which the job certainly does not start."""
        wait = self.wait if self.wait_known and self.wait is not None else 0.0
        return max(wait, self.eta)

    @property
    def known_end(self) -> float:
        """Seconds from now before which the job certainly does not end."""
        return self.known_wait + (self.seconds or 0.0)


@dataclass(frozen=True)
class ClassicalTarget(TargetState):
    """The current state of a classical target; if it is free, a job starts immediately."""

    wait: float = 0.0
    free: bool = True


@dataclass(frozen=True)
class Spending:
    """Past spending, and the expected spending of running jobs.

    :param unmeasured: whether the spending of a running job cannot be estimated, as with the
        first job of a step; such a job reserves the rest of the budget
    """

    seconds: float = 0.0
    cost: float = 0.0
    unmeasured: bool = False


@dataclass(frozen=True)
class CandidateJob:
    """The job of an attempt.

    :param variables: number of variables of the job's problem, if an input states it
    :param attempt: number of the attempt, from 1
    :param attempts_allowed: number of attempts that the failure manager allows; ``None`` if
        unlimited or unknown
    :param spending_known: false if the journals could not be read
    :param run: spending of the whole run
    :param step: spending of the job's step
    :param others: with ``mixed: refuse``, the numbers of the step's jobs in this run on QPUs
        and on classical targets; otherwise 0
    """

    variables: int | None = None
    attempt: int = 1
    attempts_allowed: int | None = None
    spending_known: bool = True
    run: Spending = Spending()
    step: Spending = Spending()
    others: tuple[int, int] = (0, 0)

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job cannot be retried if this attempt fails."""
        allowed = self.attempts_allowed
        return allowed is not None and self.attempt >= allowed


class Basis(Enum):
    """The basis of a decision."""

    #: QPUs are preferred, and a QPU is usable
    QPU_PREFERRED = auto()
    #: classical targets are preferred, but none is free
    CLASSICAL_BUSY = auto()
    #: the job is expected to end first on the QPU
    QPU_EARLIEST = auto()
    #: every classical target failed or is in cooldown
    NO_CLASSICAL_USABLE = auto()
    #: the binding lists no classical target
    NO_CLASSICAL_TARGET = auto()
    #: classical targets are preferred, and a classical target is free
    CLASSICAL_FREE = auto()
    #: the job is expected to end first on a classical target
    CLASSICAL_EARLIEST = auto()
    #: the last of several attempts does not use a QPU
    LAST_ATTEMPT = auto()
    #: every QPU is excluded
    NO_QPU_USABLE = auto()
    #: the binding lists no quantum target
    NO_QUANTUM_TARGET = auto()


# bases of decisions for a QPU
_ON_QPU = {
    Basis.QPU_PREFERRED,
    Basis.CLASSICAL_BUSY,
    Basis.QPU_EARLIEST,
    Basis.NO_CLASSICAL_USABLE,
    Basis.NO_CLASSICAL_TARGET,
}


@dataclass(frozen=True)
class Decision:
    """The target of an attempt, and the figures behind the choice.

    :param qpu: the best QPU, whether it was chosen or not
    :param classical: the eligible classical targets, whether chosen or not
    :param exclusions: reasons why targets were excluded, by target name
    :param has_alternative: whether a later attempt might run on another target
    """

    basis: Basis
    job: CandidateJob = CandidateJob()
    qpu: QuantumTarget | None = None
    classical: tuple[ClassicalTarget, ...] = ()
    exclusions: Mapping[str, Exclusion] = field(default_factory=dict)
    has_alternative: bool = True

    @property
    def quantum(self) -> bool:
        return self.basis in _ON_QPU

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the chosen targets; the first with a free slot gets the attempt."""
        if self.quantum and self.qpu is not None:
            return (self.qpu.name,)
        return tuple(target.name for target in self.classical)


def decide(
    rules: StepRules,
    job: CandidateJob,
    quantum: Sequence[QuantumTarget],
    classical: Sequence[ClassicalTarget],
    *,
    now: float,
) -> Decision:
    """Choose the target of an attempt.

    :param now: time at which the targets had these states, in seconds since the epoch
    :raises Impossible: if there is no classical target, and no QPU can ever run the job
    """
    exclusions: dict[str, Exclusion] = {}
    quantum = [target.within(rules.longest_wait(now)) for target in quantum]
    for target in quantum:
        permanent = _permanent(rules, job, target)
        reasons = chain(permanent, _temporary(rules, job, target, now))
        if (exclusion := next(reasons, None)) is not None:
            exclusions[target.name] = exclusion
    on_qpus, on_classical = job.others
    if quantum and on_qpus:
        mixed = Exclusion(Obstacle.MIXED, on_qpus, detail="QPUs")
        exclusions |= {target.name: mixed for target in classical}
        classical = []
    elif classical and on_classical:
        mixed = Exclusion(Obstacle.MIXED, on_classical, detail="classical targets")
        exclusions = {target.name: mixed for target in quantum}
    exclusions |= {c.name: e for c in classical if (e := c.failed or c.cooldown)}
    qpu = min((q for q in quantum if q.name not in exclusions), key=_rank, default=None)
    if qpu is None and not classical:
        qpu = _best_excluded(rules, job, quantum, exclusions)
    choices = [c for c in classical if not c.failed]
    choices = [c for c in choices if not c.cooldown] or choices or list(classical)
    basis = _basis(rules, job, qpu, choices) if quantum else Basis.NO_QUANTUM_TARGET
    if basis in (Basis.QPU_EARLIEST, Basis.CLASSICAL_EARLIEST):
        choices.sort(key=lambda target: target.end)
    has_alternative = len(quantum) + len(classical) > 1
    return Decision(basis, job, qpu, tuple(choices), exclusions, has_alternative)


def _basis(
    rules: StepRules,
    job: CandidateJob,
    qpu: QuantumTarget | None,
    classical: Sequence[ClassicalTarget],
) -> Basis:
    """Return the basis of the choice between the best QPU and the classical targets."""
    if not classical:
        return Basis.NO_CLASSICAL_TARGET
    if qpu is not None and all(c.failed or c.cooldown for c in classical):
        return Basis.NO_CLASSICAL_USABLE
    if job.attempt > 1 and job.is_last_attempt:
        return Basis.LAST_ATTEMPT
    if qpu is None:
        return Basis.NO_QPU_USABLE
    if rules.prefer == "quantum":
        return Basis.QPU_PREFERRED
    if rules.prefer == "classical":
        free = any(target.free for target in classical)
        return Basis.CLASSICAL_FREE if free else Basis.CLASSICAL_BUSY
    on_qpu = qpu.end <= min(target.end for target in classical)
    return Basis.QPU_EARLIEST if on_qpu else Basis.CLASSICAL_EARLIEST


def _rank(target: QuantumTarget) -> tuple[float, float]:
    # If the ends of targets differ only by milliseconds, the target with less load is best.
    return round(target.end, 2), target.load


def _best_excluded(
    rules: StepRules,
    job: CandidateJob,
    quantum: Sequence[QuantumTarget],
    exclusions: Mapping[str, Exclusion],
) -> QuantumTarget:
    """Return the best of the excluded QPUs, for a job that has no other target.

    :raises Impossible: if no QPU can ever run the job
    """
    possible = [q for q in quantum if not any(_permanent(rules, job, q))]
    if not possible:
        reasons = [f"{name} {describe(e)}" for name, e in exclusions.items()]
        if not any(e.cause is Obstacle.MIXED for e in exclusions.values()):
            reasons.append("the binding lists no classical target")
        raise Impossible("; ".join(reasons))
    return min(
        possible,
        key=lambda q: (bool(q.offline), bool(q.failed), bool(q.cooldown), *_rank(q)),
    )


def _permanent(
    rules: StepRules, job: CandidateJob, target: QuantumTarget
) -> Iterator[Exclusion]:
    """Yield the exclusions that do not end with time."""
    if target.offline and target.offline.cause is Obstacle.REFUSED:
        yield target.offline
    if (size := job.variables) is not None:
        if target.qubits and size > target.qubits:
            yield Exclusion(Obstacle.TOO_LARGE, size, target.qubits)
        if rules.max_variables is not None and size > rules.max_variables:
            yield Exclusion(Obstacle.ABOVE_MAX_VARIABLES, size, rules.max_variables)
        if rules.min_variables is not None and size < rules.min_variables:
            yield Exclusion(Obstacle.BELOW_MIN_VARIABLES, size, rules.min_variables)
    yield from _beyond_budget(rules, job, target)


def _beyond_budget(
    rules: StepRules, job: CandidateJob, target: QuantumTarget
) -> Iterator[Exclusion]:
    """Yield the exclusions due to spending, and due to a budget of 0."""
    for budget, limit, spent in _limits(rules, job):
        price = target.cost if budget[1] == COST else 1.0
        if price == 0:
            continue
        if limit == 0:
            yield Exclusion(Obstacle.NO_BUDGET, budget=budget)
        elif _exceeds(spent, limit):
            yield Exclusion(Obstacle.BUDGET_OVERRUN, spent - limit, limit, budget)
        elif spent >= limit or _exceeds(
            spent + (target.qpu_seconds or 0.0) * price, limit
        ):
            left = max(0.0, limit - spent)
            yield Exclusion(Obstacle.BUDGET_EXCEEDED, left, limit, budget)


def overruns(
    rules: StepRules, job: CandidateJob
) -> Iterator[tuple[tuple[str, str], float, float]]:
    """Yield the exceeded budgets: scope and unit, spending, limit."""
    for budget, limit, spent in _limits(rules, job):
        if _exceeds(spent, limit):
            yield budget, spent, limit


def _exceeds(spent: float, limit: float) -> bool:
    return spent > limit * (1 + 1e-9)  # allows for rounding errors of sums


def _limits(
    rules: StepRules, job: CandidateJob
) -> Iterator[tuple[tuple[str, str], float, float]]:
    """Yield the limited budgets: scope and unit, limit, spending."""
    for scope, budget, spending in _budgets(rules, job):
        if budget.seconds is not None:
            yield (scope, "QPU seconds"), budget.seconds, spending.seconds
        if budget.cost is not None:
            yield (scope, COST), budget.cost, spending.cost


def _temporary(
    rules: StepRules, job: CandidateJob, target: QuantumTarget, now: float
) -> Iterator[Exclusion]:
    """Yield the temporary exclusions, which may have ended by the next attempt."""
    yield from filter(None, (target.failed, target.offline, target.cooldown))
    yield from _unknown_usage(rules, job, target)
    wait, limit = target.known_wait, rules.max_wait
    # An unknown wait excludes no QPU: the job waits for the QPU, for at most maxWait.
    if limit is not None and wait > limit:
        yield Exclusion(Obstacle.LONG_WAIT, wait, limit)
    if (latest := rules.latest_start) is not None and now + wait > latest:
        yield Exclusion(Obstacle.LATE, wait, detail=utc(latest))
    if target.maintenance is not None and target.known_end > target.maintenance:
        yield Exclusion(Obstacle.MAINTENANCE, target.maintenance)


def _unknown_usage(
    rules: StepRules, job: CandidateJob, target: QuantumTarget
) -> Iterator[Exclusion]:
    """Yield the exclusions due to budgets of which the remainder is unknown."""
    for scope, budget, spending in _budgets(rules, job):
        if budget.seconds is None and (budget.cost is None or target.cost == 0):
            continue
        if not job.spending_known:
            yield Exclusion(Obstacle.USAGE_UNREADABLE, budget=(scope, ""))
        if spending.unmeasured:
            yield Exclusion(Obstacle.USAGE_UNMEASURED, budget=(scope, ""))


def _budgets(
    rules: StepRules, job: CandidateJob
) -> Iterator[tuple[str, Budget, Spending]]:
    yield "run", rules.run, job.run
    yield "step", rules.step, job.step


def needs_usage(rules: StepRules, decision: Decision) -> bool:
    """Return whether only QPUs may run the job, and the remaining budget is not known yet.

    Such a job waits until the usage of running jobs is known, as no other target can run it.
    """
    qpu = decision.qpu
    return (
        decision.basis is Basis.NO_CLASSICAL_TARGET
        and qpu is not None
        # Computed again, since a decision contains only the first obstacle of each QPU.
        and any(
            exclusion.cause is Obstacle.USAGE_UNMEASURED
            for exclusion in _unknown_usage(rules, decision.job, qpu)
        )
    )


def awaits_usage(rules: StepRules, decision: Decision) -> bool:
    """Return whether QPUs are preferred, but a running job's unknown usage excludes them."""
    return (
        rules.prefer == "quantum"
        and decision.basis is Basis.NO_QPU_USABLE
        and any(
            exclusion.cause is Obstacle.USAGE_UNMEASURED
            for exclusion in decision.exclusions.values()
        )
    )


def describe(exclusion: Exclusion) -> str:
    """Return a description of an exclusion, to follow the target's name in a message."""
    scope, unit = exclusion.budget
    text = exclusion.cause.value.format(
        value=rounded(exclusion.value),
        limit=rounded(exclusion.limit),
        scope=scope,
        unit=unit,
        detail=exclusion.detail,
    )
    return text.removesuffix(": ")  # the detail may be empty


def explain(decision: Decision) -> str:
    """Return the reason for a decision, to follow "STEP on TARGET: " in a message."""
    job, qpu, classical = decision.job, decision.qpu, decision.classical
    exclusions = [f"{name} {describe(e)}" for name, e in decision.exclusions.items()]
    if decision.basis is Basis.LAST_ATTEMPT:
        last = f"last attempt ({job.attempt} of {job.attempts_allowed})"
        return "; ".join([last, *exclusions])
    if decision.basis is Basis.CLASSICAL_FREE:
        return f"{next(target.name for target in classical if target.free)} is free"
    if decision.basis is Basis.NO_QUANTUM_TARGET:
        return "the binding lists no quantum target"
    if qpu is None or qpu.name in decision.exclusions:
        return "; ".join(exclusions)
    if decision.basis is Basis.QPU_EARLIEST:
        reason = f"{_describe_end(qpu)}, {_describe_end(classical[0])}"
    elif decision.basis is Basis.CLASSICAL_EARLIEST:
        reason = f"{_describe_end(classical[0])}, {_describe_end(qpu)}"
    elif decision.basis is Basis.CLASSICAL_BUSY:
        busy = " and ".join(target.name for target in classical)
        verb = "is" if len(classical) == 1 else "are"
        reason = f"{busy} {verb} busy; {_describe_start(qpu)}"
    else:
        reason = _describe_start(qpu)
    return "; ".join([reason, *exclusions])


def brief(rules: StepRules, decision: Decision) -> str:
    """Return in a few words why a decision is not the preferred one; empty if it is."""
    if rules.prefer == ("quantum" if decision.quantum else "classical"):
        return ""
    if decision.basis is Basis.CLASSICAL_BUSY:
        return "classical targets busy"
    if decision.basis is Basis.NO_CLASSICAL_USABLE:
        return "classical targets failed"
    if decision.basis is Basis.LAST_ATTEMPT:
        reasons = dict.fromkeys(e.brief for e in _exclusions_of_qpus(decision))
        return ", ".join(["last attempt", *reasons])
    if decision.basis is Basis.NO_CLASSICAL_TARGET and decision.job.others[0]:
        return Exclusion(Obstacle.MIXED).brief
    if decision.basis is not Basis.NO_QPU_USABLE:
        return ""
    return ", ".join(dict.fromkeys(e.brief for e in _exclusions_of_qpus(decision)))


def is_trouble(rules: StepRules, decision: Decision) -> bool:
    """Return whether a failed or silent QPU kept a decision from being the preferred one."""
    excluded = decision.basis in (Basis.NO_QPU_USABLE, Basis.LAST_ATTEMPT)
    if not excluded or not brief(rules, decision):
        return False
    return any(e.cause in _FAILURES for e in _exclusions_of_qpus(decision))


def _exclusions_of_qpus(decision: Decision) -> list[Exclusion]:
    names = {target.name for target in decision.classical}
    return [e for name, e in decision.exclusions.items() if name not in names]


def _describe_start(target: QuantumTarget) -> str:
    if not target.wait_known and target.max_wait is not None:
        limit = rounded(target.max_wait)
        start = "has no known ETA"
        if target.eta:
            start = f"would start in {rounded(target.eta)} s or later"
        return f"{target.name} {start} and is waited for, {limit} s at most"
    if target.eta and (target.wait is None or not target.wait_known):
        return f"{target.name} would start in {rounded(target.eta)} s or later"
    if target.wait is None or not target.wait_known:
        return f"{target.name} has no known ETA, and no maxWait limits the wait"
    if target.wait == 0:
        return f"{target.name} is free"
    return f"{target.name} would start in {rounded(target.wait)} s"


def _describe_end(target: TargetState) -> str:
    if math.isinf(target.end):
        return f"the end on {target.name} is unknown"
    text = f"{target.name} would end in {rounded(target.end)} s"
    if isinstance(target, QuantumTarget) and not target.wait_known:
        text += " if its unknown ETA is as estimated"
    return f"{text} or later (not measured yet)" if target.seconds is None else text


def rounded(value: float) -> str:
    """Format a figure for a message: with two significant digits, from 10 on as an integer."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
