"""OpenPBS as the gate's batch system: jobs name the QPU as a resource (``-l qpu=fresnel``).

The gate uses the operator's hold (see deployments/pbs), not the user's or a manager's; users
cannot release it. A job whose dependency is unfulfilled also has the manager's hold.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum import structs
from sf_quantum.errors import QpuError
from sf_quantum.files import parse_json
from sf_quantum.qpu.leasing.batch_jobs import BatchJob
from sf_quantum.qpu.leasing.gating.scheduler import (
    Applicant,
    GatedJob,
    Scheduler,
    run_command,
)
from sf_quantum.text import one_line

# States without nodes: held, queued, in transit to the node, waiting for its time.
_PENDING = ("H", "Q", "T", "W")
# A state of tasks that have started, with its count, in array_state_count.
_BEGUN = re.compile(r"(Running|Exiting|Expired):[1-9]")
# Separators of the words of requests, which PBS accepts in values.
_SEPARATORS = re.compile(r"[\s,]")
# Ids of jobs and of arrays: number and server.
_ID = re.compile(r"(\d{1,18}(?:\[\])?)\.(.+)", re.ASCII)


@dataclass(frozen=True)
class PbsJob:
    """A job, with the names of its attributes in PBS."""

    job_state: str
    Job_Owner: str
    euser: str = ""
    queue: str = ""
    Hold_Types: str = ""
    Resource_List: dict[str, str] = field(default_factory=dict)
    Execution_Time: str = ""
    array_state_count: str = ""
    comment: str = ""

    @property
    def user(self) -> str:
        """The user that the job runs as."""
        return self.euser or self.Job_Owner.partition("@")[0]

    @property
    def gated(self) -> GatedJob:
        """The job as the gate sees it."""
        has_begun = _BEGUN.search(self.array_state_count) is not None
        return GatedJob(
            user=self.user,
            request=self._request,
            is_pending=self.job_state in _PENDING and not has_begun,
            is_held=(self.job_state, self.Hold_Types) == ("H", "o"),
            may_start=self._is_due,
            reason=self.comment or f"state {self.job_state}",
        )

    @property
    def _request(self) -> str:
        """The resources ``qpu`` and ``qpu_…`` as words, such as ``qpu-shots=100``."""
        return " ".join(
            f"{name.replace('_', '-')}={_SEPARATORS.sub('+', value)}"
            for name, value in self.Resource_List.items()
            if name == "qpu" or name.startswith("qpu_")
        )

    @property
    def _is_due(self) -> bool:
        """Whether the job's start time, in epoch seconds, has passed; true without a time."""
        start = self.Execution_Time
        return not start.isdecimal() or float(start) <= time.time()


@dataclass(frozen=True)
class Status:
    """The output of ``pbs_status``.

    :param jobs: jobs by their ids, which contain the server's name
    """

    servers: list[str]
    jobs: dict[str, PbsJob]

    def jobs_of(self, server: str) -> dict[str, PbsJob]:
        """Return a server's jobs by ids without its name, in the order of submission."""
        ids = [_ID.fullmatch(id_) for id_ in self.jobs]
        own = [match for match in ids if match is not None and match[2] == server]
        own.sort(key=lambda match: int(match[1].rstrip("[]")))
        return {match[1]: self.jobs[match[0]] for match in own}


class Pbs(Scheduler):
    """The server that the commands of OpenPBS on this host use.

    Job ids do not contain the server's name. Jobs from another server are not gated.

    :raises QpuError: if the server does not answer
    """

    title = "PBS"

    def __init__(self) -> None:
        servers = list_status().servers
        if len(servers) != 1:
            raise QpuError(f"PBS lists {len(servers)} servers; expected one")
        super().__init__(servers[0])

    def jobs(self) -> dict[str, GatedJob]:
        jobs = list_status().jobs_of(self._cluster)
        return {id_: job.gated for id_, job in jobs.items()}

    def applicant(self, job: str) -> Applicant:
        record = self._job(job)
        return Applicant(record.user, record.queue, "", {})

    def release(self, job: str) -> None:
        run_command("qrls", "-h", "o", job)

    def hold(self, job: str) -> None:
        run_command("qhold", "-h", "o", job)
        # PBS also holds running jobs; such a hold would apply if the job is requeued.
        if not self._job(job).gated.is_pending:
            self.release(job)
            raise QpuError(f"job {job} has started")

    def explain(self, job: str, text: str) -> None:
        # PBS itself replaces the comment of a job that may start.
        if text:
            words = one_line(text).replace('"', "'")
            with suppress(QpuError):
                run_command("qalter", "-W", f'comment="{words}"', job)

    def _job(self, job: str) -> PbsJob:
        """Return a job.

        :raises QpuError: if PBS does not list the job
        """
        if (listed := list_status(job).jobs_of(self._cluster).get(job)) is None:
            raise QpuError(f"PBS does not list job {job}")
        return listed


def list_status(*job: str) -> Status:
    """Query the server for its jobs, or for one job; see ``pbs_status``.

    :raises QpuError: if the server does not answer, or its answer is malformed
    """
    program = Path(__file__).with_name("pbs_status.py")
    try:
        output = run_command(sys.executable, "-I", str(program), *job)
    except QpuError as error:  # the error's text begins with the interpreter's path
        raise QpuError(f"PBS: {str(error).partition(': ')[2]}") from error
    try:
        return structs.read(Status, parse_json(output.encode()))
    except ValueError as error:
        raise QpuError(f"PBS: not its list of jobs: {error}") from error


def job_of(variables: Mapping[str, str]) -> tuple[BatchJob, str] | None:
    """Read the PBS job of an environment, and its user if that is known.

    The tasks of an array share a lease.
    """
    job = variables.get("PBS_ARRAY_ID") or variables.get("PBS_JOBID", "")
    number, _, server = job.partition(".")
    if not server:
        return None
    return BatchJob("PBS", server, number), variables.get("LOGNAME", "")
