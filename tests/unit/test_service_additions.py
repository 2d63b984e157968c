"""Jobs that come at once, and are written down at once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Lease, Submission
from sf_quantum.service.store.store import Store

MANY = 150


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "service.sqlite")
    yield made
    made.close()


@pytest.fixture
def lease(store: Store) -> Lease:
    hints = (None,) * 6
    lease = Lease("lease", "ann", "test", *hints, opened=1.0, expires=None)
    store.add_lease(lease).result()
    return lease


@contextmanager
def all_at_once(store: Store) -> Iterator[list[str]]:
    """Let changes wait until all have been asked for; gather the statements."""
    statements, asked = list[str](), threading.Event()

    def wait(db: sqlite3.Connection) -> None:
        asked.wait(5)
        db.set_trace_callback(statements.append)

    store.change(wait)
    yield statements
    asked.set()


def ask(key: str, seed: int = 1) -> Submission:
    return Submission("problem", {"key": key}, {"num_reads": 1, "seed": seed}, key)


def test_many_with_few_statements(store: Store, lease: Lease) -> None:
    with all_at_once(store) as statements:
        adding = [store.add_job(lease, ask(str(n)), n) for n in range(MANY)]
    jobs = [future.result(5)[0] for future in adding]
    assert all(future.result()[1] for future in adding)
    assert [job.key for job in jobs] == [str(n) for n in range(MANY)]
    assert [job.number for job in jobs] == [*range(1, MANY + 1)]
    # what is told is what is on the disk
    assert store.live() == jobs
    assert [store.payload(n + 1) for n in range(MANY)] == [
        {"key": str(n)} for n in range(MANY)
    ]
    inserted = [text for text in statements if text.startswith("INSERT")]
    assert len(inserted) < MANY / 10


def test_a_key_used_before_is_nobody_elses_trouble(store: Store, lease: Lease) -> None:
    old = store.add_job(lease, ask("old"), 1.0).result()[0]
    with all_at_once(store):
        first = store.add_job(lease, ask("a"), 1.0)
        again = store.add_job(lease, ask("old"), 1.0)
        wrong = store.add_job(lease, ask("old", seed=2), 1.0)
        last = store.add_job(lease, ask("b"), 1.0)
        twice = store.add_job(lease, ask("b"), 1.0)
    assert again.result(5) == (old, False)
    with pytest.raises(Refused, match="another content"):
        wrong.result(5)
    assert [first.result(5)[1], last.result(5)[1]] == [True, True]
    assert twice.result(5) == (last.result()[0], False)
    assert [job.key for job in store.live()] == ["old", "a", "b"]


def test_what_comes_between_keeps_its_place(store: Store, lease: Lease) -> None:
    with all_at_once(store):
        before = [store.add_job(lease, ask(key), 1.0) for key in "ab"]
        closing = store.close_lease(lease.id, "released", "cancelled")
        after = store.add_job(lease, ask("c"), 1.0)
    assert not closing.result(5).held
    cancelled = [store.job(future.result(5)[0].number) for future in before]
    assert [job and job.state for job in cancelled] == ["Cancelled", "Cancelled"]
    assert [job.number for job in store.live()] == [after.result(5)[0].number]
