"""Slurm's commands for the jobs of a site, and what these report."""

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
# States of the buffer of a job that was queued again before it was taken down.
ENDING = ("post-run", "staging-out", "staged-out", "teardown", "teardown-fail")
# Reasons of pending jobs that are held.
_HELD = {"JobHeldUser", "JobHeldAdmin"}
# Reasons of pending jobs that Slurm passes over.
_NOT_NEXT = ("Dependency", "BeginTime")


def queue() -> dict[int, QueuedJob]:
    """List the jobs that wait or run."""
    return squeue.site_jobs(_rows(squeue.SITE_FORMAT, "-a"))


def gated_jobs() -> dict[int, GatedJob]:
    """List the jobs that wait or run, each array once."""
    return squeue.gated_jobs(_rows(squeue.GATE_FORMAT, "-a"))


def hold(name: str, action: str = "hold") -> None:
    """Hold a job that waits.

    :param action: that of ``scontrol``; who is held by ``uhold`` may release the job
    :raises QpuError: if it has started, or ended
    """
    failure: QpuError | None = None
    try:
        slurm("scontrol", action, name)
    except QpuError as error:  # such as for an array with tasks that have ended
        failure = error
    # Slurm 22.05 also holds jobs that run; what waits now starts no more.
    lines = slurm("squeue", "-h", "-j", name, "-o", "%T %r").splitlines()
    listed = [line.partition(" ") for line in lines]
    if {state for state, _, _ in listed} != {"PENDING"}:
        slurm("scontrol", "release", name)
        raise QpuError(f"job {name} has started")
    if failure is not None and not {reason for _, _, reason in listed} <= _HELD:
        raise failure


def buffers() -> tuple[list[Buffer], dict[str, int]]:
    """List the places in ``asking`` that are taken, and count them as Slurm does, by QPU."""
    return burst.read(slurm(*burst.COMMAND))


def license_jobs() -> dict[int, str]:
    """List the licences of each job that has started."""
    return squeue.license_jobs(
        slurm("squeue", "-a", "-h", "-o", squeue.LICENSES_FORMAT)
    )


def license_totals() -> dict[str, int]:
    """List how many units there are of each licence."""
    return licenses.totals(slurm(*licenses.COMMAND))


def reserved_licenses() -> dict[str, str]:
    """List the licences of each reservation."""
    return licenses.reserved(slurm(*licenses.RESERVATIONS))


def reserve(name: str, license_: str, units: int, *, exists: bool) -> None:
    """Withhold units of a licence from all jobs by a reservation; jobs that run go on.

    :param units: 0 removes the reservation
    """
    words = [f"ReservationName={name}", f"Licenses={license_}:{units}"]
    if units and exists:
        slurm("scontrol", "update", *words)
    elif units:
        # Slurm ends it after a year.
        when = ["StartTime=now", "Duration=UNLIMITED"]
        user = f"Users={getpass.getuser()}"
        slurm("scontrol", "create", *words, "Flags=ANY_NODES", *when, user)
    elif exists:
        slurm("scontrol", "delete", words[0])


def cannot_start(program: str | None, jobs: Iterable[int]) -> dict[int, str]:
    """Find the jobs that Slurm could not start if nothing ran, and why not.

    :param program: ``qpu-can-start``; ``None`` where the site has not built it
    :returns: reasons by job; a job about which nothing is known is missing
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
    """Write what a job waits for to its record."""
    # nothing of the wait depends on it
    with suppress(QpuError):
        slurm("scontrol", "update", f"JobId={job}", f"AdminComment={text}")


def slurm(*command: str) -> str:
    """Run a command of Slurm.

    :raises QpuError: if it fails
    """
    return run_command(*command)


def details(job: int, *options: str) -> JobDetails:
    """Return what Slurm lists of a job.

    :param options: further options of squeue, such as ``--states=all``
    :raises QpuError: if it does not list the job
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
    """Whether an earlier task of an array is still to be started.

    Slurm would not start this one before, even if it had the lease that the other waits for.
    """
    try:
        pending = ("-r", "-t", "PENDING", "-j", array)
        lines = slurm("squeue", "-h", *pending, "-o", squeue.TASKS_FORMAT)
    except QpuError:  # the controller is away
        return True
    # one that is held has the priority 0
    return any(
        other.index < task and other.priority != "0" and other.reason not in _NOT_NEXT
        for other in squeue.tasks(lines)
    )
