"""Warden's reports and the service's own, of jobs that move between leases and are deleted."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.dialects.warden.routes import STATUSES
from sf_quantum.service.domain.jobs import Lease, State, Submission
from sf_quantum.service.store.reports.usage import used_by_leases
from sf_quantum.service.store.retention import delete
from sf_quantum.service.store.store import Store
from tests.support.service import RunningService, running_service

pytestmark = pytest.mark.devices("sfq")

STATES: tuple[State, ...] = ("Completed", "Failed", "Cancelled")


@dataclass
class Charge:
    """What a job is charged with, and whether it was deleted."""

    number: int
    lease: Lease
    shots: int
    seconds: int
    state: State
    is_deleted: bool = False


def _random_jobs(store: Store, random_: random.Random) -> list[Charge]:
    """Run jobs that move between leases before and after their end, and delete some."""
    leases = [Lease(f"{n}", ("ann", "bob")[n % 2], "test") for n in range(6)]
    for lease in leases:
        store.leases.add(lease).result()
    charges = list[Charge]()
    for number in range(1, 31):
        lease = random_.choice(leases)
        same_user = [one for one in leases if one.user == lease.user]
        shots, seconds = random_.randint(1, 9), random_.randint(1, 9)
        asked = Submission("problem", {}, {"num_reads": shots}, f"{number}")
        store.jobs.add(random_.choice(same_user), asked, 1.0).result()
        store.jobs.add(lease, asked, 1.0).result()
        store.progress.start(number).result()
        state = random_.choice(STATES)
        used, cost = (float(seconds), seconds / 2), seconds / 4
        store.progress.finish(number, state, note=None, used=used, cost=cost).result()
        charges.append(Charge(number, lease, shots, seconds, state))
        if random_.random() < 0.4:
            store.jobs.add(random_.choice(same_user), asked, 1.0).result()
        if random_.random() < 0.3:
            delete(store, number).result()
            charges[-1].is_deleted = True
    for lease in leases:
        store.leases.close(lease.id, "released", "").result()
    return charges


def _rows(service: RunningService, path: str) -> list[dict[str, JSON]]:
    rows: list[dict[str, JSON]] = json.loads(service.ask("GET", path).body)["data"]
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_reports_agree_with_the_jobs_that_ended(seed: int) -> None:
    with running_service() as service:
        # It answers once it has read its state, to which the test adds.
        assert service.ask("GET", "/v1/health").status == 200
        charges = _random_jobs(service.queue.store, random.Random(seed))
        for row in _rows(service, "/acct"):
            mine = [one for one in charges if one.lease.user == row["user_id"]]
            jobs = row["jobs"]
            assert isinstance(jobs, dict)
            assert jobs["count"] == len(mine)
            assert jobs["shots"] == sum(one.shots for one in mine)
            assert jobs["qpu_seconds"] == sum(one.seconds for one in mine)
            assert jobs["cost"] == sum(one.seconds for one in mine) / 4
            per_status = jobs["per_status"]
            assert isinstance(per_status, dict)
            counts = {
                name: of["count"]
                for name, of in per_status.items()
                if isinstance(of, dict)
            }
            assert counts == Counter(STATUSES[one.state] for one in mine)
        seconds = defaultdict[str, float](float)
        for one in charges:
            seconds[one.lease.id] += one.seconds
        for row in _rows(service, "/acct/sessions"):
            of_lease = [one for one in charges if one.lease.id == row["id"]]
            assert row["jobs_count"] == len(of_lease)
            listed = _rows(service, f"/acct/jobs?session_id={row['id']}")
            numbers = [one.number for one in of_lease if not one.is_deleted]
            assert [job["id"] for job in listed] == numbers
        used = used_by_leases(service.queue.store, [f"{n}" for n in range(6)])
        assert used == seconds
        own = service.ask("GET", "/v1/accounting?by=lease").json()["rows"]
        assert isinstance(own, list)
        rows = [row for row in own if isinstance(row, dict)]
        assert {row["lease"]: row["qpu_seconds"] for row in rows} == seconds
