"""What the QPU did for a job, in Slurm's accounting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sf_quantum.protocol.values import number
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.leasing.burst.controller import slurm


def account(job: int, client: Qpu, token: str, waited: str) -> None:
    """Write what the QPU did for a job to Slurm's accounting, if it has any.

    The controller takes no comment on a job that has ended.
    """
    jobs = client.jobs(token)
    if jobs is None:
        return

    def total(key: str) -> float:
        return sum(number(job.get(key)) or 0.0 for job in jobs)

    def time_of(choose: Callable[[list[float]], float], key: str) -> str:
        times = [time for job in jobs if (time := number(job.get(key))) is not None]
        if not times:
            return "none"
        moment = datetime.fromtimestamp(choose(times), UTC)
        return moment.isoformat(timespec="seconds")

    figures = {
        "resource_id": client.name,
        "resource_type": client.type,
        "timestamps.created": time_of(min, "submitted"),
        "timestamps.running": time_of(min, "started"),
        "timestamps.finished": time_of(max, "ended"),
        "jobs": str(len(jobs)),
        "qpu_seconds": f"{total('qpu_seconds'):.6f}",
        "lease_wait_seconds": waited,
        "queued_seconds": f"{total('queued_seconds'):.3f}",
        "lost_attempts": f"{total('attempt') - len(jobs):.0f}",
        "lost_qpu_seconds": f"{total('lost_qpu_seconds'):.6f}",
    }
    # sacctmgr would change quotation marks, as those of JSON
    comment = " ".join(f"{key}={value}" for key, value in figures.items())
    modify = ("sacctmgr", "--immediate", "modify", "job", "where", f"jobid={job}")
    slurm(*modify, "set", f"admincomment={comment}")
