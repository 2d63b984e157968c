"""Slurm's commands for the jobs of a site, and the parsing of their output."""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Iterator
from contextlib import suppress

from sf_quantum.errors import QpuError
from sf_quantum.qpu.leasing.gating.scheduler import run_command
from sf_quantum.slurm import burst, config, licenses, squeue
from sf_quantum.slurm.burst import Buffer
from sf_quantum.slurm.squeue import GatedJob, JobDetails, QueuedJob

# States of burst buffers.
STAGING, STAGED, PRE_RUN = "staging-in", "staged-in", "pre-run"
# States of the burst buffer of a job that was requeued before the buffer was torn down.
ENDING = ("post-run", "staging-out", "staged-out", "teardown", "teardown-fail")
# Reasons of pending jobs that are held.
_HELD = {"JobHeldUser", "JobHeldAdmin"}
# Reasons of pending jobs that Slurm skips.
_NOT_NEXT = ("Dependency", "BeginTime")


def queue() -> dict[int, QueuedJob]:
    """List the pending and running jobs."""
    return squeue.site_jobs(_rows(squeue.SITE_FORMAT, "-a"))


def gated_jobs() -> dict[int, GatedJob]:
    """List the pending and running jobs, each array once."""
    return squeue.gated_jobs(_rows(squeue.GATE_FORMAT, "-a"))


def hold(name: str, action: str = "hold") -> None:
    """Hold a pending job.

    :param action: action of ``scontrol``; with ``uhold``, the user may release the job
    :raises QpuError: if the job has started or ended
    """
    failure: QpuError | None = None
    try:
        slurm("scontrol", action, name)
    except QpuError as error:  # for example, tasks of an array have ended
        failure = error
    # Slurm 22.05 also holds running jobs. A job that is pending now will not start.
    lines = slurm("squeue", "-h", "-j", name, "-o", "%T %r").splitlines()
    listed = [line.partition(" ") for line in lines]
    if {state for state, _, _ in listed} != {"PENDING"}:
        slurm("scontrol", "release", name)
        raise QpuError(f"job {name} has started")
    if failure is not None and not {reason for _, _, reason in listed} <= _HELD:
        raise failure


def buffers() -> tuple[list[Buffer], dict[str, int]]:
    """List the places that jobs occupy, and Slurm's number of occupied places by QPU."""
    return burst.read(slurm(*burst.COMMAND))


def license_jobs() -> dict[int, str]:
    """List the licences of each job that has started."""
    return squeue.license_jobs(
        slurm("squeue", "-a", "-h", "-o", squeue.LICENSES_FORMAT)
    )


def license_totals() -> dict[str, int]:
    """Return the number of units of each licence."""
    return licenses.totals(slurm(*licenses.COMMAND))


def reserved_licenses() -> dict[str, str]:
    """List the licences of each reservation."""
    return licenses.reserved(slurm(*licenses.RESERVATIONS))


def reserve(name: str, license_: str, units: int, *, exists: bool) -> None:
    """Withhold units of a licence from all jobs with a reservation; running jobs continue.

    :param units: 0 removes the reservation
    """
    words = [f"ReservationName={name}", f"Licenses={license_}:{units}"]
    if units and exists:
        slurm("scontrol", "update", *words)
    elif units:
        # Slurm ends the reservation after a year.
        when = ["StartTime=now", "Duration=UNLIMITED"]
        user = f"Users={getpass.getuser()}"
        slurm("scontrol", "create", *words, "Flags=ANY_NODES", *when, user)
    elif exists:
        slurm("scontrol", "delete", words[0])


def cannot_start(program: str | None, jobs: Iterable[int]) -> dict[int, str]:
    """Find the jobs that Slurm could not start even if no other job ran.

    :param program: path of ``qpu-can-start``; ``None`` if the site has not built it
    :returns: reasons by job; jobs that Slurm could start, or does not know, are left out
    """
    words = [str(job) for job in jobs]
    if program is None or not words:
        return {}
    reasons = {}
    for line in slurm(program, *words).splitlines():
        match line.split(" ", 2):
            case [job, "no", why] if job.isdecimal():
                reasons[int(job)] = why
    return reasons


def comment(job: str, text: str) -> None:
    """Write the reason for a job's wait to its record."""
    # the wait does not depend on the comment
    with suppress(QpuError):
        slurm("scontrol", "update", f"JobId={job}", f"AdminComment={text}")


def slurm(*command: str) -> str:
    """Run a command of Slurm.

    :raises QpuError: if the command fails
    """
    return run_command(*command)


def details(job: int, *options: str) -> JobDetails:
    """Return the details of a job that ``squeue`` lists.

    :param options: additional options of ``squeue``, such as ``--states=all``
    :raises QpuError: if ``squeue`` does not list the job
    """
    # the id of an array's last task also means the array, which has a line for each task
    rows = _rows(squeue.DETAILS_FORMAT, "-j", str(job), *options)
    if (listed := squeue.job_details(rows, str(job))) is None:
        raise QpuError(f"squeue does not list job {job}")
    return listed


def _rows(format_: str, *options: str) -> Iterator[str]:
    rows = squeue.Rows(format_)
    return rows.split(slurm("squeue", "-h", *options, "-O", rows.format))


def cluster() -> str:
    """Return the name of the cluster; empty if it has none."""
    return config.cluster_name(slurm(*config.COMMAND)) or ""


def is_behind(array: str, task: int) -> bool:
    """Return whether an earlier task of an array is still to be started.

    Slurm would not start this task first, even if it had the lease that the earlier task
    waits for.
    """
    try:
        pending = ("-r", "-t", "PENDING", "-j", array)
        lines = slurm("squeue", "-h", *pending, "-o", squeue.TASKS_FORMAT)
    except QpuError:  # the controller does not respond
        return True
    # a held task has priority 0
    return any(
        other.index < task and other.priority != "0" and other.reason not in _NOT_NEXT
        for other in squeue.tasks(lines)
    )
