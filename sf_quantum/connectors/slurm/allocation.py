"""Nodes that are held for more than one job, and the jobs that run on them as steps."""

from __future__ import annotations

import asyncio
import shlex
import time
import uuid
from contextlib import suppress

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import jobs, script, states
from sf_quantum.connectors.slurm.jobs import Job, Result
from sf_quantum.connectors.slurm.queue import Queue, Waiting
from sf_quantum.connectors.slurm.script import Mark
from sf_quantum.connectors.slurm.states import Outcome

# Slurm says what ended an allocation a moment after `srun` has seen its end
FATE_SECONDS = 5.0
FATE_PAUSE_SECONDS = 0.2


class Allocation:
    """A batch job that only holds its nodes, or one component of such a job.

    :param queue: where it was submitted
    :param leader: the batch job
    :param own: the component, the batch job itself if it has only one
    :param group: the component's number, None if there is only one
    """

    def __init__(
        self,
        queue: Queue,
        leader: Waiting,
        own: Waiting | None = None,
        group: int | None = None,
    ) -> None:
        self._queue = queue
        self._leader = leader
        self._own = own or leader
        self._group = group

    @property
    def over(self) -> bool:
        """Whether it holds its nodes no longer."""
        return self._leader.over.done() or self._own.over.done()

    async def granted(self) -> Mark:
        """Wait until it has its nodes.

        :returns: what its script left, on the first of them
        :raises WorkflowExecutionException: if it ends before; says why
        """
        try:
            return await asyncio.shield(self._leader.up)
        except asyncio.CancelledError:
            if not self._leader.over.done():
                raise
            told = self._leader.over.result().sentence()
            raise WorkflowExecutionException(
                f"{self._leader.name} was not granted: {told}."
            ) from None

    async def take_fewer(self, nodes: str) -> None:
        """Be content with fewer nodes, if it has none yet.

        :param nodes: the range, as in ``--nodes``
        """
        await self._queue.login.run(
            f"scontrol update JobId={self._leader.slurm_job} NumNodes={shlex.quote(nodes)}"
        )

    async def run(self, job: Job, submitted: float) -> Result:
        """Run a job on it to its end.

        :param submitted: when the job wanted its nodes, epoch seconds
        :returns: what came of the job
        """
        key = uuid.uuid4().hex
        began = time.time()
        try:
            text, code = await self._queue.login.run_job(job.name, self._srun(job, key))
        except asyncio.CancelledError:
            await self._cancel(key)
            raise
        except WorkflowExecutionException:  # the connection is lost, not the job
            text, code = await self._await_done(key)
        marks = script.marks(text)
        mark = marks[0] if marks else None
        if mark is not None and mark.exit_code is not None:
            outcome = self._by_mark(mark, mark.exit_code)
        else:
            outcome = await self._fate(code, began, " ".join(text.split()))
        self._own.entry.record(job.name, submitted, outcome)
        output = script.path(self._queue.login.spool, key, "out")
        return await jobs.result(self._queue, job, outcome, output, mark)

    async def give_back(self) -> None:
        """End it; a component leaves the others as they are."""
        if not self.over:
            self._own.entry.giving_back(time.time())
            which = f"+{self._group}" if self._group else ""
            await self._queue.scancel(f"{self._leader.slurm_job}{which}")
        self._queue.forget(self._own)

    def _srun(self, job: Job, key: str) -> str:
        """A command that runs the job and prints its mark."""
        spool = self._queue.login.spool
        file = script.path(spool, key, "step")
        done = script.path(spool, key, "done")
        body = script.step(spool, key, job.body, self._leader.key, self._group or 0)
        words = {
            "jobid": self._leader.slurm_job,
            "het-group": None if self._group is None else str(self._group),
            "job-name": key,
            "chdir": job.workdir,
            "input": job.stdin or "none",
            "output": job.stdout or script.path(spool, key, "out"),
            "error": job.stderr,
            "time": None if job.seconds is None else jobs.limit(job.seconds),
        }
        given = [
            f"--{name}={shlex.quote(word)}" for name, word in words.items() if word
        ]
        return (
            f"cat >{shlex.quote(file)} <<'END-STEP-{key}'\n{body}\nEND-STEP-{key}\n"
            f"srun --quiet --overlap --nodes=1 --ntasks=1 {' '.join(given)} "
            f"/bin/sh {shlex.quote(file)}; code=$?; "
            f"rm -f {shlex.quote(file)}; cat {shlex.quote(done)} 2>/dev/null; exit $code"
        )

    async def _cancel(self, key: str) -> None:
        with suppress(WorkflowExecutionException):
            await self._queue.login.run(
                f"squeue --steps --noheader --jobs={self._own.slurm_job} "
                f"--format='%i %j' | sed -n 's/ {key}$//p' | xargs -r scancel"
            )

    async def _await_done(self, key: str) -> tuple[str, int]:
        """Wait for a job whose `srun` nobody hears any more."""
        done = shlex.quote(script.path(self._queue.login.spool, key, "done"))
        while not self.over:
            with suppress(WorkflowExecutionException):
                text, code = await self._queue.login.run(f"cat {done}")
                if code == 0:
                    return text, 0
            await asyncio.sleep(1)
        return "", 1

    def _by_mark(self, mark: Mark, code: int) -> Outcome:
        return Outcome(
            self._own.slurm_job,
            "COMPLETED" if code == 0 else "FAILED",
            exit_code=code,
            started=mark.started,
            ended=mark.ended,
        )

    async def _fate(self, code: int, began: float, said: str) -> Outcome:
        """What became of a job that could leave no mark: its allocation's end, mostly."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FATE_SECONDS):
                while not self.over and await self._is_ending():  # noqa: ASYNC110
                    await asyncio.sleep(FATE_PAUSE_SECONDS)
        for waiting in (self._own, self._leader):
            if waiting.over.done():
                return waiting.over.result()
        return Outcome(
            self._own.slurm_job,
            "FAILED",
            said or "the job left no exit code",
            exit_code=code or 1,
            started=began,
            ended=time.time(),
        )

    async def _is_ending(self) -> bool:
        text, code = await self._queue.login.run(
            f"scontrol --oneliner show job {self._own.slurm_job}"
        )
        shown = states.shown(text)
        return code != 0 or not shown or shown[0].state != "RUNNING"
