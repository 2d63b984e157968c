"""What a job printed, fetched over a connection that breaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import jobs
from sf_quantum.connectors.slurm.jobs import Job
from sf_quantum.connectors.slurm.options import Service
from sf_quantum.connectors.slurm.queue import Queue
from sf_quantum.connectors.slurm.script import Mark
from sf_quantum.connectors.slurm.states import Outcome

LOST = WorkflowExecutionException("the connection was lost")
MARK = Mark("key", "7", 0, 100.0, 101.0, 4)
JOB = Job("/step/0", Service(), None, "true")


@dataclass
class _Login:
    """Says what it is told to say, and the last of it for ever."""

    told: list[tuple[str, int] | Exception]

    async def run(self, command: str) -> tuple[str, int]:
        one = self.told.pop(0) if len(self.told) > 1 else self.told[0]
        if isinstance(one, Exception):
            raise one
        return one


@dataclass
class _Queue:
    login: _Login


def _queue(*told: tuple[str, int] | Exception) -> Queue:
    return cast("Queue", _Queue(_Login([*told])))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "AGAIN_SECONDS", 0.0)


async def test_a_lost_connection_does_not_lose_what_was_printed() -> None:
    queue = _queue(LOST, ("no such file", 1), ("out\n", 0))
    good = Outcome("7", "COMPLETED")
    assert (await jobs.result(queue, JOB, good, "/spool/out", MARK)).output == "out"


async def test_what_cannot_be_fetched_is_no_empty_result() -> None:
    good = Outcome("7", "COMPLETED")
    with pytest.raises(
        WorkflowExecutionException, match="cannot be read: no such file"
    ):
        await jobs.result(_queue(("no such file", 1)), JOB, good, "/spool/out", MARK)


async def test_a_failure_is_told_without_its_last_lines() -> None:
    failed = Outcome("7", "FAILED", exit_code=3)
    result = await jobs.result(_queue(LOST), JOB, failed, "/spool/out", MARK)
    assert "is FAILED with exit code 3" in result.output
    assert result.output.endswith("what it printed cannot be read")
