"""Where a candidate goes, and the sentence that says why."""

from __future__ import annotations

import itertools
import math

import pytest

from sf_quantum.candidates.decision import (
    Classical,
    Decision,
    Impossible,
    Quantum,
    Question,
    Spent,
    decide,
    number,
)
from sf_quantum.candidates.policy import Budget, Policies, Policy, Prefer

CPU = Classical("cpu", seconds=4.0)
FREE = Quantum("fresnel", seconds=2.0)
ANY = Question()
PREFERENCES: tuple[Prefer, ...] = ("quantum", "classical", "earliest")


def ask(
    *targets: Quantum | Classical, policy: Policy | None = None, job: Question = ANY
) -> Decision:
    return decide(
        policy or Policy(),
        job,
        [target for target in targets if isinstance(target, Quantum)],
        [target for target in targets if isinstance(target, Classical)],
    )


def test_the_sentence_of_the_issue() -> None:
    decision = ask(Quantum("fresnel", wait=412), CPU, policy=Policy(max_wait=300))
    assert decision == Decision(
        False, ("cpu",), "fresnel would start in 412 s, maxWait is 300 s"
    )


@pytest.mark.parametrize(
    ("target", "policy", "job", "reason"),
    [
        (
            Quantum("q", "does not answer within 2 s", wait=None),
            Policy(),
            ANY,
            "q does not answer within 2 s",
        ),
        (
            Quantum("q", "is offline: helium"),
            Policy(),
            ANY,
            "q is offline: helium",
        ),
        (
            Quantum("q", rests="rests for 9 s after a failure (x)"),
            Policy(),
            ANY,
            "q rests for 9 s after a failure (x)",
        ),
        (
            Quantum("q", failed="failed this job before (x)"),
            Policy(),
            ANY,
            "q failed this job before (x)",
        ),
        (
            Quantum("q", qubits=10),
            Policy(),
            Question(11),
            "q takes 10 variables and the problem has 11",
        ),
        (
            Quantum("q", qubits=10),
            Policy(max_variables=5),
            Question(6),
            "q gets up to 5 variables (maxVariables) and the problem has 6",
        ),
        (
            Quantum("q"),
            Policy(min_variables=5),
            Question(4),
            "q gets 5 variables or more (minVariables) and the problem has 4",
        ),
        (
            Quantum("q", qpu_seconds=3),
            Policy(run=Budget(10)),
            Question(run=Spent(8)),
            "q would exceed the run's budget: 2 of 10 QPU seconds left",
        ),
        (
            Quantum("q"),
            Policy(step=Budget(10)),
            Question(step=Spent(12)),
            "q would exceed the step's budget: 0 of 10 QPU seconds left",
        ),
        (
            Quantum("q", qpu_seconds=3, cost=2),
            Policy(step=Budget(cost=5)),
            ANY,
            "q would exceed the step's budget: 5 of 5 cost left",
        ),
        (
            Quantum("q"),
            Policy(run=Budget(10)),
            Question(run=Spent(0, 0, unmeasured=True)),
            "q may exceed the run's budget: how much a job under way spends is not "
            "known yet",
        ),
        (
            Quantum("q", cost=2),
            Policy(step=Budget(cost=10)),
            Question(known=False),
            "q may exceed the step's budget: what was spent cannot be read in the journal",
        ),
        (
            Quantum("q", wait=None),
            Policy(max_wait=30),
            ANY,
            "q has no free place and nobody knows for how long, maxWait is 30 s",
        ),
        (
            Quantum("q", wait=50, seconds=20, maintenance=60),
            Policy(),
            ANY,
            "q goes into maintenance in 60 s",
        ),
    ],
)
@pytest.mark.parametrize("prefer", PREFERENCES)
def test_what_keeps_a_job_from_a_qpu(
    target: Quantum, policy: Policy, job: Question, reason: str, prefer: Prefer
) -> None:
    policy = Policy(**{**policy.__dict__, "prefer": prefer})
    assert ask(target, CPU, policy=policy, job=job) == Decision(False, ("cpu",), reason)


@pytest.mark.parametrize(
    ("target", "policy", "job"),
    [
        (Quantum("q", qubits=10), Policy(max_variables=10), Question(10)),
        (Quantum("q"), Policy(min_variables=4), Question(4)),
        (Quantum("q"), Policy(max_variables=1), Question(None)),
        (Quantum("q", wait=30), Policy(max_wait=30), ANY),
        (Quantum("q", wait=40, seconds=20, maintenance=60), Policy(), ANY),
        (Quantum("q", qpu_seconds=2), Policy(run=Budget(10)), Question(run=Spent(8))),
        # who costs nothing cannot exceed a cost
        (Quantum("q"), Policy(run=Budget(cost=1)), Question(run=Spent(0, 1))),
        (Quantum("q"), Policy(run=Budget(cost=1)), Question(known=False)),
        (Quantum("q"), Policy(), Question(known=False, run=Spent(unmeasured=True))),
        (Quantum("q", wait=None), Policy(), ANY),
    ],
)
def test_what_just_does_not_keep_it(
    target: Quantum, policy: Policy, job: Question
) -> None:
    assert ask(target, CPU, policy=policy, job=job).targets == ("q",)


def test_several_qpus_the_one_that_ends_first_then_the_least_loaded() -> None:
    slow = Quantum("slow", seconds=9.0)
    queue = Quantum("queue", wait=8.0, seconds=2.0)
    assert ask(queue, slow, FREE, CPU).targets == ("fresnel",)
    assert ask(queue, slow, CPU).targets == ("slow",)
    busy = Quantum("busy", wait=1.0, seconds=1.002, load=3.0)
    idle = Quantum("idle", wait=1.0, seconds=1.004, load=0.5)
    assert ask(busy, idle, CPU).targets == ("idle",)


def test_what_keeps_it_from_the_better_one_is_said_of_the_one_that_gets_it() -> None:
    offline = Quantum("jade", "is offline")
    assert ask(offline, FREE, CPU) == Decision(
        True, ("fresnel",), "fresnel is free; jade is offline"
    )


def test_classical_as_long_as_a_place_is_free() -> None:
    policy = Policy(prefer="classical")
    busy = Classical("node", free=False)
    assert ask(FREE, busy, CPU, policy=policy) == Decision(
        False, ("node", "cpu"), "cpu is free"
    )
    assert ask(FREE, busy, policy=policy) == Decision(
        True, ("fresnel",), "node is busy; fresnel is free"
    )
    both = ask(FREE, busy, Classical("b", free=False), policy=policy)
    assert both.reason == "node and b are busy; fresnel is free"
    late = Quantum("fresnel", wait=9)
    limited = Policy(prefer="classical", max_wait=5)
    assert ask(late, busy, policy=limited).targets == ("node",)


@pytest.mark.parametrize(
    ("wait", "seconds", "classical", "on"),
    [
        (0.0, 2.0, 4.0, "fresnel"),
        (2.0, 2.0, 4.0, "fresnel"),
        (2.1, 2.0, 4.0, "cpu"),
        (0.0, 5.0, 4.0, "cpu"),
        # what was never measured is tried once; where nobody was, the QPU is first
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
        Quantum("fresnel", wait=wait, seconds=seconds),
        Classical("cpu", seconds=classical),
        policy=Policy(prefer="earliest"),
    )
    assert decision.targets == (on,)
    assert decision.quantum == (on == "fresnel")


def test_the_earlier_end_counts_the_classical_queue_too() -> None:
    policy = Policy(prefer="earliest")
    late = Classical("cpu", free=False, wait=8.0, seconds=4.0)
    assert ask(Quantum("q", wait=9, seconds=2), late, policy=policy) == Decision(
        True, ("q",), "q would end in 11 s, cpu would end in 12 s"
    )
    first = Classical("node", seconds=5.0)
    assert ask(Quantum("q", wait=9), late, first, policy=policy).targets[0] == "node"


def test_after_a_failure_another_qpu_then_a_classical_place() -> None:
    failed = "failed this job before (x)"
    first, second = Quantum("a", failed=failed), Quantum("b")
    assert ask(first, second, CPU).targets == ("b",)
    second = Quantum("b", failed=failed)
    assert ask(first, second, CPU).targets == ("cpu",)
    # and the last attempt is not given to a QPU, while there are others
    assert ask(first, Quantum("b"), CPU, job=Question(last=True)) == Decision(
        False, ("cpu",), "it is the last attempt"
    )
    assert ask(first, Quantum("b"), job=Question(last=True)).targets == ("b",)


def test_a_classical_place_that_failed_is_left_while_there_are_others() -> None:
    offline = Quantum("q", "is offline")
    failed = Classical("bad", failed="failed this job before (x)")
    rests = Classical("tired", rests="rests for 3 s")
    assert ask(offline, failed, rests, CPU).targets == ("cpu",)
    assert ask(offline, failed, rests).targets == ("tired",)
    assert ask(offline, failed).targets == ("bad",)


@pytest.mark.parametrize("prefer", PREFERENCES)
@pytest.mark.parametrize("last", [False, True])
def test_a_classical_place_that_failed_is_left_while_a_qpu_is_free(
    prefer: Prefer, last: bool
) -> None:
    failed = Classical("bad", failed="failed this job before (x)", seconds=1.0)
    rests = Classical("tired", rests="rests for 3 s", seconds=1.0)
    policy, job = Policy(prefer), Question(last=last)
    assert ask(FREE, failed, rests, policy=policy, job=job) == Decision(
        *(True, ("fresnel",)),
        "fresnel is free; bad failed this job before (x); tired rests for 3 s",
    )
    late = Quantum("late", wait=9)
    limited = Policy(prefer, max_wait=5)
    assert ask(late, failed, policy=limited, job=job).targets == ("bad",)


def test_without_a_classical_target_a_budget_that_nobody_knows_of_keeps_no_job() -> (
    None
):
    unmeasured = Question(run=Spent(unmeasured=True))
    assert ask(FREE, policy=Policy(run=Budget(1)), job=unmeasured).targets == (
        "fresnel",
    )


def test_without_a_classical_target_the_least_bad_qpu_gets_it() -> None:
    late = Quantum("late", wait=500)
    resting = Quantum("resting", rests="rests for 3 s")
    failed = Quantum("failed", failed="failed this job before (x)")
    offline = Quantum("offline", "is offline")
    order = [late, resting, failed, offline]
    for first in range(len(order)):
        left = order[first:]
        for some in itertools.permutations(left):
            assert ask(*some, policy=Policy(max_wait=9)).targets == (left[0].name,)


def test_a_job_that_no_qpu_can_take_is_not_tried() -> None:
    words = "q takes 5 variables and the problem has 6; the binding lists no classical"
    with pytest.raises(Impossible, match=words):
        ask(Quantum("q", qubits=5), job=Question(6))


def test_every_combination_gives_a_target_and_a_reason() -> None:
    """A binding with a classical target always ends somewhere."""
    quantum = [
        Quantum("q", trouble, rests, failed, qubits, wait, seconds)
        for trouble in ("", "is offline")
        for rests in ("", "rests")
        for failed in ("", "failed")
        for qubits in (0, 5)
        for wait in (0.0, 9.0, None)
        for seconds in (1.0, None)
    ]
    places = [
        Classical("c", free, rests, failed, wait, seconds)
        for free in (True, False)
        for rests in ("", "rests")
        for failed in ("", "failed")
        for wait in (0.0, 5.0)
        for seconds in (2.0, None)
    ]
    policies = [
        Policy(prefer=prefer, max_wait=max_wait)
        for prefer in PREFERENCES
        for max_wait in (None, 5.0)
    ]
    for q, c, policy, last in itertools.product(
        quantum, places, policies, (False, True)
    ):
        decision = ask(q, c, policy=policy, job=Question(6, last))
        assert decision.targets in (("q",), ("c",))
        assert decision.quantum == (decision.targets == ("q",))
        assert decision.reason
        if decision.quantum:
            assert not last or c.failed or c.rests
            assert not any((q.trouble, q.rests, q.failed, q.qubits))
            assert policy.max_wait is None or (
                q.wait is not None and q.wait <= policy.max_wait
            )
        elif policy.prefer == "earliest" and not last:
            refused = q.trouble or q.rests or q.failed or q.qubits
            late = policy.max_wait is not None and (q.wait or math.inf) > 5 and q.wait
            assert refused or late or q.wait is None or c.end < q.end


def test_numbers() -> None:
    assert [number(n) for n in (0, 0.0123, 1.26, 9.94, 412.3)] == [
        *("0", "0.012", "1.3", "9.9", "412")
    ]


def test_a_step_has_its_own_policy_and_that_of_those_above_it() -> None:
    policies = Policies(
        {
            "prefer": "earliest",
            "maxWait": 30,
            "budget": {"qpuSeconds": 9},
            "onFailure": "fallback",
            "steps": {
                "/loop": {"maxWait": 5, "pattern": "qc-heavy"},
                "/loop/solve": {
                    "prefer": "quantum",
                    "expectedSeconds": 2,
                    "budget": {"cost": 1},
                },
                "/loop/solve/part": {"budget": {"qpuSeconds": 3}},
                "/loop/fails": {
                    "onFailure": "fail",
                },
            },
        }
    )
    assert policies.of("/other") == Policy("earliest", max_wait=30, run=Budget(9))
    assert policies.of("/loop/other").max_wait == 5
    assert policies.of("/loopy").max_wait == 30
    own = policies.of("/loop/solve")
    assert (own.prefer, own.max_wait, own.fallback) == ("quantum", 5, True)
    assert not policies.of("/loop/fails").fallback
    # limit by limit
    assert policies.of("/loop/solve/part").step == Budget(seconds=3, cost=1)
    assert (own.run, own.step) == (Budget(9), Budget(cost=1))
    assert own.hints == {"expectedSeconds": 2, "pattern": "qc-heavy"}
