"""StreamFlow drivers on a lab, and their jobs in their journals and Slurm's record."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from sf_quantum import journal
from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support.journals import Event as JournalEvent
from tests.support.journals import measure, read

BIN = Path(sys.executable).parent
POLL_SECONDS = 0.1
#: the name of jobs that belong to no driver
OTHERS = "other"

# "JobId=7", or of a component "JobId=7+1(8)" or "JobId=7+1", which is job 8
_JOB = r"JobId=(?:\d+\+\d+\((\d+)\)|(\d+(?:\+\d+)?))"
STARTED = rf"sched.* (?:Started|Allocate|_slurm_rpc_allocate_resources) {_JOB} "
ENDED = rf"(?:_job_complete: {_JOB} done|.*REQUEST_KILL_JOB {_JOB} )"
SHRUNK = r"sched: _update_job: setting nodes to \S+ for JobId=(\d+)"
SUBMITTED = rf"_slurm_rpc_submit_batch_job: {_JOB} "
# Slurm takes the second before it decides, and logs afterwards
_LATE_SECONDS = 2


class RunError(Exception):
    """A driver failed, or two sources disagree about it."""


@dataclass(frozen=True)
class Hold:
    """The nodes that a job held, from Slurm's record, with times to the millisecond.

    :param started: epoch seconds
    :param ended: epoch seconds
    """

    job: int
    name: str
    partition: str
    nodes: int
    started: float
    ended: float

    @property
    def node_seconds(self) -> float:
        """Nodes times seconds."""
        return self.nodes * (self.ended - self.started)


def write(
    folder: Path,
    cwl: Path,
    inputs: Mapping[str, JSON],
    connector: str,
    config: Mapping[str, JSON],
    services: Mapping[str, str | Sequence[str]],
    others: Mapping[str, JSON] | None = None,
    candidate: Mapping[str, JSON] | None = None,
) -> Path:
    """Write a StreamFlow file that runs a workflow on a lab.

    :param folder: created; holds all files of the run
    :param connector: ``slurm`` or ``sfq.slurm``
    :param config: the connector's
    :param services: the service of each step, or one of ``others``; several of a candidate
    :param others: further deployments
    :param candidate: settings of the filter of steps with several targets
    :returns: the file
    """
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(inputs))
    workdir = str(folder / "work")
    others = others or {}

    def target(name: str) -> dict[str, JSON]:
        if name in others:
            return {"deployment": name}
        return {"deployment": "slurm", "service": name}

    def binding(names: str | Sequence[str]) -> dict[str, JSON]:
        if isinstance(names, str):
            return {"target": target(names)}
        return {"target": [target(name) for name in names], "filters": ["candidate"]}

    content: dict[str, JSON] = {
        "version": "v1.0",
        "workflows": {
            "experiment": {
                "type": "cwl",
                "config": {"file": str(cwl), "settings": "job.json"},
                "bindings": [
                    {"step": step, **binding(names)} for step, names in services.items()
                ],
            }
        },
        "deployments": {
            "host": {"type": "local", "workdir": workdir, "config": {}},
            "slurm": {
                "type": connector,
                "workdir": workdir,
                "config": dict(config),
                "wraps": "host",
            },
            **others,
        },
        "database": {
            "type": "sqlite",
            "config": {"connection": str(folder / "sqlite.db")},
        },
        "scheduling": {"scheduler": {"type": "sfq.journal", "config": {}}},
    }
    if candidate is not None:
        settings: JSON = {"type": "sfq.candidate", "config": {**candidate}}
        content["bindingFilters"] = {"candidate": settings}
        content["failureManager"] = {"type": "default", "config": {"max_retries": 3}}
    file = folder / "streamflow.yml"
    file.write_text(json.dumps(content))  # JSON is valid YAML
    return file


def drive(
    lab: Lab, files: list[Path], stop: Event, package: Path | None = None
) -> list[list[JournalEvent]]:
    """Run StreamFlow files in parallel, to their ends.

    :param stop: once it is set, drivers are killed
    :param package: the folder of another checkout, which the drivers then use
    :returns: their journals
    :raises RunError: with the driver's output, if one fails
    """
    python = {} if package is None else {"PYTHONPATH": str(package)}
    with ExitStack() as stack:
        drivers = []
        for file in files:
            driver = stack.enter_context(start(lab, file, python))
            stack.callback(driver.kill)  # of one that has ended it does nothing
            drivers.append(driver)
        for driver, file in zip(drivers, files, strict=True):
            while driver.poll() is None:
                if stop.wait(POLL_SECONDS):
                    raise RunError(f"{file}: stopped")
            if driver.returncode:
                said = (file.parent / "log").read_text(errors="replace")
                raise RunError(f"{file}: exit code {driver.returncode}\n{said[-4000:]}")
    return [completed(file) for file in files]


def start(
    lab: Lab, file: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start StreamFlow with a file, and its log next to the file."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    (file.parent / "tmp").mkdir()
    with open(file.parent / "log", "wb") as log:
        return subprocess.Popen(
            [BIN / "streamflow", "run", file, "--outdir", file.parent / "out"],
            cwd=file.parent,
            env=os.environ
            | lab.environment
            | {"PATH": path, "TMPDIR": str(file.parent / "tmp")}
            | {**environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def used(lab: Lab, words: list[str], place: Path) -> resource.struct_rusage:
    """Run a command in a folder of the lab to its end; its output is in ``log``.

    :returns: what it and its processes have used
    :raises SystemExit: if it fails, with its output
    """
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            words,
            cwd=place,
            env=os.environ | lab.environment | {"PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
    process.returncode = status
    if status != 0:
        raise SystemExit((place / "log").read_text())
    return usage


def completed(file: Path) -> list[JournalEvent]:
    """Return the journal of a StreamFlow file's run.

    :raises RunError: if the run has not completed
    """
    path = journal.newest(file.parent / journal.DIRECTORY)
    events = [] if path is None else read(path)
    if not events or events[-1].get("status") != "completed":
        last = events[-1] if events else "nothing"
        raise RunError(f"{file}: the journal should end with completed, not {last}")
    return events


def wall_seconds(journals: list[list[JournalEvent]]) -> float:
    """Return the time from the request for the first job to the end of the last one.

    The start-up of the drivers, which import StreamFlow, is not included.
    """
    jobs = [e for events in journals for e in events if e["event"] == "job"]
    first = min(_number(e["time"]) for e in jobs if e["status"] == "waiting")
    return max(_number(e["time"]) for e in jobs if e["status"] == "completed") - first


def queued_seconds(journals: list[list[JournalEvent]]) -> float:
    """Return how long allocations waited for classical nodes, by the journals.

    :returns: the sum; 0 for a connector that does not account for nodes
    """
    return sum(
        allocation.waited
        for events in journals
        for allocation in measure(events).allocations
        if not allocation.quantum
    )


def job_seconds(journals: list[list[JournalEvent]]) -> float:
    """Return how long jobs ran on classical nodes, by the journals.

    :returns: the sum; 0 for a connector that does not account for nodes
    """
    total = 0.0
    for events in journals:
        run = measure(events)
        classical = {one.allocation for one in run.allocations if not one.quantum}
        for job in run.jobs:
            if job.allocation in classical:
                total += (job.ended or 0.0) - (job.started or 0.0)
    return total


def account_error_seconds(
    holds: list[Hold], journals: list[list[JournalEvent]]
) -> float:
    """Return a job's largest deviation between the journals and Slurm's record.

    :returns: of its node-seconds, by node; 0 for a connector that does not account for
        them
    """
    said = {
        _job_id(allocation.allocation): allocation.node_seconds
        for events in journals
        for allocation in measure(events).allocations
    }
    true = {hold.job: hold for hold in holds}
    if not said:
        return 0.0
    known = [
        abs(said.get(job, 0.0) - h.node_seconds) / h.nodes for job, h in true.items()
    ]
    return max([*known, *(said[job] for job in said.keys() - true.keys())], default=0.0)


def _job_id(allocation: str) -> int:
    """Return Slurm's id of an allocation, or of the component that it is followed by."""
    leader, _, group = allocation.partition("+")
    return int(leader) + int(group or 0)


def heed_sigterm() -> None:
    """Handle SIGTERM as Ctrl-C, which ends everything that was started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def holds(lab: Lab) -> list[Hold]:
    """Return the nodes that the drivers' jobs held, once all have ended.

    The jobs, their nodes and the seconds are from Slurm's record (jobcomp), which has
    whole seconds only; the controller's log has the same events to the millisecond.

    :raises RunError: if the log has no such event in the second of the record
    """
    lab.wait_idle()
    started, ended = moments(lab, STARTED), moments(lab, ENDED)
    return [
        Hold(
            *(job.id, job.name, job.partition, job.nodes),
            started=within(started.get(job.id, []), job.started),
            ended=within(ended.get(job.id, []), job.ended),
        )
        for job in lab.jobcomp()
        # one that was cancelled before it had nodes, or that salloc could not have at
        # once
        if job.name != OTHERS and job.nodes > 0
        if job.id in started or job.state != "CANCELLED"
    ]


def submissions(lab: Lab) -> list[float]:
    """Return when the controller received each batch job, in epoch seconds."""
    return sorted(min(times) for times in moments(lab, SUBMITTED).values())


def moments(lab: Lab, pattern: str) -> dict[int, list[float]]:
    """Return when the controller's log has a line about each job, in epoch seconds.

    :param pattern: after the time; a group matches the job's id
    """
    found: dict[int, list[float]] = {}
    line = re.compile(rf"\[(\S+)\] {pattern}")
    for text in (lab.folder / "slurmctld.log").read_text().splitlines():
        if match := line.match(text):
            # the controller's time zone is UTC, as for its record
            time = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp()
            job = next(group for group in match.groups()[1:] if group)
            found.setdefault(sum(map(int, job.split("+"))), []).append(time)
    return found


def within(moments: list[float], second: float) -> float:
    """Return the moment of the log that is in a second of Slurm's record.

    :raises RunError: if there is none
    """
    for moment in moments:
        if second <= moment < second + _LATE_SECONDS:
            return moment
    raise RunError(f"the log has {moments}, Slurm's record {second}")


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
