"""One line in the log for each event in the life of a job or a lease."""

from __future__ import annotations

import logging

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import Job, Lease
from sf_quantum.service.domain.reasons import Cause, Interruption, LeaseEndCause
from sf_quantum.service.scheduling.work import PendingJob

# number of leading letters of a lease's id in the log: the whole id is a secret, but these
# letters suffice to find the lease in a list
SHOWN = 8
logger = logging.getLogger(__name__)


def log_job(event: str, job: Job | PendingJob, **more: JSON) -> None:
    fields = {"job": job.id, "user": job.user, "class": job.job_class}
    fields["lease"] = job.lease[:SHOWN]
    logger.info("job %s", event, extra={"fields": fields | _without_none(more)})


def log_done(job: Job) -> None:
    """Log the end of a job, as stored on disk."""
    used: dict[str, JSON] = {"attempt": job.attempt, "seconds": job.seconds}
    # the note of a completed job is about an earlier attempt
    note = None if job.state == "Completed" else job.note
    log_job(job.state.lower(), job, **used, qpu_seconds=job.qpu_seconds, reason=note)


def log_interrupted(job: Job, interruption: Interruption | None) -> None:
    """Log the end of an attempt whose job is pending again, as stored on disk."""
    preempted = interruption is not None and interruption.cause is Cause.PREEMPTION
    event = "pre-empted" if preempted else "interrupted"
    log_job(event, job, attempt=job.attempt - 1, reason=job.note)


def log_recovered(job: Job) -> None:
    """Log that the end of the previous service process has ended or interrupted a job."""
    if job.final:
        log_done(job)
    else:
        log_interrupted(job, None)


def log_lease(event: str, lease: Lease, **more: JSON) -> None:
    fields = {"lease": lease.id[:SHOWN], "user": lease.user, "class": lease.job_class}
    details = _without_none({"slurm_job": lease.slurm_job_id, **more})
    logger.info("lease %s", event, extra={"fields": fields | details})


def log_lease_end(lease: Lease, cause: LeaseEndCause, seconds: float) -> None:
    named = (LeaseEndCause.RELEASED, LeaseEndCause.EXPIRED)
    event = cause.name.lower() if cause in named else "ended"
    log_lease(event, lease, seconds=seconds, reason=lease.reason)


def _without_none(fields: dict[str, JSON]) -> dict[str, JSON]:
    rounded = {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in fields.items()
    }
    return {name: value for name, value in rounded.items() if value is not None}
