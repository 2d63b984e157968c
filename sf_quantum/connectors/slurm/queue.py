"""The jobs of one deployment in Slurm's queue: submitted, waited for, cancelled.

A job's end is seen through its mark, soon; ``squeue``, one call for all jobs, no more
often than the deployment's ``pollingInterval``, sees those that could leave none, and
what becomes of the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum.connectors.slurm import ending, states, submission
from sf_quantum.connectors.slurm.account import Entry
from sf_quantum.connectors.slurm.login import Login, lasting
from sf_quantum.connectors.slurm.script import Mark
from sf_quantum.connectors.slurm.states import Outcome, Row

FIRST_PAUSE_SECONDS = 0.5
GROWTH = 2.0
LONGEST_PAUSE_SECONDS = 30.0
# Slurm's own record is a moment behind the mark of a script that failed
DETAIL_SECONDS = 5.0
DETAIL_PAUSE_SECONDS = 0.05
LONGEST_DETAIL_PAUSE_SECONDS = 0.4
# how often Slurm may deny that it knows a job, before its mark is given up
DENIALS = 3
CLOSE_SECONDS = 5.0
# after which it is said why a job does not start yet
LONG_SECONDS = 10.0


@dataclass
class Waiting:
    """A job that has been submitted.

    :param key: the job's own, on the cluster
    :param name: what it is called in messages
    :param array: whether it is an array, whose tasks leave no marks
    :param asked: whether Slurm is being asked how it ended
    :param said: the reasons for its wait that were told
    :param state: in Slurm's last answer to that, empty if there was none
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
    asked: bool = False
    state: str = ""
    said: set[str] = field(default_factory=set)
    since: float = field(default_factory=time.monotonic)
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
        self._early: dict[str, Mark] = {}
        self._steps: dict[str, asyncio.Future[Mark]] = {}
        self._submissions: set[asyncio.Task[tuple[str, int]]] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._polled = -math.inf

    async def submit(
        self,
        name: str,
        options: Callable[[str], str],
        body: Callable[[str], str],
        entry: Entry,
        array: bool = False,
        at_once: str | None = None,
    ) -> Waiting:
        """Hand a job to Slurm, again and again while that cannot take it.

        :param name: what it is called in messages
        :param options: gives the options of ``sbatch``, for a shell, of the key it gets
        :param body: gives the batch script of that key
        :param entry: its place in the account
        :param array: whether it is an array of jobs
        :param at_once: see :func:`sf_quantum.connectors.slurm.submission.command`
        :returns: the job, which is waited for from now on
        :raises WorkflowExecutionException: if Slurm refuses it for good; with its words
        """
        await self.watched()
        key = uuid.uuid4().hex
        comment = f"sfq:{self._run}:{key}"
        command = submission.command(
            *(self.login.spool, comment, key, options(key), body(key), at_once)
        )
        entry.requested(time.time())
        slurm_job = await self._submitted(name, key, command)
        waiting = Waiting(key, slurm_job, name, entry, array)
        entry.submitted(slurm_job)
        self._waiting[key] = waiting
        if key in self._early:
            self._take_in([self._early.pop(key)])
        self._wake.set()
        return waiting

    async def _submitted(self, name: str, key: str, command: str) -> str:
        pause = FIRST_PAUSE_SECONDS
        while True:
            text, code = await self._to_its_end(key, command)
            slurm_job = submission.accepted(text, code)
            if slurm_job is not None:
                return slurm_job
            told = submission.words(text)
            if not submission.passing(text, code):
                raise WorkflowExecutionException(f"Slurm refuses {name}: {told}")
            if logger.isEnabledFor(logging.WARNING):
                logger.warning(
                    f"Slurm cannot take {name} now, next try in {pause:g} s: {told}"
                )
            await asyncio.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE_SECONDS)

    def adopt(self, name: str, slurm_job: str, entry: Entry) -> Waiting:
        """Keep an eye on a job that came with another, as a component of it does."""
        waiting = Waiting(uuid.uuid4().hex, slurm_job, name, entry)
        self._waiting[waiting.key] = waiting
        return waiting

    async def step(self, key: str) -> Mark:
        """Wait for a job within an allocation.

        :param key: the job's own
        :returns: its mark
        """
        self._steps[key] = asyncio.Future()
        try:
            return await self._steps[key]
        finally:
            del self._steps[key]

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
        with suppress(WorkflowExecutionException, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.login.run(
                    f"timeout {states.PATIENCE_SECONDS} scancel {words}"
                )

    def forget(self, job: Waiting) -> None:
        """Wait for a job no longer; its account is settled all the same."""
        if self._waiting.pop(job.key, None) is not None:
            self._settling[job.slurm_job] = job.entry

    async def close(self) -> None:
        """End every job, settle the account and let the login node go.

        What takes too long is left to the login node's shell.
        """
        await self.cancel(*self._waiting.values())
        for job in list(self._waiting.values()):
            self.forget(job)
        if self._watch is not None:
            self._watch.cancel()
        # what is being submitted now could not be cancelled yet
        late = (
            self._submissions
            and (await asyncio.wait(self._submissions, timeout=CLOSE_SECONDS))[1]
        )
        if late or not await self.login.sweep():
            await self.login.leave()
        await self._settle_rest()
        await self.login.close()

    async def _to_its_end(self, key: str, command: str) -> tuple[str, int]:
        """Submit; a job that is not wanted any more in that moment is ended again."""
        task = asyncio.create_task(self._try(command))
        self._submissions.add(task)
        task.add_done_callback(self._submissions.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(self._undo(key, task))
            raise

    @lasting
    async def _undo(self, key: str, trial: asyncio.Task[tuple[str, int]]) -> None:
        await trial
        await self.login.sweep(key)

    async def _try(self, command: str) -> tuple[str, int]:
        try:
            return await self.login.run(command)
        except WorkflowExecutionException as error:
            return str(error), submission.UNKNOWN

    async def watched(self) -> None:
        """See to it that what is in the spool is removed however the driver ends."""
        if self._watch is None:
            self._take_in(await self.login.look(urgent=False))
            # not twice, by jobs that came at once
            self._watch = self._watch or asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        while True:
            await self._look()

    @lasting
    async def _look(self) -> None:
        self._take_in(await self.login.look(urgent=self._is_busy()))
        if self._is_busy() or self._settling:
            if time.monotonic() - self._polled >= self._interval:
                # never twice at a time, and marks are looked for meanwhile
                self._polled = math.inf
                self._spawn(self._poll())
        else:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._wake.wait()

    def _is_busy(self) -> bool:
        return bool(self._waiting or self._steps)

    def _take_in(self, marks: list[Mark]) -> None:
        for mark in marks:
            if mark.key in self._steps:
                _finish(self._steps[mark.key], mark)
                continue
            job = self._waiting.get(mark.key)
            if job is None:
                # sbatch has not told the driver of it yet
                self._early[mark.key] = mark
                continue
            job.slurm_job = mark.slurm_job
            if mark.exit_code is None:
                job.entry.granted(mark.started)
                _finish(job.up, mark)
            else:
                job.mark = mark
                self._ask(job)

    @lasting
    async def _poll(self) -> None:
        """One ``squeue`` for all jobs: those waited for, and the account's."""
        waited_for = list(self._waiting.values())
        ids = {*(job.slurm_job for job in waited_for), *self._settling}
        try:
            text = await self.login.squeue(ids)
        finally:
            self._polled = time.monotonic()
        if text is None:
            return
        found = states.rows(text)
        for job in waited_for:
            self._judge(job, found.get(job.slurm_job, []))
        rest = ids & self._settling.keys()
        for slurm_job in rest:
            self._settle(slurm_job, found.get(slurm_job, []))
        # a cancelled job may be started again, and a job's node may fail after its mark
        if left := [one for one in rest if states.lasts(found.get(one, []))]:
            await self.scancel(" ".join(left))

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
        if not job.asked:
            job.asked = True
            self._spawn(self._learn(job))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    @lasting
    async def _learn(self, job: Waiting) -> None:
        """Ask Slurm how a job ended, and its mark where Slurm does not know."""
        try:
            outcome = await self._learned(job)
        finally:
            job.asked = False
        if outcome is not None:
            self._end(job, outcome)

    async def _learned(self, job: Waiting) -> Outcome | None:
        deadline = time.monotonic() + DETAIL_SECONDS
        pause = DETAIL_PAUSE_SECONDS
        while time.monotonic() < deadline:
            outcome = await ending.ending(self.login, job, self._interval)
            if outcome is not None or job.key not in self._waiting:
                return outcome
            if job.mark is None:
                break  # the next poll asks again
            await asyncio.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_DETAIL_PAUSE_SECONDS)
        # what still runs for Slurm although it ended well may be cancelled, or run again
        if job.mark is None or (job.state == "RUNNING" and not job.mark.exit_code):
            return None
        return ending.by_mark(job.mark)

    def _end(self, job: Waiting, outcome: Outcome) -> None:
        if not job.over.done():
            outcome = ending.timed(outcome, job.mark)
            job.entry.ended(outcome)
            self.forget(job)
            job.over.set_result(outcome)
            if not job.up.done():
                job.up.cancel()

    def _settle(self, slurm_job: str, rows: list[Row]) -> None:
        """Put Slurm's own times into the account, as soon as it has them."""
        entry = self._settling[slurm_job]
        if all(row.over or (row.freed and entry.nodes) for row in rows):
            del self._settling[slurm_job]
            entry.settle(rows[0] if rows else None)

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


def capitalized(name: str) -> str:
    """What a job is called, at the begin of a sentence."""
    return name[:1].upper() + name[1:]


def _report(job: Waiting, row: Row) -> None:
    """Say once what keeps a job from ever starting, or from starting for long."""
    reason = row.reason.strip("()")
    if row.state != "PENDING" or reason in job.said:
        return
    told = f"Slurm job {job.slurm_job} is pending ({reason})"
    if states.hopeless(reason):
        job.said.add(reason)
        if logger.isEnabledFor(logging.WARNING):
            logger.warning(f"{capitalized(job.name)} may never start: {told}")
    elif not job.said and time.monotonic() - job.since >= LONG_SECONDS:
        job.said.add(reason)
        if logger.isEnabledFor(logging.INFO):
            logger.info(f"{capitalized(job.name)} waits for nodes: {told}")
