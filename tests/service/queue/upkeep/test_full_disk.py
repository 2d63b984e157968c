"""A disk that is full: what was accepted waits, and all that is there can be read."""

from __future__ import annotations

import logging
import sqlite3

import pytest

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.files import JSON
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.waiting import until

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")
#: more than any write was once tried
FAILURES = 10


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "DATABASE", Backoff(1e-3, 1e-3))


def limit_pages(service: RunningService, most: int) -> None:
    """Let the database have no more pages, as on a full disk; 1 for those that it has."""

    def change(db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA max_page_count = {most}")

    service.queue.store.change(change).result()


def body(key: str, reads: int) -> dict[str, JSON]:
    parameters: dict[str, JSON] = {"num_reads": reads}
    return {"problem": example_bqm(), "idempotency_key": key, "parameters": parameters}


def test_a_full_disk_stops_no_service(caplog: pytest.LogCaptureFixture) -> None:
    with running_service() as service:
        lease = service.acquire()
        first = service.ask("POST", "/v1/jobs?wait=60", body("a", 2), lease=lease)
        pages = service.queue.store.read("PRAGMA page_count")[0][0]
        path = f"/v1/jobs/{first.json()['id']}"
        with caplog.at_level(logging.WARNING):
            # the job fits, its result of some thousand reads does not
            limit_pages(service, pages + 3)
            job = service.ask("POST", "/v1/jobs", body("b", 5000), lease=lease)
            assert job.status == 201
            until(lambda: caplog.text.count("is full") > FAILURES, "no write failed")
        assert service.ask("GET", "/v1/health").status == 200
        assert service.ask("GET", f"{path}/result").status == 200
        limit_pages(service, 2**30)
        waited = service.ask("GET", f"/v1/jobs/{job.json()['id']}?wait=60").json()
        assert (waited["state"], waited["attempt"]) == ("Completed", 1)
