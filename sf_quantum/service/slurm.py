"""Asks Slurm whether a job is still there, and in which partition."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess

# a service that is told to stop waits for an answer under way, and has five seconds
ANSWER_SECONDS = 3.0
_JOB = re.compile(r"\d+([_+]\d+)?")
# the controller forgets a job some minutes after its end (MinJobAge)
_FORGOTTEN = b"Invalid job id specified"


def can_ask(job: str | None) -> bool:
    """Say whether this is a job's number, and this machine has Slurm's commands."""
    return bool(job and _JOB.fullmatch(job) and shutil.which("squeue"))


async def is_gone(job: str) -> bool | None:
    """Ask whether a job neither waits nor runs.

    :returns: ``None`` if Slurm gave no clear answer
    """
    # a job that is over, but that the controller remembers, is not in the list
    answer = await _squeue(job, "%i")
    if answer is None:
        return None
    status, output, errors = answer
    if status == 0:
        return not output.strip()
    return True if _FORGOTTEN in errors else None


async def partition(job: str, user: str) -> str | None:
    """Ask for the partition of a user's job.

    :returns: ``None`` if Slurm knows no such job, or it is another user's
    """
    answer = await _squeue(job, "%u %P")
    if answer is None or answer[0] != 0:
        return None
    # each task of a job array has its line
    owner, _, name = (
        answer[1].decode(errors="replace").partition("\n")[0].partition(" ")
    )
    return name.strip() or None if owner == user else None


async def _squeue(job: str, columns: str) -> tuple[int, bytes, bytes] | None:
    # in a thread: a subprocess of the event loop outlives a loop that closes meanwhile
    return await asyncio.to_thread(_answer, ["squeue", "-h", "-j", job, "-o", columns])


def _answer(command: list[str]) -> tuple[int, bytes, bytes] | None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.returncode, done.stdout, done.stderr
