"""Queries Slurm for a job's existence and the resources it requested."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from sf_quantum.threads import in_thread

ANSWER_SECONDS = 3.0
# each is a process, and a request to the cluster's only controller
QUERIES_AT_ONCE = 2
_JOB = re.compile(r"\d+([_+]\d+)?")
# the controller forgets a job some minutes after its end (MinJobAge)
_FORGOTTEN = b"Invalid job id specified"
# gres as "gres:qpu:2" or "gres/qpu:2", with or without a type; a licence as "qpu:2"
_UNITS = re.compile(
    r"(?:gres[:/])?([^:=,@()]+)(?:@[^:=,]+)?(?::[^:=,\d][^:=,]*)?(?:[:=](\d+))?"
)
_NONE = ("N/A", "(null)")


@dataclass(frozen=True)
class SlurmJob:
    """The resources that a job requested, with the units of each gres and licence."""

    partition: str
    account: str
    units: Mapping[str, int]


def can_ask(job: str | None) -> bool:
    """Whether this is a job id, and this machine has Slurm's commands."""
    return bool(job and _JOB.fullmatch(job) and shutil.which("squeue"))


async def is_gone(job: str) -> bool | None:
    """Whether a job is neither pending nor running; ``None`` without a clear answer."""
    # a job that is over, but that the controller remembers, is not in the list
    answer = await _squeue(job, "%i")
    if answer is None:
        return None
    if answer.returncode == 0:
        return not answer.stdout.strip()
    return True if _FORGOTTEN in answer.stderr else None


async def about(job: str, user: str) -> SlurmJob | None:
    """Query a user's job; ``None`` if Slurm knows none, or it is another user's."""
    answer = await _squeue(job, "%u|%P|%a|%b|%W")
    if answer is None or answer.returncode != 0:
        return None
    # one line for each task of a job array
    line = answer.stdout.decode(errors="replace").partition("\n")[0]
    match [word.strip() for word in line.split("|")]:
        case [owner, partition, account, gres, licences] if owner == user:
            return SlurmJob(partition, account, _units(gres, licences))
    return None


def _units(*columns: str) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for word in ",".join(one for one in columns if one not in _NONE).split(","):
        if found := _UNITS.fullmatch(word.strip()):
            counts[found[1]] += int(found[2] or 1)
    return counts


async def _squeue(job: str, columns: str) -> subprocess.CompletedProcess[bytes] | None:
    command = ["squeue", "-h", "-j", job, "-o", columns]

    def run() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_SECONDS,
        )

    async with _semaphore(asyncio.get_running_loop()):
        # in a thread, as an asyncio subprocess outlives a loop that closes; not in the
        # loop's pool, which checks credentials
        try:
            return await asyncio.wrap_future(in_thread(run))
        except (OSError, subprocess.TimeoutExpired):
            return None


@lru_cache(maxsize=8)
def _semaphore(_: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    """Return the semaphore of an event loop; each needs its own."""
    return asyncio.Semaphore(QUERIES_AT_ONCE)
