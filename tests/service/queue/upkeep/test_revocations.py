"""Users who lose their tokens, or their place among those authorized, lose the QPU."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Job,
    Lease,
    LeaseRequest,
    Submission,
)
from sf_quantum.service.domain.settings import LeaseSettings, ServiceSettings
from sf_quantum.service.http.auth import LOCAL_USER, users
from sf_quantum.service.http.tokens import MungeOrTokens, Tokens, token_entry
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.upkeep.revocations import FILE, GRACE_SECONDS, Revocations
from sf_quantum.service.store import audit
from tests.support.service import example_bqm, running_queue, running_service
from tests.support.waiting import until as until_sync
from tests.support.waiting import until_async as until

ANN, BOB = Identity("ann", admin=False), Identity("bob", admin=False)
ADMIN = Identity("root", admin=True, root=True)


class Permitted:
    """Users whom a test permits."""

    def __init__(self, *names: str) -> None:
        self.names: Collection[str] | None = names

    async def __call__(self) -> Collection[str] | None:
        return self.names


def write(path: Path, *names: str) -> None:
    path.touch(0o600)
    entries = [token_entry(name, name, admin=False) for name in names]
    path.write_text(json.dumps(entries))


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[JobQueue]:
    """A queue whose jobs take minutes."""
    device, settings = EmulatedDevice(technology="neutral-atom"), ServiceSettings(
        vqpus=3
    )
    async with running_queue(tmp_path, device, settings) as queue:
        yield queue


async def lease_of(queue: JobQueue, who: Identity, user: str | None = None) -> Lease:
    return await queue.leases.acquire(who, LeaseRequest(user=user))


async def submit(queue: JobQueue, lease: Lease, key: str) -> Job:
    submission = Submission("problem", example_bqm(), {"num_reads": 1}, key)
    return (await queue.submit(ADMIN, lease.id, submission))[0]


def reasons(queue: JobQueue, *leases: Lease) -> list[str | None]:
    return [queue.leases.find(ADMIN, lease.id).reason for lease in leases]


async def test_a_user_without_a_token_loses_leases_and_jobs(
    queue: JobQueue, caplog: pytest.LogCaptureFixture
) -> None:
    permitted = Permitted("ann", "bob")
    revocations = Revocations(queue, permitted)
    await revocations.check(0.0)
    lost, kept = await lease_of(queue, ANN), await lease_of(queue, BOB)
    running, queued = await submit(queue, lost, "a"), await submit(queue, lost, "b")
    other = await submit(queue, kept, "c")
    await until(lambda: queue.find(ADMIN, running.id).state == "Running", "it runs")
    permitted.names = ["bob"]
    await revocations.check(100.0)
    await revocations.check(100.0 + GRACE_SECONDS - 1)
    assert reasons(queue, lost, kept) == [None, None]
    await revocations.check(100.0 + GRACE_SECONDS)
    why = "its user may no longer use the QPU"
    assert reasons(queue, lost, kept) == [why, None]
    jobs = [queue.find(ADMIN, job.id) for job in (running, queued, other)]
    assert [job.state for job in jobs[:2]] == ["Cancelled", "Cancelled"]
    assert not jobs[2].final
    assert jobs[1].note == f"cancelled: its lease has ended: {why}"
    (entry,) = audit.entries(queue.store, 9)
    assert (entry.user, entry.action) == ("service", "revoke")
    assert entry.parameters == {"lease": lost.id, "of": "ann", "reason": why}
    said = "user ann may no longer use the QPU: 1 lease ended, unfinished jobs are"
    assert said in caplog.text


async def test_a_token_that_comes_back_in_time_ends_nothing(queue: JobQueue) -> None:
    permitted = Permitted("ann")
    revocations = Revocations(queue, permitted)
    await revocations.check(0.0)
    lease = await lease_of(queue, ANN)
    for now in (0.0, GRACE_SECONDS):  # two mistakes, each corrected
        permitted.names = []
        await revocations.check(now + 1)
        permitted.names = ["ann"]
        await revocations.check(now + GRACE_SECONDS)
    assert reasons(queue, lease) == [None]


async def test_a_user_who_never_had_a_token_keeps_leases(queue: JobQueue) -> None:
    revocations = Revocations(queue, Permitted("root"))
    lease = await lease_of(queue, ADMIN, "ann")
    for now in (0.0, 2 * GRACE_SECONDS):
        await revocations.check(now)
    assert reasons(queue, lease) == [None]


async def test_a_revoked_user_no_longer_waits_for_a_lease(queue: JobQueue) -> None:
    permitted = Permitted("ann", "bob")
    revocations = Revocations(queue, permitted)
    await revocations.check(0.0)
    held = [await lease_of(queue, BOB) for _ in range(3)]
    waiting = asyncio.create_task(queue.leases.acquire(ANN, LeaseRequest(), 60.0))
    await until(lambda: queue.leases.waiting == 1, "ann waits")
    permitted.names = ["bob"]
    for now in (0.0, GRACE_SECONDS):
        await revocations.check(now)
    with pytest.raises(Refused, match="ann may no longer use the QPU") as caught:
        await waiting
    assert caught.value.status == 403
    assert reasons(queue, *held) == [None] * 3


async def test_a_restart_forgets_no_revocation(queue: JobQueue) -> None:
    await Revocations(queue, Permitted("ann", "bob")).check(0.0)
    lease = await lease_of(queue, ANN)
    after = Revocations(queue, Permitted("bob"))
    for now in (0.0, GRACE_SECONDS):
        await after.check(now)
    assert reasons(queue, lease) != [None]
    assert json.loads((queue.store.path.parent / FILE).read_text()) == ["bob"]


async def test_a_user_no_longer_authorized_loses_leases(queue: JobQueue) -> None:
    def authorize(*names: str) -> None:
        leases = LeaseSettings(authorized_users=[*names])
        queue.reconfigure(ServiceSettings(vqpus=3, leases=leases))

    permitted = Permitted()
    permitted.names = None  # MUNGE admits everybody
    authorize("ann", "bob")
    revocations = Revocations(queue, permitted)
    await revocations.check(0.0)
    leases = [await lease_of(queue, who) for who in (ANN, BOB)]
    authorize("bob")
    for now in (0.0, GRACE_SECONDS):
        await revocations.check(now)
    assert [reason is None for reason in reasons(queue, *leases)] == [False, True]
    authorize()  # everybody again
    for now in (0.0, GRACE_SECONDS):
        await revocations.check(now)
    assert reasons(queue, leases[1]) == [None]


async def test_a_list_that_cannot_be_kept_is_warned_of(
    queue: JobQueue, caplog: pytest.LogCaptureFixture
) -> None:
    (queue.store.path.parent / FILE).mkdir()
    revocations = Revocations(queue, Permitted("ann"))
    await revocations.check(0.0)
    assert "cannot be read, so users who lost their tokens keep leases" in caplog.text
    assert "who may use the QPU is not kept" in caplog.text


@pytest.mark.parametrize("accident", ["", "# none\n", "[", "- nonsense\n", None])
async def test_a_file_damaged_by_accident_revokes_nobody(
    tmp_path: Path, accident: str | None
) -> None:
    path = tmp_path / "tokens.yml"
    write(path, "ann", "bob")
    tokens = Tokens(path)
    assert await users(tokens) == frozenset(("ann", "bob"))
    if accident is None:
        path.unlink()
    else:
        path.write_text(accident)
    assert await users(tokens) == frozenset(("ann", "bob"))
    assert await tokens.problem() is not None
    write(path, "bob")
    assert await users(tokens) == frozenset(("bob",))
    path.write_text("[]")
    assert await users(tokens) == frozenset()
    assert await tokens.problem() is None


async def test_munge_admits_users_without_a_token(tmp_path: Path) -> None:
    write(tmp_path / "tokens.yml", "ann")
    both = MungeOrTokens(LOCAL_USER, Tokens(tmp_path / "tokens.yml"))
    assert await users(both) is None
    assert await users(LOCAL_USER) is None


def test_the_service_follows_its_tokens_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.yml"
    write(path, "ann", "bob")
    module = "sf_quantum.service.queue.upkeep.revocations"
    monkeypatch.setattr(f"{module}.GRACE_SECONDS", 0.0)
    monkeypatch.setattr(f"{module}.POLL_SECONDS", 0.01)
    with running_service(
        authenticate=Tokens(path), state=tmp_path / "service.sqlite"
    ) as service:
        until_sync((tmp_path / FILE).exists, "the list of users")
        headers = {"Authorization": "Bearer ann"}
        lease = service.ask("POST", "/v1/leases", {"job": "test"}, headers=headers)
        id_ = str(lease.json()["id"])
        write(path, "bob")
        until_sync(lambda: not service.queue.leases.is_active(id_), "the lease's end")
