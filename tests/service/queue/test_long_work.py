"""The turns of users, and how long a request waits for one."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, LeaseRequest, Size, Submission
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue import long_work
from sf_quantum.service.queue.long_work import LongWork
from tests.support.service import running_queue
from tests.support.waiting import SECONDS

CIRCUIT = 'OPENQASM 3.0; include "stdgates.inc"; qubit[1] q; bit[1] c; c = measure q;'


async def test_a_wait_for_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "PATIENCE_SECONDS", 0.01)
    work = LongWork("test")
    async with work.turn("ada"):
        with pytest.raises(Refused, match="other requests of yours") as caught:
            await work.turn("ada").__aenter__()
        async with work.turn("bob"):
            pass
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "10"})
    async with work.turn("ada"):
        pass


@pytest.mark.parametrize("seed", range(5))
async def test_turns_end_whatever_ends_their_requests(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that time out, are cancelled or fail leave the turn to the next one."""
    monkeypatch.setattr(long_work, "PATIENCE_SECONDS", 0.01)
    work, draws = LongWork("test"), random.Random(seed)
    holders = dict.fromkeys(("ada", "bob"), 0)

    async def ask(user: str) -> None:
        async with work.turn(user):
            holders[user] += 1
            assert holders[user] == 1
            try:
                await asyncio.sleep(draws.random() * 0.004)
                if draws.random() < 0.2:
                    raise ValueError
            finally:
                holders[user] -= 1

    requests = [asyncio.create_task(ask(draws.choice([*holders]))) for _ in range(40)]
    for request in draws.sample(requests, 10):
        asyncio.get_running_loop().call_later(draws.random() * 0.02, request.cancel)
    ended = await asyncio.gather(*requests, return_exceptions=True)
    assert not [one for one in ended if isinstance(one, AssertionError)]
    for user in holders:
        async with work.turn(user):
            assert holders[user] == 0


async def test_a_slow_check_delays_its_own_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "PATIENCE_SECONDS", 0.1)
    began, go = threading.Event(), threading.Event()
    check = EmulatedDevice.check

    def slow(device: EmulatedDevice, kind: str, content: str, more: object) -> Size:
        if "slow" in content:
            began.set()
            go.wait(SECONDS)
        return check(device, kind, content, more)  # type: ignore[arg-type]

    monkeypatch.setattr(EmulatedDevice, "check", slow)
    device = EmulatedDevice(technology="superconducting", qubits=5)
    async with running_queue(tmp_path, device, ServiceSettings(vqpus=2)) as queue:
        leases = {}
        for user in ("ada", "bob"):
            who = Identity(user, admin=False)
            leases[user] = who, (await queue.leases.acquire(who, LeaseRequest())).id

        async def submit(user: str, text: str = CIRCUIT) -> bool:
            job = Submission("circuit", text, {"num_reads": 1}, key=text[-8:])
            return (await queue.submit(*leases[user], job))[1]

        first = asyncio.create_task(submit("ada", f"{CIRCUIT} // slow"))
        assert await asyncio.to_thread(began.wait, SECONDS)
        with pytest.raises(Refused, match="other requests of yours"):
            await submit("ada")
        assert await submit("bob")
        go.set()
        assert await first
        assert await submit("ada")
