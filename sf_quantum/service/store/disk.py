"""The disk that the state is on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DiskUse:
    """Of the file system, and of the database with its write-ahead log, in bytes."""

    free_bytes: int
    database_bytes: int

    @classmethod
    def of(cls, database: Path) -> DiskUse:
        """:raises OSError: if the database is gone"""
        disk = os.statvfs(database.parent)
        log = database.with_name(f"{database.name}-wal")
        sizes = [file.stat().st_size for file in (database, log) if file.exists()]
        return cls(disk.f_bavail * disk.f_frsize, sum(sizes))
