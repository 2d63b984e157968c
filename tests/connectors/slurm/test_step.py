"""A step of an allocation, followed by what its script leaves in the spool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm.allocation import step as steps
from sf_quantum.connectors.slurm.allocation.step import Step

pytestmark = pytest.mark.process


class _Login:
    """The login node is this machine."""

    def __init__(self, spool: Path) -> None:
        self.spool = str(spool)

    async def ask(self, command: str) -> tuple[str, int]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_shell(command, stdout=pipe)
        text, _ = await process.communicate()
        return text.decode(), process.returncode or 0


def _step(spool: Path) -> Step:
    """A step of an allocation that has ended."""
    ended = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    batch_job = SimpleNamespace(key="holder", slurm_job="7", group=None, ended=ended)
    queue = SimpleNamespace(
        login=_Login(spool), step_mark=lambda _: asyncio.Event().wait()
    )
    allocation: Any = SimpleNamespace(
        queue=queue, leader=batch_job, own=batch_job, over=True
    )
    job: Any = SimpleNamespace(
        name="/solve/0", stdin=None, stdout=None, stderr=None, body="", seconds=None
    )
    job.workdir = job.time_limit = None
    return Step(allocation, job, None)


def _leave(step: Step, mark: str) -> None:
    Path(step.path("mark")).write_text(mark)


async def test_what_is_no_mark_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MARK_SECONDS", 0.01)
    step = _step(tmp_path)
    _leave(step, f"{step.key} 7 0 12.5  11\n")
    with pytest.raises(
        WorkflowExecutionException, match="/solve/0 has left an end that"
    ):
        await asyncio.wait_for(step.run(), 60)


async def test_without_a_mark_there_is_a_substitute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MARK_SECONDS", 0.01)
    mark = await asyncio.wait_for(_step(tmp_path).run(), 60)
    assert (mark.slurm_job, mark.exit_code, mark.ended) == ("7", 1, None)
