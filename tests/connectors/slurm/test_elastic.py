"""Allocations that come and go with the jobs, without Slurm."""

from __future__ import annotations

import asyncio
from typing import ClassVar, cast

import pytest

from sf_quantum.connectors.slurm.allocation.elastic import Elastic
from sf_quantum.connectors.slurm.allocation.elastic_rules import ElasticSettings
from sf_quantum.connectors.slurm.allocation.limits import ShortLimit
from sf_quantum.connectors.slurm.allocation.slurm_allocation import SlurmAllocation
from sf_quantum.connectors.slurm.allocation.step_job import StepJob
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from tests.support.waiting import SECONDS, until_async


class _Held:
    """An allocation of a controller that answers until the second job begins."""

    over = False
    made: ClassVar[list[_Held]] = []

    def __init__(self) -> None:
        self.limit = ShortLimit()
        self.refusal: asyncio.Future[str] = asyncio.Future()
        self.ending = self.given_back = False
        self.made.append(self)

    def lasts(self, _: object) -> bool:
        return True

    async def granted(self) -> _Held:
        return self

    async def run(self, job: StepJob, requested: float) -> JobOutcome:
        if job.name == "/step/1":
            await asyncio.Event().wait()
        return JobOutcome("1", "COMPLETED", started=requested, ended=requested)

    async def end_with(self, seconds: int) -> None:
        self.ending = True
        await asyncio.Event().wait()

    async def give_back(self) -> None:
        self.given_back = True


async def test_the_end_does_not_wait_for_a_limit_to_be_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def request(*_: object, **__: object) -> list[_Held]:
        return [_Held()]

    monkeypatch.setattr(_Held, "made", [])
    monkeypatch.setattr(SlurmAllocation, "request", request)
    queue = cast("SlurmQueue", type("Queue", (), {"deployment": "cluster"}))
    elastic = Elastic(queue, SlurmService(), ElasticSettings(idle=0.0, ahead=True), [])
    first, second = (
        StepJob(f"/step/{n}", SlurmService(), "true", seconds=60) for n in (0, 1)
    )
    assert (await elastic.run(first)).good
    running = asyncio.create_task(elastic.run(second))
    await until_async(lambda: any(one.ending for one in _Held.made), "its last job")
    async with asyncio.timeout(SECONDS):
        await elastic.close()
    assert all(one.given_back for one in _Held.made)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
