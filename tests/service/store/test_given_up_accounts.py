"""What a vendor bills for jobs that were given up, in the accounts and in budgets."""

from __future__ import annotations

import random

import pytest

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Lease, State, Submission
from sf_quantum.service.store import audit, given_up, retention
from sf_quantum.service.store.given_up import Entry
from sf_quantum.service.store.reports import usage
from sf_quantum.service.store.reports.usage import Filter, Page, lease_seconds
from sf_quantum.service.store.store import Store

PRICE = 2.0
LATER = 1e12


def _give_up(store: Store, job: Job, booked: float) -> Entry:
    tag = f"sfq-{job.id}-{job.attempt}"
    entry = Entry(
        *(0, job.number, "device", None, tag, "lost", store.clock(), booked),
        price=PRICE,
        attempt=job.attempt,
    )
    given_up.record(store, job, entry).result()
    return given_up.entries(store, "device")[-1]


def _end(store: Store, job: Job, state: State, seconds: float) -> None:
    used, cost = (seconds, 0.0), PRICE * seconds
    store.progress.finish(job.number, state, note=None, used=used, cost=cost).result()


@pytest.mark.parametrize("seed", range(10))
async def test_what_is_billed_later_counts_where_the_attempt_does(
    store: Store, seed: int
) -> None:
    random_ = random.Random(seed)
    first, other = (
        Lease(name, "ann", "test", max_qpu_seconds=1000.0) for name in ("1", "2")
    )
    for lease in (first, other):
        store.leases.add(lease).result()
    asked = Submission("problem", {}, {"num_reads": 1}, "k")
    job, _ = store.jobs.add(first, asked, 1.0).result()
    entries, lost = list[tuple[Entry, float]](), 0.0
    for _ in range(random_.randint(0, 3)):
        job = store.progress.start(job.number).result()
        booked = float(random_.randint(1, 9))
        if random_.random() < 0.7:
            billed = float(random_.randint(0, 20))
            entries.append((_give_up(store, job, booked), billed))
            lost += billed
        else:
            lost += booked
        job = store.progress.put_back(job.number, "again", (booked, 0.0)).result()
    job = store.progress.start(job.number).result()
    used = booked = float(random_.randint(1, 9))
    if random_.random() < 0.7:
        used = float(random_.randint(0, 20))
        entry = _give_up(store, job, booked)
        entries.append((entry, used))
        # The vendor may answer before the end of the attempt is on disk.
        assert not await given_up.settle(store, entry, "early", used)
        assert entry in given_up.entries(store, "device")
    is_late = random_.random() < 0.5
    random_.shuffle(entries)
    for entry, billed in [] if is_late else entries:
        await given_up.settle(store, entry, "Cancelled", billed)
    _end(store, job, "Failed", booked)
    if random_.random() < 0.5:  # it stays charged to the first
        store.jobs.add(other, asked, 1.0).result()
    for _ in range(2):  # once
        for entry, billed in entries:
            assert await given_up.settle(store, entry, "Cancelled", billed)
    assert given_up.entries(store, "device") == []
    done = store.jobs.get(job.number)
    assert done is not None
    assert (done.qpu_seconds, done.lost_qpu_seconds) == (used, lost)
    assert done.cost == PRICE * used
    (row,) = usage.usage_report(store, "lease", Filter("ended"), Page(9, 0)).rows
    assert (row.lease, row.qpu_seconds, row.lost_qpu_seconds) == ("1", used, lost)
    assert lease_seconds(store, "1") == (used, 0.0)
    assert lease_seconds(store, "2") == (0.0, 0.0)
    found = [one for one in audit.entries(store, 99) if one.action == "find given up"]
    assert len(found) == len(entries)


async def test_a_job_is_kept_until_its_vendor_may_not_bill_it(store: Store) -> None:
    lease = Lease("1", "ann", "test", max_qpu_seconds=1000.0)
    store.leases.add(lease).result()
    jobs = list[Job]()
    for key in "ab":
        asked = Submission("problem", {}, {"num_reads": 1}, key)
        job, _ = store.jobs.add(lease, asked, 1.0).result()
        jobs.append(store.progress.start(job.number).result())
    entry = _give_up(store, jobs[0], 3.0)
    for job in jobs:
        _end(store, job, "Failed", 3.0)
    assert retention.purge(store, LATER).result() == 1
    assert retention.trim(store, 0.0).result() == 0
    with pytest.raises(Refused, match="may still run") as refused:
        retention.delete(store, jobs[0].number).result()
    assert refused.value.status == 409
    assert await given_up.settle(store, entry, "Completed", 20.0)
    assert retention.purge(store, LATER).result() == 1
    (row,) = usage.usage_report(store, "lease", Filter("ended"), Page(9, 0)).rows
    assert row.qpu_seconds == 3.0 + 20.0
