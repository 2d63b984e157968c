"""What was acknowledged is on disk and comes back in order."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sf_quantum.errors import InputError
from sf_quantum.service.check import _unreadable
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Lease, Submission
from sf_quantum.service.queue.availability import Availability
from sf_quantum.service.store import audit, given_up
from sf_quantum.service.store.file.database import Database
from sf_quantum.service.store.recovery import recover
from sf_quantum.service.store.reports.operation import last_status
from sf_quantum.service.store.reports.usage import (
    Filter,
    Page,
    lease_seconds,
    recent_use,
    usage_report,
)
from sf_quantum.service.store.retention import BATCH, delete, purge, trim
from sf_quantum.service.store.schema import SCHEMA, VERSION
from sf_quantum.service.store.store import Store
from tests.support.folders import DATA
from tests.support.waiting import SECONDS


def _lease(
    store: Store, id_: str = "lease", user: str = "ann", bound: float | None = None
) -> Lease:
    lease = Lease(
        *(id_, user, "test", None, None, None, None, None, None),
        opened=time.time(),
        expires=None,
        max_qpu_seconds=bound,
    )
    store.leases.add(lease).result()
    return lease


def _ask(key: str, shots: int = 1) -> Submission:
    return Submission("problem", {"key": key}, {"num_reads": shots}, key)


def _add(store: Store, lease: Lease, key: str) -> Job:
    return store.jobs.add(lease, _ask(key), 1.5).result()[0]


def test_leases_are_held_until_closed(store: Store) -> None:
    first, second = _lease(store, "1"), _lease(store, "2", "bob")
    assert store.leases.held() == [first, second]
    assert store.leases.get("1") == first
    closed = store.leases.close("1", "why", "note").result()
    assert (closed.held, closed.reason) == (False, "why")
    assert store.leases.close("1", "again", "note").result() == closed
    assert store.leases.held() == [second]
    assert store.leases.latest() == [second, closed]
    assert store.leases.latest("ann") == [closed]
    assert store.leases.get("unknown") is None


def test_closing_a_lease_cancels_what_waits_in_the_same_stroke(store: Store) -> None:
    lease, other = _lease(store, "1"), _lease(store, "2")
    running, waiting = _add(store, lease, "a"), _add(store, lease, "b")
    kept = _add(store, other, "c")
    store.progress.start(running.number).result()
    store.leases.close("1", "released", "its lease was released").result()
    jobs = {job.key: job for job in store.jobs.latest()}
    assert [jobs[key].state for key in "abc"] == ["Running", "Cancelled", "Queued"]
    assert jobs["b"].note == "its lease was released"
    assert [job.number for job in store.jobs.live()] == [running.number, kept.number]
    assert waiting.ended is None


@pytest.mark.parametrize("first", [None, False, True])
def test_a_key_is_refused_for_a_job_of_other_repeatability(
    store: Store, first: bool | None
) -> None:
    lease, asked = _lease(store), _ask("a")
    job, _ = store.jobs.add(
        lease, dataclasses.replace(asked, repeatable=first), 1.0
    ).result()
    store.progress.finish(job.number, "Failed", note="lost", used=(0.0, 0.0)).result()
    assert job.repeatable is bool(first)
    # who does not say is content with the job as it is
    for same in (None, bool(first)):
        again = store.jobs.add(
            lease, dataclasses.replace(asked, repeatable=same), 1.0
        ).result()
        assert (again[0].number, again[1]) == (job.number, False)
    other = dataclasses.replace(asked, repeatable=not first)
    kind = "repeatable" if first else "not repeatable"
    words = f"belongs to a job that is {kind}: submit this one under another key"
    for call in (
        lambda: store.jobs.add(lease, other, 1.0).result(),
        lambda: store.jobs.with_key("ann", other),
    ):
        with pytest.raises(Refused, match=words) as refused:
            call()
        assert (refused.value.status, refused.value.field) == (409, "idempotency_key")


def test_a_key_is_one_job_of_a_user(store: Store) -> None:
    lease, other = _lease(store, "1"), _lease(store, "2", "bob")
    job, new = store.jobs.add(lease, _ask("a"), 1.0).result()
    again, new_again = store.jobs.add(lease, _ask("a"), 1.0).result()
    assert (new, new_again) == (True, False)
    assert job == again == store.jobs.with_key("ann", _ask("a"))
    assert store.jobs.with_key("bob", _ask("a")) is None
    assert store.jobs.add(other, _ask("a"), 1.0).result()[1] is True
    with pytest.raises(Refused) as refused:
        store.jobs.add(lease, _ask("a", shots=2), 1.0).result()
    assert (refused.value.status, refused.value.field) == (409, "idempotency_key")
    with pytest.raises(Refused):
        store.jobs.with_key("ann", _ask("a", shots=2))


def test_a_job_moves_to_the_lease_that_asks_for_it(store: Store) -> None:
    first, second = _lease(store, "1"), _lease(store, "2")
    job = _add(store, first, "a")
    moved, new = store.jobs.add(second, _ask("a"), 1.0).result()
    assert (moved.id, moved.lease, new) == (job.id, "2", False)
    store.leases.close("1", "released", "note").result()
    assert store.jobs.get(job.id) == moved
    assert (store.jobs.latest(lease="1"), store.jobs.latest(lease="2")) == ([], [moved])


@contextmanager
def in_one_commit(store: Store) -> Iterator[None]:
    """Let changes wait until all have been requested."""
    begun, requested = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection) -> bool:
        begun.set()
        return requested.wait(SECONDS)

    store.change(wait)
    # those that the writer finds before it begins are of its own commit
    assert begun.wait(SECONDS)
    yield
    requested.set()


def test_a_key_used_before_fails_no_other_submission(store: Store) -> None:
    lease = _lease(store)
    old = _add(store, lease, "old")
    with in_one_commit(store):
        first = store.jobs.add(lease, _ask("a"), 1.0)
        again = store.jobs.add(lease, _ask("old"), 1.0)
        wrong = store.jobs.add(lease, _ask("old", shots=2), 1.0)
        last = store.jobs.add(lease, _ask("b"), 1.0)
        twice = store.jobs.add(lease, _ask("b"), 1.0)
    assert again.result(SECONDS) == (old, False)
    with pytest.raises(Refused, match="another content"):
        wrong.result(SECONDS)
    assert [first.result(SECONDS)[1], last.result(SECONDS)[1]] == [True, True]
    assert twice.result(SECONDS) == (last.result()[0], False)
    assert [job.key for job in store.jobs.live()] == ["old", "a", "b"]


def test_changes_of_one_commit_keep_their_order(store: Store) -> None:
    lease = _lease(store)
    with in_one_commit(store):
        before = [store.jobs.add(lease, _ask(key), 1.0) for key in "ab"]
        closing = store.leases.close(lease.id, "released", "cancelled")
        after = store.jobs.add(lease, _ask("c"), 1.0)
    assert not closing.result(SECONDS).held
    cancelled = [store.jobs.get(future.result(SECONDS)[0].number) for future in before]
    assert [job and job.state for job in cancelled] == ["Cancelled", "Cancelled"]
    assert [job.number for job in store.jobs.live()] == [
        after.result(SECONDS)[0].number
    ]


@pytest.mark.parametrize("ends", ["put back", "finished"])
def test_what_has_ended_on_disk_neither_runs_nor_ends_again(
    store: Store, ends: str
) -> None:
    lease = _lease(store)
    job = _add(store, lease, "a")
    store.leases.close(lease.id, "released", "cancelled: its lease").result()
    before = store.jobs.get(job.number)
    assert before is not None
    assert (before.state, before.note) == ("Cancelled", "cancelled: its lease")
    if ends == "put back":
        after = store.progress.put_back(job.number, "pre-empted", (1.0, 1.0))
    else:
        used = (1.0, 1.0)
        after = store.progress.finish(
            job.number, "Completed", note="it ended", used=used, result="{}"
        )
    assert after.result() == before
    assert store.jobs.result(job.number) is None
    assert not store.jobs.live()


def test_from_waiting_to_over(store: Store) -> None:
    lease = _lease(store)
    job = _add(store, lease, "a")
    assert (job.state, job.attempt, job.model_seconds) == ("Queued", 1, 1.5)
    assert json.loads(store.jobs.payload(job.number)) == {"key": "a"}
    running = store.progress.start(job.number).result()
    assert running.started is not None
    again = store.progress.put_back(job.number, "pre-empted", (1.0, 0.5)).result()
    assert (again.state, again.attempt, again.started) == ("Queued", 2, None)
    store.progress.start(job.number).result()
    used = (2.0, 1.0)
    done = store.progress.finish(
        job.number, "Completed", note=None, used=used, result="{}"
    )
    assert done.result().final
    assert (done.result().qpu_seconds, done.result().seconds) == (2.0, 1.0)
    assert (done.result().lost_qpu_seconds, done.result().lost_seconds) == (1.0, 0.5)
    assert done.result().note == "pre-empted"
    assert store.jobs.result(job.number) == "{}"
    assert store.jobs.get(job.number) == done.result()
    assert store.jobs.live() == []


def test_a_lease_that_waits_has_no_end(store: Store) -> None:
    def told() -> list[object]:
        query = "SELECT closed_steady - opened_steady FROM leases"
        return [row[0] for row in store.read(query)]

    lease = Lease("l", "ann", "test", waiting=True)
    store.leases.add(lease).result()
    assert told() == [None]
    purge(store, store.clock() + 1).result()
    assert store.leases.held() == [lease]
    store.leases.grant(dataclasses.replace(lease, waiting=False)).result()
    assert told() == [None]
    purge(store, store.clock() + 1).result()
    assert [one.held for one in store.leases.held()] == [True]
    store.leases.close(lease.id, "released", "cancelled").result()
    (seconds,) = told()
    assert isinstance(seconds, float)
    assert seconds >= 0
    purge(store, store.clock() + 1).result()
    assert store.leases.latest() == []


def test_only_waiting_jobs_are_cancelled_here(store: Store) -> None:
    lease = _lease(store)
    running, waiting = _add(store, lease, "a"), _add(store, lease, "b")
    store.progress.start(running.number).result()
    left, cancelled = (
        store.progress.cancel_waiting(job.number, "why").result()
        for job in (running, waiting)
    )
    assert left.state == "Running"
    assert (cancelled.state, cancelled.note) == ("Cancelled", "why")


def test_interrupted_jobs_wait_again_at_their_place(path: Path, store: Store) -> None:
    lease, gone = _lease(store), _lease(store, "gone")
    jobs = [_add(store, lease, key) for key in "abc"]
    orphan = _add(store, gone, "d")
    for job in (jobs[0], orphan):
        store.progress.start(job.number).result()
    store.leases.close("gone", "its time is over", "cancelled: too late").result()
    # not closed: as after SIGKILL, all that was written is in the file and its log
    restarted = Store(path)
    settled = recover(restarted, 3).result()
    assert [job.id for job in settled] == [jobs[0].id, orphan.id]
    live = restarted.jobs.live()
    assert [job.id for job in live] == [job.id for job in jobs]
    assert (live[0].attempt, live[0].started) == (2, None)
    assert live[0].note == "interrupted: the service died during attempt 1"
    ended = restarted.jobs.get(orphan.id)
    assert ended is not None
    assert (ended.state, ended.note) == ("Cancelled", "cancelled: too late")
    assert restarted.leases.held() == [lease]
    restarted.close()


def test_a_job_fails_if_the_service_dies_with_it_repeatedly(
    store: Store,
) -> None:
    lease = _lease(store)
    job, other = _add(store, lease, "a"), _add(store, lease, "b")
    for deaths in range(3):
        assert (found := store.jobs.get(job.number))
        assert (found.state, found.attempt) == ("Queued", 1 + deaths)
        store.progress.start(job.number).result()
        recover(store, 3).result()
    assert (found := store.jobs.get(job.number))
    assert found.state == "Failed"
    assert found.note == "the service died 3 times during the job"
    assert [left.id for left in store.jobs.live()] == [other.id]


def test_a_cancellation_that_was_begun_is_completed(store: Store) -> None:
    job, other = (_add(store, _lease(store, key), key) for key in "ab")
    for each in (job, other):
        store.progress.start(each.number).result()
    store.progress.note_cancellation(job.number, "cancelled").result()
    recover(store, 3).result()
    assert (found := store.jobs.get(job.number))
    assert (found.state, found.note) == ("Cancelled", "cancelled")
    assert [left.id for left in store.jobs.live()] == [other.id]


def test_old_jobs_are_forgotten_with_their_leases(store: Store) -> None:
    lease, other = _lease(store, "1"), _lease(store, "2")
    old, young = _add(store, lease, "a"), _add(store, other, "b")
    for job in (old, young):
        store.progress.start(job.number).result()
    used = (0.0, 0.0)
    store.progress.finish(
        old.number, "Completed", note=None, used=used, result="1"
    ).result()
    store.leases.close("1", "released", "note").result()
    between = store.clock()
    store.progress.finish(young.number, "Failed", note=None, used=used).result()
    store.leases.close("2", "released", "note").result()
    assert purge(store, between).result() == 1 < BATCH
    assert [job.key for job in store.jobs.latest()] == ["b"]
    assert store.jobs.result(old.number) is None
    assert [lease.id for lease in store.leases.latest()] == ["2"]
    # the key is free again
    third = _lease(store, "3")
    assert store.jobs.add(third, _ask("a"), 1.0).result()[1] is True


def _kept(store: Store) -> dict[str, int]:
    """Read what is counted, which is what is there."""
    query = (
        "SELECT user, sum(length(payload) + coalesce(length(result), 0)) FROM contents "
        "JOIN jobs USING (number) WHERE ended IS NOT NULL GROUP BY user"
    )
    counted = store.read("SELECT user, bytes FROM kept WHERE bytes ORDER BY user")
    assert [*map(tuple, counted)] == [*map(tuple, store.read(query))]
    return {user: size for user, size in counted}


def test_the_oldest_jobs_go_if_too_much_of_a_user_is_kept(store: Store) -> None:
    lease, other = _lease(store, "1"), _lease(store, "2", "bob")
    jobs = [_add(store, lease, key) for key in "abcd"] + [_add(store, other, "a")]
    for job in jobs[1:]:
        store.progress.start(job.number).result()
        store.progress.finish(
            job.number, "Completed", note=None, used=(1.0, 1.0), result="r" * 2**20
        ).result()
    store.progress.cancel_waiting(jobs[0].number, "cancelled").result()
    assert {user: size >> 20 for user, size in _kept(store).items()} == {
        "ann": 3,
        "bob": 1,
    }
    assert trim(store, 1.5).result() == 2
    assert trim(store, 1.5).result() == 0
    left = [(job.user, job.key) for job in store.jobs.latest()]
    assert left == [("ann", "a"), ("ann", "d"), ("bob", "a")]
    assert {user: size >> 20 for user, size in _kept(store).items()} == {
        "ann": 1,
        "bob": 1,
    }
    # the key is free again
    assert store.jobs.add(lease, _ask("b"), 1.0).result()[1] is True
    assert trim(store, 1e-6).result() == 2
    assert trim(store, 1e-6).result() == 1
    assert _kept(store) == {}
    assert [job.key for job in store.jobs.live()] == ["b"]


def _added_up(db: sqlite3.Connection, lease: str) -> tuple[float, float]:
    query = (
        "SELECT total(qpu_seconds) FILTER (WHERE ended IS NOT NULL), "
        "total(model_seconds) FILTER (WHERE ended IS NULL) "
        "FROM jobs WHERE coalesce(charged_lease, lease) = ?"
    )
    spent, modelled = db.execute(query, (lease,)).fetchone()
    return spent, modelled


def test_a_bounded_leases_seconds_follow_its_jobs(path: Path, store: Store) -> None:
    leases = [_lease(store, id_, bound=9.0) for id_ in ("1", "2")]
    db = sqlite3.connect(path)

    def taken() -> list[tuple[float, float]]:
        kept = [lease_seconds(store, lease.id) for lease in leases]
        assert kept == [_added_up(db, lease.id) for lease in leases]
        return kept

    done, moved, cancelled = (_add(store, leases[0], key) for key in "abc")
    assert taken() == [(0, 4.5), (0, 0)]
    store.progress.start(done.number).result()
    store.progress.finish(
        done.number, "Completed", note=None, used=(0.25, 1.0)
    ).result()
    _add(store, leases[1], "b")
    assert taken() == [(0.25, 1.5), (0, 1.5)]
    store.progress.cancel_waiting(cancelled.number, "").result()
    store.progress.start(moved.number).result()
    store.progress.finish(moved.number, "Failed", note=None, used=(0.5, 1.0)).result()
    # what is over stays charged
    _add(store, leases[1], "a")
    assert taken() == [(0.25, 0), (0.5, 0)]
    delete(store, done.number).result()
    assert lease_seconds(store, "1") == (0.25, 0)
    db.close()


def test_lists_are_of_a_lease_a_user_or_all(store: Store) -> None:
    lease, other = _lease(store, "1"), _lease(store, "2", "bob")
    for key in "abc":
        _add(store, lease, key)
    _add(store, other, "d")
    assert [job.key for job in store.jobs.latest(limit=2)] == ["c", "d"]
    assert [job.key for job in store.jobs.latest(user="ann")] == ["a", "b", "c"]
    assert store.jobs.latest(lease="1", user="bob") == []


def test_what_ended_last_comes_first(store: Store) -> None:
    lease, other = _lease(store), _lease(store, "2", "bob")
    first, *others = [_add(store, lease, key) for key in "abcd"]
    strange = _add(store, other, "e")
    for job in (*others, strange, first):
        store.progress.cancel_waiting(job.number, "").result()
    assert [job.key for job in store.jobs.last_ended(2, "ann")] == ["a", "d"]
    assert [job.key for job in store.jobs.last_ended(3, None)] == ["a", "e", "d"]


def test_what_was_used_is_summed_up_by_the_time(store: Store) -> None:
    now = time.time()
    ann, bob = _lease(store), _lease(store, "2", "bob")

    def ended(lease: Lease, key: str, ago: float, seconds: float) -> None:
        job = _add(store, lease, key)
        store.progress.start(job.number).result()
        used = (seconds, seconds)
        store.progress.finish(job.number, "Completed", note=None, used=used).result()
        query = "UPDATE jobs SET ended_steady = ? WHERE number = ?"
        store.change(lambda db: db.execute(query, (now - ago, job.number))).result()

    day = 86400.0
    for number in range(20):
        ended(ann, f"{number}", 5 * day + number, 2.0)
    ended(ann, "later", 3 * day, 1.0)
    ended(ann, "old", 11 * day, 1.0)
    ended(bob, "bob", 3 * day, 1.0)
    again = _add(store, bob, "again")
    store.progress.start(again.number).result()
    store.progress.put_back(again.number, "pre-empted", (7.0, 7.0)).result()
    store.progress.cancel_waiting(again.number, "cancelled").result()
    used = recent_use(store, now - 10 * day)
    # an hour's end may go through those that were used together
    assert len(used) <= 5
    sums = Counter[tuple[str, int]]()
    for one in used:
        sums[one.user, round((now - one.when) / day)] += round(one.qpu_seconds)
    assert sums == {("ann", 5): 40, ("ann", 3): 1, ("bob", 3): 1}
    parts = [
        one for one in used if (one.user, round((now - one.when) / day)) == ("ann", 5)
    ]
    mean = sum(one.when * one.qpu_seconds for one in parts) / 40
    assert mean == pytest.approx(now - 5 * day - 9.5, abs=0.01)


async def test_the_door_is_remembered(path: Path, store: Store) -> None:
    assert last_status(store) is None
    await Availability(store).set_status("closed", "until noon")
    await Availability(store).set_status("closed", "until one")
    again = Store(path)
    assert last_status(again) == ("closed", "until one")
    again.close()


def test_a_state_of_another_version_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(InputError, match="has version 99, this sf_quantum reads") as it:
        Store(path)
    assert "\n" not in str(it.value)


def test_a_file_is_upgraded_step_by_step(path: Path) -> None:
    Database(path, version=1, schema="CREATE TABLE numbers (n INTEGER);").close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO numbers (n) VALUES (3)")
    upgrades = {
        1: "ALTER TABLE numbers ADD COLUMN twice INTEGER;",
        2: "UPDATE numbers SET twice = 2 * n;",
    }
    with pytest.raises(InputError, match="has version 1, this sf_quantum reads"):
        Database(path, version=3, schema="", upgrades={2: upgrades[2]})
    for _ in range(2):
        database = Database(path, version=3, schema="", upgrades=upgrades)
        assert [
            tuple(row) for row in database.read("SELECT n, twice FROM numbers")
        ] == [(3, 6)]
        database.close()


def _objects(path: Path) -> tuple[set[tuple[str, str]], dict[str, set[str]]]:
    """Read the indexes and triggers of a database, and the columns of its tables."""
    with closing(sqlite3.connect(path)) as db:
        query = (
            "SELECT name, sql FROM sqlite_master WHERE type != 'table' AND sql != ''"
        )
        made = {(name, " ".join(sql.split())) for name, sql in db.execute(query)}
        tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
        # A column has the same type, default and constraints, in any order.
        columns = {
            name: {str(row[1:]) for row in db.execute(f"PRAGMA table_info({name})")}
            for (name,) in db.execute(tables).fetchall()
        }
    return made, columns


def test_the_state_of_the_first_release_is_upgraded(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript((DATA / "state-0.1.0.sql").read_text())
        db.execute(
            "INSERT INTO leases (id, user, job_class, opened, opened_steady) "
            "VALUES ('held', 'ann', 'test', 1.0, 1.0)"
        )
        db.execute(
            "INSERT INTO jobs (id, user, lease, job_class, kind, dialect, key, "
            "parameters, digest, submitted, submitted_steady, model_seconds) VALUES "
            "('j', 'ann', 'held', 'test', 'problem', 'v1', 'k', '{}', '', 1.0, 1.0, 2.0)"
        )
        db.execute(
            "INSERT INTO past (ended, ended_steady, user, lease, state, jobs, "
            "qpu_seconds, seconds, wait_seconds, longest_wait_seconds, lost_attempts, "
            "lost_qpu_seconds, lost_seconds) VALUES "
            "(0.0, 0.0, 'ann', 'old', 'Completed', 3, 4.0, 4.0, 0.0, 0.0, 0, 0.0, 0.0)"
        )
    for _ in range(2):  # once more after the upgrade
        store = Store(path)
        (lease,) = store.leases.held()
        assert (lease.id, lease.priority, lease.latest_start) == ("held", 0, None)
        (job,) = store.jobs.live()
        assert (job.id, job.lease) == ("j", "held")
        total = usage_report(store, "user", Filter("ended"), Page(9, 0)).total
        assert (total.jobs, total.qpu_seconds) == (3, 4.0)
        store.close()
    Store(tmp_path / "new").close()
    assert _objects(path) == _objects(tmp_path / "new")


@pytest.mark.parametrize("table", ["past", "leases", "jobs", "audit", "given_up"])
def test_the_order_of_columns_does_not_matter(
    path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written and read names its columns."""
    (body,) = re.findall(rf"CREATE TABLE {table} \((.*?)\n\);", SCHEMA, re.DOTALL)
    lines = [line.strip() for line in body.splitlines()]
    kept = [line.rstrip(",") for line in lines if line and not line.startswith("--")]
    columns = [line for line in kept if not line.startswith("UNIQUE")]
    # a constraint of the table comes last
    turned = columns[::-1] + [line for line in kept if line.startswith("UNIQUE")]
    schema = SCHEMA.replace(body, ",\n".join(turned))
    assert schema != SCHEMA
    monkeypatch.setattr("sf_quantum.service.store.store.SCHEMA", schema)
    store = Store(path)
    lease = _lease(store)
    job = _add(store, lease, "a")
    store.progress.start(job.number).result()
    store.progress.finish(
        job.number, "Completed", note=None, used=(2.0, 3.0), result="{}"
    ).result()
    given_up.record(store, job, _given_up(job)).result()
    assert [one.outcome for one in audit.entries(store, 9)] == ["lost"]
    assert given_up.entries(store, "device") == [_given_up(job)]
    assert asyncio.run(given_up.settle(store, _given_up(job), "Completed"))
    before = _usage(store)
    store.leases.close(lease.id, "released", "").result()
    assert purge(store, store.clock() + 1).result() == 1
    assert _usage(store) == before
    store.close()


def _given_up(job: Job) -> given_up.Entry:
    return given_up.Entry(1, job.number, "device", "7", "tag", "lost", 1.0, 2.0, None)


def _usage(store: Store) -> list[object]:
    report = usage_report(store, "lease", Filter("ended"), Page(9, 0))
    return [*report.rows, report.total]


@pytest.mark.parametrize("version", [0, VERSION])
def test_another_applications_database_is_refused(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE jobs (id)")
        db.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    why = "is the database of another application"
    with pytest.raises(InputError, match=f"{why}, or .*; replace it with a backup"):
        Store(path)
    assert path.read_bytes() == before
    found = _unreadable(path)
    # the header of a file does not tell the tables
    assert (found is None) if version else (found is not None and why in found)


def test_the_database_of_a_development_version_is_refused(path: Path) -> None:
    Store(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE leases DROP COLUMN latest_start")
    with pytest.raises(InputError, match="of a version before the first release"):
        Store(path)


@pytest.mark.parametrize("left", [60, 4096, 20_000])
def test_a_database_that_was_cut_is_refused(path: Path, left: int) -> None:
    Store(path).close()
    assert _unreadable(path) is None
    with path.open("r+b") as file:
        file.truncate(left)
    with pytest.raises(
        InputError, match=r"cannot store the state: .*; replace it with"
    ):
        Store(path)
    assert "replace it with a backup" in str(_unreadable(path))


def test_what_is_no_database_is_refused(path: Path) -> None:
    path.write_text("no database " * 100)
    with pytest.raises(InputError, match="cannot store the state: file is not a data"):
        Store(path)
    assert "is not a database; replace it with a backup" in str(_unreadable(path))
    assert path.read_text().startswith("no database")


def test_many_changes_share_a_commit_and_a_bad_one_fails_alone(path: Path) -> None:
    database = Database(path, version=1, schema="CREATE TABLE numbers (n INTEGER);")
    ready = threading.Event()
    commits: list[str] = []

    def wait(db: sqlite3.Connection) -> None:
        db.set_trace_callback(lambda text: commits.append(text))
        ready.wait(SECONDS)

    def insert(db: sqlite3.Connection, number: int) -> int:
        db.execute("INSERT INTO numbers VALUES (?)", (number,))
        if number == 7:
            raise ValueError("seven")
        return number

    first = database.change(wait)
    futures = [
        database.change(lambda db, number=n: insert(db, number))  # type: ignore[misc]
        for n in range(20)
    ]
    ready.set()
    first.result(SECONDS)
    done = [future for future in futures if future.exception(SECONDS) is None]
    assert [future.result() for future in done] == [n for n in range(20) if n != 7]
    with pytest.raises(ValueError, match="seven"):
        futures[7].result()
    rows = database.read("SELECT n FROM numbers ORDER BY n")
    assert [row[0] for row in rows] == [n for n in range(20) if n != 7]
    assert commits.count("COMMIT") <= 2
    database.close()


def test_a_full_disk_fails_what_was_to_be_written(path: Path) -> None:
    database = Database(path, version=1, schema="CREATE TABLE texts (t TEXT);")

    def fill(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA max_page_count = 5")
        db.execute("INSERT INTO texts VALUES (?)", ("x" * 100_000,))

    with pytest.raises(sqlite3.OperationalError, match="full"):
        database.change(fill).result(SECONDS)
    change = "INSERT INTO texts VALUES ('small')"
    database.change(lambda db: bool(db.execute(change))).result(SECONDS)
    assert [row[0] for row in database.read("SELECT t FROM texts")] == ["small"]
    database.close()


@pytest.mark.parametrize("seed", range(8))
def test_on_a_full_disk_only_what_does_not_fit_fails(path: Path, seed: int) -> None:
    schema = "CREATE TABLE texts (n INTEGER PRIMARY KEY, t TEXT);"
    database = Database(path, version=1, schema=schema)
    begun, ready = threading.Event(), threading.Event()
    chosen = random.Random(seed)
    large = {n for n in range(40) if chosen.random() < seed / 8}

    def limit(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA max_page_count = 5")
        begun.set()
        ready.wait(SECONDS)

    def insert(db: sqlite3.Connection, number: int) -> int:
        text = "x" * (100_000 if number in large else 1)
        db.execute("INSERT INTO texts VALUES (?, ?)", (number, text))
        return number

    database.change(limit)
    assert begun.wait(SECONDS)
    futures = [
        database.change(lambda db, number=n: insert(db, number))  # type: ignore[misc]
        for n in range(40)
    ]
    ready.set()
    failures = [future.exception(SECONDS) for future in futures]
    assert {n for n, failure in enumerate(failures) if failure} == large
    # not the words of what SQLite does to the other changes
    assert {str(failures[n]) for n in large} <= {"database or disk is full"}
    rows = database.read("SELECT n FROM texts ORDER BY n")
    assert [row[0] for row in rows] == [n for n in range(40) if n not in large]
    database.close()


def test_a_long_report_keeps_nobody_waiting(store: Store) -> None:
    begun, end = threading.Event(), threading.Event()
    reports = store._reports._db

    def linger() -> bool:
        begun.set()
        return end.wait(SECONDS)

    reports.create_function("linger", 0, linger)
    with ThreadPoolExecutor(1) as threads:
        report = threads.submit(store.report, "SELECT linger()")
        assert begun.wait(SECONDS)
        assert store.jobs.get("none") is None
        assert not report.done()
        end.set()
        assert report.result()[0][0] == 1


def test_the_same_content_has_the_same_digest() -> None:
    one = Submission("problem", {"a": 1, "b": 2}, {"seed": 1, "num_reads": 2}, "k")
    two = Submission("problem", {"b": 2, "a": 1}, {"num_reads": 2, "seed": 1}, "l")
    assert one.digest == two.digest
    assert one.digest != dataclasses.replace(one, kind="sequence").digest


def test_only_what_waits_starts(store: Store) -> None:
    job = _add(store, _lease(store), "a")
    cancelled = store.progress.cancel_waiting(job.number, "cancelled").result()
    assert store.progress.start(job.number).result() == cancelled
    assert store.jobs.get(job.number) == cancelled


def test_changes_of_a_deleted_job_are_refused(store: Store) -> None:
    """Every change that reads its job back may find that another request deleted it."""
    lease = _lease(store)
    job, _ = store.jobs.add(lease, _ask("a"), 1.0).result()
    store.progress.finish(job.number, "Completed", note=None, used=(1.0, 1.0)).result()
    delete(store, job.number).result()
    number = job.number
    changes: list[Callable[[], Future[Job]]] = [
        lambda: store.progress.send(number, "device"),
        lambda: store.progress.not_sent(number),
        lambda: store.progress.submitted(number, "id"),
        lambda: store.progress.slice_begins(number, 1),
        lambda: store.progress.start(number),
        lambda: store.progress.note_cancellation(number, "note"),
        lambda: store.progress.note_interruption(number, 1, "note"),
        lambda: store.progress.cancel_waiting(number, "note"),
        lambda: store.progress.put_back(number, "note", (1.0, 1.0)),
        lambda: store.progress.finish(number, "Failed", note="note", used=(1.0, 1.0)),
    ]
    for change in changes:
        with pytest.raises(Refused, match="no such job"):
            change().result()
    with pytest.raises(Refused, match="no such job"):
        store.jobs.payload(number)
    assert store.jobs.result(number) is None
    with pytest.raises(Refused, match="just deleted: submit it again"):
        store.jobs.add(lease, _ask("a"), 0.0, is_stored=True).result()
