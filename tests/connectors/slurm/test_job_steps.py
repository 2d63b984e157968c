"""Each single move of a Slurm job, and what it writes into the journal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sf_quantum.connectors import exit_codes
from sf_quantum.connectors.exit_codes import ExitCodes
from sf_quantum.connectors.slurm.job import (
    DENIALS,
    LONG_SECONDS,
    BatchJob,
    BatchJobState,
    PendingReason,
)
from sf_quantum.connectors.slurm.node_usage import NodeUsage
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.connectors.slurm.transport.answers import (
    LOST,
    EndReason,
    JobOutcome,
)
from sf_quantum.files import JSON
from sf_quantum.journal import Journal
from sf_quantum.slurm import squeue
from sf_quantum.slurm.squeue import QueueRow
from tests.support.journals import Event, read

S = BatchJobState


def mark(
    exit_code: int | None = None, ended: float | None = None, started: float = 100.25
) -> JobMark:
    """What the script of job 7 leaves behind."""
    return JobMark("key", "7", exit_code, started, ended, 0)


BEGUN = mark()
ENDED = mark(0, 160.5)


def usage(job: str | None = "/s/0") -> NodeUsage:
    service = SlurmService(partition="g", gres="qpu:1")
    service.name = "gpu"
    made = NodeUsage("hpc", service, "per-step", job=job)
    made.requested(90.5)
    return made


def batch_job(*, array: bool = False, left: JobMark | None = None) -> BatchJob:
    """A job that Slurm has accepted as number 7, with what its script left."""
    job = BatchJob("solve", usage(), array=array)
    job.accepted("7", now=10.0)
    if left is not None:
        job.marked(left)
    return job


def state(job: BatchJob) -> BatchJobState:
    return job.state


def row(
    state: str = "RUNNING",
    reason: str = "None",
    started: float | None = 100.0,
    ended: float | None = None,
    nodes: int = 2,
    node_list: str = "c[1-2]",
) -> QueueRow:
    return QueueRow("7", state, reason, started, ended, nodes, node_list)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a run in progress."""
    made = Journal(tmp_path)
    made.start("sf.yml", ["w"], {})
    yield made
    made.close()


def written(record: Journal, *keys: str) -> list[list[JSON]]:
    kinds = ("allocation", "slurm")
    events = [e for e in read(record.path) if e["event"] in kinds]
    return [[event[key] for key in keys] for event in events]


async def test_an_accepted_job_is_queued_unless_its_script_was_quicker() -> None:
    job = BatchJob("solve", usage())
    assert (state(job), job.active, job.unsettled) == (S.SUBMITTING, False, False)
    job.accepted("7", now=1.0)
    assert (state(job), job.slurm_job, job.active) == (S.QUEUED, "7", True)
    quick = BatchJob("solve", usage())
    quick.marked(BEGUN)
    assert state(quick) is S.SUBMITTING
    quick.accepted("8", now=1.0)
    assert (state(quick), quick.slurm_job) == (S.RUNNING, "7")
    quicker = BatchJob("solve", usage())
    quicker.marked(ENDED)
    assert state(quicker) is S.SUBMITTING
    quicker.accepted("8", now=1.0)
    assert (state(quicker), quicker.slurm_job) == (S.ENDING, "7")
    refused = BatchJob("solve", usage())
    refused.refused()
    assert state(refused) is S.SETTLED
    refused.marked(ENDED)  # of a submission whose answer was lost
    assert (state(refused), refused.mark) == (S.SETTLED, None)


async def test_marks_tell_the_start_and_the_end() -> None:
    job = batch_job()
    job.marked(BEGUN)
    assert state(job) is S.RUNNING
    assert job.granted.result() == BEGUN
    job.marked(mark(started=101.0))
    assert job.granted.result() == BEGUN
    job.marked(ENDED)
    assert (state(job), job.mark) == (S.ENDING, ENDED)
    job.marked(BEGUN)  # read late
    assert state(job) is S.ENDING


async def test_one_denial_is_not_believed() -> None:
    job = batch_job()
    for _ in range(DENIALS - 1):
        job.listed([])
        assert state(job) is S.QUEUED
    job.listed([row()])
    assert state(job) is S.RUNNING
    for _ in range(DENIALS - 1):
        job.listed([])
        assert state(job) is S.RUNNING
    job.listed([])
    assert state(job) is S.ENDING
    job.listed([row()])  # the question how it ended is not answered by this
    assert state(job) is S.ENDING


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["PENDING"], S.QUEUED),
        (["CONFIGURING"], S.QUEUED),
        (["SUSPENDED"], S.RUNNING),
        (["COMPLETING"], S.RUNNING),
        (["PENDING", "RUNNING"], S.RUNNING),
        (["COMPLETED", "PENDING"], S.QUEUED),
        (["COMPLETED", "FAILED"], S.ENDING),
    ],
)
async def test_the_queue_tells_where_a_job_is(
    states: list[str], expected: BatchJobState
) -> None:
    job = batch_job()
    rows = [row(state) for state in states]
    job.listed(rows)
    assert (state(job), job.row) == (expected, rows[0])


async def test_a_job_that_pends_long_or_in_vain_is_reported_once() -> None:
    def reasons(job: BatchJob, reason: str, now: float) -> list[PendingReason]:
        return list(job.pending.unreported([row("PENDING", reason)], now))

    job = batch_job()
    assert reasons(job, "(Priority)", 9.9 + LONG_SECONDS) == []
    expected = [PendingReason("Priority", hopeless=False)]
    assert reasons(job, "(Priority)", 10.0 + LONG_SECONDS) == expected
    assert reasons(job, "(Priority)", 99.0) == []
    assert reasons(job, "Resources", 99.0) == []  # one message about waiting is enough
    expected = [PendingReason("InvalidQOS", hopeless=True)]
    assert reasons(job, "InvalidQOS", 99.0) == expected
    assert reasons(job, "InvalidQOS", 99.0) == []
    assert list(job.pending.unreported([row("RUNNING", "InvalidAccount")], 99.0)) == []
    several = [row("RUNNING"), row("PENDING", "InvalidAccount")]
    assert [r.reason for r in job.pending.unreported(several, 99.0)] == [
        "InvalidAccount"
    ]


async def test_scontrol_ends_a_job_only_if_all_of_it_has_ended() -> None:
    good = JobOutcome("7", "COMPLETED")
    bad = JobOutcome("8", "FAILED", exit_code=1)
    active = JobOutcome("7", "RUNNING")
    assert (
        batch_job().process_records([good, bad]) is good
    )  # the script is in the first component
    assert batch_job(array=True).process_records([good, bad]) is bad
    assert batch_job().process_records([good, active]) is None


async def test_a_mark_is_of_the_run_that_left_it() -> None:
    same = JobOutcome("7", "RUNNING", started=100.0, restarts=1)
    job = batch_job(left=ENDED)
    assert job.process_records([same]) is None
    assert job.mark == ENDED
    later = JobOutcome("7", "PENDING", started=200.0, restarts=1)
    assert job.process_records([later]) is None
    assert job.mark is None
    again = JobOutcome("7", "FAILED", started=200.0, ended=210.0, restarts=1)
    job.concluded(again)
    assert job.ended.result() == again


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (["PENDING"], S.QUEUED),
        (["RUNNING"], S.RUNNING),
        ([], S.RUNNING),
        (["PENDING", "RUNNING"], S.RUNNING),
        (["RUNNING", "PENDING"], S.QUEUED),
    ],
)
async def test_a_job_that_has_not_ended_goes_back_to_where_it_was(
    shown: list[str], expected: BatchJobState
) -> None:
    job = batch_job()
    job.listed([row()])
    for _ in range(DENIALS):
        job.listed([])
    for one in shown:
        job.process_records([JobOutcome("7", one)])
    job.unanswered()
    assert job.state is S.ENDING
    job.concluded(None)
    assert job.state is expected
    job.concluded(None)
    assert job.state is expected


async def test_a_job_of_which_nothing_is_known_is_queued() -> None:
    job = batch_job()
    for _ in range(DENIALS):
        job.listed([])
    job.concluded(None)
    assert state(job) is S.QUEUED


async def test_only_a_marked_submission_succeeds() -> None:
    good, bad = JobOutcome("7", "COMPLETED"), JobOutcome("7", "FAILED", exit_code=1)
    assert not batch_job().is_proven(good)
    assert batch_job().is_proven(bad)
    assert batch_job(left=ENDED).is_proven(good)
    assert not batch_job(array=True).is_proven(good)


async def test_the_lock_tells_which_of_two_submissions_matters() -> None:
    good = JobOutcome("7", "COMPLETED")
    job = batch_job()
    assert job.process_lock({"7"}, good) is good
    lost = JobOutcome("7", LOST, EndReason.NEVER_BEGAN)
    assert job.process_lock(set(), good) == lost
    assert job.process_lock({"8"}, good) is None
    assert job.slurm_job == "8"


async def test_a_task_of_an_array_has_failed_even_if_slurm_forgets_it() -> None:
    job = batch_job(array=True)
    job.listed([replace(row("FAILED"), status=3 << 8), row()])
    job.listed([row("COMPLETED")])
    job.concluded(JobOutcome("8", "COMPLETED"))
    assert job.ended.result().exit_code == 3
    assert job.ended.result().state == "FAILED"


async def test_a_success_code_of_a_task_does_not_hide_the_failure_of_another() -> None:
    with exit_codes.of_job(ExitCodes(success=[3])):
        job = batch_job(array=True)
    job.listed([replace(row("FAILED"), status=3 << 8), row()])
    job.listed([replace(row("FAILED"), status=4 << 8), row()])
    job.listed([row("COMPLETED")])
    job.concluded(JobOutcome("8", "FAILED", exit_code=3))
    assert job.ended.result().exit_code == 4


async def test_an_array_of_two_submissions_ends_with_both() -> None:
    job = batch_job(array=True)
    assert job.process_lock({"7", "8"}, JobOutcome("7", "COMPLETED")) is None
    assert job.slurm_job == "8"
    for other in (JobOutcome("8", "COMPLETED"), JobOutcome("8", "FAILED")):
        assert job.process_lock({"7", "8"}, other) is other


async def test_a_job_that_slurm_has_forgotten_ended_as_its_mark_says() -> None:
    expected = JobOutcome("7", "COMPLETED", started=100.25, ended=160.5)
    assert batch_job(left=ENDED).outcome_without_record() == expected
    failed = mark(3, 160.5)
    expected = JobOutcome("7", "FAILED", exit_code=3, started=100.25, ended=160.5)
    assert batch_job(left=failed).outcome_without_record() == expected
    lost = JobOutcome("7", LOST, EndReason.FORGOTTEN)
    assert batch_job().outcome_without_record() == lost


async def test_a_mark_counts_unless_slurm_still_runs_the_job() -> None:
    good = JobOutcome("7", "COMPLETED", started=100.25, ended=160.5)
    job = batch_job(left=ENDED)
    assert job.outcome_after_timeout() == good
    job.process_records([JobOutcome("7", "RUNNING")])
    assert job.outcome_after_timeout() is None
    job.process_records([JobOutcome("7", "COMPLETING")])
    assert job.outcome_after_timeout() == good
    failed = batch_job(left=mark(3, 160.5))
    failed.process_records([JobOutcome("7", "RUNNING")])
    assert failed.outcome_after_timeout() == JobOutcome(
        "7", "FAILED", exit_code=3, started=100.25, ended=160.5
    )
    assert batch_job().outcome_after_timeout() is None


async def test_an_outcome_has_the_times_of_its_mark() -> None:
    job = batch_job(left=ENDED)
    job.concluded(JobOutcome("7", "COMPLETED", started=100.0, ended=161.0))
    assert (state(job), job.unsettled, job.active) == (S.ENDED, True, False)
    outcome = job.ended.result()
    assert (outcome.started, outcome.ended) == (100.25, 160.5)
    assert job.granted.cancelled()
    # Slurm ended this one later than its script thought
    killed = batch_job(left=ENDED)
    killed.concluded(JobOutcome("7", "TIMEOUT", started=100.0, ended=170.0))
    assert killed.ended.result().ended == 170.0
    held = batch_job(left=BEGUN)
    held.mark = mark(0)
    held.concluded(JobOutcome("7", "COMPLETED", started=100.0, ended=161.0))
    assert held.ended.result().ended == 161.0
    assert held.granted.result() == BEGUN


async def test_what_nobody_waits_for_is_abandoned_and_settled(record: Journal) -> None:
    job = batch_job(left=BEGUN)
    job.abandoned()
    assert (state(job), job.unsettled) == (S.ABANDONED, True)
    job.settled([row("RUNNING")])
    assert state(job) is S.ABANDONED
    job.settled([row("COMPLETED", ended=120.0)])
    assert state(job) is S.SETTLED
    job.concluded(JobOutcome("7", "CANCELLED"))
    assert state(job) is S.SETTLED
    assert not job.ended.done()
    job.abandoned()
    assert state(job) is S.SETTLED
    assert written(record, "status", "at", "nodes", "node_list") == [
        ["requested", 90.5, 0, None],
        ["granted", 100.25, 2, "c[1-2]"],
        ["released", 120.0, 0, None],
    ]


async def test_the_journal_tells_why_nodes_were_pending(record: Journal) -> None:
    waited = batch_job()
    waited.listed([row("PENDING", "(Priority)")])
    waited.listed([row("PENDING", "(Resources)")])
    waited.marked(BEGUN)
    waited.listed([row()])
    batch_job(left=BEGUN).listed([row()])
    assert written(record, "status", "pending_reason") == [
        ["requested", None],
        ["granted", "Resources"],
        ["requested", None],
        ["granted", None],
    ]


async def test_a_job_settles_when_its_nodes_are_as_good_as_free() -> None:
    job = batch_job(left=BEGUN)
    job.listed([row()])
    job.abandoned()
    job.settled([row("COMPLETING")])
    assert state(job) is S.ABANDONED
    job.settled([row("COMPLETING", ended=120.0)])
    assert state(job) is S.SETTLED
    unseen = batch_job(left=BEGUN)
    unseen.abandoned()
    unseen.settled([row("COMPLETING", ended=120.0)])  # how many nodes, nobody knows yet
    assert state(unseen) is S.ABANDONED


async def test_a_component_is_where_the_first_one_is(record: Journal) -> None:
    job = batch_job()
    waiting = job.component(1, usage())
    assert (state(waiting), waiting.slurm_job, waiting.name) == (S.QUEUED, "8", "solve")
    pending = waiting.pending.unreported(
        [row("PENDING", "Priority")], 10.0 + LONG_SECONDS
    )
    assert len(list(pending)) == 1
    job.marked(BEGUN)
    assert state(waiting) is S.RUNNING
    late = job.component(2, usage())
    assert state(late) is S.RUNNING
    for component in (waiting, late):
        component.usage.settle(None)
    assert written(record, "allocation", "slurm_job", "status", "at")[1:] == [
        ["7+1", "7", "requested", 90.5],
        ["7+2", "7", "requested", 90.5],
        ["7+1", "7", "granted", 100.25],
        ["7+1", "7", "released", 100.25],
        ["7+2", "7", "granted", 100.25],
        ["7+2", "7", "released", 100.25],
    ]
    gone = batch_job()
    gone.granted.cancel()
    assert gone.component(1, usage()).slurm_job == "8"


def test_an_entry_follows_the_nodes_that_are_held(record: Journal) -> None:
    entry = usage()
    entry.submitted("7")
    entry.started(100.25)
    entry.seen(row("PENDING"))
    entry.seen(row("CONFIGURING"))
    entry.seen(row())
    entry.seen(row())  # nothing is new
    entry.seen(row(started=110.0, nodes=1, node_list="c1"))
    entry.seen(row("COMPLETING", nodes=3))  # only those that are not free yet
    entry.seen(row(node_list="", nodes=3))
    entry.seen(row(started=None, nodes=3))
    assert entry.nodes == 1
    entry.seen(row("PENDING", started=130.0, ended=125.0))  # it is requeued
    entry.seen(row(started=140.0))
    entry.given_back(150.5)
    entry.given_back(155.0)
    entry.settle(row("CANCELLED", started=140.0, ended=150.0))
    entry.settle(row("CANCELLED", started=140.0, ended=190.0))
    assert entry.nodes == 0
    assert written(record, "status", "at", "nodes", "node_list") == [
        ["requested", 90.5, 0, None],
        ["granted", 100.25, 2, "c[1-2]"],
        ["resized", 110.0, 1, "c1"],
        ["released", 125.0, 0, None],
        ["granted", 140.0, 2, "c[1-2]"],
        ["released", 150.5, 0, None],
    ]
    waits = [e for e in read(record.path) if e["event"] == "nodes"]
    assert [(e["job"], e["service"], e["status"]) for e in waits] == [
        ("/s/0", "gpu", "waiting")
    ]
    about = "deployment service strategy partition quantum job slurm_job".split()
    assert written(record, *about)[0] == [
        *("hpc", "gpu", "per-step", "g", True, "/s/0", "7")
    ]


@pytest.mark.parametrize(
    ("row_", "expected"),
    [
        (row("PENDING", started=130.0), 130.0),
        (row("PENDING", started=None), 100.25),
    ],
)
def test_when_a_requeued_job_gave_its_nodes_back(
    record: Journal, row_: QueueRow, expected: float
) -> None:
    entry = usage()
    entry.submitted("7")
    entry.started(100.25)
    entry.seen(row())
    entry.seen(row_)
    assert written(record, "status", "at")[-1] == ["released", expected]


def test_the_expected_end_of_a_requeued_job_is_none_of_its_nodes(
    record: Journal,
) -> None:
    entry = usage()
    entry.submitted("7")
    entry.seen(row(started=100.0))
    expected = time.time() + 120.0
    # As Slurm 24.11 lists a job that waits for its time, without a limit.
    entry.seen(row("PENDING", "BeginTime", expected, expected + 365 * 86400))
    ((status, at),) = written(record, "status", "at")[-1:]
    assert status == "released"
    assert isinstance(at, float)
    assert expected - 120.0 <= at <= time.time()


def test_without_slurms_times_those_of_the_script_count(record: Journal) -> None:
    entry = usage()
    entry.submitted("7")
    entry.ended(JobOutcome("7", "COMPLETED", started=100.25, ended=160.5))
    entry.settle(None)
    never = usage()
    never.submitted("8")
    never.settle(None)
    assert written(record, "allocation", "status", "at", "nodes") == [
        ["7", "requested", 90.5, 0],
        ["7", "granted", 100.25, 1],
        ["7", "released", 160.5, 0],
        ["8", "requested", 90.5, 0],
        ["8", "released", 90.5, 0],
    ]


def test_the_end_of_a_job_is_recorded(record: Journal) -> None:
    entry = usage(job=None)
    entry.submitted("7")
    outcome = JobOutcome("9", "FAILED", EndReason.NO_EXIT_CODE, 3, 9, 100.0, 160.0, 2)
    entry.record("/s/1", 100.5, outcome)
    entry.record("/s/2", 1.0, JobOutcome("9", LOST, ended=100.0))
    entry.record("/s/3", 99.5, JobOutcome("9", "FAILED", "x", started=99.0, ended=99.0))
    about = "deployment service strategy partition quantum allocation slurm_job".split()
    assert written(record, *about)[1] == ["hpc", "gpu", "per-step", "g", True, "7", "9"]
    told = "job submitted started ended state exit_code signal reason restarts".split()
    events: list[Event] = [e for e in read(record.path) if e["event"] == "slurm"]
    assert [[event[key] for key in told] for event in events] == [
        ["/s/1", 100.5, 100.5, 160.0, "FAILED", 3, 9, "it left no exit code", 2],
        ["/s/2", 1.0, None, 100.0, LOST, 0, 0, "", 0],
        ["/s/3", 99.5, 99.5, 99.5, "FAILED", 0, 0, "x", 0],
    ]


# ---- what Slurm prints


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (JobOutcome("7", "COMPLETED"), "Slurm job 7 is COMPLETED with exit code 0"),
        (JobOutcome("7", "TIMEOUT", "TIMEOUT"), "Slurm job 7 is TIMEOUT"),
        (
            JobOutcome("7", "FAILED", "None", 128),
            "Slurm job 7 is FAILED with exit code 128",
        ),
        (
            JobOutcome("7", "FAILED", "None", 129, 0, 160.0, 100.0),
            "Slurm job 7 is FAILED with exit code 129 and signal 1 (SIGHUP) after 0 s",
        ),
        (
            JobOutcome("7", "CANCELLED", "", 1, 99, 100.0),
            "Slurm job 7 is CANCELLED with exit code 1 and signal 99 (unknown)",
        ),
        (
            JobOutcome("7", "NODE_FAIL", ended=100.0, restarts=2),
            "Slurm job 7 is NODE_FAIL in run 3",
        ),
    ],
)
def test_every_part_of_the_sentence(outcome: JobOutcome, sentence: str) -> None:
    assert outcome.sentence() == sentence


def test_only_a_script_that_ended_by_itself_is_plain() -> None:
    assert JobOutcome("7", "FAILED", exit_code=1).plain
    assert not JobOutcome("7", "FAILED", signal=9).plain
    assert not JobOutcome("7", "TIMEOUT").plain


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("sbatch: error: a  b\nsbatch: c\n\nerror: d", "a b; c; d"),
        ("srun: error: x", "srun: error: x"),
        (" \n\n", "no message"),
    ],
)
def test_a_message_is_one_line(text: str, line: str) -> None:
    assert answers.in_one_line(text) == line


def test_the_queue_is_read_line_by_line() -> None:
    text = (
        "7|7_1|RUNNING|None|100|N/A|2|c[1-2]|0|1|sfq:a|b|\n"
        "7|7_2|PENDING|Priority|N/A|N/A|x|||x||\nno\n"
        "slurm|a|b|c|d|e|f|g|h|i|j|\n8|8|RUNNING|None|1|2|1\n"
    )
    queue = squeue.read(text)
    assert queue.rows("7") == [
        QueueRow("7", "RUNNING", "None", 100, None, 2, "c[1-2]", 0, 1, "sfq:a|b"),
        QueueRow("7", "PENDING", "Priority", None, None, 0, "", None, 0),
    ]
    assert queue.rows("8") == []


@pytest.mark.parametrize(
    ("status", "code", "signal"), [(0, 0, 0), (768, 3, 0), (9, 0, 9), (139, 0, 11)]
)
def test_a_line_of_the_queue_is_a_record(status: int, code: int, signal: int) -> None:
    line = f"7|7|FAILED|launch failed|100|101|1|c1|{status}|2|sfq:a|"
    record = "JobId=7 JobState=FAILED Reason=launch_failed Restarts=2"
    record += f" StartTime=100 EndTime=101 ExitCode={code}:{signal} Comment=sfq:a"
    (found,) = squeue.read(line).rows("7") or []
    assert [JobOutcome.of_row(found)] == answers.scontrol(record, "7")


def test_a_line_without_an_exit_code_is_no_record() -> None:
    line = "7|7|FAILED|None|100|101|1|c1|N/A|0||"
    (found,) = squeue.read(line).rows("7") or []
    assert JobOutcome.of_row(found) is None


def test_freed_nodes_have_a_time() -> None:
    assert row("COMPLETING", ended=1.0).freed
    assert row("FAILED", ended=1.0).freed
    assert not row("FAILED").freed
    assert not row("RUNNING", ended=1.0).freed


@pytest.mark.parametrize(
    ("text", "forgotten", "node_trouble", "temporary"),
    [
        ("slurm_load_jobs error: Invalid job id specified", True, False, False),
        ("srun: error: Task launch failed on node c1", False, True, False),
        ("srun: error: Nodes c[1-2] are down", False, True, False),
        ("error: Connection refused", False, True, True),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", False, False, True),
        ("invalid partition specified", False, False, False),
    ],
)
def test_what_a_message_means(
    text: str, forgotten: bool, node_trouble: bool, temporary: bool
) -> None:
    assert answers.is_forgotten(text) == forgotten
    assert answers.is_node_trouble(text) == node_trouble
    assert answers.is_temporary(text, 1) == temporary


def test_the_id_of_a_submitted_job() -> None:
    assert answers.submitted_job("sbatch: a warning\n77;cluster\n", 0) == "77;cluster"
    assert answers.submitted_job("77\n", 0) == "77"
    assert answers.submitted_job("77\n", 1) is None
    assert answers.submitted_job("Submitted batch job 77\n", 0) is None


def test_what_slurm_is_asked() -> None:
    assert answers.squeue_command(["7", "8"]) == (
        "plain env SLURM_TIME_FORMAT=%s timeout 60 squeue --noheader --states=all "
        '--user="$(id -un)" --jobs=7,8 --Format=\'ArrayJobID:|,JobArrayID:|,'
        "State:|,Reason:|,StartTime:|,EndTime:|,NumNodes:|,NodeList:|,exit_code:|,"
        "RestartCnt:|,Comment:|'"
    )
    shown = "plain env SLURM_TIME_FORMAT=%s timeout {} scontrol --oneliner show job 7"
    assert answers.scontrol_command("7") == shown.format(60)
    assert answers.scontrol_command("7", 2.5) == shown.format(2.5)
    assert answers.sacct_command("7") == (
        "plain env SLURM_TIME_FORMAT=%s timeout 60 sacct --noheader --parsable2 --allocations "
        "--jobs=7 --format=JobID,State,Reason,ExitCode,Start,End"
    )


def test_a_record_may_lack_most_fields() -> None:
    assert answers.scontrol("JobId=7 JobState=PENDING\nJobId=7\n", "7") == [
        JobOutcome("7", "PENDING")
    ]
    told = "7.batch|FAILED||1:0|x|2\nx|FAILED||1:0|1|2\n7|FAILED\n"
    assert answers.sacct(told, "7") == [
        JobOutcome("7.batch", "FAILED", "", 1, 0, None, 2.0)
    ]
