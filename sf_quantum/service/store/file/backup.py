"""A copy of the database, whether or not the service runs."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from sf_quantum.errors import InputError

SECONDS = 60.0


def back_up(database: Path, target: Path) -> None:
    """Copy a database with SQLite's online backup to a file next to the target; rename it.

    The target is unchanged until the copy is complete and on disk. Only the user can read
    the copy, since it contains ids of leases.

    :raises InputError: if the database cannot be read, or the target cannot be written
    """
    # Path.is_file() cannot be used: it raises an error for a folder of another user
    if not os.path.isfile(database):
        why = "no file that this user may read"
        raise InputError(f"{database}: {why}; name a service's state folder")
    if target.exists() and (not target.is_file() or target.samefile(database)):
        raise InputError(f"{target}: not a file that may be replaced")
    try:
        descriptor, temporary = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name}."
        )
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"{target}: cannot be written: {why}") from error
    try:
        # all pages are copied in one step: a reader of a WAL does not keep the service from
        # writing, whereas SQLite restarts a copy in several steps after each write
        with (
            closing(sqlite3.connect(database, timeout=SECONDS)) as source,
            closing(sqlite3.connect(temporary)) as copy,
        ):
            source.execute("PRAGMA query_only = ON")
            source.backup(copy)
            # The copy is a single file if it has no WAL.
            copy.execute("PRAGMA journal_mode = DELETE")
        os.fsync(descriptor)
        os.replace(temporary, target)
        _sync(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise InputError(
            f"{database}: cannot be copied to {target}: {error}"
        ) from error
    finally:
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
