"""What a run held on Slurm, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from sf_quantum.journal import Event
from sf_quantum.reporting.columns import align
from sf_quantum.reporting.usage import Allocation, Usage, together

HEADER = (
    "Slurm job",
    "service",
    "strategy",
    "nodes",
    "requested",
    "granted",
    "released",
    "waited",
    "node-seconds",
    "jobs",
)
NUMBERS = HEADER[3:-1]
#: what Slurm calls a job that did what it should
COMPLETED = "COMPLETED"


def table(usage: Usage) -> str:
    """The allocations in columns, times since the run's start, then totals.

    :param usage: of one run
    :returns: several lines; none if it asked for no allocation
    """
    if not usage.allocations:
        return ""
    jobs: dict[tuple[str, str], list[Event]] = {}
    for job in usage.jobs:
        key = str(job["deployment"]), str(job["allocation"])
        jobs.setdefault(key, []).append(job)
    rows = [
        _cells(a, jobs.get((a.deployment, a.allocation), []), usage.started)
        for a in usage.allocations
    ]
    held = [a.allocation for a in usage.allocations if a.unended]
    lines = [*align([HEADER, *rows], NUMBERS), "", totals(usage)]
    if held:
        lines.append(
            f"still held at the journal's last event, and counted up to it: {', '.join(held)}"
        )
    return "\n".join(lines)


def totals(usage: Usage) -> str:
    """One line about all that was held.

    :param usage: of one run or several
    :returns: allocations, jobs, node-seconds, QPU seconds and seconds waited
    """
    failed = sum(job["state"] != COMPLETED for job in usage.jobs)
    return (
        f"{len(usage.allocations)} allocations, "
        f"{len(usage.jobs)} jobs on Slurm ({failed} not completed); "
        f"node-seconds: classical {usage.node_seconds():.1f}, "
        f"quantum {usage.node_seconds(quantum=True):.1f}; "
        f"QPU {sum(usage.qpu_seconds.values()):.1f} s; "
        f"waited {sum(a.waited for a in usage.allocations):.1f} s"
    )


def overall(runs: Sequence[Usage]) -> str:
    """One line about several runs, however they overlap.

    :param runs: at least one
    :returns: the time from the first one's start to the last one's end, and the totals
    """
    usage = together(runs)
    seconds = usage.ended - usage.started
    return (
        f"{len(runs)} runs, {seconds:.1f} s from first to last event: {totals(usage)}"
    )


def _cells(a: Allocation, jobs: list[Event], start: float) -> tuple[str, ...]:
    sizes = {hold.nodes for hold in a.holds} or {0}
    smallest, largest = min(sizes), max(sizes)
    return (
        a.allocation,
        "/".join(filter(None, (a.deployment, a.service))),
        a.strategy,
        f"{smallest}" if smallest == largest else f"{smallest}-{largest}",
        _since(start, a.requested),
        _since(start, a.granted),
        "held" if a.unended else _since(start, a.released),
        f"{a.waited:.1f} s",
        f"{a.node_seconds:.1f}",
        _what(a, jobs),
    )


def _since(start: float, time: float | None) -> str:
    return "-" if time is None else f"{time - start:.1f} s"


def _what(a: Allocation, jobs: list[Event]) -> str:
    requeued = f", requeues: {a.requeues}" if a.requeues else ""
    if len(jobs) == 1:
        return f"{str(jobs[0]['job']).removeprefix('/')} {jobs[0]['state']}{requeued}"
    failed = sum(job["state"] != COMPLETED for job in jobs)
    if jobs:
        text = f"{len(jobs)} jobs"
        return text + (f", {failed} not completed" if failed else "") + requeued
    return (a.job or "-").removeprefix("/") + requeued
