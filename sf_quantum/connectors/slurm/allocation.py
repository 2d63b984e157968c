"""Nodes that are held for more than one job, and the jobs that run on them as steps."""

from __future__ import annotations

import asyncio
import shlex
import time
import uuid
from contextlib import suppress
from dataclasses import replace

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import answers, scripts
from sf_quantum.connectors.slurm.answers import EndReason, JobOutcome
from sf_quantum.connectors.slurm.job import BatchJob
from sf_quantum.connectors.slurm.per_step import (
    StepJob,
    StepResult,
    read_result,
    time_limit,
)
from sf_quantum.connectors.slurm.queue import SlurmQueue, capitalized
from sf_quantum.connectors.slurm.scripts import JobMark

# an allocation that ends is COMPLETING for a moment
STATE_PAUSE_SECONDS = 0.2
RETRY_SECONDS = 1.0
# how much later than its allocation's end a step's mark may be seen
MARK_SECONDS = 5.0
# how long a step that is cancelled is looked for: its srun may only be on its way
CANCEL_SECONDS = 10


class AllocationGone(Exception):
    """An allocation could not run a job, which has not begun."""


class Allocation:
    """A batch job that only holds its nodes, or one component of such a job.

    :param queue: where it was submitted
    :param leader: the batch job
    :param own: the component, the batch job itself if it has only one
    :param group: the component's number, None if there is only one
    """

    def __init__(
        self,
        queue: SlurmQueue,
        leader: BatchJob,
        own: BatchJob | None = None,
        group: int | None = None,
    ) -> None:
        self._queue = queue
        self._leader = leader
        self._own = own or leader
        self._group = group
        self._given_back = False
        self._useless = False
        self._used = False

    @property
    def over(self) -> bool:
        """Whether no job can run on it any more."""
        return self._given_back or self._useless or self._has_ended

    @property
    def _has_ended(self) -> bool:
        return self._leader.ended.done() or self._own.ended.done()

    def lasts(self, seconds: float) -> bool:
        """Whether its time limit leaves so much, as far as that is known.

        One that has run no job does: another would last no longer.
        """
        row = self._own.row
        if not self._used or row is None or row.state != "RUNNING" or not row.ended:
            return True
        return time.time() + seconds <= row.ended

    async def granted(self) -> Allocation:
        """Wait until it has its nodes.

        :returns: itself
        :raises WorkflowExecutionException: if it ends before; says why
        """
        try:
            await asyncio.shield(self._leader.granted)
        except asyncio.CancelledError:
            if not self._leader.ended.done():
                raise
            raise WorkflowExecutionException(
                f"{capitalized(self._leader.name)} was not granted: "
                f"{self._leader.ended.result().sentence()}."
            ) from None
        return self

    async def run(self, job: StepJob, requested: float) -> StepResult:
        """Run a job on it to its end.

        :param requested: when the job wanted its nodes, epoch seconds
        :raises AllocationGone: if it has ended before the job began
        """
        self._used = True
        while not self.over:
            key = uuid.uuid4().hex
            try:
                mark = await self._run_step(job, key)
            except asyncio.CancelledError:
                # with an allocation end its steps, and soon the spool
                if not self.over:
                    await self._cancel(key)
                raise
            outcome = await self._outcome(job, mark)
            if outcome is not None:
                self._own.usage.record(job.name, requested, outcome)
                output = self._path(key, "out")
                return await read_result(self._queue.login, job, outcome, output, mark)
            await asyncio.sleep(RETRY_SECONDS)
        raise AllocationGone

    async def give_back(self) -> None:
        """End it; a component leaves the others as they are."""
        if not self._given_back and not self._has_ended:
            self._own.usage.given_back(time.time())
            component = f"+{self._group}" if self._group else ""
            self._given_back = True
            await self._queue.scancel(f"{self._leader.slurm_job}{component}")
        self._queue.abandon(self._own)

    def _path(self, key: str, kind: str) -> str:
        return scripts.path(self._queue.login.spool, key, kind)

    async def _run_step(self, job: StepJob, key: str) -> JobMark:
        """Start a step, and wait for its mark, or for the end of the allocation."""
        ended = asyncio.ensure_future(self._queue.step_mark(key))
        try:
            await self._start(job, key)
            await asyncio.wait(
                (ended, self._leader.ended, self._own.ended),
                return_when=asyncio.FIRST_COMPLETED,
            )
            await asyncio.wait([ended], timeout=MARK_SECONDS)
            left = None if ended.done() else await self._left_mark(key)
            # its own may have been seen meanwhile
            return await ended if left is None or ended.done() else left
        finally:
            ended.cancel()

    async def _left_mark(self, key: str) -> JobMark:
        """The mark of a step whose ``srun`` is gone as well, made up if there is none."""
        # `began` is removed only when there is a mark
        command = f"""\
f={shlex.quote(self._path(key, ""))} began=0
[ ! -e "$f"tried ] || began=$(cat "$f"began 2>/dev/null || date +%s.%N)
cat "$f"mark 2>/dev/null || echo "{key} {self._own.slurm_job} 1 ${{began:-0}} - 0\""""
        while True:
            with suppress(WorkflowExecutionException):
                text, _ = await self._queue.login.run(command)
                if marks := scripts.marks(text):
                    return marks[0]
            await asyncio.sleep(RETRY_SECONDS)

    async def _start(self, job: StepJob, key: str) -> None:
        command = self._srun(job, key)
        while not self.over:
            try:
                text, code = await self._queue.login.run(command)
            except WorkflowExecutionException:  # the connection is lost
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if code != 0:
                raise WorkflowExecutionException(
                    f"Job {job.name} cannot be started: {text}"
                )
            return
        # it may have begun although the answer was lost
        if not self._has_ended:
            raise AllocationGone

    def _srun(self, job: StepJob, key: str) -> str:
        streams = {
            "<": job.stdin or "/dev/null",
            ">": job.stdout or self._path(key, "out"),
            "2>": job.stderr,
        }
        body = scripts.step(
            self._queue.login.spool,
            key,
            job.body,
            streams=" ".join(
                f"{sign}{shlex.quote(file)}" if file else f"{sign}&1"
                for sign, file in streams.items()
            ),
            holder=self._leader.key,
            group=self._group,
        )
        options = {
            "jobid": self._leader.slurm_job,
            "het-group": None if self._group is None else str(self._group),
            "job-name": key,
            "chdir": job.workdir,
            "time": None if job.seconds is None else time_limit(job.seconds),
            "nodes": "1",
            "ntasks": "1",
            # a batch script is bound to no CPU
            "cpu-bind": "none",
            "input": "none",
        }
        words = [
            f"--{name}={shlex.quote(word)}" for name, word in options.items() if word
        ]
        return scripts.srun(
            self._queue.login.spool,
            key,
            slurm_job=self._own.slurm_job,
            options=" ".join([*words, "--overlap"]),
            body=body,
        )

    async def _cancel(self, key: str) -> None:
        """End a step, also one that Slurm does not know yet."""
        with suppress(WorkflowExecutionException):
            # without its script it ends by itself; it is over when `began` is gone
            await self._queue.login.run(f"""\
f={shlex.quote(self._path(key, ""))} n=0
: >"$f"tried || exit
while rm -f "$f"step; [ -e "$f"began ] && [ $n -lt {CANCEL_SECONDS * 5} ]; do
  squeue --steps --noheader --jobs={self._own.slurm_job} --format='%i %j' |
    sed -n 's/ {key}$//p' | xargs -r scancel
  n=$((n + 1)); sleep 0.2
done""")

    async def _outcome(self, job: StepJob, mark: JobMark) -> JobOutcome | None:
        """How a job ended.

        :returns: None if it is to be tried again
        :raises AllocationGone: if the allocation ended before the job began
        """
        end = await self._allocation_end(mark)
        # the allocation's times are whole seconds
        if mark.ended is not None and (
            end is None or (end.ended is not None and mark.ended < end.ended)
        ):
            return JobOutcome.of_mark(self._own.slurm_job, mark)
        error = await self._srun_error(mark.key)
        code = mark.exit_code or 0
        if not mark.started:
            if end is not None or answers.is_node_trouble(error):
                self._useless = True
                raise AllocationGone
            if answers.is_temporary(error, code):
                return None
        return end or JobOutcome(
            self._own.slurm_job,
            "TIMEOUT" if _is_late(job, mark) else "FAILED",
            error or EndReason.NO_EXIT_CODE,
            exit_code=code or 1,
            started=mark.started or None,
            ended=time.time(),
        )

    async def _allocation_end(self, mark: JobMark) -> JobOutcome | None:
        """How the allocation ended, as the end of a job in it.

        :returns: None if it has not, or only the job itself can say
        """
        while True:
            for batch_job in (self._own, self._leader):
                if batch_job.ended.done():
                    return _never_good(batch_job.ended.result())
            command = answers.scontrol_command(self._own.slurm_job)
            text, code = await self._queue.login.ask(command)
            records = answers.scontrol(text, self._own.slurm_job) if code == 0 else []
            if records and records[0].state == "RUNNING":
                return None
            if records and records[0].state in answers.ENDED:
                return _never_good(records[0])
            marked = mark.ended is not None
            if not records and marked and not answers.is_forgotten(text):
                return None
            await asyncio.sleep(STATE_PAUSE_SECONDS)

    async def _srun_error(self, key: str) -> str:
        # a message about every step on a cluster without CPU binding
        text, code = await self._queue.login.ask(
            "grep -v 'lacks support for cpu binding' "
            f"{shlex.quote(self._path(key, 'srun'))}"
        )
        return " ".join(text.split()) if code == 0 else ""


def _never_good(outcome: JobOutcome) -> JobOutcome:
    """The end of an allocation as that of a job in it."""
    if outcome.good:
        return replace(outcome, state="CANCELLED", reason=EndReason.ALLOCATION_ENDED)
    return outcome


def _is_late(job: StepJob, mark: JobMark) -> bool:
    if job.seconds is None or not mark.started:
        return False
    return time.time() - mark.started >= job.seconds
