"""The decision where a candidate runs, its figures, and the sentence made from it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from decimal import Decimal
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sf_quantum.candidates.decision import (
    Basis,
    Budget,
    CandidateJob,
    ClassicalTarget,
    Decision,
    Exclusion,
    FilterRules,
    Impossible,
    Obstacle,
    Prefer,
    QuantumTarget,
    Spending,
    StepRules,
    brief,
    decide,
    describe,
    explain,
    is_trouble,
    needs_usage,
    rounded,
)
from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.text import utc

NOW = 1000.0
# a time that has not come yet
FAR = 1e10
Target: TypeAlias = QuantumTarget | ClassicalTarget

CPU = ClassicalTarget("cpu", seconds=4.0)
FREE = QuantumTarget("fresnel", seconds=2.0)
ANY = CandidateJob()
LAST = CandidateJob(attempt=3, attempts_allowed=3)
FAILED = Exclusion(Obstacle.FAILED, detail="x")
COOLDOWN = Exclusion(Obstacle.COOLDOWN, 9, detail="x")
OFFLINE = Exclusion(Obstacle.OFFLINE, detail="helium")
NO_LIMIT = "q has no known ETA, and no maxWait limits the wait"
PREFERENCES: tuple[Prefer, ...] = ("quantum", "classical", "earliest")


def ask(
    *targets: Target,
    rules: StepRules | None = None,
    job: CandidateJob = ANY,
    now: float = NOW,
) -> Decision:
    return decide(
        rules or StepRules(),
        job,
        [target for target in targets if isinstance(target, QuantumTarget)],
        [target for target in targets if isinstance(target, ClassicalTarget)],
        now=now,
    )


def reason(
    *targets: Target, rules: StepRules | None = None, job: CandidateJob = ANY
) -> str:
    return explain(ask(*targets, rules=rules, job=job))


def test_the_figures_of_a_decision_travel_with_it() -> None:
    qpu = QuantumTarget("fresnel", wait=412)
    decision = ask(qpu, CPU, rules=StepRules(max_wait=300))
    assert decision == Decision(
        Basis.NO_QPU_USABLE,
        classical=(CPU,),
        exclusions={"fresnel": Exclusion(Obstacle.LONG_WAIT, 412, 300)},
    )
    assert (decision.quantum, decision.targets) == (False, ("cpu",))
    assert explain(decision) == "fresnel would start in 412 s, maxWait is 300 s"


CASES: list[tuple[QuantumTarget, StepRules, CandidateJob, Obstacle, str]] = [
    (
        QuantumTarget("q", Exclusion(Obstacle.NO_ANSWER, limit=2), wait=None),
        StepRules(),
        ANY,
        Obstacle.NO_ANSWER,
        "q did not answer within 2 s",
    ),
    (
        QuantumTarget("q", Exclusion(Obstacle.STILL_SILENT, 31), wait=None),
        StepRules(),
        ANY,
        Obstacle.STILL_SILENT,
        "q did not answer in time and is queried again in 31 s",
    ),
    (
        QuantumTarget(
            "q", Exclusion(Obstacle.UNREACHABLE, detail="no route"), wait=None
        ),
        StepRules(),
        ANY,
        Obstacle.UNREACHABLE,
        "q could not be queried: no route",
    ),
    (
        QuantumTarget("q", Exclusion(Obstacle.REFUSED, detail="revoked"), wait=None),
        StepRules(),
        ANY,
        Obstacle.REFUSED,
        "q refuses its user: revoked",
    ),
    (
        QuantumTarget("q", OFFLINE),
        StepRules(),
        ANY,
        Obstacle.OFFLINE,
        "q is offline: helium",
    ),
    (
        QuantumTarget("q", Exclusion(Obstacle.OFFLINE)),
        StepRules(),
        ANY,
        Obstacle.OFFLINE,
        "q is offline",
    ),
    (
        QuantumTarget("q", cooldown=COOLDOWN),
        StepRules(),
        ANY,
        Obstacle.COOLDOWN,
        "q is in cooldown for 9 s after a failure (x)",
    ),
    (
        QuantumTarget("q", cooldown=Exclusion(Obstacle.NOT_QUERIED), wait=None),
        StepRules(),
        ANY,
        Obstacle.NOT_QUERIED,
        "q was in cooldown when the QPUs were queried",
    ),
    (
        QuantumTarget("q", failed=FAILED),
        StepRules(),
        ANY,
        Obstacle.FAILED,
        "q failed an earlier attempt of this job (x)",
    ),
    (
        QuantumTarget("q", failed=Exclusion(Obstacle.UNFIT, detail="x")),
        StepRules(),
        ANY,
        Obstacle.UNFIT,
        "q cannot run this job (x)",
    ),
    (
        QuantumTarget("q", failed=Exclusion(Obstacle.SLURM_REFUSED, detail="x")),
        StepRules(),
        ANY,
        Obstacle.SLURM_REFUSED,
        "q does not take this job (x)",
    ),
    (
        QuantumTarget("q", failed=Exclusion(Obstacle.OUTPUTS_MISSING)),
        StepRules(),
        ANY,
        Obstacle.OUTPUTS_MISSING,
        "q failed an earlier attempt of this job (exit status 0, but outputs are missing)",
    ),
    (
        QuantumTarget("q", failed=Exclusion(Obstacle.NO_RESULT)),
        StepRules(),
        ANY,
        Obstacle.NO_RESULT,
        "q failed an earlier attempt of this job (no result)",
    ),
    (
        QuantumTarget("q", qubits=10),
        StepRules(),
        CandidateJob(11),
        Obstacle.TOO_LARGE,
        "q takes up to 10 variables, the problem has 11",
    ),
    (
        QuantumTarget("q", qubits=10),
        StepRules(max_variables=5),
        CandidateJob(6),
        Obstacle.ABOVE_MAX_VARIABLES,
        "q is limited to 5 variables (maxVariables), the problem has 6",
    ),
    (
        QuantumTarget("q"),
        StepRules(min_variables=5),
        CandidateJob(4),
        Obstacle.BELOW_MIN_VARIABLES,
        "q requires 5 variables (minVariables), the problem has 4",
    ),
    (
        QuantumTarget("q", qpu_seconds=3),
        StepRules(run=Budget(10)),
        CandidateJob(run=Spending(8)),
        Obstacle.BUDGET_EXCEEDED,
        "q would exceed the run's budget: 2 of 10 QPU seconds left",
    ),
    (
        QuantumTarget("q"),
        StepRules(step=Budget(10)),
        CandidateJob(step=Spending(10.04)),
        Obstacle.BUDGET_OVERRUN,
        "q may not be used: the step's budget of 10 QPU seconds is exceeded by "
        "0.04, jobs that run included",
    ),
    (
        QuantumTarget("q"),
        StepRules(run=Budget(10)),
        CandidateJob(run=Spending(10)),
        Obstacle.BUDGET_EXCEEDED,
        "q would exceed the run's budget: 0 of 10 QPU seconds left",
    ),
    (
        QuantumTarget("q", qpu_seconds=3, cost=2),
        StepRules(step=Budget(cost=5)),
        ANY,
        Obstacle.BUDGET_EXCEEDED,
        "q would exceed the step's budget: 5 of 5 cost left",
    ),
    (
        QuantumTarget("q"),
        StepRules(run=Budget(0)),
        ANY,
        Obstacle.NO_BUDGET,
        "q may not be used: the run's budget is 0 QPU seconds",
    ),
    (
        QuantumTarget("q", cost=2),
        StepRules(step=Budget(cost=0)),
        ANY,
        Obstacle.NO_BUDGET,
        "q may not be used: the step's budget is 0 cost",
    ),
    (
        QuantumTarget("q"),
        StepRules(run=Budget(10)),
        CandidateJob(run=Spending(0, 0, unmeasured=True)),
        Obstacle.USAGE_UNMEASURED,
        "q might exceed the run's budget: the usage of a running job is not known yet",
    ),
    (
        QuantumTarget("q", cost=2),
        StepRules(step=Budget(cost=10)),
        CandidateJob(spending_known=False),
        Obstacle.USAGE_UNREADABLE,
        "q might exceed the step's budget: past usage cannot be read from the journal",
    ),
    (
        QuantumTarget("q", failed=Exclusion(Obstacle.WAITED, limit=30)),
        StepRules(max_wait=30),
        ANY,
        Obstacle.WAITED,
        "q did not start this job within 30 s (maxWait)",
    ),
    (
        QuantumTarget("q", failed=Exclusion(Obstacle.TOO_LATE, detail=utc(FAR))),
        StepRules(latest_start=FAR),
        ANY,
        Obstacle.TOO_LATE,
        "q did not start this job by 2286-11-20T17:46:40Z (latestStart)",
    ),
    (
        QuantumTarget("q", wait=1e10),
        StepRules(latest_start=FAR),
        ANY,
        Obstacle.LATE,
        "q would start in 10000000000 s, after 2286-11-20T17:46:40Z (latestStart)",
    ),
    (
        QuantumTarget("q", wait=None),
        StepRules(latest_start=9.0, max_wait=9),
        ANY,
        Obstacle.LATE,
        "q would start in 0 s, after 1970-01-01T00:00:09Z (latestStart)",
    ),
    (
        QuantumTarget("q"),
        StepRules(),
        CandidateJob(others=(0, 3)),
        Obstacle.MIXED,
        "q is left out, since other jobs of this step ran on classical targets "
        "(mixed: refuse)",
    ),
    (
        QuantumTarget("q", wait=30.4),
        StepRules(max_wait=30),
        ANY,
        Obstacle.LONG_WAIT,
        "q would start in 30 s, maxWait is 30 s",
    ),
    (
        QuantumTarget("q", wait=50, seconds=20, maintenance=60),
        StepRules(),
        ANY,
        Obstacle.MAINTENANCE,
        "q goes into maintenance in 60 s",
    ),
]


@pytest.mark.parametrize(("target", "rules", "job", "cause", "sentence"), CASES)
@pytest.mark.parametrize("prefer", PREFERENCES)
def test_what_excludes_a_qpu(
    target: QuantumTarget,
    rules: StepRules,
    job: CandidateJob,
    cause: Obstacle,
    sentence: str,
    prefer: Prefer,
) -> None:
    decision = ask(target, CPU, rules=replace(rules, prefer=prefer), job=job)
    assert (decision.basis, decision.targets) == (Basis.NO_QPU_USABLE, ("cpu",))
    assert decision.exclusions["q"].cause is cause
    assert explain(decision) == sentence


@pytest.mark.parametrize(("now", "quantum"), [(NOW, True), (NOW + 1, False)])
def test_a_qpu_is_late_iff_it_starts_after_the_latest_start(
    now: float, quantum: bool
) -> None:
    rules = StepRules(latest_start=NOW + 30)
    assert ask(FREE, CPU, rules=rules, now=now + 30).quantum is quantum
    waiting = replace(FREE, wait=30.0)
    assert ask(waiting, CPU, rules=rules, now=now).quantum is quantum


@given(
    wait=st.none() | st.floats(0, 1e6),
    known=st.booleans(),
    max_wait=st.none() | st.floats(0, 1e6),
    seconds=st.none() | st.floats(0, 1e3),
    prefer=st.sampled_from(PREFERENCES),
)
def test_only_a_known_wait_sends_a_job_away(
    wait: float | None,
    known: bool,
    max_wait: float | None,
    seconds: float | None,
    prefer: Prefer,
) -> None:
    qpu = QuantumTarget("q", wait=wait, seconds=seconds, wait_known=known)
    rules = StepRules(prefer=prefer, max_wait=max_wait)
    decision = ask(qpu, ClassicalTarget("cpu", seconds=4.0), rules=rules)
    fact = known and wait is not None and max_wait is not None and wait > max_wait
    assert ("q" in decision.exclusions) == fact
    if prefer == "quantum":
        assert decision.quantum == (not fact)
    if prefer == "earliest" and max_wait is not None and not fact:
        counted = max_wait if wait is None else min(wait, max_wait)
        assert decision.quantum == (counted + (seconds or 0.0) <= 4.0)
    assert explain(decision)


def test_an_unknown_wait_is_told() -> None:
    qpu = QuantumTarget("q", wait=None)
    rules = StepRules(max_wait=60)
    said = "q has no known ETA and is waited for, 60 s at most"
    assert reason(qpu, CPU, rules=rules) == said
    assert reason(qpu, CPU) == NO_LIMIT
    guessed = QuantumTarget("q", wait=0.1, wait_known=False)
    assert reason(guessed, CPU, rules=rules) == said
    assert reason(guessed, CPU) == NO_LIMIT


@given(
    others=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    offline=st.booleans(),
    prefer=st.sampled_from(PREFERENCES),
    attempt=st.integers(1, 3),
)
def test_a_job_keeps_to_the_kind_of_the_others(
    others: tuple[int, int], offline: bool, prefer: Prefer, attempt: int
) -> None:
    qpu = QuantumTarget("q", offline=OFFLINE if offline else None)
    job = CandidateJob(others=others, attempt=attempt, attempts_allowed=3)
    decision = ask(qpu, CPU, rules=StepRules(prefer=prefer), job=job)
    if others[0]:
        assert decision.targets == ("q",)
        assert decision.exclusions["cpu"].cause is Obstacle.MIXED
    elif others[1]:
        assert decision.targets == ("cpu",)
        assert decision.exclusions["q"].cause is Obstacle.MIXED


def test_a_job_that_does_not_fit_its_kind_is_impossible() -> None:
    job = CandidateJob(20, others=(1, 0))
    with pytest.raises(Impossible) as error:
        ask(QuantumTarget("q", qubits=10), CPU, job=job)
    assert str(error.value) == (
        "q takes up to 10 variables, the problem has 20; cpu is left out, since other "
        "jobs of this step ran on QPUs (mixed: refuse)"
    )


@pytest.mark.parametrize(
    ("qpu", "expected"),
    [
        (Exclusion(Obstacle.OFFLINE, detail="the QPU is closed: helium"), "QPU closed"),
        (Exclusion(Obstacle.OFFLINE, detail="no helium"), "QPU offline"),
        (Exclusion(Obstacle.NO_ANSWER, limit=2), "no reply from the QPU"),
    ],
)
def test_the_reason_in_a_few_words(qpu: Exclusion, expected: str) -> None:
    assert brief(StepRules(), ask(QuantumTarget("q", qpu), CPU)) == expected


@given(
    prefer=st.sampled_from(PREFERENCES),
    others=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    offline=st.booleans(),
    fails=st.booleans(),
    free=st.booleans(),
    attempt=st.integers(1, 3),
)
def test_brief_is_empty_iff_the_kind_is_preferred(
    prefer: Prefer,
    others: tuple[int, int],
    offline: bool,
    fails: bool,
    free: bool,
    attempt: int,
) -> None:
    rules = StepRules(prefer)
    job = CandidateJob(others=others, attempt=attempt, attempts_allowed=3)
    qpu = QuantumTarget("q", OFFLINE if offline else None)
    cpu = ClassicalTarget("cpu", free=free, cooldown=COOLDOWN if fails else None)
    decision = ask(qpu, cpu, rules=rules, job=job)
    if prefer != "earliest":
        is_preferred = decision.quantum == (prefer == "quantum")
        assert (brief(rules, decision) == "") == is_preferred
    # OFFLINE is what somebody has set
    assert not is_trouble(rules, decision)


@pytest.mark.parametrize("prefer", ["quantum", "classical", "earliest"])
@pytest.mark.parametrize("cause", Obstacle)
def test_only_what_has_gone_wrong_is_trouble(prefer: Prefer, cause: Obstacle) -> None:
    rules = StepRules(prefer)
    cpu = ClassicalTarget("cpu", free=False)
    decision = ask(QuantumTarget("q", Exclusion(cause)), cpu, rules=rules)
    words = ("fail", "no reply", "refused", "missing", "no result")
    gone_wrong = any(word in Exclusion(cause).brief for word in words)
    assert is_trouble(rules, decision) == (gone_wrong and prefer != "classical")


def test_each_cause_has_a_few_words() -> None:
    assert all(Exclusion(cause).brief for cause in Obstacle)


def test_every_cause_is_reached() -> None:
    assert {case[3] for case in CASES} == {*Obstacle}


@pytest.mark.parametrize(
    ("target", "rules", "job"),
    [
        (QuantumTarget("q", qubits=10), StepRules(max_variables=10), CandidateJob(10)),
        (QuantumTarget("q"), StepRules(min_variables=4), CandidateJob(4)),
        (QuantumTarget("q"), StepRules(max_variables=1), CandidateJob(None)),
        (QuantumTarget("q"), StepRules(max_variables=0), CandidateJob(0)),
        (QuantumTarget("q", wait=30), StepRules(max_wait=30), ANY),
        (QuantumTarget("q", wait=40, seconds=20, maintenance=60), StepRules(), ANY),
        (
            QuantumTarget("q", qpu_seconds=2),
            StepRules(run=Budget(10)),
            CandidateJob(run=Spending(8)),
        ),
        (
            QuantumTarget("q", qpu_seconds=2, cost=3),
            StepRules(step=Budget(cost=10)),
            CandidateJob(step=Spending(0, 4)),
        ),
        # what was never measured is tried
        (
            QuantumTarget("q"),
            StepRules(run=Budget(10)),
            CandidateJob(run=Spending(9.5)),
        ),
        # a QPU without a price cannot exceed a cost
        (
            QuantumTarget("q"),
            StepRules(run=Budget(cost=1)),
            CandidateJob(run=Spending(0, 1)),
        ),
        (
            QuantumTarget("q"),
            StepRules(run=Budget(cost=1)),
            CandidateJob(spending_known=False),
        ),
        (
            QuantumTarget("q"),
            StepRules(),
            CandidateJob(spending_known=False, run=Spending(unmeasured=True)),
        ),
        (
            QuantumTarget("q"),
            StepRules(step=Budget(1)),
            CandidateJob(run=Spending(unmeasured=True)),
        ),
        (QuantumTarget("q", wait=None), StepRules(), ANY),
    ],
)
def test_what_just_does_not_exclude_it(
    target: QuantumTarget, rules: StepRules, job: CandidateJob
) -> None:
    assert ask(target, CPU, rules=rules, job=job).targets == ("q",)


def test_of_several_qpus_the_first_to_end_is_taken() -> None:
    slow = QuantumTarget("slow", seconds=9.0)
    queue = QuantumTarget("queue", wait=8.0, seconds=2.0)
    assert ask(queue, slow, FREE, CPU).targets == ("fresnel",)
    assert ask(queue, slow, CPU).targets == ("slow",)
    busy = QuantumTarget("busy", wait=1.0, seconds=1.002, load=3.0)
    idle = QuantumTarget("idle", wait=1.0, seconds=1.004, load=0.5)
    assert ask(busy, idle, CPU).targets == ("idle",)
    later = QuantumTarget("later", wait=1.0, seconds=1.02, load=0.5)
    assert ask(busy, later, CPU).targets == ("busy",)


def test_the_sentence_also_tells_what_excluded_the_other_targets() -> None:
    offline = QuantumTarget("jade", OFFLINE)
    bad = ClassicalTarget("bad", failed=FAILED)
    assert reason(offline, FREE, CPU) == "fresnel is free; jade is offline: helium"
    assert reason(FREE, bad, CPU) == (
        "fresnel is free; bad failed an earlier attempt of this job (x)"
    )
    assert reason(offline, replace(FREE, failed=FAILED), CPU) == (
        "jade is offline: helium; fresnel failed an earlier attempt of this job (x)"
    )
    assert reason(QuantumTarget("q", wait=2.5), CPU) == "q would start in 2.5 s"
    assert reason(QuantumTarget("q", wait=None), CPU) == NO_LIMIT


def test_classical_as_long_as_a_slot_is_free() -> None:
    rules = StepRules(prefer="classical")
    busy = ClassicalTarget("node", free=False)
    decision = ask(FREE, busy, CPU, rules=rules)
    assert (decision.basis, decision.targets) == (Basis.CLASSICAL_FREE, ("node", "cpu"))
    assert explain(decision) == "cpu is free"
    decision = ask(FREE, busy, rules=rules)
    assert (decision.basis, decision.targets) == (Basis.CLASSICAL_BUSY, ("fresnel",))
    assert explain(decision) == "node is busy; fresnel is free"
    both = (FREE, busy, ClassicalTarget("b", free=False))
    assert reason(*both, rules=rules) == "node and b are busy; fresnel is free"
    jade = QuantumTarget("jade", OFFLINE)
    assert reason(jade, *both[:2], rules=rules) == (
        "node is busy; fresnel is free; jade is offline: helium"
    )
    late = QuantumTarget("fresnel", wait=9)
    limited = StepRules(prefer="classical", max_wait=5)
    assert ask(late, busy, rules=limited).targets == ("node",)


@pytest.mark.parametrize(
    ("wait", "seconds", "classical", "on"),
    [
        (0.0, 2.0, 4.0, "fresnel"),
        (2.0, 2.0, 4.0, "fresnel"),
        (2.1, 2.0, 4.0, "cpu"),
        (0.0, 5.0, 4.0, "cpu"),
        # each is tried once; if neither was, the QPU is first
        (0.0, None, 4.0, "fresnel"),
        (0.0, 2.0, None, "cpu"),
        (0.0, None, None, "fresnel"),
        (3.0, None, None, "cpu"),
        (None, 2.0, 400.0, "cpu"),
    ],
)
def test_the_earlier_end(
    wait: float | None, seconds: float | None, classical: float | None, on: str
) -> None:
    decision = ask(
        QuantumTarget("fresnel", wait=wait, seconds=seconds),
        ClassicalTarget("cpu", seconds=classical),
        rules=StepRules(prefer="earliest"),
    )
    earliest = {"fresnel": Basis.QPU_EARLIEST, "cpu": Basis.CLASSICAL_EARLIEST}
    assert (decision.basis, decision.targets) == (earliest[on], (on,))
    assert decision.quantum == (on == "fresnel")


def test_the_earlier_end_counts_the_classical_queue_too() -> None:
    rules = StepRules(prefer="earliest")
    late = ClassicalTarget("cpu", free=False, wait=8.0, seconds=4.0)
    jade = QuantumTarget("jade", OFFLINE)
    decision = ask(QuantumTarget("q", wait=9, seconds=2), jade, late, rules=rules)
    assert decision.targets == ("q",)
    assert explain(decision) == (
        "q would end in 11 s, cpu would end in 12 s; jade is offline: helium"
    )
    first = ClassicalTarget("node", seconds=5.0)
    decision = ask(QuantumTarget("q", wait=9), late, first, rules=rules)
    assert decision.targets == ("node", "cpu")
    assert explain(decision) == (
        "node would end in 5 s, q would end in 9 s or later (not measured yet)"
    )
    unknown = QuantumTarget("q", wait=None, seconds=1)
    assert reason(unknown, first, rules=rules) == (
        "node would end in 5 s, the end on q is unknown"
    )


def test_hosts_keep_their_order_where_ends_are_not_compared() -> None:
    rules = StepRules(prefer="earliest")
    slow, fast = ClassicalTarget("slow", seconds=9), ClassicalTarget("fast", seconds=1)
    offline = QuantumTarget("q", OFFLINE)
    decision = ask(offline, slow, fast, rules=rules)
    assert decision.basis is Basis.NO_QPU_USABLE
    assert decision.targets == ("slow", "fast")
    assert ask(FREE, slow, fast, rules=rules, job=LAST).targets == ("slow", "fast")
    assert ask(slow, fast, rules=rules).targets == ("slow", "fast")


def test_after_a_failure_another_qpu_then_a_classical_target() -> None:
    first, second = QuantumTarget("a", failed=FAILED), QuantumTarget("b")
    assert ask(first, second, CPU).targets == ("b",)
    assert ask(first, replace(second, failed=FAILED), CPU).targets == ("cpu",)
    # the last attempt is not given to a QPU, if there are others
    decision = ask(first, second, CPU, job=LAST)
    assert (decision.basis, decision.targets) == (Basis.LAST_ATTEMPT, ("cpu",))
    assert explain(decision).startswith("last attempt (3 of 3); a failed an earlier")
    assert ask(first, second, job=LAST).targets == ("b",)
    assert ask(second, CPU, job=replace(LAST, attempt=2)).targets == ("b",)
    second_of_two = CandidateJob(attempt=2, attempts_allowed=2)
    assert ask(second, CPU, job=second_of_two).targets == ("cpu",)
    # the only attempt is also the first
    only = CandidateJob(attempt=1, attempts_allowed=1)
    assert ask(second, CPU, job=only).targets == ("b",)
    assert only.is_last_attempt
    assert not CandidateJob(attempt=9).is_last_attempt


def test_another_host_is_preferred_to_one_that_failed() -> None:
    offline = QuantumTarget("q", OFFLINE)
    failed = ClassicalTarget("bad", failed=FAILED)
    cooling = ClassicalTarget("cooling", cooldown=COOLDOWN)
    assert ask(offline, failed, cooling, CPU).targets == ("cpu",)
    assert ask(offline, failed, cooling).targets == ("cooling",)
    assert ask(offline, failed).targets == ("bad",)


@pytest.mark.parametrize("prefer", PREFERENCES)
@pytest.mark.parametrize("job", [ANY, LAST])
def test_a_free_qpu_is_preferred_to_a_host_that_failed(
    prefer: Prefer, job: CandidateJob
) -> None:
    failed = ClassicalTarget("bad", failed=FAILED, seconds=1.0)
    cooling = ClassicalTarget("cooling", cooldown=COOLDOWN, seconds=1.0)
    decision = ask(FREE, failed, cooling, rules=StepRules(prefer), job=job)
    assert (decision.basis, decision.targets) == (
        Basis.NO_CLASSICAL_USABLE,
        ("fresnel",),
    )
    assert explain(decision) == (
        "fresnel is free; bad failed an earlier attempt of this job (x); "
        "cooling is in cooldown for 9 s after a failure (x)"
    )
    late = QuantumTarget("late", wait=9)
    limited = StepRules(prefer, max_wait=5)
    assert ask(late, failed, rules=limited, job=job).targets == ("bad",)


def test_without_a_quantum_target_there_is_nothing_to_decide() -> None:
    decision = ask(CPU, job=LAST)
    assert (decision.basis, decision.targets) == (Basis.NO_QUANTUM_TARGET, ("cpu",))
    assert explain(decision) == "the binding lists no quantum target"


def test_unknown_spending_stops_no_job_without_a_host() -> None:
    unmeasured = CandidateJob(run=Spending(unmeasured=True))
    decision = ask(FREE, rules=StepRules(run=Budget(1)), job=unmeasured)
    assert decision.targets == ("fresnel",)
    assert explain(decision).startswith("fresnel might exceed the run's budget: ")


@given(
    others=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    has_classical=st.booleans(),
    offline=st.booleans(),
    unmeasured=st.booleans(),
    has_budget=st.booleans(),
    prefer=st.sampled_from(PREFERENCES),
)
def test_no_job_exceeds_a_budget_for_lack_of_a_target(
    others: tuple[int, int],
    has_classical: bool,
    offline: bool,
    unmeasured: bool,
    has_budget: bool,
    prefer: Prefer,
) -> None:
    rules = StepRules(prefer, run=Budget(1) if has_budget else Budget())
    job = CandidateJob(run=Spending(unmeasured=unmeasured), others=others)
    qpu = QuantumTarget("q", OFFLINE if offline else None)
    decision = ask(qpu, *[CPU] * has_classical, rules=rules, job=job)
    expected = decision.quantum and unmeasured and has_budget
    assert needs_usage(rules, decision) == expected


def test_without_a_classical_target_the_least_bad_qpu_gets_it() -> None:
    late = QuantumTarget("late", wait=500)
    later = QuantumTarget("later", wait=501)
    cooling = QuantumTarget("cooling", cooldown=COOLDOWN)
    failed = QuantumTarget("failed", failed=FAILED)
    offline = QuantumTarget("offline", OFFLINE)
    order = [late, later, cooling, failed, offline]
    for first in range(len(order)):
        left = order[first:]
        for some in itertools.permutations(left):
            decision = ask(*some, rules=StepRules(max_wait=9))
            assert decision.basis is Basis.NO_CLASSICAL_TARGET
            assert decision.targets == (left[0].name,)
    assert reason(late, rules=StepRules(max_wait=9)) == (
        "late would start in 500 s, maxWait is 9 s"
    )
    assert reason(late, FREE) == "fresnel is free"
    small = QuantumTarget("small", qubits=5)
    assert ask(small, offline, job=CandidateJob(6)).targets == ("offline",)


def test_a_job_that_no_qpu_can_run_is_impossible() -> None:
    words = (
        r"^q takes up to 5 variables, the problem has 6; r is limited to 4 variables "
        r"\(maxVariables\), the problem has 6; the binding lists no classical target$"
    )
    with pytest.raises(Impossible, match=words):
        ask(
            QuantumTarget("q", qubits=5),
            QuantumTarget("r"),
            rules=StepRules(max_variables=4),
            job=CandidateJob(6),
        )


def test_figures_are_rounded() -> None:
    numbers = (0, 0.0123, 1.26, 9.94, 10, 412.3)
    assert [rounded(n) for n in numbers] == "0 0.012 1.3 9.9 10 412".split()


def test_a_step_inherits_the_rules_of_the_steps_above_it() -> None:
    rules = FilterRules(
        {
            "prefer": "earliest",
            "maxWait": 30,
            "maxVariables": 50,
            "minVariables": 3,
            "variables": "n",
            "budget": {"qpuSeconds": 9},
            "onFailure": "fallback",
            "steps": {
                "/loop/solve/part": {"budget": {"qpuSeconds": 3}},
                "/loop": {"maxWait": 5, "pattern": "qc-heavy"},
                "/loop/solve": {
                    "prefer": "quantum",
                    "expectedSeconds": 2,
                    "budget": {"cost": 1},
                },
                "/loop/fails": {
                    "onFailure": "fail",
                },
                "/loop/fresh": {"reuseClassical": False, "budget": {}},
            },
            "reuseClassical": True,
        }
    )
    assert rules.of("/other") == StepRules(
        "earliest",
        max_wait=30,
        max_variables=50,
        min_variables=3,
        variables="n",
        run=Budget(9),
        reuses_classical=True,
    )
    assert not rules.of("/loop/fresh").reuses_classical
    assert rules.of("/loop/other").max_wait == 5
    assert rules.of("/loopy").max_wait == 30
    own = rules.of("/loop/solve")
    assert (own.prefer, own.max_wait, own.fallback) == ("quantum", 5, True)
    assert not rules.of("/loop/fails").fallback
    # limit by limit
    assert rules.of("/loop/solve/part").step == Budget(seconds=3, cost=1)
    assert (own.run, own.step, own.expected_seconds) == (Budget(9), Budget(cost=1), 2)
    assert own.hints == LeaseHints(expected_seconds=2, pattern="qc-heavy")
    latest: dict[str, JSON] = {"latestStart": "1970-01-01T01:00:09+01:00"}
    timed = FilterRules({"steps": {"/s": latest}, "latestStart": "?"})
    assert timed.of("/other") == StepRules()
    assert timed.wrong_times == {("latestStart",): "?"}
    assert timed.of("/s").latest_start == timed.of("/s").hints.latest_start == 9.0
    wrong: dict[str, JSON] = {"variables": 3, "maxVariables": "5", "maxWait": "1"}
    for config in ({}, wrong):
        assert FilterRules(config).of("/s") == StepRules()


def test_whole_numbers_may_have_a_decimal_point() -> None:
    """The schema takes 50.0 for an integer; a limit must not go unheeded."""
    config: dict[str, JSON] = {
        "maxVariables": 50.0,
        "minVariables": 3.0,
        "qpuJobs": 2.0,
        "priority": 5.0,
    }
    expected = StepRules(max_variables=50, min_variables=3, qpu_jobs=2, priority=5)
    assert FilterRules(config).of("/s") == expected


def test_which_rules_limit_spending_and_costs() -> None:
    assert not StepRules().has_budget
    for rules in (StepRules(run=Budget(1)), StepRules(step=Budget(1))):
        assert (rules.has_budget, rules.limits_cost) == (True, False)
    for rules in (StepRules(run=Budget(cost=1)), StepRules(step=Budget(cost=1))):
        assert (rules.has_budget, rules.limits_cost) == (True, True)


# ---- properties

FIGURES = st.floats(0, 1e4).map(lambda value: round(value, 1))
MAYBE = st.none() | FIGURES
FAILURES = st.none() | st.sampled_from(
    [FAILED, Exclusion(Obstacle.OUTPUTS_MISSING), Exclusion(Obstacle.NO_RESULT)]
)
COOLDOWNS = st.none() | st.builds(
    Exclusion, st.just(Obstacle.COOLDOWN), FIGURES, detail=st.just("x")
)
SPENDING = st.builds(Spending, FIGURES, FIGURES, st.booleans())
BUDGETS = st.builds(Budget, MAYBE, MAYBE)
QUANTUM = st.builds(
    QuantumTarget,
    st.just("q"),
    offline=st.sampled_from(
        [None, None, OFFLINE, Exclusion(Obstacle.NO_ANSWER, limit=2)]
    ),
    cooldown=COOLDOWNS,
    failed=FAILURES,
    qubits=st.integers(0, 100),
    wait=MAYBE,
    seconds=MAYBE,
    qpu_seconds=MAYBE,
    cost=FIGURES,
    maintenance=MAYBE,
    load=FIGURES,
)
CLASSICAL = st.builds(
    ClassicalTarget,
    st.just("c"),
    free=st.booleans(),
    cooldown=COOLDOWNS,
    failed=FAILURES,
    wait=FIGURES,
    seconds=MAYBE,
)
RULES = st.builds(
    StepRules,
    prefer=st.sampled_from(PREFERENCES),
    max_wait=MAYBE,
    max_variables=st.none() | st.integers(1, 100),
    min_variables=st.none() | st.integers(1, 100),
    run=BUDGETS,
    step=BUDGETS,
)
JOBS = st.builds(
    CandidateJob,
    variables=st.none() | st.integers(0, 120),
    attempt=st.integers(1, 3),
    attempts_allowed=st.sampled_from([None, 3]),
    spending_known=st.booleans(),
    run=SPENDING,
    step=SPENDING,
)


def several(
    targets: st.SearchStrategy[Target], name: str
) -> st.SearchStrategy[list[Target]]:
    """Up to three targets with names of their own."""
    return st.lists(targets, max_size=3).map(
        lambda made: [replace(t, name=f"{name}{n}") for n, t in enumerate(made)]
    )


@given(several(QUANTUM, "q"), several(CLASSICAL, "c"), RULES, JOBS)
def test_a_decision_is_complete(
    quantum: list[Target], classical: list[Target], rules: StepRules, job: CandidateJob
) -> None:
    """There is a target, it is of the kind that is told, and a sentence gives figures."""
    try:
        decision = ask(*quantum, *classical, rules=rules, job=job)
    except Impossible:
        assert not classical
        return
    chosen = {*decision.targets}
    assert chosen
    assert chosen <= {t.name for t in (quantum if decision.quantum else classical)}
    assert decision.targets[0] not in decision.exclusions or (
        # there was no better one
        {t.name for t in (*quantum, *classical)} == decision.exclusions.keys()
        or not decision.quantum
    )
    sentence = explain(decision)
    assert sentence
    for name, exclusion in decision.exclusions.items():
        assert describe(exclusion)
        if name in sentence:
            assert describe(exclusion) in sentence
    if decision.basis in (Basis.QPU_EARLIEST, Basis.CLASSICAL_EARLIEST):
        assert decision.qpu is not None
        for target in (decision.qpu, decision.classical[0]):
            end = "unknown" if math.isinf(target.end) else f"{rounded(target.end)} s"
            assert target.name in sentence
            assert end in sentence


@given(QUANTUM, CLASSICAL, RULES, JOBS, FIGURES)
def test_a_longer_wait_never_makes_a_qpu_more_likely(
    qpu: QuantumTarget,
    cpu: ClassicalTarget,
    rules: StepRules,
    job: CandidateJob,
    more: float,
) -> None:
    later = None if qpu.wait is None else qpu.wait + more
    if ask(replace(qpu, wait=later), cpu, rules=rules, job=job).quantum:
        assert ask(qpu, cpu, rules=rules, job=job).quantum


@given(QUANTUM, CLASSICAL, RULES, JOBS, FIGURES)
def test_a_longer_classical_queue_never_makes_a_qpu_less_likely(
    qpu: QuantumTarget,
    cpu: ClassicalTarget,
    rules: StepRules,
    job: CandidateJob,
    more: float,
) -> None:
    busier = replace(cpu, free=False, wait=cpu.wait + more)
    if ask(qpu, cpu, rules=rules, job=job).quantum:
        assert ask(qpu, busier, rules=rules, job=job).quantum


@given(QUANTUM, CLASSICAL, RULES, JOBS, FIGURES)
def test_having_spent_more_never_makes_a_qpu_more_likely(
    qpu: QuantumTarget,
    cpu: ClassicalTarget,
    rules: StepRules,
    job: CandidateJob,
    more: float,
) -> None:
    def added(spent: Spending) -> Spending:
        return replace(spent, seconds=spent.seconds + more, cost=spent.cost + more)

    for later in (replace(job, run=added(job.run)), replace(job, step=added(job.step))):
        if ask(qpu, cpu, rules=rules, job=later).quantum:
            assert ask(qpu, cpu, rules=rules, job=job).quantum


@given(QUANTUM, CLASSICAL, RULES, JOBS)
def test_a_target_in_trouble_is_never_made_more_likely_by_it(
    qpu: QuantumTarget, cpu: ClassicalTarget, rules: StepRules, job: CandidateJob
) -> None:
    for worse in (
        replace(qpu, offline=OFFLINE),
        replace(qpu, failed=FAILED),
        replace(qpu, cooldown=COOLDOWN),
    ):
        if ask(worse, cpu, rules=rules, job=job).quantum:
            assert ask(qpu, cpu, rules=rules, job=job).quantum
    for bad in (replace(cpu, failed=FAILED), replace(cpu, cooldown=COOLDOWN)):
        if ask(qpu, cpu, rules=rules, job=job).quantum:
            assert ask(qpu, bad, rules=rules, job=job).quantum


@given(QUANTUM, RULES, JOBS)
def test_only_a_permanent_obstacle_makes_a_job_impossible(
    qpu: QuantumTarget, rules: StepRules, job: CandidateJob
) -> None:
    try:
        decision = ask(qpu, rules=rules, job=job)
    except Impossible:
        cause = (
            ask(qpu, CPU, rules=rules, job=replace(job, attempt=1))
            .exclusions["q"]
            .cause
        )
        assert cause in (
            Obstacle.TOO_LARGE,
            Obstacle.ABOVE_MAX_VARIABLES,
            Obstacle.BELOW_MIN_VARIABLES,
            Obstacle.BUDGET_EXCEEDED,
            Obstacle.BUDGET_OVERRUN,
            Obstacle.NO_BUDGET,
        )
    else:
        assert decision.targets == ("q",)


@given(
    limit=st.integers(0, 9),
    spent=st.integers(0, 9),
    job=st.integers(0, 9),
    is_cost=st.booleans(),
)
def test_a_budget_is_called_spent_iff_some_of_it_is(
    limit: int, spent: int, job: int, is_cost: bool
) -> None:
    budget = Budget(cost=limit) if is_cost else Budget(seconds=limit)
    spending = Spending(cost=spent) if is_cost else Spending(seconds=spent)
    rules, qpu = StepRules(run=budget), QuantumTarget("q", qpu_seconds=job, cost=1)
    decision = ask(qpu, CPU, rules=rules, job=CandidateJob(run=spending))
    if decision.quantum:
        assert spent + job <= limit
        return
    expected = "budget spent" if spent else "budget below a job's cost"
    expected = "budget exceeded" if spent > limit else expected
    assert brief(rules, decision) == ("budget is 0" if limit == 0 else expected)


@given(
    cost=st.integers(1, 999),
    places=st.integers(0, 4),
    jobs=st.integers(1, 60),
    rest=st.integers(0, 998),
    is_cost=st.booleans(),
)
def test_as_many_jobs_fit_a_budget_as_on_paper(
    cost: int, places: int, jobs: int, rest: int, is_cost: bool
) -> None:
    """0.1 + 0.2 is more than 0.3 in doubles, and no more on paper."""
    each, limit = (
        float(Decimal(units).scaleb(-places))
        for units in (cost, cost * jobs + rest % cost)
    )
    rules = StepRules(run=Budget(cost=limit) if is_cost else Budget(seconds=limit))
    qpu = QuantumTarget("q", qpu_seconds=1.0 if is_cost else each, cost=each)
    spent = 0.0
    for _ in range(jobs):
        spending = Spending(cost=spent) if is_cost else Spending(seconds=spent)
        # without a classical target, a job that does not fit the budget is impossible
        decision = ask(qpu, rules=rules, job=CandidateJob(run=spending))
        assert not decision.exclusions
        spent += each
    spending = Spending(cost=spent) if is_cost else Spending(seconds=spent)
    assert not ask(qpu, CPU, rules=rules, job=CandidateJob(run=spending)).quantum
