"""The life of a Slurm job, whatever Slurm and the connection to it do meanwhile.

A model of Slurm answers ``sbatch``, ``squeue`` and ``scontrol``; hypothesis decides what
becomes of jobs, and when an answer is lost. Time is the event loop's own: it jumps to the
next timer, so that nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import selectors
import tempfile
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.connector.local import LocalConnector
from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.connectors.slurm.job import UNNOTICED_SECONDS, BatchJob, BatchJobState
from sf_quantum.connectors.slurm.node_usage import NodeUsage
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.connectors.slurm.transport.controller import Commands
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.spool_shell import SpoolShell
from sf_quantum.slurm.states import ENDED
from tests.support.journals import read

T = TypeVar("T")
S = BatchJobState
# as the module's docstring draws it; a job may be quicker than the next answer
MOVES = {
    S.SUBMITTING: {S.QUEUED, S.RUNNING, S.ENDING, S.SETTLED},
    S.QUEUED: {S.QUEUED, S.RUNNING, S.ENDING, S.ABANDONED},
    S.RUNNING: {S.RUNNING, S.QUEUED, S.ENDING, S.ABANDONED},
    S.ENDING: {S.ENDING, S.QUEUED, S.RUNNING, S.ENDED, S.ABANDONED},
    S.ENDED: {S.SETTLED},
    S.ABANDONED: {S.ENDED, S.SETTLED},
    S.SETTLED: set[BatchJobState](),
}
EVENTS = (
    "starts",
    "fails",
    "succeeds",
    "is noticed",
    "is killed",
    "is requeued",
    "is forgotten",
    "is unrecorded",
    "is abandoned",
)
# a job that ends well while Slurm cannot be asked about it
UNASKED = ("starts", "no controller", "succeeds", *[""] * 6)
SECONDS = st.sampled_from([0.05, 2.0, 20.0])
LOST = WorkflowExecutionException("the connection was lost")
ZERO = 1000.0


class Clock(selectors.SelectSelector):
    """Instead of waiting for a timer, it is that late."""

    now = ZERO

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time nobody waits for."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


class Followed(BatchJob):
    """A job that checks how it is moved.

    :param troubled: Slurm could not always be asked about it, or has forgotten it
    """

    troubled = False
    wrong_move = ""
    ended_at = math.inf

    def __setattr__(self, name: str, value: object) -> None:
        if name == "state" and "state" in self.__dict__:
            # the queue survives every error, that of an assertion as well
            if value not in MOVES[self.state]:
                self.wrong_move = f"{self.state} -> {value}"
            if value is S.ENDED:
                self.ended_at = asyncio.get_running_loop().time()
        super().__setattr__(name, value)


@dataclass
class Run:
    """A run of a script that ended by itself at ``ended``, and until when that may count."""

    exit_code: int
    ended: float
    until: float = math.inf


@dataclass
class Record:
    """A job as Slurm has it.

    :param idle: another one has the lock, so it has nothing to do
    :param unrecorded: the controller was killed before it saved, and gives its id again
    """

    slurm_job: str
    key: str
    idle: bool
    seen: bool
    state: str = "PENDING"
    exit_code: str = "0:0"
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    runs: list[Run] = field(default_factory=list)
    forgotten: bool = False
    unrecorded: bool = False

    @property
    def known(self) -> bool:
        return not self.forgotten and not self.unrecorded

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def has_left_mark(self) -> bool:
        return bool(self.runs) and self.runs[-1].until == math.inf

    def row(self, told: bool) -> str:
        """Its line in the queue, with its exit code or without."""
        times = "|".join("N/A" if t is None else str(t) for t in self.times())
        code, signal = map(int, self.exit_code.split(":"))
        status = str(code << 8 | signal) if told else "N/A"
        return (
            f"{self.slurm_job}|{self.slurm_job}|{self.state}|None|{times}|1|c1|{status}|"
            f"{self.restarts}|sfq:run:{self.key}|"
        )

    def shown(self) -> str:
        start, end = ("Unknown" if t is None else str(t) for t in self.times())
        return (
            f"JobId={self.slurm_job} JobState={self.state} Restarts={self.restarts} "
            f"ExitCode={self.exit_code} StartTime={start} EndTime={end} "
            f"Comment=sfq:run:{self.key}"
        )

    def times(self) -> list[int | None]:
        return [t if t is None else math.floor(t) for t in (self.started, self.ended)]


class Slurm(LoginNode):
    """Slurm, and the login node in front of it."""

    def __init__(self, loop: Loop) -> None:
        location = ExecutionLocation(name="login", deployment="host", local=True)
        super().__init__(LocalConnector("host", "/"), location, "/spool", "run")
        self._loop = loop
        self.records: list[Record] = []
        self.locks: dict[str, str] = {}
        self.marks: list[JobMark] = []
        #: what becomes of the next submissions
        self.sbatch: list[str] = []
        self.broken: set[str] = set()
        #: how often squeue will know no job, as of a controller that has just started
        self.denials = 0
        self.submissions: list[str] = []
        self.following = 7
        #: those that were cancelled though their script had just ended by itself
        self.cut_short: set[str] = set()

    def mine(self, key: str) -> list[Record]:
        return [one for one in self.records if one.key == key]

    async def run(self, command: str) -> tuple[str, int]:
        await asyncio.sleep(0.01)
        if "sbatch" in command:
            return self._submit(command)
        if command.startswith("jobs="):
            return self._sweep(command)
        if "connection" in self.broken:
            raise LOST
        if "scontrol" in command or " squeue " in command:
            return self._ask(command)
        if "sacct" in command:
            return "sacct: not found", 127
        if command.startswith("cancel "):
            return self._scancel(command)
        if command.startswith("rm "):
            return "", 0
        assert command.startswith("cat "), command
        key = command.split("/")[-1].split(".")[0]
        return self.locks.get(key, ""), 0

    def _ask(self, command: str) -> tuple[str, int]:
        if "show config" in command:
            return f"NEXT_JOB_ID             = {self.following}", 0
        if "scontrol" in command:
            return self._show(command.split()[-1])
        return self._squeue(command)

    def _submit(self, command: str) -> tuple[str, int]:
        (key,) = set(re.findall(r"sfq:run:(\w+)", command))
        self.submissions.append(key)
        # as the command does it: see test_slurm_submission
        mine = [one for one in self.mine(key) if not one.unrecorded]
        there = [one.slurm_job for one in mine if one.seen]
        if there:
            return there[0], 0
        fate = self.sbatch.pop(0) if self.sbatch else "taken"
        if fate == "full":
            return "sbatch: error: Resource temporarily unavailable", 1
        number = str(self.following)
        self.following += 1
        seen = fate != "taken late"
        self.records.append(Record(number, key, bool(mine), seen))
        if fate == "taken":
            return number, 0
        raise LOST

    def _scancel(self, command: str) -> tuple[str, int]:
        for one in self.records:
            if one.known and re.search(rf"\b{one.slurm_job}\b", command):
                unnoticed = not one.over and one.has_left_mark
                if unnoticed and self.age(one) < UNNOTICED_SECONDS:
                    self.cut_short.add(one.key)
                self.kill(one)
        return "", 0

    def _show(self, slurm_job: str) -> tuple[str, int]:
        if "scontrol" in self.broken:
            return "slurm_load_jobs error: Unable to contact slurm controller", 1
        for one in self.records:
            if one.slurm_job == slurm_job and one.known:
                return one.shown(), 0
        return "slurm_load_jobs error: Invalid job id specified", 1

    def _squeue(self, command: str) -> tuple[str, int]:
        if "squeue" in self.broken:
            return "slurm_load_jobs error: Unable to contact slurm controller", 1
        if self.denials:
            self.denials -= 1
            return "", 0
        (ids,) = re.findall(r"--jobs=([\d,]+)", command)
        known = [one for one in self.records if one.known]
        told = "status" not in self.broken
        asked = [one.row(told) for one in known if one.slurm_job in ids.split(",")]
        return "\n".join(asked), 0

    def _sweep(self, command: str) -> tuple[str, int]:
        (key,) = re.findall(r"sfq:run:(\w*)\[", command)
        for one in self.records:
            if one.key.startswith(key):
                self.kill(one)
        return "", 0

    def start(self, one: Record) -> None:
        one.state, one.started = "RUNNING", self._loop.time()
        owner = self.locks.setdefault(one.key, one.slurm_job)
        one.idle = owner != one.slurm_job

    def leave_mark(self, one: Record, code: int) -> None:
        """Its script ends, which Slurm has not noticed yet."""
        one.runs.append(Run(code, self._loop.time()))
        assert one.started is not None
        mark = JobMark(one.key, one.slurm_job, code, one.started, self._loop.time(), 0)
        self.marks.append(mark)

    def age(self, one: Record) -> float:
        """The seconds since its script left its latest mark."""
        return self._loop.time() - one.runs[-1].ended

    def end(self, one: Record) -> None:
        """Slurm notices the end of its script."""
        code = one.runs[-1].exit_code if one.has_left_mark else 0
        one.state = "FAILED" if code else "COMPLETED"
        one.exit_code, one.ended = f"{code}:0", self._loop.time()

    def kill(self, one: Record) -> None:
        if not one.over:
            one.state, one.exit_code = "CANCELLED", "0:15"
            one.ended = self._loop.time()

    def lose(self, one: Record) -> None:
        """The controller is killed before it has saved its newest job."""
        self.kill(one)  # as soon as its node tells of it
        one.unrecorded, self.following = True, int(one.slurm_job)

    def requeue(self, one: Record) -> None:
        for run in one.runs:
            # a failure may have been believed just before
            run.until = min(run.until, self._loop.time() + 1.0)
        one.state, one.started, one.restarts = "PENDING", None, one.restarts + 1


class Marks(SpoolShell):
    """The marks of Slurm's jobs."""

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(slurm)
        self.slurm = slurm

    async def read_marks(self, quiet_seconds: float | None) -> list[JobMark]:
        await asyncio.sleep(0.3)
        if "connection" in self.slurm.broken:
            return []
        marks, self.slurm.marks = self.slurm.marks, []
        return marks


class Life(RuleBasedStateMachine):
    """Jobs that live all at once, each through everything that can happen."""

    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.log_level = logger.level
        logger.setLevel(logging.CRITICAL)
        self.loop = Loop()
        self.slurm = Slurm(self.loop)
        self.folder = tempfile.TemporaryDirectory()
        self.journal = journal.Journal(Path(self.folder.name))
        self.journal.start("site.yml", ["site"], {})
        self.queue = self.wait(self.opened())
        self.tasks: dict[Followed, asyncio.Task[None]] = {}
        self.abandoned: set[Followed] = set()

    async def opened(self) -> SlurmQueue:
        return SlurmQueue(Marks(self.slurm), Commands(self.slurm), "cluster", 1.0, 60)

    def wait(self, work: Coroutine[None, None, T]) -> T:
        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(work)

    @precondition(lambda self: len(self.tasks) < 3)
    @rule(
        target=jobs,
        fates=st.lists(
            st.sampled_from(["full", "taken unsaid", "taken late"]), max_size=2
        ),
        seconds=SECONDS,
    )
    def submit(self, fates: list[str], seconds: float) -> Followed:
        async def begin() -> Followed:
            usage = NodeUsage("d", SlurmService(), "per-step")
            job = Followed(f"job {len(self.tasks)}", usage)
            job.troubled = bool(self.slurm.broken)
            self.tasks[job] = asyncio.create_task(self.queue.submit(job, "", ""))
            await asyncio.sleep(seconds)
            return job

        self.slurm.sbatch[:] = fates
        return self.wait(begin())

    @rule(job=jobs, event=st.sampled_from(EVENTS), seconds=SECONDS)
    def happen(self, job: Followed, event: str, seconds: float) -> None:
        for one in self.slurm.mine(job.key):
            if one.state == "PENDING":
                if event in ("starts", "fails", "succeeds"):
                    self.slurm.start(one)
                elif event == "is killed":
                    self.slurm.kill(one)
            if one.state == "RUNNING":
                self.happen_to_running(one, event)
            # what had nothing to do is remembered longer
            if event == "is forgotten" and one.over and not one.idle:
                one.forgotten = job.troubled = True
            newest = one is self.slurm.records[-1] and one.seen and one.known
            if event == "is unrecorded" and newest and not one.over:
                self.slurm.lose(one)
                job.troubled = True
        if event == "is abandoned":
            self.wait(self.abandon(job))
        self.wait(asyncio.sleep(seconds))

    def happen_to_running(self, one: Record, event: str) -> None:
        if one.idle:
            self.slurm.end(one)
        elif event in ("fails", "succeeds") and not one.has_left_mark:
            self.slurm.leave_mark(one, 0 if event == "succeeds" else 3)
        elif event == "is noticed" and one.has_left_mark:
            self.slurm.end(one)
        elif event == "is killed":
            self.slurm.kill(one)
        elif event == "is requeued":
            self.slurm.requeue(one)

    async def abandon(self, job: Followed) -> None:
        """As a strategy does it when its job is cancelled."""
        self.abandoned.add(job)
        task = self.tasks[job]
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if job.state is not S.SETTLED:
            await self.queue.cancel(job)
            job.abandoned()

    @rule(
        what=st.sampled_from(
            [
                "squeue",
                "scontrol",
                "controller",
                "status",
                "connection",
                "trouble",
                "denials",
            ]
        )
    )
    def trouble(self, what: str) -> None:
        """This fails from now on, or no longer; squeue may deny what it knows."""
        self.slurm.denials = 2 * (what == "denials")
        broken = {"squeue", "scontrol"} if what == "controller" else {what}
        self.slurm.broken = broken - {"trouble", "denials"}
        for job in self.tasks:
            job.troubled = job.troubled or bool(self.slurm.broken)

    @invariant()
    def no_outcome_is_made_up(self) -> None:
        for job in self.tasks:
            if job.ended.done():
                self.check(job)

    def check(self, job: Followed) -> None:
        """What a step gets is what Slurm says, or its script where Slurm cannot."""
        outcome = job.ended.result()
        records = self.slurm.mine(job.key)
        assert any(one.over or one.runs for one in records), "it has not ended"
        own = [one for one in records if not one.idle]
        said = {
            (one.state, one.exit_code) for one in own if one.over and not one.unrecorded
        }
        got = (outcome.state, f"{outcome.exit_code}:{outcome.signal}")
        for run in (run for one in own for run in one.runs):
            # a script's own failure is believed before Slurm has noticed it, and all that
            # it says where Slurm cannot be asked
            if job.troubled or (run.exit_code and job.ended_at <= run.until):
                state = "FAILED" if run.exit_code else "COMPLETED"
                said.add((state, f"{run.exit_code}:0"))
        if any(one.forgotten or (one.unrecorded and one.started) for one in own):
            said.add((answers.LOST, "0:0"))
        assert got in said

    @invariant()
    def slurm_is_left_to_notice_the_end_of_a_script(self) -> None:
        assert self.slurm.cut_short <= {job.key for job in self.abandoned}

    @invariant()
    def every_move_is_drawn(self) -> None:
        assert not [job.wrong_move for job in self.tasks if job.wrong_move]

    @invariant()
    def nothing_is_submitted_that_slurm_has(self) -> None:
        for job in self.tasks:
            mine = self.slurm.mine(job.key)
            gone = [one for one in mine if not one.seen or one.unrecorded]
            assert len(mine) <= 1 + len(gone)

    def teardown(self) -> None:
        try:
            self.come_to_an_end()
        finally:
            logger.setLevel(self.log_level)
            self.journal.close()
            asyncio.set_event_loop(None)
            self.loop.close()
            self.folder.cleanup()

    def come_to_an_end(self) -> None:
        """Whatever has happened, every job gets its outcome once Slurm can be asked."""
        self.slurm.broken.clear()
        for one in self.slurm.records:
            one.seen = True
        self.wait(asyncio.sleep(120))
        while lasting := [one for one in self.slurm.records if not one.over]:
            self.finish(lasting)
            self.wait(asyncio.sleep(60))
        for job, task in self.tasks.items():
            if job not in self.abandoned:
                assert task.done()
                assert job.ended.done(), job.state
                self.check(job)
        self.wait(self.queue.close())
        for job in self.tasks:
            assert job.state is S.SETTLED or job.key not in self.slurm.submissions
        self.every_move_is_drawn()
        self.check_journal()

    def finish(self, records: Iterable[Record]) -> None:
        for one in records:
            if one.state == "PENDING":
                self.slurm.start(one)
            if not one.idle and not one.has_left_mark:
                self.slurm.leave_mark(one, 0)
            self.slurm.end(one)

    def check_journal(self) -> None:
        """Every allocation is requested, then granted and released in turns."""
        told: dict[str, list[str]] = {}
        for event in read(self.journal.path):
            if event["event"] == "allocation":
                told.setdefault(str(event["allocation"]), []).append(
                    str(event["status"])
                )
        # the histories of jobs that had the same id are mixed
        twice = {one.slurm_job for one in self.slurm.records if one.unrecorded}
        for allocation, statuses in told.items():
            line = " ".join(statuses)
            held = "requested( granted released)*( released)?"
            assert allocation in twice or re.fullmatch(held, line), line


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        # a mark of the first run says nothing about the second
        (["starts", "fails", "is requeued", "", "", "", "", ""], S.QUEUED),
        (["starts", "fails", "is requeued", "starts", "", "", ""], S.RUNNING),
        # what ended well may still be cancelled, so Slurm has to agree
        (["starts", "succeeds", "", "", "", "", "", "", ""], S.RUNNING),
        (["starts", "succeeds", "is killed", "", ""], S.SETTLED),
        # a failure is believed, and what is left of it is cancelled in the end
        (["starts", "fails", "", "", "", "", "", ""], S.ENDED),
        (["starts", "fails", *[""] * 6, "a minute", "", ""], S.SETTLED),
        # a success is believed where Slurm cannot be asked
        ([*UNASKED, "no trouble", "", ""], S.ENDED),
        ([*UNASKED, "no trouble", "", "a minute", "", ""], S.SETTLED),
        (["starts", "fails", "is noticed", "", ""], S.SETTLED),
        # either tells how it ended
        (["starts", "no scontrol", "is killed", "", "", "", ""], S.SETTLED),
        (["starts", "no status", "is killed", "", "", "", ""], S.SETTLED),
        # "I could not ask" is not "it finished"
        (["starts", "no squeue", "is killed", "", "", "", ""], S.RUNNING),
        (["starts", "no connection", "is killed", "", "", "", ""], S.RUNNING),
        (["starts", "is killed", "is forgotten", "", "", "", ""], S.SETTLED),
        (["starts", "is abandoned", "", ""], S.SETTLED),
        # one that the controller has lost runs, unless it may have begun
        (["is unrecorded", *[""] * 8], S.QUEUED),
        (["starts", "is unrecorded", *[""] * 8], S.SETTLED),
    ],
)
def test_a_life(steps: list[str], state: BatchJobState) -> None:
    life = Life()
    try:
        job = life.submit([], 2.0)
        for step in steps:
            if step.startswith("no "):
                life.trouble(step.removeprefix("no "))
            elif step == "a minute":
                life.wait(asyncio.sleep(60))
            else:
                life.happen(job, step, 1.2)
            life.no_outcome_is_made_up()
        assert {one.state for one in life.tasks} == {state}
    finally:
        life.teardown()
