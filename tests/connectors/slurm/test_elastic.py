"""Allocations that come and go with the jobs, without Slurm."""

from __future__ import annotations

import asyncio
from typing import ClassVar, cast

import pytest

from sf_quantum.connectors.slurm.allocation.elastic_rules import ElasticSettings
from sf_quantum.connectors.slurm.allocation.elastic_service import Elastic
from sf_quantum.connectors.slurm.allocation.limits import ShortLimit
from sf_quantum.connectors.slurm.allocation.slurm_allocation import SlurmAllocation
from sf_quantum.connectors.slurm.allocation.step_job import StepJob
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from tests.support.waiting import SECONDS, until_async


class _Held:
    """An allocation of a controller that answers until the second job begins."""

    made: ClassVar[list[_Held]] = []

    def __init__(self, *, short: bool = False) -> None:
        self.over, self._short = False, short
        self.limit = ShortLimit()
        self.refusal: asyncio.Future[str] = asyncio.Future()
        self.ending = False
        self.given_back: asyncio.Future[None] = asyncio.Future()
        self.made.append(self)

    def lasts(self, _: object) -> bool:
        return True

    async def granted(self) -> _Held:
        return self

    async def run(self, job: StepJob, requested: float) -> JobOutcome:
        if job.name == "/step/1":
            await asyncio.Event().wait()
        self.over = self._short
        return JobOutcome("1", "COMPLETED", started=requested, ended=requested)

    async def end_with(self, seconds: int) -> None:
        self.ending = True
        await asyncio.Event().wait()

    async def give_back(self) -> None:
        self.given_back.set_result(None)


def _elastic(monkeypatch: pytest.MonkeyPatch, *, short: bool = False) -> Elastic:
    async def request(*_: object, **__: object) -> list[_Held]:
        return [_Held(short=short)]

    monkeypatch.setattr(_Held, "made", [])
    monkeypatch.setattr(SlurmAllocation, "request", request)
    queue = cast("SlurmQueue", type("Queue", (), {"deployment": "cluster"}))
    return Elastic(queue, SlurmService(), ElasticSettings(idle=0.0, ahead=True), [])


async def test_it_ends_at_the_moment_an_allocation_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elastic = _elastic(monkeypatch, short=True)
    await elastic.run(StepJob("/step/0", SlurmService(), "true"))
    (held,) = _Held.made
    # The task that gave it back has ended, and nothing else has noticed yet.
    await held.given_back
    await elastic.close()


async def test_the_end_does_not_wait_for_a_limit_to_be_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elastic = _elastic(monkeypatch)
    first, second = (
        StepJob(f"/step/{n}", SlurmService(), "true", seconds=60) for n in (0, 1)
    )
    assert (await elastic.run(first)).good
    running = asyncio.create_task(elastic.run(second))
    await until_async(lambda: any(one.ending for one in _Held.made), "its last job")
    async with asyncio.timeout(SECONDS):
        await elastic.close()
    assert all(one.given_back.done() for one in _Held.made)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
