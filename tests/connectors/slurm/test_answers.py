"""What Slurm prints is read as it is meant."""

from __future__ import annotations

import pytest

from sf_quantum.connectors.exit_codes import ExitCodes
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.connectors.slurm.transport.answers import EndReason, JobOutcome
from sf_quantum.slurm import squeue
from sf_quantum.slurm.states import ENDED

SHOWN = (
    "JobId=7 JobName=a b JobState=FAILED Reason=NonZeroExitCode Restarts=1 "
    "ExitCode=3:0 StartTime=100 EndTime=160 Command=(null)\n"
)


def test_only_completed_with_zero_is_good() -> None:
    assert JobOutcome("1", "COMPLETED").good
    assert not JobOutcome("1", "COMPLETED", exit_code=1).good
    assert not JobOutcome("1", "COMPLETED", signal=9).good
    assert not any(JobOutcome("1", state).good for state in ENDED - {"COMPLETED"})
    assert not JobOutcome("1", answers.LOST).good


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (
            JobOutcome("7", "FAILED", "NonZeroExitCode", 3, 0, 100.0, 160.4, 1),
            "Slurm job 7 is FAILED (NonZeroExitCode) with exit code 3 after 60 s in run 2",
        ),
        (
            JobOutcome("7", "CANCELLED", "None", 0, 15),
            "Slurm job 7 is CANCELLED with signal 15 (SIGTERM)",
        ),
        (
            JobOutcome("7", "FAILED", "", 137),
            "Slurm job 7 is FAILED with exit code 137 and signal 9 (SIGKILL)",
        ),
    ],
)
def test_the_sentence(outcome: JobOutcome, sentence: str) -> None:
    assert outcome.sentence() == sentence


def test_scontrol() -> None:
    (one,) = answers.scontrol(SHOWN, "7")
    assert (one.slurm_job, one.state, one.reason) == ("7", "FAILED", "NonZeroExitCode")
    assert (one.exit_code, one.signal, one.restarts) == (3, 0, 1)
    assert (one.started, one.ended) == (100.0, 160.0)
    assert one.plain
    assert (
        answers.scontrol("slurm_load_jobs error: Invalid job id specified\n", "7") == []
    )


def test_of_several_records_only_those_of_the_job_count() -> None:
    told = "".join(
        f"JobId={job} {more}JobState=COMPLETED ExitCode=0:0\n"
        for job, more in {"6": "", "7": "HetJobId=7 ", "8": "HetJobId=7 "}.items()
    )
    assert [one.slurm_job for one in answers.scontrol(told, "7")] == ["7"]
    array = "".join(
        f"JobId={job} ArrayJobId=9 ArrayTaskId=1 JobState=FAILED\n" for job in (9, 10)
    )
    assert [one.slurm_job for one in answers.scontrol(told + array, "9")] == ["9", "10"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("RUNNING", True),
        ("PENDING", True),
        ("COMPLETING", False),
        ("COMPLETED", False),
        ("TIMEOUT", False),
    ],
)
def test_what_lasts(state: str, expected: bool) -> None:
    rows = squeue.read(f"7|7_1|{state}|None|1|2|1|c1|0|0||").rows("7")
    assert [row.lasts for row in rows or []] == [expected]


def test_our_own_reasons_have_words() -> None:
    outcome = JobOutcome("7", answers.LOST, EndReason.FORGOTTEN)
    assert outcome.sentence() == (
        "Slurm job 7 is LOST (Slurm no longer knows it, and it left no exit code)"
    )


def test_the_accounting() -> None:
    (one,) = answers.sacct("7|CANCELLED by 1000|None|0:15|100|Unknown\nno line\n", "7")
    assert one == JobOutcome("7", "CANCELLED", "None", 0, 15, 100.0)
    assert not one.plain


def test_the_first_failure_of_an_array_counts() -> None:
    good, bad = JobOutcome("1", "COMPLETED"), JobOutcome("1", "TIMEOUT")
    assert answers.worst([good, bad, good], ExitCodes()) is bad
    assert answers.worst([good, good], ExitCodes()) is good
    coded, wrong = (JobOutcome("1", "FAILED", exit_code=code) for code in (3, 4))
    assert answers.worst([coded, wrong], ExitCodes()) is coded
    assert answers.worst([good, coded, wrong], ExitCodes(success=[3])) is wrong
    assert answers.worst([good, coded], ExitCodes(success=[3])) is coded
    assert answers.worst([coded, bad], ExitCodes(success=[0, 3])) is bad
    assert not JobOutcome("1", "FAILED").is_success(ExitCodes())
    assert not good.is_success(ExitCodes(failure=[0]))


def test_a_later_run() -> None:
    def seen(state: str, restarts: int, started: float | None) -> bool:
        outcome = JobOutcome("1", state, started=started, restarts=restarts)
        return outcome.is_later_run(160.5)

    assert not seen("RUNNING", 0, 160.0)
    assert not seen("RUNNING", 1, 160.0)
    assert seen("RUNNING", 1, 161.0)
    assert seen("PENDING", 1, 100.0)
    assert seen("REQUEUED", 1, None)


@pytest.mark.parametrize(
    "reason",
    [
        "BadConstraints",
        "(PartitionNodeLimit)",
        "ReqNodeNotAvail, UnavailableNodes:c[1-3]",
        "launch failed requeued held",
        "AssocMaxCpuPerJobLimit",
        "QOSMaxNodePerJobLimit",
        "QOSMinGRES",
    ],
)
def test_reasons_that_do_not_pass(reason: str) -> None:
    assert answers.is_hopeless(reason)


@pytest.mark.parametrize(
    "reason",
    [
        "Resources",
        "Priority",
        "BeginTime",
        "Licenses",
        "QOSMaxJobsPerUserLimit",
        "None",
    ],
)
def test_reasons_that_pass(reason: str) -> None:
    assert not answers.is_hopeless(reason)
