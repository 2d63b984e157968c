"""Leases within the times for which the device's vendor has reserved it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from pydantic import Field

from sf_quantum.protocol.leases import LATEST_START, ReservedTime
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity, LeaseRequest
from sf_quantum.service.domain.settings import LeaseSettings, ServiceSettings
from tests.support.service import running_queue
from tests.support.waiting import until_async as until

ANN, BOB = Identity("ann", admin=False), Identity("bob", admin=False)
RESERVED = LeaseRequest(reservation="slot")


class Reserved(EmulatedDevice):
    """A device that its vendor reserves.

    :param made: when it was made, in seconds since the epoch
    :param times: seconds from then to begin and end, by the reservation's name
    :param problem: why others are not known
    """

    made: float = Field(default_factory=time.time)
    times: dict[str, tuple[float, float] | None] = Field(default_factory=dict)
    problem: str = ""

    @property
    def reservations_problem(self) -> str:
        return self.problem

    @property
    def reservations(self) -> dict[str, ReservedTime | None]:
        return {
            name: times and ReservedTime(*(self.made + one for one in times))
            for name, times in self.times.items()
        }


def reserved(**times: tuple[float, float] | None) -> Reserved:
    return Reserved(time_scale=0, times=times)


async def test_a_lease_is_granted_when_its_reservation_begins(tmp_path: Path) -> None:
    device = reserved(slot=(3600, 7200))
    settings = ServiceSettings(vqpus=2)
    async with running_queue(tmp_path, device, settings) as queue:
        asked = asyncio.create_task(queue.leases.acquire(ANN, RESERVED, 60))
        await until(lambda: queue.leases.waiting == 1)
        # the request holds up nobody
        other = await queue.leases.acquire(BOB, LeaseRequest())
        queue.vqpus.device_status_reported()
        assert not asked.done()
        device.times["slot"] = (-1, 7200)
        queue.vqpus.device_status_reported()
        lease = await asked
    assert (other.reservation, other.expires) == (None, None)
    assert lease.reservation == "slot"
    assert lease.expires == device.made + 7200


async def test_a_lease_ends_with_its_reservation(tmp_path: Path) -> None:
    device = reserved(slot=None)
    async with running_queue(tmp_path, device, ServiceSettings()) as queue:
        device.times["slot"] = (-1, time.time() - device.made + 1)
        lease = await queue.leases.acquire(ANN, RESERVED)
        assert lease.held
        await until(lambda: queue.leases.find(ANN, lease.id).reason is not None)
        assert queue.leases.find(ANN, lease.id).reason == "its time is over"
        # Requests are refused until the vendor has told of the next one.
        with pytest.raises(Refused, match="no slot is booked, as far as is known"):
            await queue.leases.acquire(ANN, RESERVED)


@pytest.mark.parametrize(
    "changed",
    [None, (3600.0, 7200.0), (-60.0, -1.0)],
    ids=["cancelled", "moved", "cut"],
)
async def test_a_lease_ends_when_its_reservation_is_changed(
    tmp_path: Path, changed: tuple[float, float] | None
) -> None:
    device = reserved(slot=(-60, 3600), other=(-60, 3600))
    async with running_queue(tmp_path, device, ServiceSettings(vqpus=3)) as queue:
        lease = await queue.leases.acquire(ANN, RESERVED)
        others = [
            await queue.leases.acquire(BOB, LeaseRequest()),
            await queue.leases.acquire(BOB, LeaseRequest(reservation="other")),
        ]
        device.times["slot"] = changed
        queue.vqpus.device_status_reported()
        await until(lambda: queue.leases.find(ANN, lease.id).reason is not None)
        assert queue.leases.find(ANN, lease.id).reason == "its time is over"
        assert queue.leases.held == others


async def test_a_restart_keeps_leases_until_the_vendor_is_heard(tmp_path: Path) -> None:
    device = reserved(slot=(-60, 3600))
    async with running_queue(tmp_path, device, ServiceSettings()) as queue:
        lease = await queue.leases.acquire(ANN, RESERVED)
    del device.times["slot"]
    device.times["other"] = None
    async with running_queue(tmp_path, device, ServiceSettings()) as queue:
        queue.vqpus.device_status_reported()
        assert queue.leases.find(ANN, lease.id).held
        device.times["slot"] = None
        queue.vqpus.device_status_reported()
        await until(lambda: queue.leases.find(ANN, lease.id).reason is not None)


class Flickering(Reserved):
    """A device whose reservation is there at every other read only."""

    reads: list[None] = Field(default_factory=list)

    @property
    def reservations(self) -> dict[str, ReservedTime | None]:
        self.reads.append(None)
        times = super().reservations
        return times if len(self.reads) % 2 else dict.fromkeys(times)


async def test_a_change_during_the_grant_leaves_no_lease_without_an_end(
    tmp_path: Path,
) -> None:
    device = Flickering(time_scale=0, times={"slot": (-60, 3600)})
    async with running_queue(tmp_path, device, ServiceSettings()) as queue:
        asked = asyncio.create_task(queue.leases.acquire(ANN, RESERVED, 60))
        await until(lambda: queue.leases.waiting == 1)
        queue.vqpus.availability_changed()
        assert (await asked).expires == device.made + 3600


async def test_a_shorter_limit_ends_a_lease_before_its_reservation(
    tmp_path: Path,
) -> None:
    limits = LeaseSettings(total_seconds=60)
    device = reserved(slot=(-1, 3600))
    async with running_queue(tmp_path, device, ServiceSettings(leases=limits)) as queue:
        lease = await queue.leases.acquire(ANN, RESERVED)
    assert lease.expires == pytest.approx(lease.opened + 60)


@pytest.mark.parametrize(
    ("times", "latest", "refusal"),
    [
        ({}, None, (422, "reservation", "this QPU has no reservations: omit it")),
        (
            {"other": None},
            None,
            (422, "reservation", "this QPU has no reservation 'slot': write 'other'"),
        ),
        (
            {"slot": None},
            None,
            (422, "reservation", "no slot is booked: book one at the QPU's vendor, or"),
        ),
        (
            {"slot": (3600, 7200)},
            60.0,
            (
                409,
                LATEST_START,
                "cannot be granted by .*Z: the next slot begins at .*Z",
            ),
        ),
        ({"slot": (3600, 7200)}, None, (409, "", "the next slot begins at .*Z")),
    ],
)
async def test_what_is_not_reserved_is_refused(
    tmp_path: Path,
    times: dict[str, tuple[float, float] | None],
    latest: float | None,
    refusal: tuple[int, str, str],
) -> None:
    status, field, said = refusal
    moment = None if latest is None else time.time() + latest
    request = LeaseRequest(reservation="slot", latest_start=moment)
    async with running_queue(tmp_path, reserved(**times), ServiceSettings()) as queue:
        with pytest.raises(Refused, match=said) as refused:
            await queue.leases.acquire(ANN, request)
        assert queue.leases.held == []
    assert (refused.value.status, refused.value.field or "") == (status, field)


async def test_reservations_that_are_not_known_are_no_wrong_request(
    tmp_path: Path,
) -> None:
    device = Reserved(time_scale=0, problem="HTTP status 500")
    async with running_queue(tmp_path, device, ServiceSettings()) as queue:
        with pytest.raises(Refused, match="are not known: HTTP status 500") as refused:
            await queue.leases.acquire(ANN, RESERVED)
    assert refused.value.status == 503


async def test_a_lease_on_disk_waits_for_its_reservation(tmp_path: Path) -> None:
    request = LeaseRequest(reservation="slot", key="k")
    device = reserved(slot=(3600, 7200))
    async with running_queue(tmp_path, device, ServiceSettings()) as queue:
        lease = await queue.leases.request(ANN, request)
        assert lease.waiting
    async with running_queue(tmp_path, device, ServiceSettings()) as queue:
        assert queue.leases.waiting_on_disk == [lease.id]
        device.times["slot"] = (-1, 7200)
        queue.vqpus.device_status_reported()
        await until(lambda: queue.leases.find(ANN, lease.id).held)
        assert queue.leases.find(ANN, lease.id).expires == device.made + 7200
