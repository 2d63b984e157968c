"""The QPU use of a job, in Slurm's accounting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from sf_quantum.qpu import Qpu
from sf_quantum.qpu.leasing.burst.controller import slurm


def account(job: int, client: Qpu, token: str, waited: str) -> None:
    """Write the QPU use of a job to Slurm's accounting, if the QPU reports its jobs.

    QPU jobs that are charged to an earlier lease are left out. The comment is written with
    ``sacctmgr``, since the controller accepts no comment on a job that has ended.
    """
    if (listed := client.jobs(token)) is None:
        return
    jobs = [job for job in listed if job.charged is not False]
    figures = {
        "resource_id": client.name,
        "resource_type": client.type,
        "timestamps.created": _moment(min, (job.submitted for job in jobs)),
        "timestamps.running": _moment(min, (job.started for job in jobs)),
        "timestamps.finished": _moment(max, (job.ended for job in jobs)),
        "jobs": str(len(jobs)),
        "qpu_seconds": f"{_total(job.qpu_seconds for job in jobs):.6f}",
        "lease_wait_seconds": waited,
        "queued_seconds": f"{_total(job.queued_seconds for job in jobs):.3f}",
        "lost_attempts": f"{_total(job.attempt for job in jobs) - len(jobs):.0f}",
        "lost_qpu_seconds": f"{_total(job.lost_qpu_seconds for job in jobs):.6f}",
    }
    # not in JSON, since sacctmgr would change the quotation marks
    comment = " ".join(f"{key}={value}" for key, value in figures.items())
    modify = ("sacctmgr", "--immediate", "modify", "job", "where", f"jobid={job}")
    slurm(*modify, "set", f"admincomment={comment}")


def _total(numbers: Iterable[float | None]) -> float:
    return sum(number or 0.0 for number in numbers)


def _moment(
    choose: Callable[[list[float]], float], times: Iterable[float | None]
) -> str:
    if not (known := [time for time in times if time is not None]):
        return "none"
    return datetime.fromtimestamp(choose(known), UTC).isoformat(timespec="seconds")
