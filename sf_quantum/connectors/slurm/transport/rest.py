"""Slurm over ``slurmrestd``, for sites that offer no shell with Slurm's commands.

The jobs' files are on a file system that the nodes share with the location of the wrapped
connector.
"""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from streamflow.core.exception import (
    WorkflowExecutionException,
)

from sf_quantum.connectors import guardian
from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.sbatch_options import JobOptions
from sf_quantum.connectors.slurm.transport import answers, login
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.connectors.slurm.transport.controller import (
    Submission,
    SubmissionFailed,
)
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.slurmrestd import (
    RestError,
    Settings,
    Slurmrestd,
)
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, integer
from sf_quantum.slurm import ids
from sf_quantum.slurm.components import Component
from sf_quantum.slurm.squeue import QueueRow
from sf_quantum.slurm.states import ENDED

#: Script with which :class:`SpoolShell` waits for jobs that still run. Each job updates a file
#: in the spool until it also notices the driver's end. The guardian cancels the jobs.
CANCEL = """\
  n=0
  while [ $n -lt 60 ] && [ -n "$(find "$d" -name '*.now' -mmin -0.3 2>/dev/null)" ]; do
    n=$((n + 1)); sleep 2
  done"""
# Environment of jobs, as slurmrestd does not pass on the driver's environment.
_ENVIRONMENT: dict[str, JSON] = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
# slurm_errno.h: an accounting policy forbids the job itself, or one more job
_POLICY = 2050
# By option: its name in the API, which reads the option's value in the same way as sbatch.
_OPTIONS = {
    "account": "account",
    "begin": "begin_time",
    "constraint": "constraints",
    "cpusPerTask": "cpus_per_task",
    "deadline": "deadline",
    "gpus": "gpus",
    "gpusPerNode": "gpus_per_node",
    "gpusPerTask": "gpus_per_task",
    "gres": "gres",
    "jobName": "name",
    "licenses": "licenses",
    "mailType": "mail_type",
    "mailUser": "mail_user",
    "mem": "memory_per_node",
    "memPerCpu": "memory_per_cpu",
    "nice": "nice",
    "nodelist": "nodelist",
    "nodes": "nodes",
    "ntasks": "tasks",
    "ntasksPerNode": "tasks_per_node",
    "partition": "partition",
    "priority": "priority",
    "qos": "qos",
    "reservation": "reservation",
    "signal": "signal",
    "time": "time_limit",
    "timeMin": "time_minimum",
    "wckey": "wckey",
}
# By option of a service or of a single job: its name in the API.
_PROPERTIES = {
    **_OPTIONS,
    "job-name": "name",
    "chdir": "current_working_directory",
    "input": "standard_input",
    "output": "standard_output",
}
# By flag of a service: the properties that it sets.
_FLAGS: dict[str, dict[str, JSON]] = {
    "requeue": {"requeue": True},
    "noRequeue": {"requeue": False},
    # The job's environment is as with sbatch; slurmrestd requires at least one variable.
    "getUserEnv": {
        "get_user_environment": 1,
        "environment": {"SLURM_GET_USER_ENV": "1"},
    },
}
#: error and remedy for a strategy that slurmrestd does not support
ALLOCATION = (
    "elastic and reserved start steps with srun, which slurmrestd cannot do",
    "write allocation: per-step",
)
#: error and remedy for a template with lines for ``sbatch``
DIRECTIVES = (
    "slurmrestd does not read the #SBATCH lines of a template",
    "write their options as keys of the service",
)


def unsupported(options: Mapping[str, JSON]) -> Iterator[tuple[str, str, str]]:
    """Yield the options of ``sbatch`` that slurmrestd lacks, each with error and remedy."""
    for key, value in options.items():
        if value and key not in {*_OPTIONS, *_FLAGS, "comment"}:
            accepted = ", ".join(sorted({*_OPTIONS, *_FLAGS, "comment"}))
            yield key, "slurmrestd does not accept this option", f"it accepts {accepted}"


class Rest:
    """The driver's connection to Slurm's controller over ``slurmrestd``.

    It implements :class:`~sf_quantum.connectors.slurm.transport.controller.Controller`.

    :param login: location of the wrapped connector, which has the spool
    """

    jobs_end_themselves = True

    def __init__(self, settings: Settings, login: LoginNode) -> None:
        self._client = Slurmrestd(settings)
        self._login = login
        self._comment = f"sfq:{login.driver_run}:"
        # keys of the jobs whose submission may have arrived
        self._submitted_keys: set[str] = set()
        guardian.current().cancel_jobs(settings, self._comment)

    async def submit(self, submission: Submission) -> str:
        options = submission.options
        if not isinstance(options, JobOptions):
            raise SubmissionFailed(ALLOCATION[0], temporary=False)
        if scripts.directives(submission.script):
            raise SubmissionFailed("; ".join(DIRECTIVES), temporary=False)
        properties = {**self._properties(options), "comment": submission.comment}
        if comment := options.service.options.get("comment"):
            properties["comment"] = f"{submission.comment} {comment}"
        if submission.key in self._submitted_keys and (
            job_id := await self._job_in_lock(submission)
        ):
            return job_id
        try:
            return await asyncio.to_thread(self._submit, submission, properties)
        except InputError as error:
            raise SubmissionFailed(str(error), temporary=False) from error
        except RestError as error:
            raise SubmissionFailed(str(error), temporary=error.temporary) from error

    def _submit(self, submission: Submission, properties: Mapping[str, JSON]) -> str:
        """Submit a job, unless an earlier attempt has done so; return the job's id."""
        if submission.key in self._submitted_keys:
            for job in self._client.jobs():
                if job.row.comment.split(" ")[0] == submission.comment:
                    return job.row.job
        self._submitted_keys.add(submission.key)
        try:
            return self._client.submit(submission.script, properties)
        except RestError as error:
            # The error does not show whether a limit on the number of jobs is its cause. If
            # the user has other jobs, a retry may succeed when they have ended.
            if error.number == _POLICY and self._client.has_jobs():
                raise RestError(str(error), temporary=True) from error
            raise

    def _properties(self, options: JobOptions) -> dict[str, JSON]:
        """Convert options of ``sbatch`` to properties in the API."""
        properties: dict[str, JSON] = {
            "environment": _ENVIRONMENT,
            "current_working_directory": posixpath.dirname(self._login.spool),
        }
        service = {**options.service.options, **options.overrides}
        for key, value in {**options.of_job, **service}.items():
            if value is None or value is False:
                continue
            if key in _FLAGS:
                properties |= _FLAGS[key]
            elif key in _PROPERTIES:
                properties[_PROPERTIES[key]] = str(value)
        nodes = Component.read(service.get("nodes") or 1).min_nodes
        tasks, each = map(integer, map(service.get, ("ntasks", "ntasksPerNode")))
        # sbatch computes the number of tasks, and leaves out nodes without a task; slurmrestd
        # does neither.
        if each and not tasks:
            properties["tasks"] = str(nodes * each)
        if tasks and tasks < nodes:
            properties["nodes"] = str(tasks)
        return properties

    async def _job_in_lock(self, submission: Submission) -> str | None:
        """Return the id in the lock of a job whose script has begun, if any.

        Slurm itself may have forgotten the job.
        """
        file = shlex.quote(scripts.path(self._login.spool, submission.key, "lock"))
        text, code = await self._login.ask(f"cat {file}")
        return ids.found(text, "") if code == 0 and ids.is_id(text) else None

    async def trouble(self) -> str:
        return ""  # requests have a time limit, and their errors state the cause

    async def forget(self, key: str) -> bool:
        return key in self._submitted_keys

    async def rows(self, jobs: Collection[str]) -> dict[str, list[QueueRow]]:
        numbers = {job: ids.number(job) for job in jobs}
        try:
            listed = await asyncio.to_thread(self._client.some, {*numbers.values()})
        except RestError as error:
            login.warn(f"The states of jobs will be asked for again: {error}")
            return {}
        rows = {record.row.job: [record.row] for record in listed}
        return {job: rows.get(number, []) for job, number in numbers.items()}

    async def records(
        self, job: str, patience_seconds: float = answers.PATIENCE_SECONDS
    ) -> list[JobOutcome] | None:
        with suppress(RestError, TimeoutError):
            async with asyncio.timeout(patience_seconds):
                listed = await asyncio.to_thread(self._client.job, ids.number(job))
                return [
                    outcome for job in listed if (outcome := JobOutcome.of_row(job.row))
                ]
        return None

    async def next_job(self, job: str) -> int | None:
        # The API does not report the next id.
        return None

    async def accounted(self, job: str) -> list[JobOutcome]:
        try:
            listed = await asyncio.to_thread(self._client.accounted, ids.number(job))
        except RestError as error:
            if not error.temporary or error.number:
                return []  # there may be no slurmdbd
            raise WorkflowExecutionException(str(error)) from error
        return [record for record in listed if record.state in ENDED]

    async def files(self, job: str, stream: str) -> str:
        try:
            listed = await asyncio.to_thread(self._client.job, ids.number(job))
        except RestError as error:
            raise WorkflowExecutionException(str(error)) from error
        is_output = stream == "StdOut"
        return "\n".join(
            record.standard_output if is_output else record.standard_error
            for record in listed
        )

    async def cancel(self, *jobs: str) -> None:
        with suppress(RestError, TimeoutError):
            async with asyncio.timeout(login.CLOSE_SECONDS):
                await asyncio.to_thread(self._cancel, jobs)

    def _cancel(self, jobs: Collection[str]) -> None:
        for job in jobs:
            self._client.cancel(ids.number(job))

    async def sweep(self, key: str = "") -> bool:
        with suppress(RestError, TimeoutError):
            async with asyncio.timeout(login.CLOSE_SECONDS):
                comment = f"{self._comment}{key}"
                active_jobs = await asyncio.to_thread(self._client.active, comment)
                await asyncio.to_thread(self._cancel, active_jobs)
                if not key:
                    guardian.current().release(self._comment)
                return True
        return False
