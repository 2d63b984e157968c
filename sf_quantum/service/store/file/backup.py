"""Backups of the database, while the service runs or is stopped."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from sf_quantum.errors import InputError

SECONDS = 60.0


def back_up(database: Path, target: Path) -> None:
    """Copy a database with SQLite's online backup, and replace the target with the copy.

    The target is unchanged until the copy, a temporary file next to it, is complete and on
    disk. Only the user can read the copy, since it contains ids of leases, which are
    secrets.

    :raises InputError: if the database cannot be read, or the target cannot be written
    """
    # not Path.is_file(), which raises an error for a file in another user's private folder
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
        # All pages are copied in one step: SQLite would restart a copy in several steps
        # after each write of the service. The service can write meanwhile, since the
        # database has a write-ahead log (WAL).
        with (
            closing(sqlite3.connect(database, timeout=SECONDS)) as source,
            closing(sqlite3.connect(temporary)) as copy,
        ):
            source.execute("PRAGMA query_only = ON")
            source.backup(copy)
            # without a WAL, the copy is a single file
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
