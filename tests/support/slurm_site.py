"""Allocations on a lab through the connector ``sfq.slurm``, and their account."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.files import JSON
from sf_quantum.journal import Journal
from sf_quantum.reporting.run_usage import AllocationUsage
from tests.lab import Lab
from tests.support.journals import Event, measure, read
from tests.support.slurm_jobs import Cluster, cluster
from tests.support.waiting import SECONDS, until_async

NODE: dict[str, JSON] = {"partition": "compute", "ntasks": 1}
QPU: dict[str, JSON] = {"partition": "quantum", "ntasks": 1, "gres": "qpu:1"}


class Site:
    """A deployment of the connector, and the journal of its run."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.cluster = cluster
        self.lab = cluster.lab
        self.path = path

    async def run(self, command: str, service: str = "node", step: str = "") -> str:
        """Run a job that ends well.

        :param step: and number, if that matters
        :returns: what it printed
        """
        text, code = await self.cluster.run(command, service, step)
        assert code == 0, text
        return text

    def start(
        self, command: str, service: str = "node", step: str = ""
    ) -> asyncio.Task[str]:
        """Start a job that ends well."""
        return asyncio.create_task(self.run(command, service, step))

    def events(self, kind: str) -> list[Event]:
        """The journal's events of a kind."""
        return [event for event in read(self.path) if event["event"] == kind]

    def held(self, service: str = "node") -> list[AllocationUsage]:
        """The allocations of a service, as the journal has them so far."""
        found = measure(read(self.path)).allocations
        return [one for one in found if one.service == service]

    def queue(self, service: str = "node") -> dict[int, str]:
        """The states of a service's allocations in Slurm's queue now."""
        ours = {allocation_id(one) for one in self.held(service)}
        lines = self.lab.output("squeue", "-h", "-o", "%A %T").splitlines()
        found = {int(job): state for job, state in map(str.split, lines)}
        return {job: state for job, state in found.items() if job in ours}

    async def counts(
        self, count: int, state: str = "RUNNING", service: str = "node"
    ) -> None:
        """Wait until so many allocations are in a state."""
        await until_async(
            lambda: list(self.queue(service).values()).count(state) == count,
            f"{count} {state}",
        )


def allocation_id(allocation: AllocationUsage) -> int:
    """Slurm's id of it, of a component its own."""
    component = allocation.allocation.partition("+")[2]
    return int(allocation.slurm_job) + int(component or 0)


@asynccontextmanager
async def site(
    lab: Lab, folder: Path, allocation: JSON, **config: JSON
) -> AsyncIterator[Site]:
    """Deploy the connector, and check its account when it has been undeployed.

    :param allocation: the key
    :param config: other keys of the connector's
    """
    journal = Journal(folder / "journal")
    journal.start("site.yml", ["site"], {})
    try:
        config = {"services": {"node": NODE, "qpu": QPU}, **config}
        with timed_scancels() as seconds:
            async with cluster(lab, folder, allocation=allocation, **config) as made:
                yield Site(made, journal.path)
        agrees(lab, journal.path, max(seconds))
    finally:
        journal.close()


@contextmanager
def timed_scancels() -> Iterator[list[float]]:
    """Note how long ``scancel`` took: on a machine that stands still, many seconds."""
    seconds, scancel = [0.0], SlurmQueue.scancel

    async def timed(self: SlurmQueue, *ids: str) -> None:
        began = time.monotonic()
        try:
            await scancel(self, *ids)
        finally:
            seconds.append(time.monotonic() - began)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlurmQueue, "scancel", timed)
        yield seconds


def agrees(lab: Lab, path: Path, scancel_seconds: float) -> None:
    """Hold a run's account against Slurm's own record.

    Within a second for each job, as that record is in whole seconds. Nodes are given back
    when ``scancel`` is called, and free when it has returned.
    """
    allocations = measure(read(path)).allocations
    ids = {allocation_id(one) for one in allocations}
    lab.wait_for(lambda: not ids & set(lab.jobs()), f"{ids} to end", SECONDS)
    lab.wait_for(
        lambda: ids <= {job.id for job in lab.jobcomp()},
        f"the record of {ids}",
        SECONDS,
    )
    record = {job.id: job for job in lab.jobcomp()}
    for one in allocations:
        job = record[allocation_id(one)]
        assert not one.unended, one
        assert one.released is not None, one
        if not one.holds:
            assert job.state == "CANCELLED", (one, job)
            continue
        assert one.holds[-1].nodes == job.nodes, (one, job)
        assert abs(one.holds[0].start - job.started) <= 1, (one, job)
        late = scancel_seconds if job.state == "CANCELLED" else 0.0
        assert -1 - late <= one.holds[-1].end - job.ended <= 1, (one, job)
        seconds = one.node_seconds / job.nodes
        assert -1 - late <= seconds - (job.ended - job.started) <= 1, (one, job)
