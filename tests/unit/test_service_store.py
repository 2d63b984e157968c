"""What was acknowledged is on disk and comes back in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sf_quantum.service.store import Job, KeyReused, LeaseClosed, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "service.sqlite")
    yield opened
    opened.close()


def _lease(store: Store) -> str:
    lease = store.open_lease(None, 10)
    assert lease is not None
    return lease.id


def _add(store: Store, lease: str, key: str) -> Job:
    return store.add_job(lease, key, {"key": key}, {"num_reads": 1})[0]


def test_leases_are_limited_and_given_back(store: Store) -> None:
    first = store.open_lease("one", 1)
    assert first is not None
    assert store.open_lease("two", 1) is None
    assert store.leases_held() == 1
    closed = store.close_lease(first.id)
    assert closed is not None
    assert closed.closed is not None
    assert store.close_lease(first.id) == closed
    assert store.open_lease("two", 1) is not None
    assert store.close_lease("unknown") is None


def test_jobs_need_a_lease_that_is_held(store: Store) -> None:
    lease = _lease(store)
    store.close_lease(lease)
    for wrong in (lease, "unknown"):
        with pytest.raises(LeaseClosed):
            _add(store, wrong, "a")


def test_a_key_is_one_job(store: Store) -> None:
    lease = _lease(store)
    job, new = store.add_job(lease, "a", {"x": 1}, {"num_reads": 1})
    again, new_again = store.add_job(lease, "a", {"x": 1}, {"num_reads": 1})
    assert (new, new_again) == (True, False)
    assert job == again
    with pytest.raises(KeyReused):
        store.add_job(lease, "a", {"x": 2}, {"num_reads": 1})
    with pytest.raises(KeyReused):
        store.add_job(lease, "a", {"x": 1}, {"num_reads": 2})


def test_first_come_first_served(store: Store) -> None:
    lease = _lease(store)
    jobs = [_add(store, lease, key) for key in "abc"]
    assert [job.queue_position for job in jobs] == [0, 1, 2]
    running = store.start_next()
    assert running is not None
    assert (running.id, running.state) == (jobs[0].id, "Running")
    store.finish(running, "Completed", note=None, used=(2.0, 1.0), result="{}")
    done = store.job(running.id)
    assert done is not None
    assert done.final
    assert (done.qpu_seconds, done.seconds, done.queue_position) == (2.0, 1.0, None)
    assert store.result(done.id) == "{}"
    assert [job.queue_position for job in store.jobs(lease)] == [None, 0, 1]
    assert store.queue_length() == 2
    assert store.problem(jobs[1].id) == {"key": "b"}


def test_only_waiting_jobs_are_cancelled_here(store: Store) -> None:
    lease = _lease(store)
    running, waiting = _add(store, lease, "a"), _add(store, lease, "b")
    store.start_next()
    left, cancelled = (
        store.cancel_waiting(job.id, "why") for job in (running, waiting)
    )
    assert left is not None
    assert left.state == "Running"
    assert cancelled is not None
    assert (cancelled.state, cancelled.note) == ("Cancelled", "why")
    assert store.cancel_waiting("unknown", "why") is None


def test_interrupted_jobs_begin_again_at_the_head(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    store = Store(path)
    lease = _lease(store)
    jobs = [_add(store, lease, key) for key in "abc"]
    store.start_next()
    # never closed: as after SIGKILL, all that was written is in the file and its log
    restarted = Store(path)
    assert restarted.requeue_interrupted() == 1
    again = restarted.start_next()
    assert again is not None
    assert (again.id, again.attempt) == (jobs[0].id, 2)
    assert again.note == "interrupted: the service died during attempt 1"
    assert [job.id for job in restarted.jobs(lease)] == [job.id for job in jobs]
    restarted.close()
    store.close()
