"""Nodes that Slurm never grants: a job that can run elsewhere does not wait for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sf_quantum.connectors import hints
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.slurm.refusals import SlurmRefusal
from sf_quantum.files import JSON
from tests.lab import Lab
from tests.support.slurm_site import NODE, site
from tests.support.waiting import until_async

pytestmark = pytest.mark.process

SERVICES: dict[str, JSON] = {
    "node": NODE,
    "many": {"partition": "compute", "nodes": "99"},
}
STRATEGIES: dict[str, tuple[JSON, str]] = {
    "per-step": ("per-step", "job /"),
    "elastic": ({"strategy": "elastic"}, "an allocation of many: "),
    "reserved": ({"strategy": "reserved", "reserve": ["many"]}, "the allocation of "),
    # the other component could be granted
    "both": ({"strategy": "reserved", "reserve": ["node", "many"]}, "the allocation "),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_job_leaves_nodes_that_it_never_gets(
    lab: Lab, tmp_path: Path, strategy: str
) -> None:
    allocation, subject = STRATEGIES[strategy]
    async with site(lab, tmp_path, allocation, services=SERVICES) as held:
        name = f"/{held.cluster.name}/candidate"
        # this one has no other target, and waits
        waiting = asyncio.create_task(held.run("true", "many"))
        queued = held.cluster.lab.output
        await until_async(lambda: waiting.done() or queued("squeue", "-h"), "a request")
        hints.put(name, JobHints(has_alternative=True))
        try:
            with pytest.raises(SlurmRefusal) as refusal:
                await held.cluster.run("true", "many", name="candidate")
            assert hints.of(name).refused
        finally:
            hints.discard(name)
        message = str(refusal.value)
        # Slurm 24.11 refuses at once what 22.05 lets wait for ever
        at_once = message.startswith("Slurm refuses ")
        assert at_once or not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert at_once or message.startswith(f"Slurm will never start {subject}")
    assert "`nodes: 99` of service many; partition compute has " in message
    # Slurm 24.11 does not say which component it refuses.
    assert at_once or "service node" not in message
