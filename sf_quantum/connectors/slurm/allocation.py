"""Nodes that are held for more than one job, and the jobs that run on them as steps."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
import uuid
from contextlib import suppress
from dataclasses import replace

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import jobs, script, states, submission
from sf_quantum.connectors.slurm.jobs import Job, Result
from sf_quantum.connectors.slurm.queue import Queue, Waiting, capitalized
from sf_quantum.connectors.slurm.script import Mark
from sf_quantum.connectors.slurm.states import Outcome

# an allocation that ends is COMPLETING for a moment
FATE_PAUSE_SECONDS = 0.2
RETRY_SECONDS = 1.0
# how much later than its allocation's end a job's mark may be seen
MARK_SECONDS = 5.0
# how long a job that is cancelled is looked for: its srun may only be on its way
CANCEL_SECONDS = 10
# what srun(1) says when its nodes, not its job, are the trouble: slurm_errno.c
_NODES = re.compile(
    "launch failed|node (not responding|failure)|nodes? .*(down|not available)|"
    "communication connection failure|connection refused|no route to host",
    re.IGNORECASE,
)


class Gone(Exception):
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
        queue: Queue,
        leader: Waiting,
        own: Waiting | None = None,
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
        return self._leader.over.done() or self._own.over.done()

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
            await asyncio.shield(self._leader.up)
        except asyncio.CancelledError:
            if not self._leader.over.done():
                raise
            told = self._leader.over.result().sentence()
            raise WorkflowExecutionException(
                f"{capitalized(self._leader.name)} was not granted: {told}."
            ) from None
        return self

    async def run(self, job: Job, submitted: float) -> Result:
        """Run a job on it to its end.

        :param submitted: when the job wanted its nodes, epoch seconds
        :returns: what came of the job
        :raises Gone: if it has ended before the job began
        """
        self._used = True
        while not self.over:
            key = uuid.uuid4().hex
            try:
                mark = await self._mark(job, key)
            except asyncio.CancelledError:
                # with an allocation end its jobs, and soon the spool
                if not self.over:
                    await self._cancel(key)
                raise
            outcome = await self._outcome(job, mark)
            if outcome is not None:
                self._own.entry.record(job.name, submitted, outcome)
                output = script.path(self._queue.login.spool, key, "out")
                return await jobs.result(self._queue, job, outcome, output, mark)
            await asyncio.sleep(RETRY_SECONDS)
        raise Gone

    async def give_back(self) -> None:
        """End it; a component leaves the others as they are."""
        if not self._given_back and not self._has_ended:
            self._own.entry.giving_back(time.time())
            which = f"+{self._group}" if self._group else ""
            self._given_back = True
            await self._queue.scancel(f"{self._leader.slurm_job}{which}")
        self._queue.forget(self._own)

    async def _mark(self, job: Job, key: str) -> Mark:
        """Start a job, and wait for its mark, or for what its allocation's end leaves."""
        ended = asyncio.ensure_future(self._queue.step(key))
        try:
            await self._start(job, key)
            await asyncio.wait(
                (ended, self._leader.over, self._own.over),
                return_when=asyncio.FIRST_COMPLETED,
            )
            await asyncio.wait([ended], timeout=MARK_SECONDS)
            left = None if ended.done() else await self._left(key)
            # its own may have been seen meanwhile
            return await ended if left is None or ended.done() else left
        finally:
            ended.cancel()

    async def _left(self, key: str) -> Mark:
        """The mark of a job whose ``srun`` is gone as well, if need be one for it."""
        file = shlex.quote(script.path(self._queue.login.spool, key, ""))
        # what tells of its beginning goes only when there is a mark
        command = f"""\
f={file} began=0
[ ! -e "$f"tried ] || began=$(cat "$f"began 2>/dev/null || date +%s.%N)
cat "$f"mark 2>/dev/null || echo "{key} {self._own.slurm_job} 1 ${{began:-0}} - 0\""""
        while True:
            with suppress(WorkflowExecutionException):
                text, _ = await self._queue.login.run(command)
                if found := script.marks(text):
                    return found[0]
            await asyncio.sleep(RETRY_SECONDS)

    async def _start(self, job: Job, key: str) -> None:
        spool = self._queue.login.spool
        streams = {
            "<": job.stdin or "/dev/null",
            ">": job.stdout or script.path(spool, key, "out"),
            "2>": job.stderr,
        }
        words = [
            f"{sign}{shlex.quote(file)}" if file else f"{sign}&1"
            for sign, file in streams.items()
        ]
        body = script.step(
            *(spool, key, job.body, " ".join(words), self._leader.key, self._group)
        )
        options = {
            "jobid": self._leader.slurm_job,
            "het-group": None if self._group is None else str(self._group),
            "job-name": key,
            "chdir": job.workdir,
            "time": None if job.seconds is None else jobs.limit(job.seconds),
        }
        given = [
            f"--{name}={shlex.quote(word)}" for name, word in options.items() if word
        ]
        # a batch script is bound to no CPU
        given += [
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            "--cpu-bind=none",
            "--input=none",
        ]
        command = script.srun(spool, key, self._own.slurm_job, " ".join(given), body)
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
        # it may have begun although nobody said so
        if not self._has_ended:
            raise Gone

    async def _cancel(self, key: str) -> None:
        """End a job, also one that Slurm does not know yet."""
        file = shlex.quote(script.path(self._queue.login.spool, key, ""))
        with suppress(WorkflowExecutionException):
            # without its script it ends by itself; it is over when nothing tells that it began
            await self._queue.login.run(f"""\
f={file} n=0
: >"$f"tried || exit
while rm -f "$f"step; [ -e "$f"began ] && [ $n -lt {CANCEL_SECONDS * 5} ]; do
  squeue --steps --noheader --jobs={self._own.slurm_job} --format='%i %j' |
    sed -n 's/ {key}$//p' | xargs -r scancel
  n=$((n + 1)); sleep 0.2
done""")

    async def _outcome(self, job: Job, mark: Mark) -> Outcome | None:
        """How a job ended.

        :returns: None if it is to be tried again
        :raises Gone: if it has ended before the job began
        """
        fate = await self._fate(mark)
        code = mark.exit_code or 0
        if mark.ended is not None and (fate is None or _before(mark.ended, fate)):
            return Outcome(
                self._own.slurm_job,
                "FAILED" if code else "COMPLETED",
                exit_code=code,
                started=mark.started,
                ended=mark.ended,
            )
        words = await self._words(mark.key)
        if not mark.started:
            if fate is not None or _NODES.search(words):
                self._useless = True
                raise Gone
            if submission.passing(words, code):
                return None
        return fate or Outcome(
            self._own.slurm_job,
            "TIMEOUT" if _is_late(job, mark) else "FAILED",
            words or "it left no exit code",
            exit_code=code or 1,
            started=mark.started or None,
            ended=time.time(),
        )

    async def _fate(self, mark: Mark) -> Outcome | None:
        """How the allocation ended, as the end of a job in it.

        :returns: None if it has not, or nobody can say but the job itself
        """
        while True:
            for waiting in (self._own, self._leader):
                if waiting.over.done():
                    return _ended(waiting.over.result())
            text, code = await self._asked()
            shown = states.shown(text, self._own.slurm_job) if code == 0 else []
            if shown and shown[0].state == "RUNNING":
                return None
            if shown and shown[0].state in states.ENDED:
                return _ended(shown[0])
            if not shown and mark.ended is not None and "Invalid job id" not in text:
                return None
            await asyncio.sleep(FATE_PAUSE_SECONDS)

    async def _asked(self) -> tuple[str, int]:
        try:
            return await self._queue.login.run(
                "SLURM_TIME_FORMAT=%s scontrol --oneliner show job "
                f"{self._own.slurm_job}"
            )
        except WorkflowExecutionException as error:
            return str(error), submission.UNKNOWN

    async def _words(self, key: str) -> str:
        """What ``srun`` said."""
        file = script.path(self._queue.login.spool, key, "srun")
        with suppress(WorkflowExecutionException):
            # which it says of every job on such a cluster
            text, code = await self._queue.login.run(
                f"grep -v 'lacks support for cpu binding' {shlex.quote(file)}"
            )
            return " ".join(text.split()) if code == 0 else ""
        return ""


def _ended(outcome: Outcome) -> Outcome:
    """An allocation's end as that of a job in it, for which it is never a success."""
    if outcome.good:
        return replace(outcome, state="CANCELLED", reason="its allocation ended itself")
    return outcome


def _is_late(job: Job, mark: Mark) -> bool:
    if job.seconds is None or not mark.started:
        return False
    return time.time() - mark.started >= job.seconds


def _before(ended: float, fate: Outcome) -> bool:
    """Whether a job ended before its allocation, whose times are whole seconds."""
    return fate.ended is not None and ended < fate.ended
