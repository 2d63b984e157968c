"""The files about a site's Slurm jobs that request or have leases.

The folder has a file for each such job (``4711``: its environment), the command that acquires
its lease (``4711.command``), and a mark if the job is held in Slurm until it can start
(``4711.held``). It also has ``places``, the numbers of places that Slurm does not free, and
``watch``, the process id of ``sfq slurm watch``.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Self

from sf_quantum.files import parse_json
from sf_quantum.qpu.environment import TOKEN

# Time that a process has to end after SIGTERM.
END_SECONDS = 2.0
# A mark: why a job is held, number of leases without nodes, time of submission, and the reason
# for the user.
_MARK = re.compile(r"(\w+) (\d{1,9}) (-|\d+) ?(.*)", re.DOTALL)


class Asks(Enum):
    """The progress of a job's request for a lease.

    Earlier tasks of its array are first (``LATER``), jobs ahead in Slurm's queue are first
    (``NOT_YET``), the QPU has the request (``ASKED``) or accepts no requests (``CLOSED``).
    """

    LATER = "later"
    NOT_YET = "waits"
    ASKED = "asked"
    CLOSED = "closed"


class Why(Enum):
    """Why a job is held in Slurm.

    Slurm cannot start the job, the job had a lease but got no nodes, its user has more than
    a share of the places, or a killed controller has forgotten the job's request.
    """

    CANNOT = "cannot"
    NODES = "nodes"
    SHARE = "share"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class Held:
    """The mark of a job that is held in Slurm, not only waiting for a lease.

    :param losses: number of leases that the job lost because it got no nodes
    :param text: reason, for the user
    :param submitted: see :class:`.BatchJob`
    """

    why: Why
    losses: int = 0
    text: str = ""
    submitted: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a mark; a malformed mark means that Slurm cannot start the job."""
        if (match := _MARK.fullmatch(text.strip())) is not None:
            with suppress(ValueError):
                return cls(Why(match[1]), int(match[2]), match[4], match[3].strip("-"))
        return cls(Why.CANNOT)

    def __str__(self) -> str:
        return f"{self.why.value} {self.losses} {self.submitted or '-'} {self.text}\n"


@dataclass(frozen=True)
class Entry:
    """The file of a job that requests or has a lease.

    :param written: time of the grant (until then, of the request), in epoch seconds
    :param waited: seconds from the request to the grant
    :param pid: id of the process that requests the lease
    :param submitted: see :class:`.BatchJob`
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    qpu: str = ""
    written: float = 0.0
    waited: float = 0.0
    pid: int = 0
    asks: Asks = Asks.LATER
    submitted: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a file; a malformed file means that the job has no lease."""
        first, *lines = text.splitlines() or [""]
        variables = dict(line.split("=", 1) for line in lines if "=" in line)
        match first.split():
            case ["#", written, waited, pid, qpu, asks, *submitted]:
                with suppress(ValueError):
                    numbers = float(written), float(waited), int(pid)
                    time_ = submitted[0] if submitted else ""
                    return cls(variables, qpu, *numbers, Asks(asks), time_)
        return cls(variables)

    def __str__(self) -> str:
        first = f"# {self.written:.0f} {self.waited:.3f} {self.pid} {self.qpu or '-'}"
        lines = [f"{first} {self.asks.value} {self.submitted}".strip()]
        lines += [f"{k}={' '.join(v.split())}" for k, v in self.variables.items()]
        return "\n".join(lines) + "\n"

    @property
    def token(self) -> str | None:
        """The token of the lease; ``None`` before the grant."""
        tokens = (v for k, v in self.variables.items() if k.endswith(f"_{TOKEN}"))
        return next(tokens, None)


class Folder:
    """The folder, which only its owner can read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def jobs(self, suffix: str = "") -> set[int]:
        """Return the jobs that have a file with a suffix."""
        names = (path.name for path in self.path.iterdir())
        matches = (re.fullmatch(rf"(\d+){re.escape(suffix)}", name) for name in names)
        return {int(match[1]) for match in matches if match}

    def entry(self, job: int) -> Entry | None:
        text = self._read(str(job))
        return None if text is None else Entry.parse(text)

    def write(self, job: int, entry: Entry) -> None:
        self.replace(str(job), str(entry))

    def command(self, job: int) -> list[str] | None:
        """Return the arguments of ``sfq`` that acquire a job's lease."""
        with suppress(ValueError):
            words = parse_json(self._read(f"{job}.command") or "")
            if isinstance(words, list):
                return [str(word) for word in words]
        return None

    def held(self, job: int) -> Held | None:
        text = self._read(f"{job}.held")
        return None if text is None else Held.parse(text)

    def hold(self, job: int, held: Held) -> None:
        self.replace(f"{job}.held", str(held))

    def remove(self, job: int) -> None:
        """Forget a job that neither requests nor has a lease."""
        for name in (f"{job}", f"{job}.command"):
            (self.path / name).unlink(missing_ok=True)

    def end_asking(self, job: int) -> None:
        """End the process that requests a job's lease, if it is running."""
        entry = self.entry(job)
        if entry is None or not is_asking(entry.pid, job):
            return
        with suppress(ProcessLookupError):
            os.kill(entry.pid, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while is_asking(entry.pid, job) and time.monotonic() < deadline:
            time.sleep(0.05)
        if is_asking(entry.pid, job):
            with suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGKILL)

    def replace(self, name: str, text: str) -> None:
        """Write a file atomically, so that nobody reads a partial file."""
        part = self.path / f"{name}.{os.getpid()}.part"
        part.touch(0o600)
        part.write_text(text, encoding="utf-8")
        part.rename(self.path / name)

    def sweep_parts(self) -> None:
        """Remove partial files of processes that were killed while writing."""
        for part in self.path.glob("*.part"):
            if not Path("/proc", part.name.split(".")[-2]).exists():
                part.unlink(missing_ok=True)

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None


def is_asking(pid: int, job: int) -> bool:
    """Return whether a process, other than this process, acquires a job's lease."""
    if pid in (0, os.getpid()):
        return False
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"acquire" in words and str(job).encode() in words
