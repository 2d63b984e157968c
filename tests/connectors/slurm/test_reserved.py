"""The nodes of a run, without Slurm."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from sf_quantum.connectors.slurm.allocation.nodes_wait import NodesWait
from sf_quantum.connectors.slurm.allocation.reserved import Components
from sf_quantum.connectors.slurm.allocation.slurm_allocation import SlurmAllocation
from sf_quantum.connectors.slurm.allocation.step_job import AllocationGone, StepJob
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.journal import Journal
from tests.support.journals import read


class _Held:
    """An allocation whose jobs end when they are told to."""

    over = False

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ran: list[str] = []

    async def run(self, job: StepJob, submitted: float) -> JobOutcome:
        self.ran.append(job.name)
        await self.may_end.wait()
        return JobOutcome("1", "COMPLETED")

    async def give_back(self) -> None:
        self.over = True


async def test_no_job_gets_nodes_that_are_being_given_back(tmp_path: Path) -> None:
    record = Journal(tmp_path)
    record.start("site.yml", ["site"], {})
    held, service = _Held(), SlurmService()
    service.name = "qpu"
    components = Components([("qpu", cast("SlurmAllocation", held))])

    async def run(name: str) -> JobOutcome:
        with NodesWait(name, "hpc", service) as wait:
            return await components.run(StepJob(name, service, "true"), 0.0, wait)

    first, second = (
        asyncio.create_task(run(name)) for name in ("/first/0", "/second/0")
    )
    while not held.ran:  # noqa: ASYNC110 - it has nothing to wait for
        await asyncio.sleep(0)
    components.release(["qpu"])
    held.may_end.set()
    assert (await first).good
    with pytest.raises(AllocationGone):
        await second
    assert held.ran == ["/first/0"]
    assert held.over
    record.close()
    # the first has found them free
    waits = [one for one in read(record.path) if one["event"] == "nodes"]
    assert [(one["job"], one["service"], one["status"]) for one in waits] == [
        ("/second/0", "qpu", "waiting"),
        ("/second/0", "qpu", "given-up"),
    ]
