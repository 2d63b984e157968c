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
        size = database.stat().st_size + (log.stat().st_size if log.exists() else 0)
        return cls(disk.f_bavail * disk.f_frsize, size)
