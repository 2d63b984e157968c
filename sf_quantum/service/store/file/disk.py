"""The disk that the state is on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# free space that suffices for a large job and its result
LEAST_FREE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class DiskUse:
    """Free space of the file system, and size of the database with its write-ahead log."""

    free_bytes: int
    database_bytes: int

    @classmethod
    def of(cls, database: Path) -> DiskUse:
        """Measure the disk of a database.

        :raises OSError: if the database no longer exists
        """
        disk = os.statvfs(database.parent)
        log = database.with_name(f"{database.name}-wal")
        size = database.stat().st_size + (log.stat().st_size if log.exists() else 0)
        return cls(disk.f_bavail * disk.f_frsize, size)


def problem(database: Path) -> str | None:
    """Return why no job may be added to a database; ``None`` if there is enough space."""
    try:
        free = DiskUse.of(database).free_bytes
    except OSError as error:
        return f"the state is gone: {(error.strerror or str(error)).lower()}"
    if free >= LEAST_FREE_BYTES:
        return None
    return f"{free >> 20} MiB are free for the state, {LEAST_FREE_BYTES >> 20} needed"
