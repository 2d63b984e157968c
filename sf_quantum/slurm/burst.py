"""The output of ``scontrol show burst``, about pools of burst buffers."""

from __future__ import annotations

import re
from dataclasses import dataclass

COMMAND = ("scontrol", "show", "burst")
# patterns of pools and of jobs' buffers in the output
_POOL = re.compile(r"PoolName\[\d+\]=(\w+) .*UsedSpace=(\d+)")
_BUFFER = re.compile(r"JobID=(\d+) .*?Pool=(\w+) .*?UserID=[^(]*\((\d+)\)")


@dataclass(frozen=True)
class Buffer:
    """A job's burst buffer, which is one unit of a pool."""

    job: int
    pool: str
    uid: int


def read(text: str) -> tuple[list[Buffer], dict[str, int]]:
    """Read the buffers in use, and Slurm's count of the buffers in use by pool.

    The count of Slurm 22.05 may include buffers without a job.
    """
    buffers = [
        Buffer(int(job), pool, int(uid)) for job, pool, uid in _BUFFER.findall(text)
    ]
    return buffers, {pool: int(used) for pool, used in _POOL.findall(text)}
