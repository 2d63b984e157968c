"""Who is next: what every policy keeps to, and what sets each apart."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import FrameType

import pytest

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    JobClass,
    Kind,
    Lease,
    LeaseRequest,
    Pattern,
    Submission,
    Used,
)
from sf_quantum.service.domain.settings import PolicyChoice, ServiceSettings, Shares
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.scheduling.held import HeldLeases
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.policies import load, make, names
from sf_quantum.service.scheduling.policies.base import Policy
from sf_quantum.service.scheduling.policies.fair_share import FairShare
from sf_quantum.service.scheduling.policies.interleave import MAX_PASSES, Interleave
from sf_quantum.service.scheduling.work import PendingJob, Work
from sf_quantum.service.store.reports.usage import recent_use
from tests.support.service import example_bqm, running_queue
from tests.support.waiting import SECONDS, until_async

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")

ANN, BOB = Identity("ann", admin=False), Identity("bob", admin=False)
ROOT = Identity("root", admin=True, root=True)
OURS = ["classes", "fair-share", "fifo", "interleave"]
CLASSES: tuple[JobClass, ...] = ("production", "test", "development")
PATTERNS: tuple[Pattern | None, ...] = ("qc-heavy", "cc-heavy", "balanced", None)
NONE_HELD = HeldLeases()
SHARES = Shares(projects={"a": 5, "b": 3}, users={"u1": 2})


def job(
    number: int,
    user: str = "ann",
    seconds: float = 1.0,
    *,
    job_class: JobClass = "development",
    project: str | None = None,
    pattern: Pattern | None = None,
    kind: Kind = "problem",
) -> PendingJob:
    """A job that came in the second of its number."""
    return PendingJob(
        *(number, str(number), user, "lease", job_class, kind, seconds),
        qpu_seconds=seconds,
        submitted=float(number),
        project=project,
        pattern=pattern,
    )


def lease(user: str = "ann", **hints: str | int | float | None) -> Lease:
    known: dict[str, str | int | float | None] = dict.fromkeys(
        (
            *("id", "job", "slurm_job_id", "partition", "expected_seconds", "pattern"),
            *("key", "expires"),
        )
    )
    given = {**known, "job_class": "test", "opened": 0.0, **hints, "user": user}
    return Lease(**given)  # type: ignore[arg-type]


class Asks:
    """One who waits for a lease."""

    def __init__(self, user: str = "ann", passed: int = 0, **asked: object) -> None:
        self.user = user
        self.passed = passed
        self.request = LeaseRequest(**asked)  # type: ignore[arg-type]


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def run(policy: Policy, jobs: int) -> list[PendingJob]:
    """Let jobs run one after the other, each as long as it is expected to."""
    ran = []
    for _ in range(jobs):
        first = policy.first()
        assert first is not None
        policy.remove(first)
        policy.began(first)
        policy.ended(first, first.qpu_seconds)
        ran.append(first)
    return ran


def test_ours_are_installed() -> None:
    assert set(OURS) <= set(names())
    for name in OURS:
        assert isinstance(make(name, {}, Shares(), Clock()), load(name))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fiffo", {}, "unknown policy 'fiffo', did you mean 'fifo'? (known: classes, "),
        ("fifo", {"a": 1}, "unknown key 'a': this policy has none"),
        ("fair-share", {"half_life": 1}, "did you mean 'half_life_seconds'?"),
        ("fair-share", {"half_life_seconds": "1 d"}, "'1 d': expected a number"),
        ("fair-share", {"half_life_seconds": 0}, "expected a finite number above 0"),
        ("interleave", {"patience": True}, "patience True: expected a number"),
        ("interleave", {"patience": float("inf")}, "inf: expected a finite number"),
    ],
)
def test_what_is_not_known_is_named(
    name: str, options: Mapping[str, JSON], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        make(name, options, Shares(), Clock())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Random:
    """A policy with jobs that come, run, are put back, cancelled and moved at random."""

    def __init__(self, name: str, seed: int) -> None:
        self.draws = random.Random(seed)
        self.pending = PendingJobs(make(name, {}, SHARES, Clock()))
        self.number = 0

    def come(self) -> None:
        self.number += 1
        user = self.draws.randrange(8)
        self.pending.add(
            job(
                *(self.number, f"u{user}", self.draws.choice([0.5, 1, 2.5, 60])),
                job_class=self.draws.choice(CLASSES),
                project=[None, "a", "b"][user % 3],
                pattern=self.draws.choice(PATTERNS),
                kind=self.draws.choice(["problem", "circuit"]),
            )
        )

    def step(self) -> None:
        policy = self.pending.policy
        what = self.draws.random()
        if what < 0.55 or not self.pending:
            self.come()
        elif what < 0.85:
            first = self.pending.pop()
            assert first is not None
            policy.began(first)
            used = first.qpu_seconds * self.draws.choice([1, 1, 0.5])
            policy.ended(first, used)
            if used < first.qpu_seconds:
                self.pending.add(first)
        elif what < 0.95:
            self.pending.remove(self.draws.choice([*self.pending]).number)
        else:
            one = lease(f"u{self.draws.randrange(8)}", project="a", tenths=3)
            policy.leased(one)
            if self.draws.random() < 0.5:
                policy.released(one)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", OURS)
def test_positions_are_those_of_its_own_order(name: str, seed: int) -> None:
    some = Random(name, seed)
    for _ in range(400):
        some.step()
        if some.draws.random() > 0.1:
            continue
        order = some.pending.order()
        assert sorted(one.number for one in order) == [
            one.number for one in some.pending
        ]
        assert some.pending.first() == (order[0] if order else None)
        work_by_kind: defaultdict[Kind, Work] = defaultdict(Work)
        for entry in order:
            found, _ = some.pending.work_ahead(entry, NONE_HELD)
            for kind in ("problem", "circuit"):
                work = found.get(kind, Work())
                assert work.jobs == work_by_kind[kind].jobs
                assert work.seconds == pytest.approx(work_by_kind[kind].seconds)
            work_by_kind[entry.kind] += Work(1, entry.seconds)


@pytest.mark.parametrize("name", OURS)
def test_the_order_told_is_the_order_run(name: str) -> None:
    some = Random(name, 7)
    for _ in range(60):
        some.come()
    order = some.pending.order()
    assert run(some.pending.policy, len(order)) == order


@pytest.mark.parametrize("name", OURS)
def test_a_job_that_would_join_changes_nothing(name: str) -> None:
    some = Random(name, 3)
    for _ in range(50):
        some.come()
    before = some.pending.order()
    work_by_kind, _ = some.pending.work_ahead(job(10**6, "stranger"), NONE_HELD)
    assert sum(work.jobs for work in work_by_kind.values()) <= 50
    assert some.pending.order() == before


@pytest.mark.parametrize(
    ("name", "calls"),
    [("classes", 20), ("fair-share", 2000), ("fifo", 20), ("interleave", 20)],
)
def test_a_submission_costs_few_calls_beside_ten_thousand_jobs(
    name: str, calls: int
) -> None:
    """A submission asks who is next and what is before the new job.

    Calls of Python functions are counted: the time would be that of the machine.
    """
    pending = PendingJobs(make(name, {}, Shares(), Clock()))
    projects = [None, "a", "b", "c"]
    for number in range(10_000):
        user = number % 200
        pending.add(job(number, f"u{user}", 1 + user, project=projects[user % 4]))
    made = [0]

    def count(frame: FrameType, event: str, _: object) -> None:
        made[0] += event == "call"

    sys.setprofile(count)
    for number in range(10_000, 10_100):
        user = number % 200
        entry = job(number, f"u{user}", 1 + user, project=projects[user % 4])
        pending.add(entry)
        pending.first()
        pending.work_ahead(entry, NONE_HELD)
    sys.setprofile(None)
    assert made[0] / 100 < calls


@pytest.mark.parametrize("name", ["classes", "fair-share", "interleave"])
def test_classes_go_before_everything_and_production_preempts(name: str) -> None:
    policy = make(name, {}, Shares(), Clock())
    for number, job_class in enumerate(reversed(CLASSES)):
        policy.add(job(number, f"u{number}", job_class=job_class))
    order = [*policy.order()]
    assert [one.job_class for one in order] == [*CLASSES]
    production, test, development = order
    assert policy.preempts(production, test)
    assert policy.preempts(production, development)
    assert not policy.preempts(production, production)
    assert not policy.preempts(test, development)
    assert policy.overtaking_classes("test")[0] == "production"


def test_fifo_knows_no_classes() -> None:
    policy = make("fifo", {}, Shares(), Clock())
    entries = [job(number, job_class=one) for number, one in enumerate(CLASSES[::-1])]
    for entry in entries[::-1]:
        policy.add(entry)
    assert [*policy.order()] == entries
    assert not policy.preempts(entries[-1], entries[0])
    assert policy.overtaking_classes("development") == ()


def test_shares_are_kept_between_projects_and_within_them() -> None:
    clock = Clock()
    policy = FairShare(
        Shares(projects={"a": 5, "b": 3}, users={"a1": 3}, default=2), clock, 1e6
    )
    lengths, number = random.Random(1), 0
    users = {"a1": "a", "a2": "a", "b1": "b", "alone": None}
    for _ in range(1000):
        for user, project in users.items():
            number += 1
            policy.add(job(number, user, lengths.uniform(1, 20), project=project))
    used: Counter[str] = Counter()
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for entry in run(policy, 1200):
        used[entry.user] += entry.qpu_seconds  # type: ignore[assignment]
        numbers[entry.user].append(entry.number)
        clock.now += entry.qpu_seconds
    total = sum(used.values())
    # 5 tenths of a, of which 3 of 5; 3 of b; 2 of who has no project
    expected = {"a1": 0.3, "a2": 0.2, "b1": 0.3, "alone": 0.2}
    for user, part in expected.items():
        assert used[user] / total == pytest.approx(part, abs=0.005)
        assert numbers[user] == sorted(numbers[user])


def test_who_is_not_there_leaves_the_share_to_the_others() -> None:
    policy = FairShare(Shares(projects={"a": 9, "b": 1}), Clock())
    for number in range(10):
        policy.add(job(number, "bob", project="b"))
    assert len(run(policy, 10)) == 10


def test_what_was_used_fades() -> None:
    clock = Clock()
    policy = FairShare(Shares(), clock, 100.0)
    for number in range(40):
        policy.add(job(number, ["ann", "bob"][number % 2], 10.0))
    policy.add_usage(Used("ann", None, 80.0, clock.now - 200))
    # 80 seconds of two half-lives ago: two jobs of bob's before it is even, and one more
    users = [one.user for one in run(policy, 4)]
    assert users == ["bob", "bob", "ann", "bob"]
    clock.now += 1e9
    assert {one.user for one in run(policy, 2)} == {"ann", "bob"}


def test_a_job_counts_from_its_start_as_long_as_expected() -> None:
    policy = FairShare(Shares(), Clock())
    for number in range(4):
        policy.add(job(number, ["ann", "bob"][number // 2], 10.0))
    first = policy.first()
    assert first is not None
    policy.remove(first)
    policy.began(first)
    assert [one.number for one in policy.order()] == [2, 1, 3]
    policy.ended(first, 0.0)  # it was cancelled
    policy.add(first)
    assert next(policy.order()) is first


def test_tenths_of_leases_count_while_they_are_held() -> None:
    policy = FairShare(Shares(users={"bob": 6}, default=9), Clock())
    held = [
        lease("ann", id="1", tenths=2, slurm_job_id="7"),
        lease("ann", id="2", tenths=2, slurm_job_id="7"),  # the same two tenths
        lease("ann", id="3", tenths=1),
        lease("bob", id="4", tenths=1),  # no less than what is configured
    ]
    for one in held:
        policy.leased(one)
    for number in range(60):
        policy.add(job(number, ["ann", "bob"][number % 2]))
    ran = Counter(one.user for one in run(policy, 30))
    assert ran == {"ann": 10, "bob": 20}
    for one in held:
        policy.released(one)
    ran = Counter(one.user for one in run(policy, 20))
    # 9 tenths, and what was behind
    assert ran["ann"] > 11


def test_leases_are_shared_by_tenths_too() -> None:
    policy = FairShare(Shares(projects={"a": 2, "b": 1}), Clock())
    waiting = [Asks("bob", project="b"), Asks("ann", project="a")] * 6
    held: list[Lease] = []
    for _ in range(6):
        chosen = policy.choose_request(waiting, held)
        asks = waiting.pop(chosen)
        held.append(lease(asks.user, project=asks.request.project))
    assert Counter(one.user for one in held) == {"ann": 4, "bob": 2}


def test_nobody_is_passed_for_ever_by_those_with_more_tenths() -> None:
    policy = FairShare(Shares(projects={"a": 5}), Clock())
    waiting = [Asks("zoe"), *(Asks("ann", project="a") for _ in range(20))]
    granted = []
    for _ in range(12):
        chosen = waiting.pop(policy.choose_request(waiting, []))
        granted.append(chosen.user)
        if waiting[0].user == "zoe":
            waiting[0].passed += 1
    assert granted.index("zoe") == 10


def test_short_jobs_of_cc_heavy_tenants_go_first() -> None:
    policy = Interleave(patience=10.0)
    long = job(1, "ann", 60, pattern="qc-heavy")
    for entry in (
        long,
        job(2, "bob", 5, pattern="balanced"),
        job(3, "cid", 1, pattern="cc-heavy"),
    ):
        policy.add(entry)
    assert [one.user for one in policy.order()] == ["cid", "bob", "ann"]


def test_interleaving_is_bounded() -> None:
    """Nobody passes a job who comes after it was due, however many come."""
    policy = Interleave(patience=10.0)
    # it came in second 0 and is due after ten times its minute
    long = job(0, "ann", 60, pattern="qc-heavy")
    policy.add(long)
    ran = []
    for number in range(1, 2000):
        policy.add(job(number, "bob", 1, pattern="cc-heavy"))
        ran += run(policy, 1)
    assert ran.index(long) == 599
    assert all(one.number < 600 for one in ran[:600])


def test_a_free_lease_brings_the_load_nearest_to_one_qpu() -> None:
    policy = Interleave()
    heavy, light = Asks(pattern="qc-heavy"), Asks(pattern="cc-heavy")
    assert policy.choose_request([light, heavy], []) == 1
    assert policy.choose_request([heavy, light], [lease(pattern="qc-heavy")]) == 1
    assert policy.choose_request([light, heavy], [lease(pattern="cc-heavy")]) == 1
    # of equal ones who holds it for the shortest time, then who came first
    soon = Asks(pattern="cc-heavy", expected_seconds=10.0)
    assert policy.choose_request([light, heavy, soon], [lease(pattern="qc-heavy")]) == 2
    assert policy.choose_request([light, light], []) == 0
    passed = Asks(pattern="qc-heavy", passed=MAX_PASSES)
    assert policy.choose_request([passed, light], [lease(pattern="qc-heavy")]) == 0


def running(
    path: Path, settings: ServiceSettings, device: EmulatedDevice | None = None
) -> AbstractAsyncContextManager[JobQueue]:
    return running_queue(path, device or EmulatedDevice(time_scale=0), settings)


async def acquired(queue: JobQueue, who: Identity, **asked: object) -> Lease:
    return await queue.leases.acquire(who, LeaseRequest(**asked))  # type: ignore[arg-type]


async def submitted(queue: JobQueue, held: Lease, key: str, shots: int = 1) -> Job:
    asked = Submission("problem", example_bqm(), {"num_reads": shots}, key)
    return (await queue.submit(ROOT, held.id, asked))[0]


async def occupied(queue: JobQueue, held: Lease) -> None:
    """Let a job run."""
    runs = await submitted(queue, held, "runs")
    await until_async(lambda: queue.find(ROOT, runs.id).state == "Running")


PROJECTS = ServiceSettings(
    vqpus=10,
    policy=PolicyChoice("fair-share"),
    shares=Shares(projects={"chem": 3}),
    user_projects={"ann": ["bio", "chem"]},
)


async def test_a_lease_is_for_a_project_of_its_user(tmp_path: Path) -> None:
    async with running(tmp_path, PROJECTS) as queue:
        granted: list[tuple[dict[str, object], str]] = [
            ({}, "bio"),
            ({"project": "chem"}, "chem"),
            ({"account": "chem"}, "chem"),
            ({"account": "of-another-cluster"}, "bio"),
        ]
        for asked, project in granted:
            assert (await acquired(queue, ANN, **asked)).project == project
        assert (await acquired(queue, BOB, account="chem")).project is None
        given = await acquired(queue, ROOT, user="ann", tenths=4)
        assert (given.project, given.tenths) == ("bio", 4)
        refusals: list[tuple[Identity, dict[str, object], str]] = [
            (
                ANN,
                {"project": "physics"},
                "ann may not use project 'physics' (may: bio",
            ),
            (BOB, {"project": "chem"}, "bob may not use project 'chem' (may: none)"),
            (ANN, {"tenths": 1}, "only root and admins set the share of a lease"),
        ]
        for who, asked, words in refusals:
            with pytest.raises(Refused) as refused:
                await acquired(queue, who, **asked)
            assert refused.value.status == 403
            assert refused.value.detail.startswith(words)
    # as it was, for a service that is started again
    async with running(tmp_path, PROJECTS) as queue:
        assert {one.project for one in queue.leases.held} == {"bio", "chem", None}


# what jobs cost is another annealer's
@pytest.mark.devices("sfq", "acme")
async def test_what_a_job_uses_is_of_the_project_it_comes_under(
    tmp_path: Path,
) -> None:
    async with running(
        tmp_path, PROJECTS, EmulatedDevice(technology="neutral-atom")
    ) as queue:
        bio, chem = [
            await acquired(queue, ANN, project=name) for name in ("bio", "chem")
        ]
        await occupied(queue, bio)
        await submitted(queue, chem, "runs")
        assert isinstance(queue.policy, FairShare)
        used = queue.policy.usage
        assert used.of((("project", "bio"), None)) == pytest.approx(0.0, abs=0.01)
        assert used.of((("project", "chem"), None)) > 0.0
        # one who joined now would be behind it, whose project has used the QPU
        ahead = await acquired(queue, BOB)
        await submitted(queue, ahead, "bobs")
        assert queue.forecasts.of_new("development", "ann").position == 2


# what jobs cost is another annealer's
@pytest.mark.devices("sfq")
@pytest.mark.none_ahead
async def test_usage_is_known_after_a_restart(tmp_path: Path) -> None:
    settings = ServiceSettings(vqpus=10, policy=PolicyChoice("fair-share"))
    async with running(tmp_path, settings) as queue:
        held = await acquired(queue, ANN)
        done = await submitted(queue, held, "done", shots=1000)
        await queue.wait(ROOT, done.id, SECONDS)
        await queue.availability.set_status("draining")
        assert recent_use(queue.store, 0.0)[0].qpu_seconds == pytest.approx(
            0.104, abs=0.001
        )
    async with running(
        tmp_path, settings, EmulatedDevice(technology="neutral-atom")
    ) as queue:
        await queue.availability.set_status("open")
        other = await acquired(queue, BOB)
        await occupied(queue, other)
        # ann came first, but bob's job, begun, is the only one that counts for more
        anns, bobs = (
            await submitted(queue, held, "anns"),
            await submitted(queue, other, "bobs"),
        )
        told = [queue.forecasts.of(one) for one in (anns, bobs)]
        assert [one and one.position for one in told] == [1, 2]
        # who never ran anything goes before both
        new = await acquired(queue, Identity("new", admin=False))
        third = await submitted(queue, new, "new")
        told = [queue.forecasts.of(one) for one in (third, anns, bobs)]
        assert [one and one.position for one in told] == [1, 2, 3]
        assert queue.forecasts.of_new("development", "stranger").position <= 2
        assert queue.forecasts.of_new("development", "bob").position == 4


@pytest.mark.none_ahead
async def test_a_job_takes_the_hints_of_the_lease_it_moves_to(tmp_path: Path) -> None:
    settings = ServiceSettings(vqpus=3, policy=PolicyChoice("interleave"))
    async with running(
        tmp_path, settings, EmulatedDevice(technology="neutral-atom")
    ) as queue:
        heavy = await acquired(queue, ANN, pattern="qc-heavy")
        light = await acquired(queue, ANN, pattern="cc-heavy")
        await occupied(queue, heavy)
        jobs = [await submitted(queue, heavy, key) for key in "ab"]
        told = [queue.forecasts.of(one) for one in jobs]
        assert [one and one.position for one in told] == [1, 2]
        await submitted(queue, light, "b")
        told = [queue.forecasts.of(one) for one in jobs]
        assert [one and one.position for one in told] == [2, 1]


SITE = '''
from sf_quantum.service.scheduling.policies.base import Keyed


class Shortest(Keyed):
    """The shortest job first."""

    def key(self, entry):
        return (entry.seconds,)
'''


@pytest.mark.none_ahead
async def test_a_site_writes_its_own_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site_policy.py").write_text(SITE)
    told = tmp_path / "site_policy-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: site-policy\nVersion: 1.0\n"
    )
    entry = "[sf_quantum.policies]\nshortest = site_policy:Shortest\ngone = nowhere:A\n"
    (told / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(tmp_path)
    assert "shortest" in names()
    with pytest.raises(InputError, match="policy 'gone' cannot be loaded: No module"):
        load("gone")
    settings = ServiceSettings(policy=PolicyChoice("shortest"))
    device = EmulatedDevice(technology="neutral-atom")
    async with running(tmp_path, settings, device) as queue:
        held = await acquired(queue, ANN)
        await occupied(queue, held)
        jobs = [
            await submitted(queue, held, str(shots), shots) for shots in (30, 10, 20)
        ]
        told_of = [queue.forecasts.of(one) for one in jobs]
        assert [one and one.position for one in told_of] == [3, 1, 2]


async def test_a_waiting_lease_is_passed_at_most_three_times(
    tmp_path: Path,
) -> None:
    settings = ServiceSettings(policy=PolicyChoice("interleave"))
    order: list[str] = []
    async with running(tmp_path, settings) as queue:
        first = await acquired(queue, ANN)

        async def wait(name: str, pattern: Pattern, job_class: JobClass) -> None:
            request = LeaseRequest(pattern=pattern, job_class=job_class, user=name)
            held = await queue.leases.acquire(ROOT, request, 5)
            order.append(name)
            await queue.leases.release(ROOT, held.id)

        waiting = [asyncio.create_task(wait("light", "cc-heavy", "test"))]
        for number in range(5):
            waiting.append(
                asyncio.create_task(wait(f"heavy{number}", "qc-heavy", "test"))
            )
        waiting.append(asyncio.create_task(wait("first", "cc-heavy", "production")))
        await asyncio.sleep(0)
        await queue.leases.release(ROOT, first.id)
        await asyncio.gather(*waiting)
    assert order == ["first", "heavy0", "heavy1", "heavy2", "light", "heavy3", "heavy4"]
