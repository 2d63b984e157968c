"""OpenPBS for the gate: a job requests the QPU as a resource (``qsub -l qpu=fresnel``).

The operator's hold is the gate's (deployments/pbs): neither the user's nor a manager's, and users
cannot release it. A job whose dependency is unfulfilled also has the manager's hold.
"""

from __future__ import annotations

import pwd
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, listing, mapping, parse_json
from sf_quantum.qpu.environment import JOB_ID, JOB_UID
from sf_quantum.qpu.leasing.batch_jobs import BatchJob
from sf_quantum.qpu.leasing.gating.scheduler import (
    Applicant,
    GatedJob,
    Scheduler,
    run_command,
)
from sf_quantum.text import one_line, shortened

# States without nodes: held, queued, in transit to the node, waiting for its time.
_PENDING = ("H", "Q", "T", "W")
# Tasks of an array that have started, in array_state_count.
_BEGUN = re.compile(r"(Running|Exiting|Expired):[1-9]")
# Separators of requests, which PBS accepts in names.
_SEPARATORS = re.compile(r"[\s,]")


class Pbs(Scheduler):
    """The server of the commands of OpenPBS on this host.

    Jobs are named without their server. Those that were moved from another are not gated.

    :raises QpuError: if the server does not answer
    """

    title = "PBS"

    def __init__(self) -> None:
        servers = listing(list_status()["servers"])
        if len(servers) != 1:
            raise QpuError(f"PBS lists {len(servers)} servers; expected one")
        super().__init__(str(servers[0]))

    def jobs(self) -> dict[str, GatedJob]:
        records = read_jobs(list_status(), self._cluster)
        return {job: _gated(record) for job, record in records.items()}

    def applicant(self, job: str) -> Applicant:
        record = self._record(job)
        user = _user(record)
        try:
            uid = pwd.getpwnam(user).pw_uid
        except KeyError:
            raise InputError(f"user {user!r} is unknown on the gate's host") from None
        variables = {JOB_UID: str(uid), JOB_ID: job}
        return Applicant(user, str(record.get("queue", "")), "", variables)

    def release(self, job: str) -> None:
        run_command("qrls", "-h", "o", job)

    def hold(self, job: str) -> None:
        run_command("qhold", "-h", "o", job)
        # PBS also holds jobs that run; such a hold would count when they are queued again.
        if not _gated(self._record(job)).is_pending:
            self.release(job)
            raise QpuError(f"job {job} has started")

    def explain(self, job: str, text: str) -> None:
        # PBS itself replaces the comment of a job that may start.
        if text:
            words = one_line(text).replace('"', "'")
            with suppress(QpuError):
                run_command("qalter", "-W", f'comment="{words}"', job)

    def _record(self, job: str) -> Mapping[str, JSON]:
        """Return the attributes of a job.

        :raises QpuError: if it is not listed
        """
        if (record := read_jobs(list_status(job), self._cluster).get(job)) is None:
            raise QpuError(f"PBS does not list job {job}")
        return record


def list_status(*job: str) -> Mapping[str, JSON]:
    """Ask the server for its jobs, or for one of them; see ``pbs_status``.

    :raises QpuError: if it does not answer
    """
    program = Path(__file__).with_name("pbs_status.py")
    try:
        output = run_command(sys.executable, "-I", str(program), *job)
    except QpuError as error:  # whose first word is the interpreter
        raise QpuError(f"PBS: {str(error).partition(': ')[2]}") from error
    try:
        content = mapping(parse_json(output.encode()))
    except ValueError as error:
        raise QpuError(f"PBS: {error}") from error
    if not isinstance(content.get("jobs"), dict):
        raise QpuError(f"PBS: not a list of jobs: {shortened(output)!r}")
    return content


def read_jobs(status: Mapping[str, JSON], server: str) -> dict[str, Mapping[str, JSON]]:
    """Return the attributes of a server's jobs by id, in the order of submission.

    :param status: the output of ``pbs_status``
    """
    records: dict[str, Mapping[str, JSON]] = {}
    for id_, record in mapping(status["jobs"]).items():
        number, _, its_server = id_.partition(".")
        if its_server == server:
            records[number] = mapping(record)
    return dict(sorted(records.items(), key=lambda item: int(item[0].rstrip("[]"))))


def _gated(record: Mapping[str, JSON]) -> GatedJob:
    state, holds = str(record.get("job_state")), str(record.get("Hold_Types"))
    has_begun = _BEGUN.search(str(record.get("array_state_count", ""))) is not None
    return GatedJob(
        user=_user(record),
        request=_request(mapping(record.get("Resource_List", {}))),
        is_pending=state in _PENDING and not has_begun,
        is_held=(state, holds) == ("H", "o"),
        may_start=_is_due(str(record.get("Execution_Time", ""))),
        reason=str(record.get("comment") or f"state {state}"),
    )


def _user(record: Mapping[str, JSON]) -> str:
    """Return the user that the job runs as."""
    owner = str(record.get("Job_Owner", "")).partition("@")[0]
    return str(record.get("euser") or owner)


def _request(resources: Mapping[str, JSON]) -> str:
    """Return the resources ``qpu`` and ``qpu_…`` as words, such as ``qpu-shots=100``."""
    return " ".join(
        f"{name.replace('_', '-')}={_SEPARATORS.sub('+', str(value))}"
        for name, value in resources.items()
        if name == "qpu" or name.startswith("qpu_")
    )


def _is_due(start: str) -> bool:
    """Return whether a start, in epoch seconds, is past; none is."""
    return not start.isdecimal() or int(start) <= time.time()


def job_of(variables: Mapping[str, str]) -> tuple[BatchJob, str] | None:
    """Read the PBS job of an environment, and its user if that is known.

    The tasks of an array share a lease.
    """
    job = variables.get("PBS_ARRAY_ID") or variables.get("PBS_JOBID", "")
    number, _, server = job.partition(".")
    if not server:
        return None
    return BatchJob("PBS", server, number), variables.get("LOGNAME", "")
