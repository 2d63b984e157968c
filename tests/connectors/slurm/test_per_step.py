"""What a job printed, fetched over a connection that breaks."""

from __future__ import annotations

import pytest
from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm.allocation import step_job
from sf_quantum.connectors.slurm.allocation.step_job import StepJob
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport import login
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.connectors.slurm.transport.login import LoginNode

LOST = WorkflowExecutionException("the connection was lost")
MARK = JobMark("key", "7", 0, 100.0, 101.0, 4)
JOB = StepJob("/step/0", SlurmService(), "true")


class _Login(LoginNode):
    """Answers what it is given, and the last of it for ever."""

    def __init__(self, *answers: tuple[str, int] | Exception) -> None:
        self._answers = [*answers]

    async def run(self, command: str) -> tuple[str, int]:
        one = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(one, Exception):
            raise one
        return one


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "READ_PAUSE_SECONDS", 0.0)


async def test_a_lost_connection_does_not_lose_what_was_printed() -> None:
    node = _Login(LOST, ("no such file", 1), ("out\n", 0))
    good = JobOutcome("7", "COMPLETED")
    assert (
        await step_job.read_result(node, JOB, good, "/spool/out", MARK)
    ).output == "out"


async def test_what_cannot_be_fetched_is_no_empty_result() -> None:
    good = JobOutcome("7", "COMPLETED")
    with pytest.raises(
        WorkflowExecutionException, match="cannot be read: no such file"
    ):
        await step_job.read_result(
            _Login(("no such file", 1)), JOB, good, "/spool/out", MARK
        )


async def test_a_failure_is_told_without_its_last_lines() -> None:
    failed = JobOutcome("7", "FAILED", exit_code=3)
    result = await step_job.read_result(_Login(LOST), JOB, failed, "/spool/out", MARK)
    assert "is FAILED with exit code 3" in result.output
    assert result.output.endswith("its output cannot be read")
