"""The jobs of one deployment in Slurm's queue: submitted, waited for, cancelled.

A job's end is seen through its mark, soon; ``squeue``, one call for all jobs, no more
often than the deployment's ``pollingInterval``, sees those that could leave none, and
what becomes of the others.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum.connectors.slurm import states
from sf_quantum.connectors.slurm.account import Entry
from sf_quantum.connectors.slurm.login import Login
from sf_quantum.connectors.slurm.script import Mark
from sf_quantum.connectors.slurm.states import LOST, Outcome, Row

#: what sbatch(1) says when the same submission may succeed a little later
PASSING = re.compile(
    "socket timed out|unable to contact slurm|connection (refused|reset|timed out)|"
    "temporarily unable to accept|resource temporarily unavailable|"
    "transport endpoint|zero bytes|communication connection failure|"
    "protocol authentication|munge encode failed|slurm backup controller|"
    r"max\w*submit|slurmdbd|in standby mode|job reconfigur",
    re.IGNORECASE,
)
FIRST_PAUSE_SECONDS = 0.5
GROWTH = 2.0
LONGEST_PAUSE_SECONDS = 30.0
# Slurm's own record is a moment behind the mark of a script that failed
DETAIL_TRIES = 20
DETAIL_PAUSE_SECONDS = 0.25
# how often Slurm may deny that it knows a job, before its mark is given up
DENIALS = 3


@dataclass
class Waiting:
    """A job that has been submitted.

    :param key: the job's own, on the cluster
    :param name: what it is called in messages
    :param up: done when an allocation has its nodes: when it began
    :param over: done when it has ended
    """

    key: str
    slurm_job: str
    name: str
    entry: Entry
    array: bool = False
    row: Row | None = None
    denials: int = 0
    said: set[str] = field(default_factory=set)
    up: asyncio.Future[Mark] = field(default_factory=asyncio.Future)
    over: asyncio.Future[Outcome] = field(default_factory=asyncio.Future)
    mark: Mark | None = None


class Queue:
    """See the module.

    :param login: where Slurm's commands are
    :param run: what the comments of this driver's jobs start with
    :param interval_seconds: between two calls of ``squeue`` at least
    """

    def __init__(self, login: Login, run: str, interval_seconds: float) -> None:
        self.login = login
        self._run = run
        self._interval = interval_seconds
        self._waiting: dict[str, Waiting] = {}
        self._settling: dict[str, Entry] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._polled = 0.0

    async def submit(
        self,
        name: str,
        options: Callable[[str], str],
        script: Callable[[str], str],
        entry: Entry,
        array: bool = False,
    ) -> Waiting:
        """Hand a job to Slurm, again and again while that cannot take it.

        :param name: what it is called in messages
        :param options: gives the options of ``sbatch``, for a shell, of the key it gets
        :param script: gives the batch script of that key
        :param entry: its place in the account
        :param array: whether it is an array of jobs
        :returns: the job, which is waited for from now on
        :raises WorkflowExecutionException: if Slurm refuses it for good; with its words
        """
        await self._watched()
        key = uuid.uuid4().hex
        pause = FIRST_PAUSE_SECONDS
        command = self._sbatch(key, options(key), script(key))
        entry.requested(time.time())
        while True:
            text, code = await self._to_its_end(key, command)
            # sbatch warns on the same stream
            if code == 0 and (found := re.search(r"^(\d+)(;\S+)?$", text, re.M)):
                slurm_job = found[1]
                break
            if not PASSING.search(text):
                raise WorkflowExecutionException(
                    f"Slurm refuses job {name}: {_words(text)}"
                )
            if logger.isEnabledFor(logging.WARNING):
                logger.warning(
                    f"Slurm cannot take job {name} now, next try in {pause:g} s: "
                    f"{_words(text)}"
                )
            await asyncio.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE_SECONDS)
        waiting = Waiting(key, slurm_job, name, entry, array)
        entry.submitted(slurm_job)
        self._waiting[key] = waiting
        self._wake.set()
        return waiting

    def adopt(self, name: str, slurm_job: str, entry: Entry) -> Waiting:
        """Keep an eye on a job that came with another, as a component of it does."""
        waiting = Waiting(uuid.uuid4().hex, slurm_job, name, entry)
        self._waiting[waiting.key] = waiting
        return waiting

    async def cancel(self, *jobs: Waiting) -> None:
        """End jobs, and wait for none of them."""
        active = [job for job in jobs if not job.over.done()]
        if active:
            ids = " ".join(job.slurm_job for job in active)
            await self.scancel(ids)

    async def scancel(self, words: str) -> None:
        """Run ``scancel``; what it misses the login node's shell ends later.

        :param words: ids and options, for a shell
        """
        with suppress(WorkflowExecutionException):
            await self.login.run(f"scancel {words}")

    def forget(self, job: Waiting) -> None:
        """Wait for a job no longer; its account is settled all the same."""
        if self._waiting.pop(job.key, None) is not None:
            self._settling[job.slurm_job] = job.entry

    async def close(self) -> None:
        """End every job, settle the account and let the login node go."""
        await self.cancel(*self._waiting.values())
        for job in list(self._waiting.values()):
            self.forget(job)
        if self._watch is not None:
            self._watch.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.gather(*self._asking, return_exceptions=True)
        await self._sweep()
        await self._settle_rest()
        await self.login.close()

    async def _to_its_end(self, key: str, command: str) -> tuple[str, int]:
        """Submit; a job that is not wanted any more in that moment is ended again."""
        task = asyncio.create_task(self._try(command))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            undo = asyncio.create_task(self._undo(key, task))
            self._asking.add(undo)
            undo.add_done_callback(self._asking.discard)
            raise

    async def _undo(self, key: str, submission: asyncio.Task[tuple[str, int]]) -> None:
        await submission
        await self._sweep(key)

    async def _sweep(self, key: str = "") -> None:
        """End what is in Slurm's queue under a key, or under any of this driver's."""
        with suppress(WorkflowExecutionException):
            await self.login.run(
                "squeue --noheader --user=\"$(id -un)\" --format='%k %A' | "
                f"sed -n 's/^sfq:{self._run}:{key}[^ ]* //p' | xargs -r scancel"
            )

    async def _try(self, command: str) -> tuple[str, int]:
        try:
            return await self.login.run(command)
        except WorkflowExecutionException as error:
            return f"connection refused: {error}", 1

    def _sbatch(self, key: str, options: str, script: str) -> str:
        """A command that submits once, however often it is run.

        An answer that was lost on its way leaves the job's id in the spool, or at least
        the key in the job's comment.
        """
        file = f"{shlex.quote(self.login.spool)}/{key}.id"
        comment = f"sfq:{self._run}:{key}"
        return (
            f"id=$(cat {file} 2>/dev/null) || [ ! -e {file}.tried ] || "
            f"id=$(squeue --noheader --user=\"$(id -un)\" --format='%k %A' | "
            f"sed -n 's/^{comment} //p'); "
            f': >{file}.tried; [ -n "$id" ] || '
            f"id=$(sbatch --parsable --comment={comment} {options} <<'END-SBATCH-{key}'\n"
            f"{script}\nEND-SBATCH-{key}\n) || exit; "
            f'echo "$id" | tee {file}'
        )

    async def _watched(self) -> None:
        if self._watch is None:
            await self._take_in(await self.login.look(urgent=False))
            self._watch = asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        while True:
            await self._take_in(await self.login.look(urgent=bool(self._waiting)))
            if self._waiting or self._settling:
                if time.monotonic() - self._polled >= self._interval:
                    await self._poll()
            else:
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval):
                        await self._wake.wait()

    async def _take_in(self, marks: list[Mark]) -> None:
        for mark in marks:
            job = self._waiting.get(mark.key)
            if job is None:
                continue
            job.slurm_job = mark.slurm_job
            if mark.exit_code is None:
                job.entry.granted(mark.started)
                _finish(job.up, mark)
                continue
            job.mark = mark
            if mark.exit_code == 0:
                self._end(job, _by_mark(mark, "COMPLETED"))
            else:
                self._ask(job)

    async def _poll(self) -> None:
        """One ``squeue`` for all jobs: those waited for, and the account's."""
        ids = ",".join(
            {*(job.slurm_job for job in self._waiting.values()), *self._settling}
        )
        waited_for = list(self._waiting.values())
        self._polled = time.monotonic()
        text = await self.login.squeue(
            f"--states=all --jobs={ids} --format='{states.FIELDS}'"
        )
        if text is None:
            return
        found = states.rows(text)
        for job in waited_for:
            self._judge(job, found.get(job.slurm_job, []))
        for slurm_job in list(self._settling):
            self._settle(slurm_job, found.get(slurm_job, []))

    def _judge(self, job: Waiting, rows: list[Row]) -> None:
        if job.over.done():
            return
        job.denials = 0 if rows else job.denials + 1
        if not rows:
            if job.denials >= DENIALS:
                self._ask(job)
            return
        job.row = rows[0]
        if all(row.over for row in rows):
            self._ask(job)
            return
        for row in rows:
            job.entry.seen(row)
            _report(job, row)

    def _ask(self, job: Waiting) -> None:
        task = asyncio.create_task(self._learn(job))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _learn(self, job: Waiting) -> None:
        """Ask Slurm how a job ended, and its mark where Slurm does not know."""
        for _ in range(DETAIL_TRIES):
            if job.over.done():
                return
            try:
                text, code = await self.login.run(
                    f"SLURM_TIME_FORMAT=%s scontrol --oneliner show job {job.slurm_job}"
                )
            except WorkflowExecutionException as error:
                text, code = str(error), 1
            if code == 0 and (shown := states.shown(text)):
                # a job of several components has the script in its first
                if all(one.state in states.ENDED for one in shown):
                    self._end(job, states.worst(shown) if job.array else shown[0])
                    return
                if job.mark is None or all(one.restarts > 0 for one in shown):
                    return  # Slurm runs it again
            elif "Invalid job id" in text:
                self._end(job, await self._remembered(job))
                return
            elif job.mark is None:
                return  # nothing is known: the next poll asks again
            await asyncio.sleep(DETAIL_PAUSE_SECONDS)
        if job.mark is not None:
            self._end(job, _by_mark(job.mark, "FAILED"))

    async def _remembered(self, job: Waiting) -> Outcome:
        """How a job ended that the controller has forgotten."""
        if job.mark is not None:
            return _by_mark(
                job.mark, "COMPLETED" if not job.mark.exit_code else "FAILED"
            )
        text, code = await self.login.run(states.accounting(job.slurm_job))
        if code == 0 and (found := states.accounted(text)):
            return states.worst(found)
        # its mark may be seen only now, on a slow file system
        await asyncio.sleep(self._interval)
        if job.mark is not None:
            return _by_mark(
                job.mark, "COMPLETED" if not job.mark.exit_code else "FAILED"
            )
        return Outcome(
            job.slurm_job, LOST, "Slurm has forgotten it, no exit code is left"
        )

    def _end(self, job: Waiting, outcome: Outcome) -> None:
        if not job.over.done():
            job.entry.ended(outcome)
            self.forget(job)
            job.over.set_result(outcome)
            if not job.up.done():
                job.up.cancel()

    def _settle(self, slurm_job: str, rows: list[Row]) -> None:
        """Put Slurm's own times into the account, as soon as it has them."""
        if not rows or all(row.freed for row in rows):
            self._settling.pop(slurm_job).settle(rows[0] if rows else None)

    async def _settle_rest(self) -> None:
        if self._settling:
            await asyncio.sleep(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    while self._settling:
                        await self._poll()
                        if self._settling:
                            await asyncio.sleep(DETAIL_PAUSE_SECONDS)
        for slurm_job in list(self._settling):
            self._settle(slurm_job, [])


def _finish(future: asyncio.Future[Mark], mark: Mark) -> None:
    if not future.done():
        future.set_result(mark)


def _by_mark(mark: Mark, state: str) -> Outcome:
    return Outcome(
        mark.slurm_job,
        state,
        exit_code=mark.exit_code or 0,
        started=mark.started,
        ended=mark.ended,
    )


def _report(job: Waiting, row: Row) -> None:
    """Say once what keeps a job from ever starting."""
    reason = row.reason.strip("()").split(",")[0]
    if row.state == "PENDING" and reason in states.HOPELESS and reason not in job.said:
        job.said.add(reason)
        if logger.isEnabledFor(logging.WARNING):
            logger.warning(
                f"Job {job.name} may never start: Slurm job {job.slurm_job} is pending "
                f"({row.reason.strip('()')})"
            )


def _words(text: str) -> str:
    """What Slurm said, in one line."""
    return " ".join(text.replace("sbatch: error: ", "").split())
