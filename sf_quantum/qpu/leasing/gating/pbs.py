"""OpenPBS for the gate: a job requests the QPU as a resource (``qsub -l qpu=fresnel``).

The operator's hold is the gate's (deployments/pbs): neither the user's nor a manager's, and users
cannot release it. A job whose dependency is unfulfilled also has the manager's hold.
"""

from __future__ import annotations

import json
import pwd
import re
import time
from collections.abc import Mapping
from contextlib import suppress

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON, mapping
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
        (server,) = _listed(run_command("qstat", "-B", "-f", "-F", "json"), "Server")
        super().__init__(server)

    def jobs(self) -> dict[str, GatedJob]:
        records = read_jobs(run_command("qstat", "-f", "-F", "json"), self._cluster)
        return {job: _gated(records[job]) for job in records}

    def applicant(self, job: str) -> Applicant:
        record = self._record(job)
        user = _user(record)
        try:
            uid = pwd.getpwnam(user).pw_uid
        except KeyError:
            raise QpuError(f"user {user} of PBS job {job} is unknown here") from None
        variables = {JOB_UID: str(uid), JOB_ID: f"{job}.{self._cluster}"}
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
        text = run_command("qstat", "-f", "-F", "json", job)
        if (record := read_jobs(text, self._cluster).get(job)) is None:
            raise QpuError(f"qstat does not list job {job}")
        return record


def read_jobs(text: str, server: str) -> dict[str, Mapping[str, JSON]]:
    """Read the output of ``qstat -f -F json``: attributes by id, in the order of submission.

    :param server: the server of the jobs
    :raises QpuError: if it is not such output
    """
    records: dict[str, Mapping[str, JSON]] = {}
    for id_, record in _listed(text, "Jobs").items():
        number, _, its_server = id_.partition(".")
        if its_server == server:
            records[number] = mapping(record)
    return dict(sorted(records.items(), key=lambda item: int(item[0].rstrip("[]"))))


def _listed(text: str, kind: str) -> Mapping[str, JSON]:
    """Return the objects of a kind; without any, ``qstat`` omits the kind."""
    try:
        # Variables of jobs may be there twice.
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise QpuError(f"qstat: {error}") from error
    if not isinstance(listed, dict) or "pbs_server" not in listed:
        raise QpuError(f"qstat: not its JSON: {shortened(text)!r}")
    return mapping(listed.get(kind))


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
    """Return whether a start as of ctime(3) is past; none is."""
    return not start or time.mktime(time.strptime(start)) <= time.time()


def job_of(variables: Mapping[str, str]) -> tuple[BatchJob, str] | None:
    """Read the PBS job of an environment, and its user if that is known.

    The tasks of an array share a lease.
    """
    job = variables.get("PBS_ARRAY_ID") or variables.get("PBS_JOBID", "")
    number, _, server = job.partition(".")
    if not server:
        return None
    return BatchJob("PBS", server, number), variables.get("LOGNAME", "")
