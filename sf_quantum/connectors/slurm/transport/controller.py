"""The driver's requests to Slurm's controller, and their form as commands on the login node.

:class:`Controller` is the interface of all transports to Slurm.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.sbatch_options import JobOptions
from sf_quantum.connectors.slurm.transport import answers, login
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.spool_shell import OWN
from sf_quantum.connectors.slurm.transport.submit_command import submission_command
from sf_quantum.slurm import config, ids, partitions, squeue
from sf_quantum.slurm.partitions import SilentSlurm
from sf_quantum.slurm.squeue import QueueRow


@dataclass(frozen=True)
class Submission:
    """A job to submit.

    :param key: name of the job's files in the spool
    :param script: the batch script
    :param comment: text by which the job is found in the queue if Slurm's reply is lost
    :param note: rest of the comment, quoted for the shell
    :param options: options of ``sbatch``; as text, quoted for the shell
    :param at_once: see :func:`sf_quantum.connectors.slurm.transport.submit_command.submission_command`
    :param clusters: clusters that the options name, separated by commas
    """

    key: str
    script: str
    comment: str
    note: str
    options: JobOptions | str
    at_once: str | None
    clusters: str = ""


class SubmissionFailed(Exception):
    """A job was not submitted, as far as known.

    :param temporary: whether the next attempt may succeed
    """

    def __init__(self, message: str, *, temporary: bool) -> None:
        super().__init__(message)
        self.temporary = temporary


class Controller(Protocol):
    """Slurm's controller, as the driver reaches it.

    Ids of jobs are those of :mod:`sf_quantum.slurm.ids`.
    """

    #: whether jobs have to end themselves if no process of the driver is left to cancel them
    jobs_end_themselves: bool

    async def submit(self, submission: Submission) -> str:
        """Submit a job; a repetition after a lost answer finds the same job.

        :returns: Slurm's id
        :raises SubmissionFailed: if Slurm refuses the job, with Slurm's message
        """

    async def trouble(self) -> str:
        """Why Slurm cannot be queried; empty if it can, or if the reason is unknown."""

    async def forget(self, key: str) -> bool:
        """Make the next attempt submit a lost job again; return whether it will."""

    async def rows(self, jobs: Collection[str]) -> dict[str, list[QueueRow]]:
        """The rows of jobs by job id; no rows for a job that Slurm does not know.

        Jobs about which Slurm did not answer are left out.
        """

    async def records(
        self, job: str, patience_seconds: float = answers.PATIENCE_SECONDS
    ) -> list[JobOutcome] | None:
        """Slurm's records of a job, one per task of an array; None if it did not answer.

        The list is empty if Slurm does not know the job.
        """

    async def next_job(self, job: str) -> int | None:
        """The id that the next job in the cluster of a job will have, None if unknown.

        :raises WorkflowExecutionException: if the connection is lost
        """

    async def accounted(self, job: str) -> list[JobOutcome]:
        """The outcomes in Slurm's accounting, if there is one, of a job that has ended.

        :raises WorkflowExecutionException: if the connection is lost
        """

    async def files(self, job: str, stream: str) -> str:
        """The files of ``StdOut`` or ``StdErr`` of a job, one per line.

        :raises WorkflowExecutionException: if the controller cannot be reached
        """

    async def cancel(self, *jobs: str) -> None:
        """Cancel jobs, or components of jobs (``7+1``)."""

    async def sweep(self, key: str = "") -> bool:
        """Cancel the queued jobs of this driver, or one; return whether that is certain."""


class Commands:
    """Slurm's commands, run by a shell on the login node."""

    jobs_end_themselves = False

    def __init__(self, login: LoginNode) -> None:
        self._login = login
        # Clusters that are named for jobs.
        self._named: set[str] = set()
        # whether the login node's own cluster is in a federation
        self._federated = False

    async def submit(self, submission: Submission) -> str:
        options = submission.options
        clusters = [*filter(None, submission.clusters.split(","))]
        self._named.update(clusters)
        text, code = await self._login.ask(
            submission_command(
                self._login.spool,
                submission.key,
                submission.script,
                comment=submission.comment,
                note=submission.note,
                options=options if isinstance(options, str) else options.words(),
                at_once=submission.at_once,
                clusters=clusters,
            )
        )
        if (job_id := answers.submitted_job(text, code)) is not None:
            job = ids.found(job_id, submission.clusters)
            self._federated |= not clusters and ids.is_federated(job)
            return job
        message = answers.in_one_line(text)
        raise SubmissionFailed(message, temporary=answers.is_temporary(text, code))

    async def trouble(self) -> str:
        text, code = await self._login.ask(partitions.COMMAND)
        try:
            partitions.listed(text, text, code)
        except SilentSlurm as error:
            return str(error)
        return ""

    async def forget(self, key: str) -> bool:
        file = shlex.quote(scripts.path(self._login.spool, key, "id"))
        return (await self._login.ask(f"rm -f {file}"))[1] == 0

    async def rows(self, jobs: Collection[str]) -> dict[str, list[QueueRow]]:
        where = {job: self._where(job) for job in jobs}
        named = {*chain(*where.values())} - {""}
        rows_of = {}
        for clusters in {"", ",".join(sorted(named))}:
            asked = [job for job in jobs if ("" in where[job]) == (not clusters)]
            if not asked or (listed := await self._queue(asked, clusters)) is None:
                continue
            for job in asked:
                rows = listed.rows(job)
                if rows or (rows is not None and listed.clusters >= {*where[job]}):
                    rows_of[job] = rows
        return rows_of

    async def _queue(self, jobs: Collection[str], clusters: str) -> squeue.Queue | None:
        text, code = await self._login.ask(answers.squeue_command(jobs, clusters))
        if code == 0:
            return squeue.read(text, named=bool(clusters))
        # an unknown id alone is an error; among several ids, it is omitted
        if not clusters and len(jobs) == 1 and answers.is_forgotten(text):
            return squeue.read("")
        reason = text or f"exit code {code}"
        login.warn(f"squeue failed and will be run again: {reason}")
        return None

    async def records(
        self, job: str, patience_seconds: float = answers.PATIENCE_SECONDS
    ) -> list[JobOutcome] | None:
        outcomes: list[JobOutcome] = []
        for cluster in self._where(job):
            command = answers.scontrol_command(job, patience_seconds, cluster)
            text, code = await self._login.ask(command)
            if answers.is_forgotten(text):
                continue
            records = answers.scontrol(text, job) if code == 0 else []
            if not records:  # a text without a record is not an answer
                return None
            outcomes += records
        tasks = ((one.slurm_job, one) for one in outcomes)
        return squeue.without_siblings(tasks, lambda one: one.state)

    async def next_job(self, job: str) -> int | None:
        if ids.is_federated(job):  # each cluster of a federation has its own next id
            return None
        command = answers.next_job_command(ids.cluster(job))
        text, code = await self._login.run(command)
        return config.next_job(text) if code == 0 else None

    async def accounted(self, job: str) -> list[JobOutcome]:
        clusters = ",".join(self._where(job))
        text, code = await self._login.run(answers.sacct_command(job, clusters))
        return answers.sacct(text, job) if code == 0 else []

    async def files(self, job: str, stream: str) -> str:
        number = ids.number(job)
        show = "; ".join(
            f"plain scontrol{answers.at(cluster, job)} show job {number}"
            for cluster in self._where(job)
        )
        return await self._login.read(
            f"{{ {show}; }} | sed -n 's/^ *{stream}=//p' | sort -u"
        )

    async def cancel(self, *jobs: str) -> None:
        numbers: dict[str, list[str]] = {}
        for job in jobs:
            for cluster in self._where(job):
                numbers.setdefault(cluster, []).append(ids.number(job))
        with suppress(TimeoutError):
            async with asyncio.timeout(login.CLOSE_SECONDS):
                await asyncio.gather(
                    *(
                        self._login.ask(
                            f"cancel '{answers.at(cluster)}' {' '.join(of_cluster)}"
                        )
                        for cluster, of_cluster in numbers.items()
                    )
                )

    async def sweep(self, key: str = "") -> bool:
        pattern = OWN.format(run=self._login.driver_run, key=key)
        with suppress(TimeoutError):
            async with asyncio.timeout(login.CLOSE_SECONDS):
                results = await asyncio.gather(
                    *(
                        self._login.ask(
                            f"jobs=$(plain squeue{answers.at(cluster) or ' --sibling'} "
                            f'--noheader --user="$(id -un)" --format="%F %T %k") && '
                            f"jobs=$(echo \"$jobs\" | sed -n '{pattern}' | sort -u) && "
                            f"{{ [ -z \"$jobs\" ] || cancel '{answers.at(cluster)}' $jobs; }}"
                        )
                        for cluster in ("", *self._named)
                    )
                )
                return all(code == 0 for _, code in results)
        return False

    def _where(self, job: str) -> list[str]:
        """The clusters that may know a job, "" for the login node's own cluster."""
        if not ids.is_federated(job):
            return [ids.cluster(job)]
        return [""] if self._federated else sorted(self._named)
