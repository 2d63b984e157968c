"""What is kept of a site's jobs that ask for leases or have them.

The folder has a file for each job that asks for a lease or has one (``4711``: its environment),
the command that acquires it (``4711.command``), and a mark if the job is held in Slurm until it
can start (``4711.held``). Beside them: ``places``, those in ``asking`` that Slurm does not free,
and ``watch``, the process id of ``sfq slurm watch``.
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
# Why a job is held, how often it had no nodes, its submission, and the reason for the user.
_MARK = re.compile(r"(\w+) (\d{1,9}) (-|\d+) ?(.*)", re.DOTALL)


class Asks(Enum):
    """How far the request of a job is.

    It is not its turn in its array, it waits for those ahead of it in Slurm's queue, the
    QPU has it, or the QPU takes no requests of anybody.
    """

    LATER = "later"
    NOT_YET = "waits"
    ASKED = "asked"
    CLOSED = "closed"


class Why(Enum):
    """Why a job is held in Slurm.

    Slurm cannot start it, it has had a lease without nodes, its user has more than a share
    of the places, or a controller that died has forgotten that it was to ask.
    """

    CANNOT = "cannot"
    NODES = "nodes"
    SHARE = "share"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class Held:
    """A job that waits for more than a lease.

    :param losses: how often it had a lease without nodes
    :param text: the reason, for the user
    :param submitted: see :class:`.BatchJob`
    """

    why: Why
    losses: int = 0
    text: str = ""
    submitted: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a file; a malformed one is that of a job that Slurm cannot start."""
        if (match := _MARK.fullmatch(text.strip())) is not None:
            with suppress(ValueError):
                return cls(Why(match[1]), int(match[2]), match[4], match[3].strip("-"))
        return cls(Why.CANNOT)

    def __str__(self) -> str:
        return f"{self.why.value} {self.losses} {self.submitted or '-'} {self.text}\n"


@dataclass(frozen=True)
class Entry:
    """A job that asks for a lease, or has one.

    :param written: when it was acquired, or the job began to ask, in epoch seconds
    :param waited: seconds from then to the lease
    :param pid: the process that asks
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
        """Read a file; a malformed one is that of a job without a lease."""
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
        """The lease."""
        tokens = (v for k, v in self.variables.items() if k.endswith(f"_{TOKEN}"))
        return next(tokens, None)


class Folder:
    """What is kept of jobs, for nobody else to read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def jobs(self, suffix: str = "") -> set[int]:
        """The jobs that have a file of a kind."""
        names = (path.name for path in self.path.iterdir())
        matches = (re.fullmatch(rf"(\d+){re.escape(suffix)}", name) for name in names)
        return {int(match[1]) for match in matches if match}

    def entry(self, job: int) -> Entry | None:
        text = self._read(str(job))
        return None if text is None else Entry.parse(text)

    def write(self, job: int, entry: Entry) -> None:
        self.replace(str(job), str(entry))

    def command(self, job: int) -> list[str] | None:
        """The arguments of ``sfq`` that acquire a job's lease."""
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
        """Forget a job that neither asks for a lease nor has one."""
        for name in (f"{job}", f"{job}.command"):
            (self.path / name).unlink(missing_ok=True)

    def end_asking(self, job: int) -> None:
        """End the process that asks for a job's lease, if one is left."""
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
        """Write a file, which others read whole or not at all."""
        part = self.path / f"{name}.{os.getpid()}.part"
        part.touch(0o600)
        part.write_text(text, encoding="utf-8")
        part.rename(self.path / name)

    def sweep_parts(self) -> None:
        """Remove what processes have left that were killed while they wrote."""
        for part in self.path.glob("*.part"):
            if not Path("/proc", part.name.split(".")[-2]).exists():
                part.unlink(missing_ok=True)

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None


def is_asking(pid: int, job: int) -> bool:
    """Whether a process is another one that acquires a job's lease."""
    if pid in (0, os.getpid()):
        return False
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"acquire" in words and str(job).encode() in words
