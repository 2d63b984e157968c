"""Queries Slurm for a job's existence and the resources it requested."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sf_quantum.slurm import config, squeue
from sf_quantum.threads import in_thread

ANSWER_SECONDS = 3.0
# Time for which Slurm's reply about an existing job is kept for repetitions of a request,
# which are recognised by their key. Another request may be about a later job with the same
# id: a killed controller forgets the jobs of its last seconds, and reuses their ids after its
# restart.
KEPT_SECONDS = 60.0
KEYLESS_SECONDS = 5.0
# limited, since each query starts a process, and loads the cluster's only controller
QUERIES_AT_ONCE = 2
_JOB_ID = re.compile(r"\d+([_+]\d+)?")
# the controller forgets a job some minutes after its end (MinJobAge)
_FORGOTTEN = b"Invalid job id specified"


@dataclass(frozen=True)
class SlurmJob:
    """The resources that a job requested.

    :param units: number of units of each gres and licence
    """

    partition: str | None = None
    account: str | None = None
    units: Mapping[str, int] = field(default_factory=dict)


# stands for a job that does not exist or that another user owns: such a job entitles to no
# partition, account or units
NOT_THEIRS = SlurmJob()


class OwnCluster:
    """The cluster whose jobs ``squeue`` on this host lists."""

    def __init__(self) -> None:
        self._name: str | None = None
        # Slurm's replies by job, user and key of the request; each reply with the time until
        # which it is kept
        self._jobs: dict[tuple[str, str, str | None], tuple[float, SlurmJob]] = {}

    async def has(self, job: str, cluster: str | None, configured: str | None) -> bool:
        """Return whether Slurm can be queried about a job.

        :param cluster: cluster of the job, if the request for the lease named a cluster
        :param configured: configured name of the service's cluster; ``None``: the name that
            Slurm reports is used
        """
        if not (_JOB_ID.fullmatch(job) and shutil.which("squeue")):
            return False
        if cluster is None:
            return True
        if configured is None and self._name is None:
            answer = await _run(*config.COMMAND)
            text = answer.stdout.decode(errors="replace") if answer else ""
            self._name = config.cluster_name(text)
        return cluster.casefold() == (configured or self._name or "").casefold()

    async def about(self, job: str, user: str, key: str | None) -> SlurmJob | None:
        """Query a user's job; return ``None`` without a clear reply.

        A reply is kept for some seconds, since waiting clients repeat their requests.

        :param key: key of the request
        :returns: :data:`NOT_THEIRS` if the job does not exist or belongs to another user
        """
        now = time.monotonic()
        self._jobs = {
            query: (until, answer)
            for query, (until, answer) in self._jobs.items()
            if now < until
        }
        if (cached := self._jobs.get((job, user, key))) is not None:
            return cached[1]
        slurm_job = await _query_job(job, user)
        if slurm_job is not None and slurm_job is not NOT_THEIRS:
            seconds = KEYLESS_SECONDS if key is None else KEPT_SECONDS
            self._jobs[job, user, key] = time.monotonic() + seconds, slurm_job
        return slurm_job


async def is_gone(job: str) -> bool | None:
    """Return whether a job is neither pending nor running; ``None`` without a clear reply."""
    # squeue does not list a job that has ended, even while the controller remembers the job
    answer = await _squeue(job, "%i")
    if answer is None:
        return None
    if answer.returncode == 0:
        return not answer.stdout.strip()
    return True if _FORGOTTEN in answer.stderr else None


async def _query_job(job: str, user: str) -> SlurmJob | None:
    answer = await _squeue(job, squeue.REQUEST_FORMAT)
    if answer is None:
        return None
    if answer.returncode != 0:
        return NOT_THEIRS if _FORGOTTEN in answer.stderr else None
    request = squeue.request(answer.stdout.decode(errors="replace"))
    if request is None or request.user != user:
        return NOT_THEIRS
    return SlurmJob(request.partition, request.account, request.units)


async def _squeue(job: str, columns: str) -> subprocess.CompletedProcess[bytes] | None:
    return await _run("squeue", "-h", "-j", job, "-o", columns)


async def _run(*command: str) -> subprocess.CompletedProcess[bytes] | None:
    def run() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=squeue.environment(os.environ),
            timeout=ANSWER_SECONDS,
        )

    async with _semaphore(asyncio.get_running_loop()):
        # In a thread, because an asyncio subprocess would outlive a loop that closes; not in
        # the loop's own pool, which checks credentials.
        try:
            return await asyncio.wrap_future(in_thread(run))
        except (OSError, subprocess.TimeoutExpired):
            return None


@lru_cache(maxsize=8)
def _semaphore(_: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    """Return the semaphore of an event loop; each event loop needs a separate semaphore."""
    return asyncio.Semaphore(QUERIES_AT_ONCE)
