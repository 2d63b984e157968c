"""How a job is known to its QPU from run to run, and what is told of its use of it."""

from __future__ import annotations

import hashlib
import uuid

from sf_quantum import journal
from sf_quantum.files import JSON


def job_key(job: str) -> str:
    """What stays the same when a run that was killed or stopped is started again."""
    run = journal.current()
    if run is None:
        return uuid.uuid4().hex
    return hashlib.sha256(f"{run.origin}\n{job}".encode()).hexdigest()


def purpose(job: str) -> str:
    """What leases and QPU jobs are for: ``RUN:/step/tag``, of a run with a journal."""
    run = journal.current()
    return job if run is None else f"{run.run}:{job}"


def account(qpu_job: dict[str, JSON]) -> dict[str, JSON]:
    """A QPU job as the journal has it."""
    submitted, started = qpu_job.get("submitted"), qpu_job.get("started")
    queued = None
    if isinstance(submitted, float) and isinstance(started, float):
        queued = started - submitted
    return {
        "qpu_job": qpu_job.get("id"),
        "state": qpu_job.get("state"),
        "queued_seconds": queued,
        "ran_seconds": qpu_job.get("seconds"),
        "qpu_seconds": qpu_job.get("qpu_seconds"),
        "found": qpu_job.get("found"),
    }


def unused(job: str, qpu: str) -> str:
    """Why a job that ended well failed all the same."""
    return (
        f"Job {job} ended well but never used QPU {qpu}, so its result is not the QPU's: "
        "let it solve with `sfq solve --sampler auto`, or bind its step to a classical "
        "location."
    )
