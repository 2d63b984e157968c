"""One SQLite file, and one thread that writes it: many changes share one sync."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from sf_quantum.errors import InputError

T = TypeVar("T")
Item = TypeVar("Item", contravariant=True)
# of one commit: who waits for a commit waits for all changes in it
MOST_CHANGES = 500
# statements of each connection: one for each number of rows that are written at once
COMPILED = 256
# of the write-ahead log, of 4 KiB, before they are copied to the file
COPIED_PAGES = 8000
# of the connection that writes
CACHE_KIB = 16 * 1024
# how long to wait for another process that holds the file, a backup for example
LOCKED_SECONDS = 30.0


class Kind(Protocol[Item, T]):
    """A kind of change that often many ask for at once."""

    def one(self, db: sqlite3.Connection, item: Item) -> T:
        """Make one change."""

    def many(self, db: sqlite3.Connection, items: Sequence[Item]) -> list[T]:
        """Make several at once, in their order.

        :raises sqlite3.Error: if they are to be made one by one instead
        """


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

    def write_one(self, kind: Kind[Item, T], item: Item) -> Future[T]:
        """Make a change of a kind, in one go with others of it next to it.

        :returns: see :meth:`write`
        """
        pending = _OfKind(kind, item)
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
            for _, changes in groupby(batch, _kind):
                _make(db, [*changes])
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


class _OfKind(_Change[T], Generic[Item, T]):
    def __init__(self, kind: Kind[Item, T], item: Item) -> None:
        super().__init__(lambda db: kind.one(db, item))
        self.kind = kind
        self.item = item


def _kind(pending: _Pending) -> int:
    return id(pending.kind if isinstance(pending, _OfKind) else pending)


def _make(db: sqlite3.Connection, changes: list[_Pending]) -> None:
    """Make changes of one kind, all at once if they can be made so."""
    alike = [change for change in changes if isinstance(change, _OfKind)]
    if len(alike) > 1:
        items = [change.item for change in alike]
        all_of_them = _Change(lambda db: alike[0].kind.many(db, items))
        all_of_them.make(db)
        if all_of_them.error is None:
            for change, done in zip(alike, all_of_them.done[0], strict=True):
                change.done.append(done)
            return
    for pending in changes:
        pending.make(db)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        *(path, LOCKED_SECONDS),
        check_same_thread=False,
        isolation_level=None,
        cached_statements=COMPILED,
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
