"""How many licences of a QPU Slurm may grant, over generated leases and jobs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sf_quantum.qpu.leasing.batch_jobs import ListedLease
from sf_quantum.qpu.leasing.burst.licenses import grantable

HERE, THERE = "here", "there"
VQPUS = st.integers(0, 6)
JOBS = st.dictionaries(st.integers(1, 5), st.integers(0, 3), max_size=5)


def lease(job: int, cluster: str = HERE) -> ListedLease:
    return ListedLease(job, cluster, "ada", "token", "key")


LEASES = st.lists(
    st.builds(lease, st.integers(0, 6), st.sampled_from([HERE, THERE, ""])), max_size=6
)


@given(VQPUS, LEASES, JOBS)
def test_licenses_and_leases_of_others_never_exceed_the_vqpus(
    vqpus: int, leases: list[ListedLease], jobs: dict[int, int]
) -> None:
    number = grantable(vqpus, leases, jobs, HERE)
    held = Counter(one.job for one in leases if one.cluster == HERE)
    licensed = sum(min(units, held[job]) for job, units in jobs.items())
    assert number == max(0, vqpus - (len(leases) - licensed))


@given(VQPUS, LEASES, JOBS, st.data())
def test_the_order_of_leases_does_not_matter(
    vqpus: int, leases: list[ListedLease], jobs: dict[int, int], data: st.DataObject
) -> None:
    other = data.draw(st.permutations(leases))
    assert grantable(vqpus, leases, jobs, HERE) == grantable(vqpus, other, jobs, HERE)


@given(VQPUS, st.data())
def test_what_changes_between_the_two_lists_grants_no_license_too_much(
    vqpus: int, data: st.DataObject
) -> None:
    """Jobs start, take and release leases, and end after the leases were listed."""
    jobs: dict[int, int] = {}
    held = [lease(0)] * data.draw(st.integers(0, vqpus))
    listed: list[ListedLease] | None = None
    moment = data.draw(st.integers(0, 12))
    for step in range(13):
        if step == moment:
            listed = [*held]
        match data.draw(st.sampled_from(["start", "lease", "release", "end"])):
            case "start":
                jobs[step + 1] = 1
            case "lease" if len(held) < vqpus:
                without = jobs.keys() - {one.job for one in held}
                held += [lease(job) for job in sorted(without)[:1]]
            case "release" if held:
                held.pop()
            case "end" if jobs:
                job = min(jobs)
                del jobs[job]
                held = [one for one in held if one.job != job]
    assert listed is not None
    assert grantable(vqpus, listed, jobs, HERE) <= grantable(vqpus, held, jobs, HERE)
