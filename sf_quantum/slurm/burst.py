"""The output of ``scontrol show burst``."""

from __future__ import annotations

import re
from dataclasses import dataclass

COMMAND = ("scontrol", "show", "burst")
_POOL = re.compile(r"PoolName\[\d+\]=(\w+) .*UsedSpace=(\d+)")
_BUFFER = re.compile(r"JobID=(\d+) .*?Pool=(\w+) .*?UserID=[^(]*\((\d+)\)")


@dataclass(frozen=True)
class Buffer:
    """A job's place in a pool."""

    job: int
    pool: str
    uid: int


def read(text: str) -> tuple[list[Buffer], dict[str, int]]:
    """Read the places that are taken, and Slurm's own count of them by pool.

    Slurm 22.05 may count places that have no job.
    """
    buffers = [
        Buffer(int(job), pool, int(uid)) for job, pool, uid in _BUFFER.findall(text)
    ]
    return buffers, {pool: int(used) for pool, used in _POOL.findall(text)}
