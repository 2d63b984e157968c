"""One SQLite file, and one thread that writes it: many changes share one sync."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from sf_quantum.errors import InputError

T = TypeVar("T")
# of one commit: who waits for a commit waits for all changes in it
MOST_CHANGES = 500
# of the write-ahead log, of 4 KiB, before they are copied to the file
COPIED_PAGES = 8000
# of the connection that writes
CACHE_KIB = 16 * 1024
# how long to wait for another process that holds the file, a backup for example
LOCKED_SECONDS = 30.0


class Database:
    """A file in WAL mode whose changes are on the disk when they are reported.

    :param path: made if it is not there
    :param version: of the schema; the file keeps it as its ``user_version``
    :param schema: what a new file gets
    :param upgrades: by version, what a file of it lacks of the next one
    :raises InputError: if the file is of a version without an upgrade, or no database
    """

    def __init__(
        self,
        path: Path,
        *,
        version: int,
        schema: str,
        upgrades: Mapping[int, str] | None = None,
    ) -> None:
        try:
            self._writer = _connect(path)
            _prepare(self._writer, path, (version, schema), upgrades or {})
            self._requests, self._reports = _Reader(path), _Reader(path)
        except sqlite3.Error as error:
            raise InputError(f"{path}: cannot hold the state: {error}") from error
        self._changes: SimpleQueue[_Pending | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what was asked for and close the file."""
        self._changes.put(None)
        self._thread.join()
        self._requests.close()
        self._reports.close()
        self._writer.close()

    def write(self, change: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Make a change, all of it or nothing; it is on the disk when this is done.

        Changes are made one after the other, in the order they were asked for.

        :param change: called in the writer's thread
        :returns: what the change returns or raises, once it is committed
        """
        pending = _Change(change)
        self._changes.put(pending)
        return pending.future

    def read(self, query: str, *values: str | float | None) -> list[sqlite3.Row]:
        """Read what is committed."""
        return self._requests.read(query, values)

    def report(self, query: str, *values: str | float | None) -> list[sqlite3.Row]:
        """Read what may take long, for which no :meth:`read` has to wait."""
        return self._reports.read(query, values)

    def _work(self) -> None:
        last = False
        while not last:
            batch = [self._changes.get()]
            while len(batch) < MOST_CHANGES and not self._changes.empty():
                batch.append(self._changes.get())
            last = None in batch
            self._commit([change for change in batch if change is not None])

    def _commit(self, batch: list[_Pending]) -> None:
        db = self._writer
        try:
            db.execute("BEGIN IMMEDIATE")
            for change in batch:
                change.make(db)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            for change in batch:
                change.fail(error)
        else:
            for change in batch:
                change.tell()


class _Reader:
    """A connection that changes nothing, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._db = _connect(path)
        self._db.execute("PRAGMA query_only = ON")
        self._lock = threading.Lock()

    def read(
        self, query: str, values: Sequence[str | float | None]
    ) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def close(self) -> None:
        with self._lock:
            self._db.close()


class _Pending(Protocol):
    """A :class:`_Change`, whatever it returns."""

    def make(self, db: sqlite3.Connection) -> None: ...
    def tell(self) -> None: ...
    def fail(self, error: BaseException) -> None: ...


class _Change(Generic[T]):
    def __init__(self, change: Callable[[sqlite3.Connection], T]) -> None:
        self.future: Future[T] = Future()
        # who gave up waiting does not take the change back
        self.future.set_running_or_notify_cancel()
        self._change = change
        self.done: list[T] = []
        self.error: BaseException | None = None

    def make(self, db: sqlite3.Connection) -> None:
        db.execute("SAVEPOINT change")
        try:
            self.done.append(self._change(db))
        except BaseException as error:  # noqa: BLE001 - who asked for it is told
            self.error = error
            # fails where SQLite has given up the whole transaction: then all fails
            db.execute("ROLLBACK TO change")
        db.execute("RELEASE change")

    def tell(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.done[0])

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(self.error or error)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        path,
        LOCKED_SECONDS,
        check_same_thread=False,
        isolation_level=None,
    )
    db.row_factory = sqlite3.Row
    return db


def _prepare(
    db: sqlite3.Connection,
    path: Path,
    newest: tuple[int, str],
    upgrades: Mapping[int, str],
) -> None:
    version, schema = newest
    found = db.execute("PRAGMA user_version").fetchone()[0]
    empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    missing = range(found, version)
    known = found <= version and all(step in upgrades for step in missing)
    if not known and not (found == 0 and empty):
        raise InputError(
            f"{path}: its state is of version {found}, this sf_quantum reads version "
            f"{version}: start the version that wrote it, or take another state folder"
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    # what changes often, the ends of the indexes, is copied to the file less often
    db.execute(f"PRAGMA wal_autocheckpoint = {COPIED_PAGES}")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    steps = schema if empty else " ".join(upgrades[step] for step in missing)
    if steps:
        db.executescript(f"BEGIN; {steps} PRAGMA user_version = {version}; COMMIT;")
