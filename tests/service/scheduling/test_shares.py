"""Fair share in figures: usage that fades, shares of leases, leases that overtake."""

from __future__ import annotations

import pytest

from sf_quantum.service.domain.jobs import Lease, LeaseRequest, Pattern, Used
from sf_quantum.service.domain.settings import Account, Shares
from sf_quantum.service.scheduling.held import FEW, HeldLeases
from sf_quantum.service.scheduling.policies.fair_share import FairShare
from sf_quantum.service.scheduling.shares import (
    ActiveShares,
    DecayingUsage,
    account_of,
)
from sf_quantum.service.scheduling.work import PendingJob

ANN: Account = ("user", "ann")
BOB: Account = ("user", "bob")
A: Account = ("project", "a")


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lease(
    user: str,
    *,
    id: str = "",
    project: str | None = None,
    share: int | None = None,
    slurm_job: str | None = None,
    pattern: Pattern | None = None,
    expected: float | None = None,
) -> Lease:
    return Lease(
        id=id or f"of-{user}",
        user=user,
        job_class="test",
        job=None,
        slurm_job_id=slurm_job,
        partition=None,
        expected_seconds=expected,
        pattern=pattern,
        key=None,
        opened=0.0,
        project=project,
        tenths=share,
    )


def job(
    number: int,
    user: str,
    qpu_seconds: float,
    *,
    project: str | None = None,
    scale: float = 1.0,
) -> PendingJob:
    return PendingJob(
        number,
        str(number),
        user,
        f"of-{user}",
        "test",
        "problem",
        qpu_seconds * scale,
        qpu_seconds=qpu_seconds,
        project=project,
    )


# usage


def test_usage_is_of_the_account_and_of_its_user(clock: Clock) -> None:
    usage = DecayingUsage(100.0, clock)
    usage.charge(A, "ann", 3.0)
    usage.charge(A, "bob", 2.0)
    usage.charge(BOB, "bob", 7.0)
    assert usage.of((A, None)) == 5.0
    assert (usage.of((A, "ann")), usage.of((A, "bob"))) == (3.0, 2.0)
    assert usage.of((BOB, None)) == usage.of((BOB, "bob")) == 7.0
    assert usage.of((ANN, None)) == 0.0


def test_a_second_used_later_weighs_more(clock: Clock) -> None:
    usage = DecayingUsage(100.0, clock)
    assert usage.weight == 1.0
    usage.charge(ANN, "ann", 8.0)
    clock.now += 100.0
    usage.charge(BOB, "bob", 8.0)
    assert usage.weight == 2.0
    assert usage.of((BOB, None)) == 2 * usage.of((ANN, None)) == 16.0
    usage.charge(A, "ann", 8.0, clock.now - 300.0)
    assert usage.of((A, None)) == 2.0
    # nothing is used in the future
    usage.charge(A, "bob", 8.0, clock.now + 300.0)
    assert usage.of((A, "bob")) == 16.0
    assert usage.weight == 2.0


def test_weights_never_overflow(clock: Clock) -> None:
    usage = DecayingUsage(1.0, clock)
    usage.charge(ANN, "ann", 8.0)
    before = usage.stamp
    clock.now += 500.0
    usage.charge(BOB, "bob", 1.0)
    assert usage.weight == usage.of((BOB, None)) == 2.0**500
    clock.now += 1.0
    usage.charge(BOB, "bob", 1.0)
    # scaled down: a second of now weighs 1 again, one of before a half
    assert usage.weight == 1.0
    assert usage.of((BOB, None)) == 1.5
    assert usage.of((ANN, None)) == 8 * 2.0**-501
    assert usage.is_stale(before)
    assert not usage.is_stale(usage.stamp)
    clock.now += 1e6
    usage.charge(BOB, "bob", 4.0)
    assert usage.of((BOB, None)) == 4.0
    usage.charge(ANN, "ann", 4.0, clock.now - 1e6)
    assert usage.of((ANN, "ann")) < 1e-100


def test_sums_are_stale_once_a_second_weighs_a_thousandth_more(clock: Clock) -> None:
    usage = DecayingUsage(1000.0, clock)
    stamp = usage.stamp
    for seconds, stale in ((1.4, False), (1.5, True)):
        clock.now = 1e9 + seconds
        usage.charge(ANN, "ann", 1.0)
        assert usage.is_stale(stamp) is stale


# shares


def test_a_leases_share_counts_for_account_and_user() -> None:
    shares = ActiveShares(Shares(projects={"a": 5}, users={"ann": 4}, default=2))
    assert (shares.of((A, None)), shares.of((A, "ann"))) == (5, 4)
    assert (shares.of((BOB, None)), shares.of((A, "bob"))) == (2, 2)
    held = [
        lease("ann", id="1", project="a", share=7),
        lease("bob", id="2", project="a", share=1),
        lease("bob", id="3"),
    ]
    for one in held:
        shares.leased(one)
    assert shares.of((A, None)) == 8
    assert (shares.of((A, "ann")), shares.of((A, "bob"))) == (7, 1)
    # a lease without a share changes nothing
    assert shares.of((BOB, None)) == 2
    shares.released(held[0])
    shares.released(held[0])
    # what is configured by name counts where it is more
    assert (shares.of((A, None)), shares.of((A, "ann"))) == (5, 4)
    shares.released(held[1])
    assert shares.of((A, "bob")) == 2


def test_leases_of_one_slurm_job_have_one_share_between_them() -> None:
    shares = ActiveShares(Shares())
    held = [lease("ann", id=id, share=3, slurm_job="7") for id in "12"]
    other = lease("ann", id="3", share=2, slurm_job="8")
    stranger = lease("ann", id="4", share=2, slurm_job="7")
    for one in (*held, other):
        shares.leased(one)
    assert shares.of((ANN, None)) == 5
    shares.released(stranger)
    shares.released(held[0])
    assert shares.of((ANN, None)) == 5
    shares.released(held[1])
    assert shares.of((ANN, None)) == 2
    shares.released(other)
    assert shares.of((ANN, None)) == 1


def test_whose_share_it_is() -> None:
    assert account_of(lease("ann")) == ANN
    assert account_of(lease("ann", project="a")) == A
    assert account_of(Used("bob", "a", 1.0, 0.0)) == A


def test_a_free_lease_goes_to_who_holds_fewest_per_share(clock: Clock) -> None:
    class Request:
        def __init__(self, user: str, share: int | None, passed: int = 0) -> None:
            self.user, self.passed = user, passed
            self.request = LeaseRequest(tenths=share)

    policy = FairShare(Shares(users={"cid": 4}), clock)
    ann, bob, cid = Request("ann", 2), Request("bob", 5), Request("cid", None)
    assert policy.choose_request([ann, bob, cid], []) == 1
    assert policy.choose_request([ann, cid], []) == 1
    assert policy.choose_request([ann, bob, cid], [lease("bob")]) == 2
    assert policy.choose_request([ann, bob], [lease("bob"), lease("bob")]) == 0
    # of equal ones the first
    assert policy.choose_request([bob, Request("dan", 5)], []) == 0
    # of two tenths at most five times
    assert policy.choose_request([Request("ann", 2, passed=4), bob], []) == 1
    assert policy.choose_request([Request("ann", 2, passed=5), bob], []) == 0
    assert policy.choose_request([bob, Request("ann", 2, passed=5)], []) == 1


def test_earlier_usage_counts_and_so_far_back_it_is_needed(clock: Clock) -> None:
    policy = FairShare(Shares(), clock, 100.0)
    assert policy.usage_window_seconds() == 1000.0
    jobs = [job(1, "ann", 1.0), job(2, "bob", 1.0)]
    for one in jobs:
        policy.add(one)
    assert [*policy.order()] == jobs
    policy.add_usage(Used("ann", None, 5.0, clock.now))
    assert [*policy.order()] == jobs[::-1]
    assert policy.first() is jobs[1]


def test_the_share_of_a_lease_orders_jobs_while_it_is_held(clock: Clock) -> None:
    policy = FairShare(Shares(), clock)
    policy.add_usage(Used("ann", None, 3.0, clock.now))
    policy.add_usage(Used("bob", None, 2.0, clock.now))
    jobs = [job(1, "ann", 1.0), job(2, "bob", 1.0)]
    for one in jobs:
        policy.add(one)
    assert [*policy.order()] == jobs[::-1]
    held = lease("ann", share=2)
    policy.leased(held)
    assert [*policy.order()] == jobs
    policy.released(held)
    assert [*policy.order()] == jobs[::-1]


# held leases that overtake


def held_leases(*leases: Lease) -> HeldLeases:
    """Make leases held, after others that used 100 QPU seconds each."""
    held = HeldLeases()
    for number in range(FEW):
        ended = lease("zoe", id=f"ended {number}")
        held.add(ended)
        held.submitted(ended.id, 100.0)
        held.remove(ended.id)
    for one in leases:
        held.add(one)
    return held


def waits(policy: FairShare, *jobs: PendingJob) -> PendingJob:
    for one in jobs:
        policy.add(one)
    return jobs[-1]


def up_to(policy: FairShare, last: PendingJob, held: HeldLeases) -> dict[str, float]:
    """Return the QPU seconds up to which others overtake a job, by their users."""
    return {
        " ".join(sorted({lease.user for lease in one.leases})): one.at_most
        for one in policy.overtaking_leases(last, held)
    }


def test_users_of_an_account_get_equal_shares(
    clock: Clock,
) -> None:
    policy = FairShare(Shares(users={"ann": 2}), clock)
    last = waits(
        policy, job(1, "bob", 10.0, project="a"), job(2, "bob", 1.0, project="a")
    )
    # bob's own leases submit nothing before his jobs
    held = held_leases(lease("ann", project="a"), lease("bob", project="a"))
    # with twice bob's share ann has 20 s while he has 10
    assert up_to(policy, last, held) == pytest.approx({"ann": 20.0})
    # of which 4 are pending already
    policy.add(job(3, "ann", 4.0, project="a"))
    assert up_to(policy, last, held) == pytest.approx({"ann": 16.0})
    # cid has as much as bob, until it is pending
    held.add(lease("cid", project="a"))
    assert up_to(policy, last, held) == pytest.approx({"ann": 16.0, "cid": 10.0})
    policy.add(job(4, "cid", 10.5, project="a"))
    assert up_to(policy, last, held) == pytest.approx({"ann": 16.0})


@pytest.mark.parametrize("half_lives", [0, 1])
def test_accounts_get_equal_shares(clock: Clock, half_lives: int) -> None:
    policy = FairShare(Shares(projects={"a": 2}), clock, 100.0)
    clock.now += half_lives * 100.0
    policy.add_usage(Used("zoe", None, 1.0, clock.now))
    last = waits(
        policy, job(1, "bob", 10.0, project="a"), job(2, "bob", 1.0, project="a")
    )
    held = held_leases(lease("cid"), lease("cid", id="2"))
    # the account has had 10 of two tenths, that is 5 per tenth
    assert up_to(policy, last, held) == pytest.approx({"cid": 5.0})
    # of which 4 are pending
    policy.add(job(3, "cid", 4.0))
    assert up_to(policy, last, held) == pytest.approx({"cid": 1.0})
    # and of which 3 were used
    policy.add_usage(Used("cid", None, 3.0, clock.now))
    assert up_to(policy, last, held) == {}
    (found,) = held.by_account("test").values()
    assert [one.user for one in found] == ["cid", "cid"]


def test_nothing_overtakes_before_leases_have_ended(clock: Clock) -> None:
    policy = FairShare(Shares(), clock)
    last = waits(policy, job(1, "bob", 10.0), job(2, "bob", 1.0))
    held = HeldLeases()
    held.add(lease("cid", expected=1000.0))
    assert policy.overtaking_leases(last, held) == ()


def test_jobs_of_a_higher_class_count_before_those_of_lower_ones(clock: Clock) -> None:
    policy = FairShare(Shares(), clock)
    jobs = [job(n, user, 2.0) for n, user in enumerate(["ann", "bob", "ann", "bob"])]
    waits(policy, *jobs)
    assert [one.number for one in policy.order()] == [0, 1, 2, 3]
    urgent = job(4, "ann", 3.0)
    urgent.job_class = "production"
    policy.add(urgent)
    # ann has had 3 before the others run, bob nothing
    assert [one.number for one in policy.order()] == [4, 1, 3, 0, 2]
    policy.remove(urgent)
    assert [one.number for one in policy.order()] == [0, 1, 2, 3]
    # a job counts from its start
    policy.remove(jobs[0])
    policy.began(jobs[0])
    assert [one.number for one in policy.order()] == [1, 2, 3]
    policy.ended(jobs[0], 4.5)
    assert [one.number for one in policy.order()] == [1, 3, 2]


def test_jobs_ahead_of_those_of_other_accounts_are_added_up(clock: Clock) -> None:
    policy = FairShare(Shares(projects={"a": 2}), clock)
    jobs = [
        job(1, "ann", 4.0, project="a"),
        job(2, "ann", 4.0, project="a"),
        job(3, "bob", 3.0),
        job(4, "bob", 3.0),
        job(5, "ann", 4.0, project="a"),
    ]
    waits(policy, *jobs)
    # usage per share at their starts: ann's 0, 2, 4; bob's 0, 3
    assert [one.number for one in policy.order()] == [1, 3, 2, 4, 5]
    for one, seconds in zip(jobs, (0.0, 7.0, 4.0, 11.0, 14.0), strict=True):
        work = policy.work_ahead(one).get("problem")
        assert (work.seconds if work else 0.0) == seconds


def test_other_shares_reorder_what_is_pending(clock: Clock) -> None:
    policy = FairShare(Shares(users={"ann": 9}), clock)
    for user in ("ann", "bob"):
        policy.add_usage(Used(user, None, 9.0, clock.now))
    jobs = [job(1, "bob", 1.0), job(2, "ann", 1.0)]
    for pending in jobs:
        policy.add(pending)
    assert [*policy.order()] == jobs[::-1]
    policy.set_shares(Shares(users={"bob": 9}))
    assert [*policy.order()] == jobs
    assert policy.first() == jobs[0]
