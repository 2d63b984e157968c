"""The driver's requests to Slurm's controller, and their transport with Slurm's commands.

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
    :param comment: beginning of the job's comment, with which the job is found in the queue if
        Slurm's reply is lost
    :param note: rest of the comment, quoted for the shell
    :param options: options of ``sbatch``; if a text, quoted for the shell
    :param at_once: see
        :func:`sf_quantum.connectors.slurm.transport.submit_command.submission_command`
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
    """A submission has failed; Slurm may still have the job if its answer was lost.

    :param temporary: whether the next attempt may succeed
    """

    def __init__(self, message: str, *, temporary: bool) -> None:
        super().__init__(message)
        self.temporary = temporary


class Controller(Protocol):
    """The driver's connection to Slurm's controller.

    Job ids have the format of :mod:`sf_quantum.slurm.ids`.
    """

    #: whether jobs have to end themselves when no process of the driver can cancel them
    jobs_end_themselves: bool

    async def submit(self, submission: Submission) -> str:
        """Submit a job; if the answer is lost, a repetition finds the same job.

        :returns: Slurm's id of the job
        :raises SubmissionFailed: if Slurm refuses the job; the text is Slurm's message
        """

    async def trouble(self) -> str:
        """Return why Slurm cannot be queried; empty if it can, or if the reason is unknown."""

    async def forget(self, key: str) -> bool:
        """Let the next attempt submit a lost job again; return whether this worked."""

    async def rows(self, jobs: Collection[str]) -> dict[str, list[QueueRow]]:
        """Return the rows of jobs by job id; the list is empty for an unknown job.

        Jobs about which Slurm did not answer are left out.
        """

    async def records(
        self, job: str, patience_seconds: float = answers.PATIENCE_SECONDS
    ) -> list[JobOutcome] | None:
        """Return Slurm's records of a job, one per task of an array.

        :returns: empty if Slurm does not know the job; ``None`` if Slurm did not answer
        """

    async def next_job(self, job: str) -> int | None:
        """Return the id that the next job in a job's cluster will get; ``None`` if unknown.

        :raises WorkflowExecutionException: if the connection is lost
        """

    async def accounted(self, job: str) -> list[JobOutcome]:
        """Return the outcomes of an ended job from Slurm's accounting, if the site has it.

        :raises WorkflowExecutionException: if the connection is lost
        """

    async def files(self, job: str, stream: str) -> str:
        """Return the files of a job for ``StdOut`` or ``StdErr``, one per line.

        :raises WorkflowExecutionException: if the controller cannot be reached
        """

    async def cancel(self, *jobs: str) -> None:
        """Cancel jobs, or components of jobs (``7+1``)."""

    async def sweep(self, key: str = "") -> bool:
        """Cancel all jobs of this driver, or the job ``key``; return whether this worked."""


class Commands:
    """Slurm's commands, run by a shell on the login node."""

    jobs_end_themselves = False

    def __init__(self, login: LoginNode) -> None:
        self._login = login
        # clusters that submissions have named
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
        """Run ``squeue`` for jobs; return ``None``, with a warning, if it fails."""
        text, code = await self._login.ask(answers.squeue_command(jobs, clusters))
        if code == 0:
            return squeue.read(text, named=bool(clusters))
        # A single unknown id is an error; among several ids, squeue omits unknown ids.
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
        tasks = ((outcome.slurm_job, outcome) for outcome in outcomes)
        return squeue.without_siblings(tasks, lambda outcome: outcome.state)

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
        show_commands = "; ".join(
            f"plain scontrol{answers.at(cluster, job)} show job {number}"
            for cluster in self._where(job)
        )
        return await self._login.read(
            f"{{ {show_commands}; }} | sed -n 's/^ *{stream}=//p' | sort -u"
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
        """Return the clusters that may know a job; "" is the login node's own cluster."""
        if not ids.is_federated(job):
            return [ids.cluster(job)]
        return [""] if self._federated else sorted(self._named)
