"""Jobs that a killed Slurm controller has partly forgotten."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping

from sf_quantum.errors import QpuError
from sf_quantum.qpu.leasing.burst.controller import (
    ENDING,
    PRE_RUN,
    STAGED,
    STAGING,
    comment,
    slurm,
)
from sf_quantum.qpu.leasing.burst.folder import Entry, Folder, Held, Why, is_asking
from sf_quantum.qpu.leasing.burst.watch_processes import Children, logged, logger
from sf_quantum.slurm.squeue import QueuedJob

# Time before a job that looks forgotten is requeued: Slurm may still continue its request.
FORGOTTEN_SECONDS = 15.0


class Forgotten:
    """Requeues jobs whose wait or lease Slurm has lost.

    :param pools: QPUs with places
    """

    def __init__(
        self, folder: Folder, pools: Container[str], children: Children
    ) -> None:
        self._folder = folder
        self._pools = pools
        self._children = children
        # By job, the time when the job was first seen to be forgotten.
        self._since: dict[int, float] = {}

    def mend(
        self,
        jobs: Mapping[int, QueuedJob],
        taken: set[int],
        entries: Mapping[int, Entry],
        held: Mapping[int, Held],
    ) -> None:
        """Requeue jobs that, only according to Slurm, request or have a lease.

        Slurm's controller saves jobs every five seconds, but burst buffers every ten. If the
        controller is killed, a job may lose its request, which Slurm does not repeat.
        """
        for job_id, mark in held.items():
            if mark.why is not Why.FORGOTTEN:
                continue
            if job_id in jobs:
                (self._folder.path / f"{job_id}.held").unlink(missing_ok=True)
            else:
                self._queue_again(job_id, mark.text)
        for job in jobs.values():
            # Slurm does not retry a job after a failure of its burst buffer, even if the
            # cause was temporary
            if self._is_given_up(job) and job.id not in held:
                with logged(job.id):
                    slurm("scontrol", "release", job.name)
        now = time.monotonic()
        self._since = {
            job.id: self._since.get(job.id, now)
            for job in jobs.values()
            if job.pool in self._pools
            and job.state == "PENDING"
            and self._is_forgotten(job, job.id in taken, entries.get(job.id))
        }
        for job_id, since in self._since.items():
            if now - since < FORGOTTEN_SECONDS:
                continue
            with logged(job_id):
                self._requeue_job(jobs[job_id])

    def _requeue_job(self, job: QueuedJob) -> None:
        """Cancel and requeue a job that has lost its place or its lease."""
        if job.requeues is None:
            comment(job.name, f"{job.pool}: Slurm has lost its place, submit it again")
            return
        logger.info("job %d is queued again: its place was lost", job.id)
        if not job.requeues:
            slurm("scontrol", "update", f"JobId={job.name}", "Requeue=1")
        # the job must end before it can be requeued; the mark is for the case that this
        # process is killed meanwhile
        words = f"{job.name} {int(job.requeues)}"
        self._folder.hold(job.id, Held(Why.FORGOTTEN, 0, words, job.submitted))
        slurm("scancel", job.name)
        self._queue_again(job.id, words)

    def _is_given_up(self, job: QueuedJob) -> bool:
        """Return whether Slurm no longer retries a job whose burst buffer has failed."""
        # A restarted controller gives the second reason if the job's lease had ended.
        reasons = ("burst_buffer/lua", "Burst buffer pre_run error")
        failed = job.reason.startswith(reasons) and job.priority > 0
        waits = job.state == "PENDING" and job.buffer in ("complete", "pending")
        return job.pool in self._pools and failed and waits

    def _is_forgotten(self, job: QueuedJob, taken: bool, entry: Entry | None) -> bool:
        """Return whether Slurm lists a wait or a lease that the job does not have."""
        if job.id in self._children or (entry and is_asking(entry.pid, job.id)):
            return False
        if job.reason == "JobHeldUser":
            return False
        # Slurm resumes the end of a buffer only if the buffer itself was saved.
        if job.buffer in (STAGING, *ENDING):
            return not taken
        return job.buffer in (STAGED, PRE_RUN) and entry is None

    def _queue_again(self, job_id: int, words: str) -> None:
        """Requeue a job; ``words`` has its name and its original setting of ``Requeue``."""
        name, _, requeues = words.partition(" ")
        flags = [] if requeues == "1" else ["Requeue=0"]
        try:
            slurm("scontrol", "requeue", name)
            # otherwise the job would start two minutes later
            slurm("scontrol", "update", f"JobId={name}", "StartTime=now", *flags)
            # an earlier failure may have held the job
            slurm("scontrol", "release", name)
        except QpuError as error:
            logger.info("job %d: %s", job_id, error)
            # the next look retries, unless the job no longer exists
            if "Invalid job id" not in str(error):
                return
        comment(name, "")
        (self._folder.path / f"{job_id}.held").unlink(missing_ok=True)
