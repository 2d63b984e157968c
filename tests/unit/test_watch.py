"""When a QPU is given up under a job that could run elsewhere, against a real service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from sf_quantum.connectors import watch, wishes
from sf_quantum.connectors.leases import Lease, Leases
from sf_quantum.connectors.wishes import Wish
from sf_quantum.files import JSON
from sf_quantum.qpu import waiting
from sf_quantum.qpu.access import Credentials
from sf_quantum.qpu.sfq import SfqQpu
from sf_quantum.service.device.emulated import Device
from sf_quantum.service.testing import RunningService, example_bqm, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    """A service whose jobs take minutes."""
    with running_service(Device(technology="neutral-atom"), vqpus=2) as running:
        yield running


@pytest.fixture
async def leases(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Leases]:
    """What a driver takes leases from."""
    monkeypatch.setattr(watch, "PAUSE_SECONDS", 0.01)
    credentials = Credentials(patience_seconds=0)
    made = Leases(SfqQpu("q", service.url, credentials=credentials))
    yield made
    await made.close()


async def submit(service: RunningService, leases: Leases, key: str) -> Lease:
    """A lease with one QPU job."""
    lease = await leases.acquire(waiting.Request(key))
    body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": key}
    answer = await asyncio.to_thread(
        service.ask, "POST", "/v1/jobs", body, lease=lease.token
    )
    assert answer.status == 201
    return lease


async def close(service: RunningService, how: str = "close") -> None:
    path = f"/v1/device/{how}"
    await asyncio.to_thread(service.ask, "POST", path, {"message": "helium"})


async def test_a_qpu_that_goes_offline_is_told(
    service: RunningService, leases: Leases
) -> None:
    watching = asyncio.create_task(watch.until_offline(leases))
    await asyncio.sleep(0.05)
    assert not watching.done()
    await close(service)
    async with asyncio.timeout(5):
        assert await watching == "it is offline: the QPU is closed: helium"


async def test_a_job_that_waits_for_a_qpu_that_was_closed_is_lost(
    service: RunningService, leases: Leases
) -> None:
    lease = await submit(service, leases, "a")
    service.until(lease.token, "Running")
    watching = asyncio.create_task(watch.until_lost(leases, lease, "a", None))
    await close(service)  # which puts the running job back into the queue
    async with asyncio.timeout(5):
        assert "helium" in await watching


async def test_a_job_that_runs_while_the_qpu_is_drained_is_not(
    service: RunningService, leases: Leases
) -> None:
    lease = await submit(service, leases, "a")
    service.until(lease.token, "Running")
    other = await submit(service, leases, "b")
    runs = asyncio.create_task(watch.until_lost(leases, lease, "a", None))
    waits = asyncio.create_task(watch.until_lost(leases, other, "b", None))
    await close(service, "drain")
    async with asyncio.timeout(5):
        assert "the QPU is being drained: helium" in await waits
    await asyncio.sleep(0.05)
    assert not runs.done()
    runs.cancel()


async def test_a_job_that_waits_longer_than_it_may_is_lost(
    service: RunningService, leases: Leases
) -> None:
    await submit(service, leases, "first")
    lease = await submit(service, leases, "second")
    patient = asyncio.create_task(watch.until_lost(leases, lease, "second", 60))
    async with asyncio.timeout(5):
        why = await watch.until_lost(leases, lease, "second", 0.1)
    assert why == "a QPU job waited for more than 0.1 s"
    assert not patient.done()
    patient.cancel()


async def test_a_job_that_has_begun_may_wait_again(
    service: RunningService, leases: Leases
) -> None:
    lease = await submit(service, leases, "a")
    service.until(lease.token, "Running")
    watching = asyncio.create_task(watch.until_lost(leases, lease, "a", 0.0))
    await asyncio.sleep(0.1)
    other = await submit(service, leases, "b")
    body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "more"}
    await asyncio.to_thread(service.ask, "POST", "/v1/jobs", body, lease=lease.token)
    first = (await leases.jobs(lease, "a") or [])[0]
    path = f"/v1/jobs/{first['id']}"
    await asyncio.to_thread(service.ask, "DELETE", path, lease=lease.token)
    await asyncio.to_thread(service.until, other.token, "Running")
    await asyncio.sleep(0.2)
    states = [told["state"] for told in await leases.jobs(lease, "a") or []]
    assert states == ["Cancelled", "Queued"]
    assert not watching.done()
    watching.cancel()
    await leases.release(other)


async def test_the_wait_counts_from_when_it_was_wished() -> None:
    wish = Wish(wait_seconds=60.0, told=time.monotonic() - 20.0)
    assert wish.left is not None
    assert 39 < wish.left <= 40
    assert Wish(wait_seconds=1.0, told=time.monotonic() - 20.0).left == 0.0
    assert Wish().left is None


async def test_a_service_that_does_not_answer_is_left_to_the_jobs_own_client() -> None:
    credentials = Credentials(patience_seconds=0)
    nobody = Leases(SfqQpu("q", "http://127.0.0.1:1", credentials=credentials))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await watch.until_offline(nobody)


def test_wishes_are_of_one_job() -> None:
    wish = Wish({"pattern": "balanced"}, 3.0, True)
    wishes.tell("/s/0", wish)
    assert wishes.of("/s/0") == wish
    assert wishes.of("/s/1") == Wish()
    wishes.forget("/s/0")
    assert wishes.of("/s/0") == Wish()
