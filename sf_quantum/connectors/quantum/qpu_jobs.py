"""Journal entries about a workflow job's QPU jobs, and its waits for leases and QPUs."""

from __future__ import annotations

from sf_quantum import journal
from sf_quantum.files import number_or_null
from sf_quantum.journal import events
from sf_quantum.protocol.tasks import LeaseJob


def record(
    job: str,
    qpu: str,
    qpu_job: LeaseJob,
    *,
    technology: str | None,
    calibration: str | None,
    lease_seconds: float,
) -> None:
    """Write a QPU job into the run's journal, if there is one.

    :param qpu_job: the QPU job; it has no id if this kind of QPU does not report its jobs
    :param calibration: calibration that was in use just after the samples were taken
    :param lease_seconds: seconds that the job waited for its lease
    """
    run = journal.current()
    if run is None:
        return
    queued = qpu_job.queued_seconds
    submitted, started = qpu_job.submitted, qpu_job.started
    if queued is None and submitted is not None and started is not None:
        queued = started - submitted
    run.write(
        events.Qpu(
            job=job,
            qpu=qpu,
            technology=technology,
            calibration=calibration,
            lease_seconds=lease_seconds,
            qpu_job=qpu_job.id,
            state=qpu_job.state,
            queued_seconds=number_or_null(queued),
            ran_seconds=number_or_null(qpu_job.seconds),
            qpu_seconds=number_or_null(qpu_job.qpu_seconds),
            found=qpu_job.found,
        )
    )


def record_wait(job: str, qpu: str, status: str, reason: str, seconds: float) -> None:
    """Write into the run's journal that a job waits for a lease, or no longer waits.

    :param status: ``waiting``, ``granted``, ``given-up``, or ``submitted`` if the job was
        submitted to Slurm, and gets its lease there
    :param reason: reason of the wait
    """
    if (run := journal.current()) is not None:
        run.write(
            events.Lease(
                job=job, qpu=qpu, status=status, reason=reason, seconds=seconds
            )
        )


def record_start(job: str, qpu: str, status: str, seconds: float) -> None:
    """Write into the run's journal that a job waits for a QPU's start, or no longer waits.

    :param status: ``waiting`` or ``started``
    """
    if (run := journal.current()) is not None:
        run.write(events.Start(job=job, qpu=qpu, status=status, seconds=seconds))


def unused_message(job: str, qpu: str) -> str:
    """Return the message for a job that failed since its command never used the QPU."""
    return (
        f"Job {job} succeeded but never used QPU {qpu}, so its result does not come from "
        "the QPU: let it solve with `sfq solve --sampler auto`, or bind its step to a "
        "classical location."
    )
