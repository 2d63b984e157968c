"""The state folder: one service at a time may use it, and no other user may write to it."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sf_quantum.errors import InputError
from sf_quantum.files import exists
from sf_quantum.service.store.store import Store

DATABASE = "service.sqlite"
_LOCK = "lock"
# content of the lock file once the database has been created
_LOCK_CONTENT = b"locks service.sqlite\n"
logger = logging.getLogger(__name__)


@contextmanager
def store_in(path: Path | None, ephemeral: bool) -> Iterator[Store]:
    """Create a state folder if it does not exist, lock the folder, and open its store.

    :param path: path of the folder; ``None``: a temporary folder is created
    :param ephemeral: whether to remove the folder at the end if this call has created it
    :raises InputError: if the folder cannot be used, another service uses it, other users
        can write in it, or its database is missing
    """
    created = path is None
    if path is None:
        logger.info("no `state`: jobs, results and leases are lost when this ends")
        path = Path(tempfile.mkdtemp(prefix="sfq-"))
        ephemeral = True
    try:
        if not exists(path):
            path.mkdir(mode=0o700)
            created = True
        check_state(path)
        # private, since the folder may be public; SQLite's other files get the same mode
        os.close(os.open(path / DATABASE, os.O_RDWR | os.O_CREAT, 0o600))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        why = (error.strerror or "").lower()
        raise InputError(f"{path}: cannot store the state: {why}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            why = "another service uses this state folder"
            raise InputError(f"{path}: {why}") from error
        try:
            store = Store(path / DATABASE)
            try:
                os.pwrite(lock, _LOCK_CONTENT, 0)
                yield store
            finally:
                store.close()
        finally:
            if created and ephemeral:
                shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def check_state(path: Path, *, owner: int | None = None) -> None:
    """Refuse a state folder that others own or can write, or that has lost its database.

    :param owner: uid of the user who must own the folder; by default, this user
    :raises InputError: if other users can write in the folder, another user owns it, or its
        database is missing
    """
    owner = os.geteuid() if owner is None else owner
    database, lock = path / DATABASE, path / _LOCK
    wal = database.with_name(f"{DATABASE}-wal")
    for file in (path, database, lock, wal):
        if not exists(file):
            continue
        status = file.stat()
        if status.st_uid != owner:
            raise InputError(f"{file}: another user owns it (chown)")
        if status.st_mode & 0o022:
            mode = status.st_mode & 0o7777
            raise InputError(f"{file}: mode {mode:04o}, others can write (chmod go-w)")
    if _size(database) > 0:
        return
    # an empty database with an empty lock is not lost: the first start has failed
    if _size(wal) > 0 or _size(lock) > 0 or (exists(lock) and not exists(database)):
        lost = "is empty" if exists(database) else "is missing"
        remedy = f"restore it, or remove {lock} and {wal} to start without jobs"
        raise InputError(f"{database}: {lost}, but there was one: {remedy}")


def _size(path: Path) -> int:
    return path.stat().st_size if exists(path) else 0
