"""The jobs of a deployment, without Slurm: what it says is what a test makes it say."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.connector.local import LocalConnector

from sf_quantum import backoff, journal
from sf_quantum.backoff import Backoff
from sf_quantum.connectors.slurm import job, outcomes, queue, submission_retries
from sf_quantum.connectors.slurm.job import BatchJob, BatchJobState
from sf_quantum.connectors.slurm.node_usage import NodeUsage
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport import answers, login
from sf_quantum.connectors.slurm.transport.answers import EndReason, JobOutcome
from sf_quantum.connectors.slurm.transport.controller import Commands
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.spool_shell import SpoolShell
from sf_quantum.slurm import squeue
from tests.support.journals import read
from tests.support.waiting import SECONDS

T = TypeVar("T")
SHOWN = "JobId=7 JobState=COMPLETED ExitCode=0:0 StartTime=100 EndTime=101 Comment=site"


class Slurm(LoginNode):
    """A login node that says what it is told to say, in the order it is told.

    Its ``squeue`` has no exit codes, so ``scontrol`` is asked.

    An exception is raised; of what is said last it never tires.
    """

    squeues: list[str | Exception]
    scontrols: list[str | Exception]
    sbatches: list[str | Exception]
    mark_lists: list[list[JobMark] | Exception]
    lock = "7"
    quiet: float | None = None

    def tell(self) -> None:
        """What is said unless something else is."""
        self.squeues, self.scontrols = ["7|7|RUNNING|None|100|101|1|c1"], [SHOWN]
        self.sbatches, self.mark_lists = ["7"], [[]]
        self.ran: list[str] = []

    async def run(self, command: str) -> tuple[str, int]:
        self.ran.append(command)
        if (
            " squeue --noheader --states=all --user" in command
            and "sbatch" not in command
        ):
            await asyncio.sleep(0.01)
            return _next(self.squeues).replace("\n", "|||\n") + "|||", 0
        if "scontrol" in command:
            return _next(self.scontrols), 0
        if command.startswith("cat "):
            return self.lock, 0
        return (_next(self.sbatches), 0) if "sbatch" in command else ("", 0)

    def count(self, word: str) -> int:
        """How many commands have had a word."""
        return sum(word in command for command in self.ran)


class Marks(SpoolShell):
    """The marks that a login node is told to have."""

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(slurm)
        self.slurm = slurm

    async def read_marks(self, quiet_seconds: float | None) -> list[JobMark]:
        await asyncio.sleep(0.01)
        self.slurm.quiet = quiet_seconds
        return _next(self.slurm.mark_lists)


def _next(told: list[T | Exception]) -> T:
    one = told.pop(0) if len(told) > 1 else told[0]
    if isinstance(one, Exception):
        raise one
    return one


@pytest.fixture
async def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setattr(login, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(login, "_warned", {})
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(0.01, 0.01))
    connector = LocalConnector("host", str(tmp_path))
    (found,) = (await connector.get_available_locations()).values()
    made = Slurm(connector, found.location, str(tmp_path / "spool"), "run")
    made.tell()
    return made


@pytest.fixture
async def jobs(slurm: Slurm) -> AsyncIterator[SlurmQueue]:
    jobs = SlurmQueue(Marks(slurm), Commands(slurm), "cluster", 0.01, 60)
    yield jobs
    slurm.squeues[:] = [""]
    await jobs.close()


async def _submitted(jobs: SlurmQueue) -> BatchJob:
    submitted = BatchJob("job /job/0", _usage("per-step"))
    await jobs.submit(submitted, "", "")
    return submitted


def _usage(strategy: str) -> NodeUsage:
    return NodeUsage("cluster", SlurmService(), strategy)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - of what it is told it says nothing
            await asyncio.sleep(0.01)


async def test_one_squeue_tells_how_many_jobs_have_ended(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    # none but that of the marks
    jobs = SlurmQueue(Marks(slurm), Commands(slurm), "cluster", 1000, 60)
    slurm.sbatches[:] = ["7", "8", "9"]
    submitted = [await _submitted(jobs) for _ in range(3)]
    rows = [f"{n}|{n}|COMPLETED|None|100|101|1|c1|0|0||" for n in (7, 8, 9)]
    rows[2] = rows[2].replace("COMPLETED", "FAILED").replace("|0|0|", "|768|0|")

    async def told(command: str) -> tuple[str, int]:
        slurm.ran.append(command)
        return "\n".join(rows), 0

    monkeypatch.setattr(slurm, "run", told)
    slurm.ran.clear()
    asked = asyncio.gather(*[one.ended for one in submitted])
    marks = [
        JobMark(one.key, one.slurm_job, 3 * (one.slurm_job == "9"), 1.0, 2.0, 0)
        for one in submitted
    ]
    slurm.mark_lists[:] = [marks, []]
    assert [one.exit_code for one in await asked] == [0, 0, 3]
    assert slurm.count("squeue") <= 2
    assert slurm.count("scontrol") == 0
    await jobs.close()


async def test_a_lost_answer_of_sbatch_is_asked_for_again(
    jobs: SlurmQueue, slurm: Slurm
) -> None:
    slurm.sbatches[:] = [WorkflowExecutionException("the connection was lost"), "7"]
    assert (await _submitted(jobs)).slurm_job == "7"
    assert slurm.count("sbatch") == 2


async def test_a_reason_to_submit_later_is_shown_once_by_the_run(
    jobs: SlurmQueue, slurm: Slurm, tmp_path: Path
) -> None:
    record = journal.Journal(tmp_path)
    record.start("site.yml", ["site"], {})
    down = "sbatch: error: Unable to contact slurm controller (connect failure)"
    lost = WorkflowExecutionException(down)
    slurm.sbatches[:] = [lost, lost, "7"]
    await _submitted(jobs)
    assert slurm.count("sbatch") == 3
    record.close()
    (shown,) = [e["text"] for e in read(record.path) if e["event"] == "warning"]
    assert str(shown).startswith("Slurm cannot accept job /job/0 now, next attempt in")
    assert "Unable to contact slurm controller" in str(shown)


async def test_sinfo_says_why_sbatch_does_not_answer(
    jobs: SlurmQueue, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong SLURM_CONF, Slurm's commands are silent for a minute."""
    record = journal.Journal(tmp_path)
    record.start("site.yml", ["site"], {})
    monkeypatch.setattr(submission_retries, "SUBMISSION_SECONDS", 0.0)
    diagnosed, usual = asyncio.Event(), slurm.run

    async def run(command: str) -> tuple[str, int]:
        if " sinfo --noheader" in command:
            diagnosed.set()
            return "sinfo: error: cannot stat file /x/slurm.conf, retrying", 124
        if "sbatch --parsable" in command:
            await diagnosed.wait()
        return await usual(command)

    monkeypatch.setattr(slurm, "run", run)
    await _submitted(jobs)
    await _until(lambda: "warning" in record.path.read_text())
    record.close()
    (shown,) = [e["text"] for e in read(record.path) if e["event"] == "warning"]
    assert shown == (
        "Slurm has not yet answered the submission of job /job/0: sinfo did not answer "
        "within 5 s: cannot stat file /x/slurm.conf, retrying"
    )


async def test_what_a_job_waits_for_is_said_once(
    jobs: SlurmQueue,
    slurm: Slurm,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The warning is also in the journal, which a run shows."""
    record = journal.Journal(tmp_path)
    record.start("site.yml", ["site"], {})
    monkeypatch.setattr(job, "LONG_SECONDS", 0.0)
    reasons = ("None", "Resources", "PartitionDown", "Priority")
    slurm.squeues[:] = [f"7|7|PENDING|{one}|N/A|N/A|1|" for one in reasons]
    slurm.squeues.append("7|7|RUNNING|None|100|N/A|1|c1")
    with caplog.at_level(logging.INFO, "streamflow"):
        await _submitted(jobs)
        await _until(lambda: len(slurm.squeues) == 1)
    pending = "Slurm job 7 is pending"
    assert [record.getMessage() for record in caplog.records] == [
        f"Job /job/0 waits for nodes: {pending} (None)",
        (warning := f"Job /job/0 may never start: {pending} (PartitionDown)"),
    ]
    record.close()
    assert [e["text"] for e in read(record.path) if e["event"] == "warning"] == [
        warning
    ]


async def test_a_run_shows_once_why_its_jobs_wait_for_nodes(
    jobs: SlurmQueue, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = journal.Journal(tmp_path)
    record.start("site.yml", ["site"], {})
    monkeypatch.setattr(job, "LONG_SECONDS", 0.0)
    slurm.sbatches[:] = ["7", "8", "9"]
    states = {7: "BeginTime", 8: "BeginTime", 9: "Resources"}
    rows = [f"{n}|{n}|PENDING|{one}|N/A|N/A|1|" for n, one in states.items()]
    slurm.squeues[:] = ["\n".join(rows)]
    for _ in rows:
        await _submitted(jobs)
    polls = slurm.count(" squeue --noheader")
    await _until(lambda: slurm.count(" squeue --noheader") > polls + 2)
    record.close()
    assert [e["text"] for e in read(record.path) if e["event"] == "warning"] == [
        "Job /job/0 waits for nodes: Slurm job 7 is pending (BeginTime)"
    ]


def test_nodes_are_granted_after_they_were_requested(tmp_path: Path) -> None:
    record = journal.Journal(tmp_path)
    record.start("site.yml", ["site"], {})
    try:
        entry = _usage("elastic")
        entry.requested(100.7)
        entry.submitted("7")
        for row in squeue.read("7|7|RUNNING|None|100|N/A|1|c1|||").rows("7") or []:
            entry.seen(row)
    finally:
        record.close()
    told = [one for one in read(record.path) if one["event"] == "allocation"]
    assert [(one["status"], one["at"]) for one in told] == [
        ("requested", 100.7),
        ("granted", 100.7),
    ]


async def test_a_state_that_is_not_known_is_no_answer(
    jobs: SlurmQueue,
    slurm: Slurm,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outcomes, "DETAIL_TIMEOUT_SECONDS", 0.1)
    odd = "7|7|MELTING|None|100|101|1|c1"
    slurm.squeues[:] = [odd, odd, "7|7|FAILED|None|100|101|1|c1"]
    slurm.scontrols[:] = [SHOWN.replace("COMPLETED", "MELTING")]
    with caplog.at_level(logging.WARNING, "streamflow"):
        submitted = await _submitted(jobs)
        await _until(lambda: slurm.count("scontrol") > 1)
        assert not submitted.ended.done()
        # its script can tell what Slurm does not
        slurm.mark_lists[:] = [[JobMark(submitted.key, "7", 3, 100.25, 100.5, 0)], []]
        async with asyncio.timeout(SECONDS):
            outcome = await submitted.ended
    assert (outcome.state, outcome.exit_code) == ("FAILED", 3)
    assert [record.getMessage() for record in caplog.records] == [
        "Slurm job 7 of job /job/0 is in the state MELTING, which sfq.slurm does not "
        "know: the query will be repeated"
    ]


async def test_what_is_too_long_for_an_argument_becomes_a_file(
    jobs: SlurmQueue, slurm: Slurm
) -> None:
    assert await jobs.argument("echo x") == "echo x"
    spool = Path(slurm.spool)
    os.mkdir(spool)
    long = f"echo {'x' * 150_000}"
    command = await jobs.argument(long)
    file = spool / os.listdir(spool)[0]
    assert command == f". {file}"
    assert await asyncio.to_thread(file.read_text) == long


async def test_nothing_unforeseen_ends_the_watch(
    jobs: SlurmQueue, slurm: Slurm, caplog: pytest.LogCaptureFixture
) -> None:
    submitted = await _submitted(jobs)
    slurm.mark_lists[:0] = [ValueError("odd read_marks")] * 2
    slurm.squeues[:0] = [KeyError("odd squeue")] * 2
    slurm.scontrols[:0] = [ValueError("odd scontrol")]
    with caplog.at_level(logging.WARNING, "streamflow"):
        await _until(lambda: len(slurm.mark_lists) == 1 and len(slurm.squeues) == 1)
        slurm.mark_lists.append([JobMark(submitted.key, "7", 0, 100.25, 100.5, 0)])
        slurm.mark_lists.append([])
        await _until(lambda: len(slurm.scontrols) == 1)
        slurm.squeues[:] = ["7|7|COMPLETED|None|100|101|1|c1"]
        async with asyncio.timeout(SECONDS):
            assert (await submitted.ended).good
    told = [record.getMessage() for record in caplog.records]
    for odd in ("read_marks", "squeue", "scontrol"):
        assert sum(f"odd {odd}" in line for line in told) == 1, told


async def test_a_new_job_or_step_and_an_end_are_news(
    jobs: SlurmQueue, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(queue, "_now", lambda: clock[0])

    async def later() -> None:
        clock[0] += 100.0
        await _until(lambda: slurm.quiet == 100.0)

    await _submitted(jobs)
    await later()
    step = asyncio.create_task(jobs.step_mark("step"))
    await _until(lambda: slurm.quiet == 0.0)
    await later()
    slurm.mark_lists[:] = [[JobMark("step", "7", 0, 1.0, 2.0, 0)], []]
    await step
    await _until(lambda: slurm.quiet == 0.0)


async def test_looks_pause_while_an_ended_job_settles(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def read_marks(_: Marks, quiet_seconds: float | None) -> list[JobMark]:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)
        return _next(slurm.mark_lists)

    monkeypatch.setattr(Marks, "read_marks", read_marks)
    jobs = SlurmQueue(Marks(slurm), Commands(slurm), "cluster", 1000, 60)
    one = await _submitted(jobs)
    # its nodes are not free yet
    slurm.squeues[:] = ["7|7|COMPLETING|None|100|101|1|c1"]
    slurm.mark_lists[:] = [[JobMark(one.key, "7", 0, 1.0, 2.0, 0)], []]
    assert (await one.ended).exit_code == 0
    assert one.unsettled
    looks = 0
    for _ in range(1000):
        await asyncio.sleep(0)
    assert looks <= 2
    slurm.squeues[:] = [""]
    await jobs.close()


async def test_a_marks_times_are_more_precise_than_slurms(
    jobs: SlurmQueue, slurm: Slurm
) -> None:
    submitted = await _submitted(jobs)
    slurm.mark_lists[:] = [[JobMark(submitted.key, "7", 0, 100.25, 100.5, 0)], []]
    async with asyncio.timeout(SECONDS):
        outcome = await submitted.ended
    assert (outcome.started, outcome.ended) == (100.25, 100.5)


async def test_a_success_without_a_sign_of_its_script_is_none(
    jobs: SlurmQueue, slurm: Slurm
) -> None:
    slurm.squeues[:] = ["7|7|COMPLETED|None|100|101|1|c1"]
    slurm.lock = ""
    submitted = await _submitted(jobs)
    async with asyncio.timeout(SECONDS):
        outcome = await submitted.ended
    assert not outcome.good
    assert (outcome.state, outcome.reason) == (answers.LOST, EndReason.NEVER_BEGAN)
    assert "LOST (there is no sign that its script began)" in outcome.sentence()


@pytest.mark.parametrize(
    ("word", "codes"), [("cat ", "|0|0|"), ("scontrol", "")], ids=["lock", "record"]
)
async def test_a_mark_of_the_first_of_two_submissions_counts(
    jobs: SlurmQueue,
    slurm: Slurm,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    codes: str,
) -> None:
    """The first was lost to sbatch's answer; the second ends well, without the command."""
    run = slurm.run
    slurm.sbatches[:] = ["8"]
    second = f"8|8|COMPLETED|None|100|101|1|c1{codes}"
    failed = second.replace("8", "7").replace("COMPLETED", "FAILED")
    slurm.squeues[:] = [f"{second}\n{failed.replace('|0|0|', '|1536|0|')}"]

    async def marking(command: str) -> tuple[str, int]:
        answer = await run(command)
        if command.startswith(word) or (word in command and "show job" in command):
            submitted.marked(JobMark(submitted.key, "7", 6, 100.25, 100.5, 0))
            if " 8" in command:
                answer = SHOWN.replace("=7", "=8"), 0
            elif "scontrol" in command:
                answer = SHOWN.replace("COMPLETED ExitCode=0", "FAILED ExitCode=6"), 0
        return answer

    monkeypatch.setattr(slurm, "run", marking)
    submitted = await _submitted(jobs)
    async with asyncio.timeout(SECONDS):
        outcome = await submitted.ended
    assert (outcome.slurm_job, outcome.good, outcome.exit_code) == ("7", False, 6)


async def test_what_nobody_waits_for_is_cancelled_until_it_is_over(
    jobs: SlurmQueue, slurm: Slurm
) -> None:
    submitted = await _submitted(jobs)
    await jobs.cancel(submitted)
    submitted.abandoned()
    # it was being requeued in that moment
    slurm.squeues[:] = [
        "7|7|PENDING|BeginTime|100|Unknown|1|",
        "7|7|RUNNING|None|100|Unknown|1|c1",
        "7|7|RUNNING|None|100|Unknown|1|c1",
        "7|7|CANCELLED|None|100|101|1|c1",
    ]
    await _until(lambda: len(slurm.squeues) == 1)
    assert slurm.count("cancel '' 7") == 4


async def test_an_answer_that_comes_late_revives_no_abandoned_job(
    jobs: SlurmQueue, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()
    run = slurm.run

    async def slow(command: str) -> tuple[str, int]:
        if "scontrol" in command:
            asked.set()
            await answered.wait()
        return await run(command)

    monkeypatch.setattr(slurm, "run", slow)
    slurm.scontrols[:] = [
        "JobId=7 JobState=RUNNING ExitCode=0:0 StartTime=100 Comment=x"
    ]
    submitted = await _submitted(jobs)
    slurm.mark_lists[:] = [[JobMark(submitted.key, "7", 0, 100.25, 100.5, 0)], []]
    async with asyncio.timeout(SECONDS):
        await asked.wait()
    submitted.abandoned()
    answered.set()
    # it still runs, so it is cancelled again
    await _until(lambda: slurm.count("cancel '' 7") == 2)
    assert submitted.state is BatchJobState.ABANDONED


async def test_an_unknown_component_is_asked_about_again(
    jobs: SlurmQueue, slurm: Slurm
) -> None:
    leader = await _submitted(jobs)
    running = "7|7|RUNNING|None|100|101|1|c1\n"
    slurm.squeues[:] = [f"{running}8|8|CANCELLED|None|100|101|1|c2"]
    slurm.scontrols[:] = [WorkflowExecutionException("the connection was lost")]
    component = jobs.follow_component(leader, 1, _usage("reserved"))
    await _until(lambda: slurm.count("scontrol") > 1)
    slurm.scontrols[:] = [
        "JobId=8 JobState=CANCELLED ExitCode=0:15 StartTime=100 Comment=x"
    ]
    async with asyncio.timeout(SECONDS):
        assert (await component.ended).state == "CANCELLED"


async def test_a_job_given_up_between_two_attempts_is_cancelled(
    jobs: SlurmQueue,
    slurm: Slurm,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(backoff, "CLUSTER", Backoff(600, 600, jitter=0.0))
    slurm.sbatches[:] = [WorkflowExecutionException("the connection was lost")]
    given_up = BatchJob("job /job/0", _usage("elastic"))
    with caplog.at_level(logging.WARNING, "streamflow"):
        submission = asyncio.create_task(jobs.submit(given_up, "", ""))
        await _until(lambda: "next attempt in 600.0 s" in caplog.text)
    submission.cancel()
    await asyncio.wait({submission})
    await _until(lambda: slurm.count(f"sfq:run:{given_up.key}[^ ]*") == 1)


async def test_what_slurm_takes_while_the_queue_is_closed_is_settled(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = journal.Journal(tmp_path)
    record.start("site.yml", ["site"], {})
    jobs = SlurmQueue(Marks(slurm), Commands(slurm), "cluster", 0.01, 60)
    asked, taken, run = asyncio.Event(), asyncio.Event(), slurm.run

    async def slow(command: str) -> tuple[str, int]:
        if "sbatch --parsable" in command:
            asked.set()
            await taken.wait()
        return await run(command)

    monkeypatch.setattr(slurm, "run", slow)
    slurm.squeues[:] = ["7|7|CANCELLED|None|100|101|1|c1"]
    submission = asyncio.create_task(_submitted(jobs))
    try:
        await asyncio.wait_for(asked.wait(), SECONDS)
        taken.set()
        await jobs.close()
    finally:
        record.close()
    assert (await submission).state is BatchJobState.SETTLED
    events = [one for one in read(record.path) if one["event"] == "allocation"]
    assert [one["status"] for one in events] == ["requested", "granted", "released"]


ENDED = "7|7|COMPLETED|None|100|101|1|c1|0|0"


@pytest.mark.parametrize("marked", [True, False])
async def test_a_queue_whose_jobs_have_ended_closes_unasked(
    slurm: Slurm, marked: bool
) -> None:
    jobs = SlurmQueue(Marks(slurm), Commands(slurm), "cluster", 0.01, 60)
    job = await _submitted(jobs)
    slurm.squeues[:] = [ENDED]
    if marked:
        slurm.mark_lists[:] = [[JobMark(job.key, "7", 0, 100.5, 101.5, 0)], []]
    assert (await job.ended).good
    await _until(lambda: job.state is BatchJobState.SETTLED)
    ran = len(slurm.ran)
    await jobs.close()
    assert slurm.ran[ran:] == []


async def test_a_queue_behind_slurmrestd_always_sweeps_at_its_end(
    slurm: Slurm,
) -> None:
    controller = Commands(slurm)
    controller.jobs_end_themselves = True
    jobs = SlurmQueue(Marks(slurm), controller, "cluster", 0.01, 60)
    await jobs.close()
    assert slurm.count("--sibling") == 1


async def test_a_job_whose_submission_got_lost_is_searched_at_the_end(
    slurm: Slurm,
) -> None:
    jobs = SlurmQueue(Marks(slurm), Commands(slurm), "cluster", 0.01, 60)
    slurm.sbatches[:] = [WorkflowExecutionException("the connection was lost"), "7"]
    job = await _submitted(jobs)
    slurm.squeues[:] = [ENDED]
    await job.ended
    await jobs.close()
    assert slurm.count("--sibling") == 1


async def test_nobody_waits_for_a_mark_that_was_read(
    slurm: Slurm, jobs: SlurmQueue
) -> None:
    job = await _submitted(jobs)
    await _until(lambda: slurm.quiet is not None)
    slurm.scontrols[:] = [SHOWN.replace("COMPLETED", "COMPLETING"), SHOWN]
    slurm.mark_lists[:] = [[JobMark(job.key, "7", 0, 100.5, 101.5, 0)], []]
    await _until(lambda: slurm.quiet is None)
    assert job.state is BatchJobState.ENDING
    assert (await job.ended).good


async def test_nothing_is_submitted_once_the_queue_is_closed(slurm: Slurm) -> None:
    jobs = SlurmQueue(Marks(slurm), Commands(slurm), "cluster", 0.01, 60)
    slurm.sbatches[:] = ["sbatch: error: Resource temporarily unavailable"]
    await jobs.close()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(SECONDS):
            await _submitted(jobs)
    assert slurm.count("sbatch") == 0


async def test_nothing_that_hangs_holds_up_the_end(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(login, "CLOSE_SECONDS", 0.1)
    jobs = SlurmQueue(Marks(slurm), Commands(slurm), "cluster", 0.01, 60)
    await _submitted(jobs)
    slurm.squeues[:] = [""]

    async def hang(command: str) -> tuple[str, int]:
        await asyncio.Event().wait()
        return "", 0

    monkeypatch.setattr(slurm, "run", hang)
    late = asyncio.create_task(_submitted(jobs))
    await asyncio.sleep(0)
    async with asyncio.timeout(SECONDS):
        await jobs.close()
    late.cancel()
    await asyncio.wait({late})


def test_a_job_ends_after_it_was_submitted(tmp_path: Path) -> None:
    record = journal.Journal(tmp_path)
    record.start("site.yml", ["site"], {})
    try:
        entry = _usage("per-step")
        # Slurm's whole seconds
        outcome = JobOutcome("7", "CANCELLED", started=100.0, ended=100.0)
        entry.record("/job/0", 100.75, outcome)
        entry.record("/job/1", 90.0, outcome)
    finally:
        record.close()
    events = [one for one in read(record.path) if one["event"] == "slurm"]
    times = [(one["submitted"], one["started"], one["ended"]) for one in events]
    assert times == [(100.75, 100.75, 100.75), (90.0, 100.0, 100.0)]
