"""The guardian: a process that cleans up after its driver, even if the driver is killed.

The driver (``streamflow run``) holds the write end of a pipe, the guardian the read end.
When the driver ends, even by SIGINT, SIGTERM or SIGKILL, the pipe is closed. The guardian
then releases the driver's leases, cancels its jobs behind ``slurmrestd``, ends the processes
that the driver left behind, removes the driver's temporary folders, and exits. It identifies
the processes by an environment variable that they inherit, so it also finds orphaned
grandchildren. If the environment of a process was cleared (``env -i``), it is identified by
a resource limit whose value is unique to the driver.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import psutil

from sf_quantum import structs
from sf_quantum.deadline import Deadline
from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON, mapping, parse_json

if TYPE_CHECKING:
    from sf_quantum.connectors.slurm.transport.slurmrestd import Settings

# variable with the name of the driver, which all its processes inherit
MARKER = "SFQ_DRIVER"
#: variable of processes that must outlive the driver, because they clean up after it
OUTLIVES = "SFQ_SHELL"
# Time between SIGTERM and SIGKILL.
GRACE_SECONDS = 2.0
# pause between two searches for processes
PAUSE_SECONDS = 0.05
# Time limit for ending processes: even SIGKILL does not end a process that waits for a dead
# file system.
GIVE_UP_SECONDS = 10.0
# Time during which failing requests to slurmrestd to cancel jobs are repeated.
SWEEP_SECONDS = 60.0


@dataclass(frozen=True)
class Folder:
    """A folder that is removed after the driver's end."""

    folder: str


@dataclass(frozen=True)
class Lease:
    """A lease, see :meth:`Guardian.hold`.

    :param hold: token of the lease
    """

    type: str
    name: str
    config: dict[str, JSON]
    hold: str

    def end(self) -> None:
        """Release the lease; it is left to expire if its QPU does not answer."""
        # The import takes time: every driver starts a guardian, and few have leases.
        from sf_quantum.qpu import selection

        with suppress(QuantumError):
            selection.client(self.type, self.name, self.config).release(self.hold)


@dataclass(frozen=True)
class SlurmJobs:
    """Slurm jobs, see :meth:`Guardian.cancel_jobs`.

    :param slurmrestd: fields of its settings
    :param hold: text with which the jobs' comments begin
    """

    slurmrestd: dict[str, JSON]
    hold: str

    def end(self) -> None:
        """Cancel the jobs, within a time limit."""
        from sf_quantum.connectors.slurm.transport import slurmrestd

        settings = structs.read(slurmrestd.Settings, self.slurmrestd)
        slurmrestd.sweep(settings, self.hold, SWEEP_SECONDS)


@dataclass(frozen=True)
class Release:
    """The end of a lease, or of Slurm jobs.

    :param release: its ``hold``
    """

    release: str


Held: TypeAlias = Lease | SlurmJobs
Message: TypeAlias = Folder | Held | Release
# The kind of a message, by the first of these keys that it has.
_KINDS: Mapping[str, type[Message]] = {
    "folder": Folder,
    "release": Release,
    "slurmrestd": SlurmJobs,
    "hold": Lease,
}


def read(line: bytes) -> Message:
    """Read a line from the driver.

    :raises ValueError: if it is not a message, or was cut short when the driver was killed
    """
    if not line.endswith(b"\n"):
        raise ValueError("cut short")
    content = mapping(parse_json(line))
    for key, kind in _KINDS.items():
        if key in content:
            return structs.read(kind, content)
    raise ValueError("not a message")


class Guardian:
    """The driver's side of its guardian."""

    def __init__(self) -> None:
        name = str(uuid.uuid4())
        # Every process that is started from now on inherits the variable. The driver itself is
        # not marked, since /proc shows the environment at the start of a process.
        os.environ[MARKER] = name
        # This fails if there is a lower hard limit.
        with suppress(psutil.Error, OSError, ValueError):
            psutil.Process().rlimit(
                psutil.RLIMIT_RTTIME, (_limit(name), psutil.RLIM_INFINITY)
            )
        # Child processes do not inherit the write end (PEP 446), so the driver's end closes
        # it.
        read_end, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, name],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Ctrl-C on a terminal is sent to the driver's whole process group, which the
                # guardian therefore leaves.
                start_new_session=True,
            )
        finally:
            os.close(read_end)

    def remove(self, folder: str | Path) -> None:
        """Let the guardian remove a folder, by its absolute path, after the driver's end."""
        self._send(Folder(str(folder)))

    def hold(
        self, type_: str, name: str, config: Mapping[str, JSON], token: str
    ) -> None:
        """Let the guardian release a lease after the driver's end.

        If the lease's token is passed to :meth:`release` before, the guardian does nothing.

        :param type_: type of the QPU; the guardian makes a client from the type, the name and
            the configuration
        :param token: token of the lease, which is sent through the pipe, so that no command
            line contains it
        """
        self._send(Lease(type_, name, {**config}, token))

    def cancel_jobs(self, settings: Settings, comment: str) -> None:
        """Let the guardian cancel Slurm jobs after the driver's end.

        If the jobs' comment is passed to :meth:`release` before, the guardian does nothing.

        :param comment: text with which the jobs' comments begin
        """
        self._send(SlurmJobs(asdict(settings), comment))

    def release(self, token: str) -> None:
        """Note that a lease was released, or that no Slurm jobs are left to cancel.

        :param token: token of the lease, or the comment that was passed to
            :meth:`cancel_jobs`
        """
        self._send(Release(token))

    def _send(self, message: Message) -> None:
        with suppress(BrokenPipeError):  # the guardian was killed
            # lines are shorter than PIPE_BUF, so lines of several threads do not mix
            os.write(self._pipe, f"{json.dumps(asdict(message))}\n".encode())


@cache
def current() -> Guardian:
    """Return this process's guardian; the first call starts it."""
    return Guardian()


def end_processes(name: str) -> None:
    """End every process that has a driver's mark, except this one, within a time limit."""
    grace, give_up = Deadline(GRACE_SECONDS), Deadline(GIVE_UP_SECONDS)
    terminated: set[psutil.Process] = set()
    misses = 0
    # The loop ends after two searches without a match: a process may have started a child just
    # before its end, and a process that is being started does not show its environment yet.
    while misses < 2 and give_up.left > 0:
        marked = set(_marked(name))
        misses = 0 if marked else misses + 1
        if grace.left > 0:
            _signal(marked - terminated, force=False)
            terminated |= marked
        else:
            _signal(marked, force=True)
        if marked:
            psutil.wait_procs(marked, timeout=PAUSE_SECONDS)
        else:
            time.sleep(PAUSE_SECONDS)


def _limit(name: str) -> int:
    """Return the soft limit on real-time computing that marks the processes of a driver.

    The value in microseconds is more than 70,000 years, so it has no effect.
    """
    digest = hashlib.sha256(name.encode()).digest()
    return (1 << 61) + (int.from_bytes(digest[:8]) >> 3)


def processes() -> Iterator[psutil.Process]:
    """Yield the processes of this machine.

    ``psutil.process_iter`` is not used: it caches processes, and takes a new process for an
    ended process with the same id. The new process could then not be killed.
    """
    for pid in psutil.pids():
        with suppress(psutil.Error):
            yield psutil.Process(pid)


def _marked(name: str) -> Iterator[psutil.Process]:
    """Yield the processes with a driver's mark, except this process."""
    own_pid, limit = os.getpid(), _limit(name)
    for process in processes():
        try:
            if process.pid == own_pid:
                continue
            environment = process.environ()
            if environment.get(MARKER) == name or (
                OUTLIVES not in environment
                and process.rlimit(psutil.RLIMIT_RTTIME)[0] == limit
            ):
                yield process
        except (psutil.Error, OSError):
            continue  # the process has just ended, or belongs to another user


def _signal(processes: set[psutil.Process], *, force: bool) -> None:
    for process in processes:
        with suppress(psutil.Error):
            if force:
                process.kill()
            else:
                process.terminate()


def left_held(messages: Iterable[Message]) -> list[Held]:
    """Find what the driver's messages report as held and not as released."""
    held: dict[str, Held] = {}
    for message in messages:
        if isinstance(message, Lease | SlurmJobs):
            held[message.hold] = message
        elif isinstance(message, Release):
            held.pop(message.release, None)
    return [*held.values()]


def main() -> None:
    """Wait for the driver's end, then clean up."""
    messages: list[Message] = []
    for line in sys.stdin.buffer:
        with suppress(ValueError):  # the other messages are still used
            messages.append(read(line))
    # All leases are released in parallel: neither a QPU that does not answer nor a
    # process that does not end delays the others.
    threads = [threading.Thread(target=one.end) for one in left_held(messages)]
    for thread in threads:
        thread.start()
    end_processes(sys.argv[1])
    for thread in threads:
        thread.join()
    for message in messages:
        if isinstance(message, Folder):
            shutil.rmtree(message.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
