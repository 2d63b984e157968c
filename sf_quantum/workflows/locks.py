"""Locks on the folder of outputs and the database, which concurrent runs must not share.

StreamFlow 0.2.0rc3 writes its database in one transaction, so another run with the same
database fails after 20 s. Each locked file is open in both ``sfq run`` and its driver, so the
lock is released once both have ended, regardless of how they end.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

from sf_quantum import yaml
from sf_quantum.errors import InputError
from sf_quantum.files import mapping

# remedies if another run uses the folder or the database
_OUTDIR_REMEDY = "another --outdir"
_DATABASE_REMEDY = (
    "a database of its own in a StreamFlow file of its own "
    "(database: {type: sqlite, config: {connection: .streamflow/OTHER.db}})"
)


@contextmanager
def refuse_sharing(file: Path, outdir: Path) -> Iterator[list[int]]:
    """Hold the locks of a run of a StreamFlow file.

    :returns: descriptors of the locks; a lock is held until all processes with its
        descriptor have closed it
    :raises InputError: if another run holds one of the locks
    """
    shared, remedies, locks = [], [], []
    with ExitStack() as stack:
        for path, lock, remedy in _resources(file, outdir):
            try:
                locks.append(_lock(lock))
                stack.callback(os.close, locks[-1])
            except BlockingIOError:
                shared.append(str(path))
                remedies.append(remedy)
            except OSError:  # StreamFlow reports it, or there are no file locks
                continue
        if shared:
            raise InputError(
                f"{file}: another run uses {' and '.join(shared)}; wait until it has "
                f"ended, or give this one {' and '.join(remedies)}"
            )
        yield locks


def _lock(path: Path) -> int:
    """Create and lock a file.

    :returns: descriptor of the file
    :raises BlockingIOError: if the file is locked already
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open(path: Path) -> int:
    # On NFS, an exclusive lock needs a file that is open for writing.
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # the file belongs to another user
        return os.open(path, os.O_RDONLY)


def _resources(file: Path, outdir: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield the run's database and folder, each with its lock file and a remedy if shared."""
    section = mapping(mapping(yaml.read(file, "a StreamFlow file")).get("database"))
    default = Path.home() / ".streamflow" / version("streamflow") / "sqlite.db"
    connection = str(mapping(section.get("config")).get("connection", default))
    if section.get("type", "default") in ("default", "sqlite") and (
        connection != ":memory:"
    ):
        database = file.resolve().parent / connection
        yield database, database.with_name(f"{database.name}.lock"), _DATABASE_REMEDY
    yield outdir, outdir / ".streamflow.lock", _OUTDIR_REMEDY
