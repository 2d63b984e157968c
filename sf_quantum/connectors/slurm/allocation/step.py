"""A step of an allocation: its start with ``srun``, its mark, and its cancellation.

A mark is a line that the job's script writes at its end, with exit code and times.
"""

from __future__ import annotations

import asyncio
import shlex
import uuid
from typing import Protocol

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.allocation.step_job import AllocationGone, StepJob
from sf_quantum.connectors.slurm.job import BatchJob
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.slurm import ids

RETRY_SECONDS = 1.0
# longest time after the end of an allocation until the mark of its step appears
MARK_SECONDS = 5.0
# how long to search for a step to cancel, since srun may not have started the step yet
CANCEL_SECONDS = 10


class Allocation(Protocol):
    """A batch job that only holds nodes.

    :ivar leader: the job or, if it is heterogeneous, its first component
    :ivar own: the component that runs the steps, which may be the leader
    """

    queue: SlurmQueue
    leader: BatchJob
    own: BatchJob

    @property
    def over(self) -> bool: ...


class Step:
    """One attempt to run a job in an allocation.

    :param latest: latest start of the job in epoch seconds; ``None`` if the allocation has the
        time limit of its service
    """

    def __init__(
        self, allocation: Allocation, job: StepJob, latest: float | None
    ) -> None:
        self.key = uuid.uuid4().hex
        self._allocation = allocation
        self._login = allocation.queue.login
        self._leader = allocation.leader
        self._own = allocation.own
        self._job = job
        self._latest = latest

    def path(self, kind: str) -> str:
        """Return the path of a file of the step in the spool."""
        return scripts.path(self._login.spool, self.key, kind)

    async def run(self) -> JobMark:
        """Start a step, and wait for its mark, or for the end of the allocation."""
        ended = asyncio.ensure_future(self._allocation.queue.step_mark(self.key))
        try:
            await self._start()
            await asyncio.wait(
                (ended, self._leader.ended, self._own.ended),
                return_when=asyncio.FIRST_COMPLETED,
            )
            await asyncio.wait([ended], timeout=MARK_SECONDS)
            left = None if ended.done() else await self._read_mark()
            # The mark may have arrived in the meantime.
            return await ended if left is None or ended.done() else left
        finally:
            ended.cancel()

    async def _read_mark(self) -> JobMark:
        """Return the mark that a step left before its allocation ended, or a substitute.

        :raises WorkflowExecutionException: if the file does not contain a mark
        """
        # The file `began` is removed only after the mark is written.
        command = f"""\
f={shlex.quote(self.path(""))} began=0
[ ! -e "$f"tried ] || began=$(cat "$f"began 2>/dev/null || date +%s.%N)
cat "$f"mark 2>/dev/null || echo "{self.key} {self._own.slurm_job} 1 ${{began:-0}} - 0\""""
        while True:
            text, code = await self._login.ask(command)
            if marks := scripts.marks(text):
                return marks[0]
            if code == 0:
                raise WorkflowExecutionException(
                    f"Job {self._job.name} has left an end that cannot be read, in "
                    f"{self.path('mark')}: {answers.in_one_line(text)}"
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def _start(self) -> None:
        """Start the step, and try again while the result of the attempt is unknown."""
        command = self._srun()
        while not self._allocation.over:
            text, code = await self._login.ask(command)
            if code == 0:
                return
            if code != scripts.UNKNOWN:  # UNKNOWN means that the connection was lost
                raise WorkflowExecutionException(
                    f"Job {self._job.name} cannot be started: {text}"
                )
            await asyncio.sleep(RETRY_SECONDS)
        # Even if the answer was lost, the step may have begun before the allocation ended.
        if not (self._leader.ended.done() or self._own.ended.done()):
            raise AllocationGone

    def _srun(self) -> str:
        """Return the shell command that starts the step."""
        body = scripts.step(
            self._login.spool,
            self.key,
            self._job.body,
            streams=f"<{shlex.quote(self._job.stdin or '/dev/null')} "
            f">{shlex.quote(self.path('out'))} 2>&1",
            holder=self._leader.key,
            group=self._own.group,
            seconds=self._job.seconds,
            latest=self._latest,
        )
        options = {
            "clusters": ids.cluster(self._leader.slurm_job) or None,
            "jobid": ids.number(self._leader.slurm_job),
            "het-group": self._own.group,
            "job-name": self.key,
            "chdir": self._job.workdir or None,
            "time": self._job.time_limit,
            "nodes": 1,
            "ntasks": 1,
            # Like the commands of a batch script, steps are not bound to CPUs.
            "cpu-bind": "none",
            "input": "none",
        }
        words = [
            f"--{name}={shlex.quote(str(value))}"
            for name, value in options.items()
            if value is not None
        ]
        return scripts.srun(
            self._login.spool,
            self.key,
            slurm_job=self._own.slurm_job,
            options=" ".join([*words, "--overlap"]),
            body=body,
        )

    async def cancel(self) -> None:
        """Cancel a step, even if Slurm does not know it yet."""
        at = answers.at(ids.cluster(self._own.slurm_job))
        number = ids.number(self._own.slurm_job)
        # If its script is removed before it begins, a step ends immediately. A step has ended
        # when the file `began` is removed.
        await self._login.ask(f"""\
f={shlex.quote(self.path(""))} n=0
: >"$f"tried || exit
while rm -f "$f"step; [ -e "$f"began ] && [ $n -lt {CANCEL_SECONDS * 5} ]; do
  plain squeue{at} --steps --noheader --jobs={number} --format='%i %j' |
    sed -n 's/ {self.key}$//p' | plain xargs -r scancel{at}
  n=$((n + 1)); sleep 0.2
done""")
