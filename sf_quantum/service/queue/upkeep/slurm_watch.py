"""Ends the leases whose Slurm jobs have ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from sf_quantum.service.domain.reasons import LeaseEndCause
from sf_quantum.service.queue.leases import slurm_jobs
from sf_quantum.service.queue.leases.vqpus import VQpus

# number of consecutive replies that a job is gone before its lease ends: Slurm may not list a
# job while the job changes its state
CLEAR_ANSWERS = 2


class SlurmWatch:
    """Queries Slurm about the jobs of leases."""

    def __init__(self, vqpus: VQpus, cluster: slurm_jobs.OwnCluster) -> None:
        self._vqpus = vqpus
        self._cluster = cluster

    async def run(self) -> None:
        """Query the Slurm jobs of all leases regularly, until cancelled."""
        gone_replies = defaultdict[str, int](int)
        while True:
            await asyncio.sleep(self._vqpus.ends.settings.slurm_poll_seconds)
            leases = {live.lease.id: live for live in self._vqpus.table}
            gone_replies = defaultdict(
                int, {id_: gone_replies[id_] for id_ in leases.keys() & gone_replies}
            )
            for id_, live in leases.items():
                job, cluster = live.lease.slurm_job_id, live.lease.slurm_cluster
                configured = self._vqpus.ends.settings.slurm_cluster
                if job is None or not await self._cluster.has(job, cluster, configured):
                    continue
                gone_replies[id_] = (
                    gone_replies[id_] + 1 if await slurm_jobs.is_gone(job) else 0
                )
                if gone_replies[id_] >= CLEAR_ANSWERS:
                    cause = LeaseEndCause.SLURM_JOB_GONE
                    await self._vqpus.end_or_log_error(live, cause)
