"""An SQLite file with one writer thread, which commits many changes with one sync."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from sf_quantum.errors import InputError

T = TypeVar("T")
# a function that applies a change, and a function that reports the change's outcome or, as
# its argument, why the commit failed
_Change: TypeAlias = tuple[
    Callable[[sqlite3.Connection], None], Callable[[BaseException | None], None]
]
TextFunction: TypeAlias = Callable[[str | None], str | None]
# maximum number of changes per commit; the callers of all changes wait for the commit
MAX_CHANGES = 500
# size of the write-ahead log before its pages are copied to the file
CHECKPOINT_PAGES = 8000
# page cache of the writer's connection
CACHE_KIB = 16 * 1024
# longest wait for another process that locks the file, for example a backup
LOCK_SECONDS = 30.0
#: advice about a file that is not, or no longer, a database of this service
REMEDY = "replace it with a backup (sfq admin backup), or use another state folder"


class Database:
    """A file with a write-ahead log; changes are on disk when they are reported as done.

    May be used from several threads.

    :param version: version of the schema; the file stores it as its ``user_version``
    :param schema: SQL that creates the tables of a new file
    :param upgrades: SQL that upgrades a file to the next version, by the file's version
    :param functions: SQL functions by name, with one text argument, for :meth:`report`
    :raises InputError: if the file has a version without an upgrade, or is not a database
    """

    def __init__(
        self,
        path: Path,
        *,
        version: int,
        schema: str,
        upgrades: Mapping[int, str] | None = None,
        functions: Mapping[str, TextFunction] | None = None,
    ) -> None:
        self.path = path
        try:
            with ExitStack() as stack:
                self._writer = stack.enter_context(closing(_connect(path)))
                _prepare(self._writer, path, version, schema, upgrades or {})
                self._requests, self._large, self._parts, self._reports = (
                    stack.enter_context(closing(_Reader(path, sql_functions)))
                    for sql_functions in ({}, {}, {}, functions or {})
                )
                self._connections = stack.pop_all()
        except sqlite3.Error as error:
            # exactly this class: SQLITE_NOTADB or SQLITE_CORRUPT; a restart does not help
            remedy = f"; {REMEDY}" if type(error) is sqlite3.DatabaseError else ""
            why = f"{path}: cannot store the state: {error}{remedy}"
            raise InputError(why) from error
        #: time of the last failed write, in seconds since the epoch; 0 if none failed
        self.last_failed_write = 0.0
        self._changes: SimpleQueue[_Change | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the pending changes and close the file."""
        self._changes.put(None)
        self._thread.join()
        self._connections.close()

    def change(self, change: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Apply a change atomically, after the changes of earlier calls.

        :param change: called in the writer's thread
        :returns: the change's result or exception, available once it is on disk
        """
        future = Future[T]()
        # a caller that stops waiting must not cancel the change
        future.set_running_or_notify_cancel()
        results: list[T] = []
        failure: BaseException | None = None

        def make(db: sqlite3.Connection) -> None:
            nonlocal failure
            results.clear()
            failure = None
            db.execute("SAVEPOINT change")
            try:
                results.append(change(db))
            except BaseException as error:
                failure = error
                if isinstance(error, sqlite3.Error):
                    self.last_failed_write = time.time()
                if not db.in_transaction:
                    # SQLite has rolled back the whole transaction: fail the commit
                    raise
                db.execute("ROLLBACK TO change")
            db.execute("RELEASE change")

        def report(lost: BaseException | None) -> None:
            if (error := failure or lost) is not None:
                future.set_exception(error)
            else:
                future.set_result(results[0])

        self._changes.put((make, report))
        return future

    def read(self, query: str, *values: str | float | None) -> list[sqlite3.Row]:
        """Run a short query on the committed state."""
        return self._requests.read(query, values)

    def read_large(self, query: str, *values: str | float | None) -> list[sqlite3.Row]:
        """Run a query of many rows or a large value, without blocking :meth:`read`."""
        return self._large.read(query, values)

    def size(self, table: str, column: str, number: int) -> int | None:
        """Return the size of a value in bytes; ``None`` if there is no value."""
        return self._parts.size(table, column, number)

    def part(
        self, table: str, column: str, number: int, first: int, most: int
    ) -> bytes:
        """Read bytes of a value, from index ``first``; empty if the value does not exist."""
        return self._parts.part(table, column, number, first, most)

    def report(self, query: str, *values: str | float | None) -> list[sqlite3.Row]:
        """Run a long query, without blocking :meth:`read`."""
        return self._reports.read(query, values)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            batch = [self._changes.get()]
            while len(batch) < MAX_CHANGES and not self._changes.empty():
                batch.append(self._changes.get())
            is_last = None in batch
            self._commit([change for change in batch if change is not None])

    def _commit(self, batch: list[_Change]) -> None:
        db, lost, began = self._writer, None, False
        try:
            db.execute("BEGIN IMMEDIATE")
            began = True
            for make, _ in batch:
                make(db)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            lost = error
            self.last_failed_write = time.time()
            if db.in_transaction:
                db.execute("ROLLBACK")
            if began and (middle := len(batch) // 2):
                # split the batch: if a large change does not fit on the disk, small ones may
                self._commit(batch[:middle])
                self._commit(batch[middle:])
                return
        for _, report in batch:
            report(lost)


class _Reader:
    """A read-only connection, used by one thread at a time."""

    def __init__(self, path: Path, functions: Mapping[str, TextFunction]) -> None:
        self._db = _connect(path)
        for name, function in functions.items():
            self._db.create_function(name, 1, function, deterministic=True)
        self._db.execute("PRAGMA query_only = ON")
        self._lock = threading.Lock()

    def read(
        self, query: str, values: Sequence[str | float | None]
    ) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def size(self, table: str, column: str, number: int) -> int | None:
        with self._lock, _open_blob(self._db, table, column, number) as blob:
            return None if blob is None else len(blob)

    def part(
        self, table: str, column: str, number: int, first: int, most: int
    ) -> bytes:
        with self._lock, _open_blob(self._db, table, column, number) as blob:
            if blob is None:
                return b""
            blob.seek(min(first, len(blob)))
            return blob.read(most)

    def close(self) -> None:
        with self._lock:
            self._db.close()


@contextmanager
def _open_blob(
    db: sqlite3.Connection, table: str, column: str, number: int
) -> Iterator[sqlite3.Blob | None]:
    """Open a value for one read; while a value is open, the write-ahead log only grows."""
    try:
        blob = db.blobopen(table, column, number, readonly=True)
    except sqlite3.OperationalError as error:
        # no such row, or NULL; other errors are not expected
        if "no such rowid" in str(error) or "of type null" in str(error):
            yield None
            return
        raise
    with blob:
        yield blob


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        path, timeout=LOCK_SECONDS, check_same_thread=False, isolation_level=None
    )
    db.row_factory = sqlite3.Row
    # A text with invalid UTF-8 must not make all rows of a query unreadable.
    db.text_factory = partial(str, encoding="utf-8", errors="replace")
    return db


def _has_tables(db: sqlite3.Connection, schema: str) -> bool:
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(schema)
        return _columns(db) >= _columns(new)


def _columns(db: sqlite3.Connection) -> set[tuple[str, str]]:
    query = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c"
    return {(table, column) for table, column in db.execute(query)}


def _prepare(
    db: sqlite3.Connection,
    path: Path,
    version: int,
    schema: str,
    upgrades: Mapping[int, str],
) -> None:
    stored = db.execute("PRAGMA user_version").fetchone()[0]
    is_empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_empty and (
        stored == 0 or (stored == version and not _has_tables(db, schema))
    ):
        raise InputError(
            f"{path}: is the database of another application, or of a version before the "
            f"first release; {REMEDY}"
        )
    missing = range(stored, version)
    is_readable = stored <= version and all(step in upgrades for step in missing)
    if not is_readable and not (stored == 0 and is_empty):
        raise InputError(
            f"{path}: its state has version {stored}, this sf_quantum reads version "
            f"{version}: start the version that wrote it, or use another state folder"
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    # With a long log, pages that change often (at the ends of indexes) are copied to the
    # file less often.
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    steps = schema if is_empty else " ".join(upgrades[step] for step in missing)
    if steps:
        db.executescript(f"BEGIN; {steps} PRAGMA user_version = {version}; COMMIT;")
