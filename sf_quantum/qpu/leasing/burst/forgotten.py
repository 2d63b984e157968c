"""Jobs that a controller that died has half forgotten."""

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

# Time for which Slurm may still ask for a job that looks forgotten.
FORGOTTEN_SECONDS = 15.0


class Forgotten:
    """Queues jobs again whose wait or lease Slurm has lost.

    :param pools: QPUs with places
    """

    def __init__(
        self, folder: Folder, pools: Container[str], children: Children
    ) -> None:
        self._folder = folder
        self._pools = pools
        self._children = children
        # When a job was first seen to be forgotten.
        self._since: dict[int, float] = {}

    def mend(
        self,
        jobs: Mapping[int, QueuedJob],
        taken: set[int],
        entries: Mapping[int, Entry],
        held: Mapping[int, Held],
    ) -> None:
        """Queue jobs again that Slurm believes to be asking, or to have a lease.

        A controller that is killed has saved its jobs within five seconds, but its burst
        buffers within ten: nothing asks for such a job, nor does Slurm try that again.
        """
        for job_id, mark in held.items():
            if mark.why is not Why.FORGOTTEN:
                continue
            if job_id in jobs:
                (self._folder.path / f"{job_id}.held").unlink(missing_ok=True)
            else:
                self._queue_again(job_id, mark.text)
        for job in jobs.values():
            # Slurm would not try it again: something of it has failed before, but not now
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
                self._mend_job(jobs[job_id])

    def _mend_job(self, job: QueuedJob) -> None:
        if job.requeues is None:
            comment(job.name, f"{job.pool}: Slurm has lost its place, submit it again")
            return
        logger.info("job %d is queued again: its place was lost", job.id)
        if not job.requeues:
            slurm("scontrol", "update", f"JobId={job.name}", "Requeue=1")
        # it has to end before it can be queued again, even if this process is killed
        words = f"{job.name} {int(job.requeues)}"
        self._folder.hold(job.id, Held(Why.FORGOTTEN, 0, words, job.submitted))
        slurm("scancel", job.name)
        self._queue_again(job.id, words)

    def _is_given_up(self, job: QueuedJob) -> bool:
        # The second is that of a restarted controller for a job whose lease had ended.
        reasons = ("burst_buffer/lua", "Burst buffer pre_run error")
        failed = job.reason.startswith(reasons) and job.priority > 0
        waits = job.state == "PENDING" and job.buffer in ("complete", "pending")
        return job.pool in self._pools and failed and waits

    def _is_forgotten(self, job: QueuedJob, taken: bool, entry: Entry | None) -> bool:
        if job.id in self._children or (entry and is_asking(entry.pid, job.id)):
            return False
        if job.reason == "JobHeldUser":
            return False
        # What ends a buffer is resumed only if the buffer itself was saved, too.
        if job.buffer in (STAGING, *ENDING):
            return not taken
        return job.buffer in (STAGED, PRE_RUN) and entry is None

    def _queue_again(self, job_id: int, words: str) -> None:
        name, _, requeues = words.partition(" ")
        flags = [] if requeues == "1" else ["Requeue=0"]
        try:
            slurm("scontrol", "requeue", name)
            # not only after two minutes
            slurm("scontrol", "update", f"JobId={name}", "StartTime=now", *flags)
            # what failed before it was forgotten may have held it
            slurm("scontrol", "release", name)
        except QpuError as error:
            logger.info("job %d: %s", job_id, error)
            # the next look tries it again
            if "Invalid job id" not in str(error):
                return
        comment(name, "")
        (self._folder.path / f"{job_id}.held").unlink(missing_ok=True)
