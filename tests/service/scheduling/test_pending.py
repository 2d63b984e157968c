"""Pending jobs: found by number and lease, moved, held back; what a policy need not say."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sf_quantum.service.domain.jobs import Job, Kind, Lease, LeaseRequest
from sf_quantum.service.scheduling.held import HeldLeases
from sf_quantum.service.scheduling.pending import SEARCHED, PendingJobs
from sf_quantum.service.scheduling.policies.base import Policy, SortedJobs
from sf_quantum.service.scheduling.policies.classes import Classes
from sf_quantum.service.scheduling.policies.fifo import Fifo
from sf_quantum.service.scheduling.work import PendingJob, Work

LEASE = Lease(
    id="l1",
    user="ann",
    job_class="test",
    job=None,
    slurm_job_id=None,
    partition=None,
    expected_seconds=60.0,
    pattern="cc-heavy",
    key=None,
    opened=0.0,
    expires=None,
    project="chem",
)
JOB = Job(
    number=7,
    id="j7",
    user="ann",
    lease="l1",
    job_class="test",
    kind="circuit",
    key="k",
    parameters={},
    state="Queued",
    attempt=1,
    note=None,
    submitted=12.0,
    submitted_steady=13.0,
    started=None,
    ended=None,
    model_seconds=4.0,
    qpu_seconds=0.0,
    seconds=0.0,
)


def job(
    number: int, lease: str = "l", seconds: float = 1.0, kind: Kind = "problem"
) -> PendingJob:
    return PendingJob(number, str(number), "ann", lease, "test", kind, seconds)


def test_a_job_is_made_from_its_record_and_its_lease() -> None:
    assert PendingJob.of(JOB, 2.0) == PendingJob(
        number=7,
        id="j7",
        user="ann",
        lease="l1",
        job_class="test",
        kind="circuit",
        seconds=2.0,
        qpu_seconds=4.0,
        submitted=13.0,
    )
    hinted = PendingJob.of(JOB, 2.0, LEASE)
    assert (hinted.project, hinted.pattern) == ("chem", "cc-heavy")
    assert hinted.expected_seconds == 60.0
    assert (hinted.lease, hinted.seconds) == ("l1", 2.0)


def test_work_adds_up() -> None:
    assert Work() == Work(0, 0.0)
    assert Work(2, 3.0) + Work(1, 0.5) == Work(3, 3.5)


def test_jobs_are_found_by_number_and_by_lease() -> None:
    pending = PendingJobs(Classes())
    jobs = [job(3, "a"), job(1, "b"), job(2, "a")]
    for one in jobs:
        pending.add(one)
    assert len(pending) == 3
    assert [one.number for one in pending] == [1, 2, 3]
    assert pending.get(1) is jobs[1]
    assert pending.get(4) is None
    assert pending.of_lease("a") == [2, 3]
    assert pending.of_lease("c") == []
    assert pending.lengths == {"test": 3}
    assert pending.remove(3) is jobs[0]
    assert pending.lengths == {"test": 2}
    assert pending.remove(3) is None
    assert pending.of_lease("a") == [2]
    assert pending.pop() is jobs[1]
    assert pending.lengths["test"] == 1
    assert pending.remove(2) is jobs[2]
    assert (len(pending), pending.of_lease("a"), pending.pop()) == (0, [], None)


def test_a_job_that_moves_takes_the_leases_hints() -> None:
    moved = job(1, "before")
    moved.move_to(LEASE)
    assert (moved.lease, moved.project, moved.pattern) == ("l1", "chem", "cc-heavy")


def test_a_job_that_may_not_start_is_passed_by_the_next_that_may() -> None:
    fits = {2, 3}
    pending = PendingJobs(Fifo(), may_start=lambda one: one.number in fits)
    assert pending.first() is None
    for number in (1, 2, 3):
        pending.add(job(number))
    first = pending.first()
    assert first is not None
    assert first.number == 2
    fits.add(1)
    popped = pending.pop()
    assert popped is not None
    assert popped.number == 1
    fits.clear()
    assert pending.pop() is None
    assert len(pending) == 2


def test_only_so_many_jobs_are_searched_for_one_that_may_start() -> None:
    fits = SEARCHED
    pending = PendingJobs(Fifo(), may_start=lambda one: one.number == fits)
    for number in range(1, SEARCHED + 2):
        pending.add(job(number))
    first = pending.first()
    assert first is not None
    assert first.number == fits
    fits += 1
    assert pending.first() is None


class Last(Policy):
    """A site's own: the last job first, with nothing but what it must have."""

    def __init__(self) -> None:
        self.jobs: list[PendingJob] = []

    def add(self, job: PendingJob) -> None:
        self.jobs.append(job)

    def remove(self, job: PendingJob) -> None:
        self.jobs.remove(job)

    def order(self) -> Iterator[PendingJob]:
        return iter(self.jobs[::-1])


class Request:
    user = "ann"
    passed = 0
    request = LeaseRequest()


def test_what_a_policy_does_by_default() -> None:
    pending = PendingJobs(Last())
    assert pending.policy.first() is None
    jobs = [job(1), job(2, seconds=3.0), job(3, seconds=0.5, kind="circuit"), job(4)]
    for one in jobs:
        pending.add(one)
    assert pending.first() is jobs[3]
    held = HeldLeases()
    work_by_kind, overtaking = pending.work_ahead(jobs[0], held)
    assert work_by_kind == {"problem": Work(2, 4.0), "circuit": Work(1, 0.5)}
    assert overtaking == ()
    assert pending.work_ahead(jobs[3], held) == ({}, ())
    # one that would join is not there afterwards
    assert pending.work_ahead(job(5), held) == ({}, ())
    assert pending.order() == jobs[::-1]
    assert pending.policy.choose_request([Request(), Request()], []) == 0
    assert pending.policy.usage_window_seconds() == 0.0
    assert not pending.policy.preempts(jobs[0], jobs[1])
    assert pending.policy.overtaking_classes("development") == ()


def test_sorted_jobs_are_those_of_a_plain_sort() -> None:
    draws = random.Random(1)
    kinds: list[Kind] = ["problem", "circuit", "sequence"]
    jobs: SortedJobs[tuple[float, int]] = SortedJobs()
    known: dict[tuple[float, int], PendingJob] = {}
    for number in range(600):
        if known and draws.random() < 0.4:
            key = draws.choice([*known])
            index = sorted(known).index(key)
            assert jobs.remove(key) == index
            del known[key]
        else:
            one = job(number, seconds=draws.random(), kind=draws.choice(kinds))
            key = (float(draws.randrange(5)), number)
            known[key] = one
            assert jobs.add(key, one) == sorted(known).index(key)
        assert jobs.keys == sorted(known)
        assert jobs.jobs == [known[key] for key in sorted(known)]
        assert len(jobs) == len(known)
        if number % 10 == 0:
            for limit in (None, (2.0, 0), (9.0, 0), (-1.0, 0)):
                lower = [known[key] for key in known if limit is None or key < limit]
                work_by_kind = jobs.before(limit)
                for kind in kinds:
                    seconds = [one.seconds for one in lower if one.kind == kind]
                    work = work_by_kind.get(kind, Work())
                    assert work.jobs == len(seconds)
                    assert work.seconds == pytest.approx(sum(seconds))


@pytest.mark.parametrize("key", [(0.0, 1), (1.0, 1), (2.0, 1)])
def test_a_key_that_is_not_there_cannot_be_removed(key: tuple[float, int]) -> None:
    jobs: SortedJobs[tuple[float, int]] = SortedJobs()
    with pytest.raises(KeyError):
        jobs.remove(key)
    jobs.add((1.0, 2), job(2))
    with pytest.raises(KeyError):
        jobs.remove(key)
    assert len(jobs) == 1
