"""Jobs on a device whose vendor keeps them: crashes, lost answers, cancellation, its queue."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from dimod import SampleSet
from scipy.stats import chi2_contingency

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import (
    JobParameters,
    NotAccepted,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    UnknownJob,
)
from sf_quantum.qpu import AuthenticationError
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.interface import Cost
from sf_quantum.service.dialects.v1.jobs import answer_for
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Job,
    Kind,
    LeaseRequest,
    Recovery,
    Size,
    Submission,
    UserClass,
)
from sf_quantum.service.domain.reasons import NOT_FOUND_AGAIN, VANISHED
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue import job_queue, reading
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.jobs.device_job import RESULT_TRIES
from sf_quantum.service.queue.jobs.device_submission import SURPLUS_TRIES
from sf_quantum.service.queue.jobs.slices import MOST_SETUP, Batch, slice_parts
from tests.support.service import example_bqm, problem, running_queue
from tests.support.vendor_device import (
    ANN,
    Vendor,
    VendorDevice,
    VendorJob,
    over,
    submit,
)
from tests.support.waiting import SECONDS, until_async


@pytest.fixture
def vendor() -> Vendor:
    return Vendor()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "VENDOR", Backoff(1e-3, 1e-3))
    monkeypatch.setattr(job_queue, "STOP_SECONDS", 0.2)


@asynccontextmanager
async def service(path: Path, device: VendorDevice) -> AsyncIterator[JobQueue]:
    settings = ServiceSettings(vqpus=9, slice_seconds=1.0)
    async with running_queue(path, device, settings) as queue:
        yield queue


def _copy(path: Path, kept: Path) -> None:
    kept.mkdir()
    for one in path.glob("service.sqlite*"):
        shutil.copy(one, kept)


@asynccontextmanager
async def killed(path: Path, device: VendorDevice) -> AsyncIterator[JobQueue]:
    """A service that leaves nothing but what is on disk when the block ends."""
    async with service(path, device) as queue:
        yield queue
        queue.store.change(lambda db: None).result()
        _copy(path, path / "kept")


async def test_a_job_runs_at_the_vendor_and_is_billed_there(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        found = queue.find(ANN, job.id)
        assert (found.device, found.device_job) == ("vendor", "v1")
        assert vendor.jobs["v1"].tag == f"sfq-{job.id}-1"
        vendor.end("v1", billed=2.5)
        done = await over(queue, job)
        assert (done.state, done.qpu_seconds, done.device) == ("Completed", 2.5, None)
        assert done.calibration == CalibrationData("c1")
        told = json.loads(queue.store.jobs.result(job.number) or "")
        assert told["info"]["by"] == "v1"
        assert told["info"]["timing"]["qpu_seconds"] == 2.5


async def test_the_next_job_waits_in_the_vendors_queue(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor, depth=2)) as queue:
        jobs = [await submit(queue, name) for name in "abc"]
        await until_async(lambda: len(vendor.jobs) == 2)
        await until_async(lambda: queue.find(ANN, jobs[0].id).state == "Running")
        assert queue.find(ANN, jobs[1].id).state == "Queued"
        forecasts = [queue.forecasts.of(queue.find(ANN, job.id)) for job in jobs]
        assert [f and f.position for f in forecasts] == [0, 1, 2]
        await until_async(lambda: _eta(queue, jobs[1]) == 7.0, "as the vendor tells")
        vendor.end("v1")
        assert (await over(queue, jobs[0])).state == "Completed"
        await until_async(lambda: len(vendor.jobs) == 3)
        await until_async(lambda: queue.find(ANN, jobs[1].id).state == "Running")
        vendor.end("v2")
        vendor.end("v3")
        for job in jobs:
            await over(queue, job)
        assert vendor.names == ["a", "b", "c"]


def _eta(queue: JobQueue, job: Job) -> float | None:
    forecast = queue.forecasts.of(queue.find(ANN, job.id))
    return None if forecast is None else forecast.eta_seconds


async def test_production_takes_back_what_waits_at_the_vendor(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor, depth=2)) as queue:
        low = [await submit(queue, name) for name in "ab"]
        await until_async(lambda: len(vendor.jobs) == 2)
        high = await submit(queue, "high", "production")
        await until_async(lambda: len(vendor.jobs) == 4)
        assert vendor.names == ["a", "b", "high", "a"]
        assert [job.state for job in vendor.jobs.values()] == [
            *("Cancelled", "Cancelled", "Running", "Queued")
        ]
        first, second = (queue.find(ANN, job.id) for job in low)
        # what the vendor bills for the part that ran
        assert (first.attempt, first.lost_qpu_seconds) == (2, 0.5)
        assert (second.attempt, second.lost_qpu_seconds) == (2, 0.0)
        assert first.note == "pre-empted by a production job during attempt 1"
        vendor.end("v3")
        assert (await over(queue, high)).state == "Completed"


@pytest.mark.parametrize("recovery", [Recovery.BY_TAG, Recovery.BY_ID])
async def test_after_a_crash_it_goes_on_where_it_was(
    tmp_path: Path, vendor: Vendor, recovery: Recovery
) -> None:
    device = VendorDevice(vendor, recovery, depth=2)
    async with killed(tmp_path, device) as queue:
        jobs = [await submit(queue, name) for name in "abc"]
        await until_async(lambda: queue.find(ANN, jobs[0].id).state == "Running")
        await until_async(lambda: queue.find(ANN, jobs[1].id).device_job == "v2")
    assert [job.state for job in vendor.jobs.values()] == ["Running", "Queued"]
    async with service(tmp_path / "kept", device) as queue:
        states = [queue.find(ANN, job.id).state for job in jobs]
        assert states == ["Running", "Queued", "Queued"]
        vendor.end("v1")
        vendor.end("v2")
        await until_async(lambda: "v3" in vendor.jobs)
        vendor.end("v3")
        done = [await over(queue, job) for job in jobs]
    assert [(job.state, job.attempt) for job in done] == [("Completed", 1)] * 3
    assert vendor.names == ["a", "b", "c"]


async def test_a_submission_during_a_crash_is_found_by_its_tag(
    tmp_path: Path, vendor: Vendor
) -> None:
    vendor.late["submit"] = [QpuError("the connection was cut")]
    vendor.trouble["find"] = [QpuError("it does not answer")] * 10_000
    device = VendorDevice(vendor)
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: vendor.jobs)
        await until_async(lambda: queue.find(ANN, job.id).device is not None)
    vendor.trouble.clear()
    async with service(tmp_path / "kept", device) as queue:
        await until_async(lambda: queue.find(ANN, job.id).device_job == "v1")
        vendor.end("v1")
        assert (await over(queue, job)).state == "Completed"
    assert vendor.names == ["a"]


@pytest.mark.parametrize("arrived", [True, False])
async def test_an_unanswered_submission_is_searched_before_a_repeat(
    tmp_path: Path, vendor: Vendor, arrived: bool
) -> None:
    lost: list[Exception] = [QpuError("the connection was cut")]
    (vendor.late if arrived else vendor.trouble)["submit"] = lost
    vendor.trouble["find"] = [QpuError("it does not answer")]
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).device_job == "v1")
        vendor.end("v1")
        assert (await over(queue, job)).state == "Completed"
    assert vendor.names == ["a"]


async def test_a_submission_that_arrives_late_is_not_repeated(
    tmp_path: Path, vendor: Vendor
) -> None:
    vendor.late_seconds = 3600.0
    vendor.trouble["submit"] = [QpuError("no answer in time")]
    looked = threading.Event()

    class Looking(VendorDevice):
        def find(self, tag: str) -> str | None:
            found = super().find(tag)
            looked.set()
            return found

    async with service(tmp_path, Looking(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(looked.is_set)
        payload = queue.store.jobs.payload(job.number)
        vendor.submit(Task(f"sfq-{job.id}-1", "problem", payload, {}))
        await until_async(lambda: queue.find(ANN, job.id).device_job == "v1")
        vendor.end("v1")
        assert (await over(queue, job)).state == "Completed"
    assert vendor.names == ["a"]


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("how", ["complete", "cancel"])
async def test_a_late_submission_is_cancelled_and_reported(
    tmp_path: Path, vendor: Vendor, how: str, restart: bool, cut: bool
) -> None:
    class Listing(VendorDevice):
        def duplicates(self, tag: str, job_id: str) -> Sequence[str]:
            self.vendor.raises(self.vendor.trouble, "duplicates")
            jobs = self.vendor.jobs.values()
            return [job.id for job in jobs if job.tag == tag and job.id != job_id]

    async def end(queue: JobQueue) -> Job:
        vendor.trouble["duplicates"] = [QpuError("it does not answer")] * cut
        if how == "cancel":
            return await queue.cancel(ANN, job.id)
        vendor.end("v1")
        return await over(queue, job)

    vendor.trouble["submit"] = [QpuError("no answer in time")]
    device = Listing(vendor)
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        await until_async(lambda: queue.find(ANN, job.id).device_job == "v1")
        vendor.submit(vendor.jobs["v1"].task)
        if not restart:
            done = await end(queue)
    if restart:
        async with service(tmp_path / "kept", device) as queue:
            done = await end(queue)
    assert vendor.jobs["v2"].state == "Cancelled"
    late = "a submission arrived late, as v2 on the device"
    told = f"{late}, and was cancelled: it may have been billed"
    assert (done.state, done.note) == (
        ("Completed", told)
        if how == "complete"
        else ("Cancelled", f"cancelled; {told}")
    )
    assert vendor.names == ["a", "a"]


async def test_a_late_submission_that_cannot_be_cancelled_is_told_of(
    tmp_path: Path, vendor: Vendor
) -> None:
    vendor.trouble["submit"] = [QpuError("no answer in time")]
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).device_job == "v1")
        late = VendorJob("late", vendor.jobs["v1"].tag, vendor.jobs["v1"].task)
        # it is the one that is found by the tag
        vendor.jobs = {"late": late, **vendor.jobs}
        vendor.trouble["cancel"] = [QpuError("it does not answer")] * SURPLUS_TRIES
        vendor.end("v1")
        done = await over(queue, job)
    assert (done.state, done.note) == (
        "Completed",
        "a submission arrived late, as late on the device, and could not be cancelled",
    )


@pytest.mark.parametrize("recovery", [Recovery.BY_ID, Recovery.LOST])
@pytest.mark.parametrize("repeatable", [True, False])
async def test_an_unfindable_job_does_not_run_twice_in_silence(
    tmp_path: Path, vendor: Vendor, recovery: Recovery, repeatable: bool
) -> None:
    vendor.late["submit"] = [QpuError("the connection was cut")]
    async with service(tmp_path, VendorDevice(vendor, recovery)) as queue:
        job = await submit(queue, "a", repeatable=repeatable)
        if repeatable:
            await until_async(lambda: "v2" in vendor.jobs)
            vendor.end("v1")
            vendor.end("v2")
        done = await over(queue, job)
    assert done.state == ("Completed" if repeatable else "Failed")
    if not repeatable:
        assert done.note == f"the connection was cut; {NOT_FOUND_AGAIN}"
        assert vendor.names == ["a"]


@pytest.mark.parametrize("repeatable", [True, False])
async def test_what_cannot_be_found_after_a_crash_says_so(
    tmp_path: Path, vendor: Vendor, repeatable: bool
) -> None:
    device = VendorDevice(vendor, Recovery.LOST)
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a", repeatable=repeatable)
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
    async with service(tmp_path / "kept", device) as queue:
        if repeatable:
            await until_async(lambda: "v2" in vendor.jobs)
            vendor.end("v1")
            vendor.end("v2")
        done = await over(queue, job)
    expected = ("Completed", 2) if repeatable else ("Failed", 1)
    assert (done.state, done.attempt) == expected
    if not repeatable:
        assert done.note == f"interrupted: the service ended; {NOT_FOUND_AGAIN}"


async def test_what_ends_with_the_vendors_lease_runs_again(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor, depth=2)) as queue:
        first, second = await submit(queue, "a"), await submit(queue, "b")
        await until_async(lambda: queue.find(ANN, first.id).state == "Running")
        await until_async(lambda: len(vendor.jobs) == 2)
        vendor.end("v2", "Cancelled")
        vendor.end("v1", "Cancelled", billed=0.75)
        await until_async(lambda: len(vendor.jobs) == 4)
        found = queue.find(ANN, first.id)
        assert found.note == "interrupted during attempt 1: its lease has ended"
        for number in (3, 4):
            vendor.end(f"v{number}")
        done = [await over(queue, job) for job in (first, second)]
    assert [(job.state, job.attempt) for job in done] == [("Completed", 2)] * 2
    # what ran is lost, what only waited has cost nothing
    assert [job.lost_qpu_seconds for job in done] == [0.75, 0.0]
    assert [job.qpu_seconds for job in done] == [2.0, 2.0]


async def test_a_job_that_always_ends_with_its_lease_fails(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        for number in (1, 2, 3):
            await until_async(lambda number=number: f"v{number}" in vendor.jobs)  # type: ignore[misc]
            vendor.end(f"v{number}", "Cancelled")
        done = await over(queue, job)
    assert (done.state, done.note) == ("Failed", "its lease has ended (3 times)")
    assert (done.attempt, done.qpu_seconds, done.lost_qpu_seconds) == (3, 2.0, 4.0)


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_job_forgotten_with_its_lease_runs_unless_begun(
    tmp_path: Path, vendor: Vendor, running: bool, repeatable: bool
) -> None:
    if not running:  # another's runs
        theirs = Task("", "problem", "{}", {})
        vendor.jobs["v0"] = VendorJob("v0", "another's", theirs, "Running")
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a", repeatable=repeatable)
        state = "Running" if running else "Queued"
        await until_async(lambda: queue.find(ANN, job.id).device_job)
        await until_async(lambda: queue.find(ANN, job.id).state == state)
        vendor.trouble["poll"] = [UnknownJob("no job", lease_lost=True)]
        if not running or repeatable:
            await until_async(lambda: queue.find(ANN, job.id).attempt == 2)
            await until_async(lambda: len(vendor.jobs) == 3 - running)
            for number in [*vendor.jobs]:
                vendor.end(number)
        done = await over(queue, job)
    if running and not repeatable:
        assert (done.state, done.note) == ("Failed", f"no job; {VANISHED}")
    else:
        assert (done.state, done.attempt) == ("Completed", 2)
        assert done.note == "interrupted during attempt 1: no job"


@pytest.mark.parametrize("repeatable", [True, False])
async def test_only_a_repeatable_job_without_a_tag_is_preempted(
    tmp_path: Path, vendor: Vendor, repeatable: bool
) -> None:
    async with service(tmp_path, VendorDevice(vendor, Recovery.LOST)) as queue:
        low = await submit(queue, "low", repeatable=repeatable)
        await until_async(lambda: queue.find(ANN, low.id).state == "Running")
        high = await submit(queue, "high", "production")
        if repeatable:
            await until_async(lambda: vendor.jobs["v1"].state == "Cancelled")
            await until_async(lambda: "v2" in vendor.jobs)
            vendor.end("v2")
            await until_async(lambda: "v3" in vendor.jobs)
        else:
            assert vendor.jobs["v1"].state == "Running"
            forecast = queue.forecasts.of(high)
            assert forecast is not None
            assert forecast.position == 1
            vendor.end("v1")
            await until_async(lambda: "v2" in vendor.jobs)
        vendor.end([*vendor.jobs][-1])
        done = [await over(queue, job) for job in (low, high)]
    assert [job.state for job in done] == ["Completed"] * 2
    assert done[0].attempt == 1 + repeatable
    assert vendor.names == ["low", "high", *["low"] * repeatable]


async def test_what_has_not_been_sent_is_preempted_all_the_same(
    tmp_path: Path, vendor: Vendor
) -> None:
    refusals: list[Exception] = [NotAccepted("it is closed") for _ in range(100_000)]
    vendor.trouble["submit"] = refusals
    async with service(tmp_path, VendorDevice(vendor, Recovery.LOST)) as queue:
        low = await submit(queue, "low")
        await until_async(lambda: len(refusals) < 100_000)
        high = await submit(queue, "high", "production")
        await until_async(lambda: queue.find(ANN, low.id).attempt == 2)
        refusals.clear()
        for number in (1, 2):
            await until_async(lambda number=number: f"v{number}" in vendor.jobs)  # type: ignore[misc]
            vendor.end(f"v{number}")
        done = [await over(queue, job) for job in (low, high)]
    assert [job.state for job in done] == ["Completed"] * 2
    assert vendor.names == ["high", "low"]


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("how", ["close", "stop"])
async def test_a_lost_job_fails_unless_it_is_repeatable(
    tmp_path: Path, vendor: Vendor, how: str, repeatable: bool
) -> None:
    device = VendorDevice(vendor, Recovery.LOST)
    async with service(tmp_path, device) as queue:
        job = await submit(queue, "a", repeatable=repeatable)
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        if how == "close":
            await queue.availability.set_status("closed")
            await until_async(lambda: queue.find(ANN, job.id).state != "Running")
            await queue.availability.set_status("open")
            if repeatable:
                await until_async(lambda: "v2" in vendor.jobs)
                vendor.end("v2")
                await over(queue, job)
    async with service(tmp_path, device) as queue:
        if repeatable and how == "stop":
            await until_async(lambda: "v2" in vendor.jobs)
            vendor.end("v2")
        done = await over(queue, job)
    why = {"close": "the QPU was closed", "stop": "the service was stopped"}[how]
    note = f"interrupted: {why} during attempt 1"
    assert vendor.jobs["v1"].state == "Cancelled"
    if repeatable:
        assert (done.state, done.note, done.attempt) == ("Completed", note, 2)
    else:
        assert (done.state, done.note) == ("Failed", f"{note}; {NOT_FOUND_AGAIN}")
        # what ran is charged
        assert (done.attempt, done.qpu_seconds) == (1, 0.5)
        assert vendor.names == ["a"]


class Silent(VendorDevice):
    """Does not tell how long a job has run."""

    longest_seconds: float | None = None

    def result(self, job_id: str, task: Task) -> Outcome:
        return replace(super().result(job_id, task), qpu_seconds=None)


@pytest.mark.parametrize("how", ["complete", "cancel", "too long"])
async def test_a_job_has_run_since_a_former_service_saw_it_run(
    tmp_path: Path, vendor: Vendor, how: str
) -> None:
    device = Silent(vendor)
    device.timed = False
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        await until_async(lambda: queue.find(ANN, job.id).device_job)
    with closing(sqlite3.connect(tmp_path / "kept" / "service.sqlite")) as db, db:
        db.execute("UPDATE jobs SET started_steady = started_steady - 1000")
    if how == "too long":
        device.longest_seconds = 900.0
    async with service(tmp_path / "kept", device) as queue:
        if how == "complete":
            vendor.end("v1")
        elif how == "cancel":
            await queue.cancel(ANN, job.id)
        done = await over(queue, job)
    state = {"complete": "Completed", "cancel": "Cancelled"}.get(how, "Failed")
    assert (done.state, done.attempt) == (state, 1)
    # it is billed as it was expected to be, at most
    assert done.seconds >= 1000
    assert done.qpu_seconds == 9.0


async def test_an_ordinary_stop_leaves_the_job_at_the_vendor(
    tmp_path: Path, vendor: Vendor
) -> None:
    device = VendorDevice(vendor)
    async with service(tmp_path, device) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
    assert vendor.jobs["v1"].state == "Running"
    async with service(tmp_path, device) as queue:
        vendor.end("v1")
        done = await over(queue, job)
    assert (done.state, done.attempt) == ("Completed", 1)
    assert vendor.names == ["a"]


async def test_a_job_of_another_device_is_not_looked_for_here(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
    other = VendorDevice(Vendor())
    other.name = "another"
    async with service(tmp_path, other) as queue:
        done = await over(queue, job)
    assert done.state == "Failed"
    assert NOT_FOUND_AGAIN in (done.note or "")


async def test_a_cancellation_cut_short_by_a_crash_reaches_the_vendor(
    tmp_path: Path, vendor: Vendor
) -> None:
    device = VendorDevice(vendor)
    vendor.trouble["cancel"] = [QpuError("it does not answer")] * 10_000
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        cancelling = asyncio.create_task(queue.cancel(ANN, job.id))
        await until_async(lambda: queue.find(ANN, job.id).cancelling)
        cancelling.cancel()
    vendor.trouble.clear()
    async with service(tmp_path / "kept", device) as queue:
        done = await over(queue, job)
    assert (done.state, done.note, done.qpu_seconds) == ("Cancelled", "cancelled", 0.5)
    assert vendor.jobs["v1"].state == "Cancelled"


async def test_an_interruption_that_a_crash_cut_short_is_no_failure(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with killed(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        vendor.trouble["poll"] = [QpuError("it does not answer")] * 10_000
        high = await submit(queue, "high", "production")
        await until_async(lambda: vendor.jobs["v1"].state == "Cancelled")
        await queue.cancel(ANN, high.id)
    vendor.trouble.clear()
    async with service(tmp_path / "kept", VendorDevice(vendor)) as queue:
        await until_async(lambda: queue.find(ANN, job.id).device_job != "v1")
        assert queue.find(ANN, job.id).attempt == 2
        await until_async(lambda: "v2" in vendor.jobs)
        vendor.end("v2")
        found = await over(queue, job)
    assert (found.state, found.qpu_seconds, found.lost_qpu_seconds) == (
        *("Completed", 2.0, 0.5),
    )
    assert found.note == "pre-empted by a production job during attempt 1"


@pytest.mark.parametrize("how", ["cancel", "release", "close"])
async def test_whatever_ends_it_here_ends_it_at_the_vendor(
    tmp_path: Path, vendor: Vendor, how: str
) -> None:
    vendor.trouble["cancel"] = [QpuError("it does not answer")] * 2
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        if how == "cancel":
            await queue.cancel(ANN, job.id)
        elif how == "release":
            await queue.leases.release(ANN, job.lease)
        else:
            await queue.availability.set_status("closed")
        await until_async(lambda: vendor.jobs["v1"].state == "Cancelled")
        state = "Queued" if how == "close" else "Cancelled"
        await until_async(lambda: queue.find(ANN, job.id).state == state)
        found = queue.find(ANN, job.id)
        assert (found.qpu_seconds, found.lost_qpu_seconds) == (
            (0.0, 0.5) if how == "close" else (0.5, 0.0)
        )


class Forgetful(VendorDevice):
    """Forgets the jobs that it cancels, and the answer to that is lost."""

    longest_seconds: float | None = None
    submissions = 0

    def submit(self, task: Task) -> str:
        self.submissions += 1
        return super().submit(task)

    def poll(self, job_id: str, task: Task) -> Progress:
        progress = super().poll(job_id, task)
        self._job(job_id)
        return progress

    def cancel(self, job_id: str) -> None:
        self._job(job_id)
        super().cancel(job_id)
        del self.vendor.jobs[job_id]
        raise QpuError("the connection was cut")


@pytest.mark.parametrize("how", ["cancel", "close", "too long"])
async def test_a_job_forgotten_during_its_cancel_ends_cancelled(
    tmp_path: Path, vendor: Vendor, how: str
) -> None:
    device = Forgetful(vendor, Recovery.LOST)
    async with service(tmp_path, device) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        if how == "cancel":
            await queue.cancel(ANN, job.id)
        elif how == "close":
            await queue.availability.set_status("closed")
        else:
            device.longest_seconds = 1e-6
        done = await over(queue, job)
    note = "interrupted: the QPU was closed during attempt 1"
    assert (done.state, done.note) == {
        "cancel": ("Cancelled", "cancelled"),
        # it may still run there
        "close": ("Failed", f"{note}; {NOT_FOUND_AGAIN}"),
        "too long": ("Failed", "it ran for more than 1e-06 s"),
    }[how]
    assert device.submissions == 1


@pytest.mark.parametrize(
    "error",
    [NotAccepted("too many requests", 0.001), AuthenticationError("the key expired")],
    ids=["busy", "credentials"],
)
async def test_a_vendor_that_takes_nothing_is_asked_again(
    tmp_path: Path, vendor: Vendor, error: Exception
) -> None:
    vendor.trouble["submit"] = [error] * 3
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: vendor.jobs)
        vendor.end("v1")
        assert (await over(queue, job)).state == "Completed"


async def test_trouble_on_the_way_is_waited_out(tmp_path: Path, vendor: Vendor) -> None:
    for what in ("poll", "result"):
        vendor.trouble[what] = [QpuError("500"), AuthenticationError("401")]
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: vendor.jobs)
        vendor.end("v1")
        assert (await over(queue, job)).state == "Completed"


async def test_a_result_waits_until_the_vendor_answers_again(
    tmp_path: Path, vendor: Vendor
) -> None:
    class Silent(VendorDevice):
        left = 3 * RESULT_TRIES

        def result(self, job_id: str, task: Task) -> Outcome:
            if self.left > 0:
                self.left -= 1
                self.vendor.trouble["poll"] = [QpuError("connection refused")]
                raise QpuError("connection refused")
            return super().result(job_id, task)

    async with service(tmp_path, Silent(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: vendor.jobs)
        vendor.end("v1")
        assert (await over(queue, job)).state == "Completed"


@pytest.mark.parametrize(
    ("trouble", "note"),
    [
        ({"submit": [InputError("too many couplers")]}, "too many couplers"),
        ({"poll": [UnknownJob("no job v1")]}, f"no job v1; {VANISHED}"),
        ({"result": [UnknownJob("no job v1")]}, f"no job v1; {VANISHED}"),
        (
            {"result": [QpuError("its answer is no JSON")] * 100},
            "its result cannot be read: its answer is no JSON",
        ),
        ({"poll": [LookupError("oops")]}, "LookupError: oops"),
    ],
    ids=["refused", "vanished", "no result", "malformed", "unexpected"],
)
async def test_a_job_that_cannot_go_on_says_why(
    tmp_path: Path, vendor: Vendor, trouble: dict[str, list[Exception]], note: str
) -> None:
    vendor.trouble.update(trouble)
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        if "submit" not in trouble:
            await until_async(lambda: vendor.jobs)
            vendor.end("v1")
        done = await over(queue, job)
        assert (done.state, done.note) == ("Failed", note)
        # the next one runs
        after = await submit(queue, "b")
        await until_async(lambda: "b" in vendor.names)
        vendor.end([*vendor.jobs][-1])
        vendor.trouble.clear()
        assert (await over(queue, after)).state == "Completed"


async def test_jobs_wait_unleased_while_the_vendor_is_offline(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        lease = await queue.leases.acquire(ANN, LeaseRequest())
        vendor.online = False
        await until_async(lambda: queue.worker.device_state == "offline")
        asked = Submission("problem", problem("a"), {"num_reads": 5}, "a")
        job = (await queue.submit(ANN, lease.id, asked))[0]
        forecast = queue.forecasts.of(job)
        assert forecast is not None
        assert forecast.eta_seconds is None
        assert forecast.reason == "the cryostat is warm"
        with pytest.raises(Refused, match="the cryostat is warm"):
            await queue.leases.acquire(ANN, LeaseRequest())
        assert vendor.jobs == {}
        vendor.online = True
        await until_async(lambda: vendor.jobs)
        vendor.end("v1")
        assert (await over(queue, job)).state == "Completed"


async def test_a_queue_of_an_offline_vendor_tells_no_start(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor, depth=2)) as queue:
        running, queued = await submit(queue, "a"), await submit(queue, "b")
        await until_async(lambda: len(vendor.jobs) == 2)
        await until_async(lambda: answer_for(queue, queued).eta_seconds == 7.0)
        vendor.online = False
        await until_async(lambda: answer_for(queue, queued).eta_seconds is None)
        assert answer_for(queue, queued).note == "the cryostat is warm"
        await until_async(lambda: answer_for(queue, running).eta_seconds == 0)
        vendor.online = True
        await until_async(lambda: answer_for(queue, queued).note is None)
        for job_id in [*vendor.jobs]:
            vendor.end(job_id)
        assert (await over(queue, queued)).state == "Completed"


async def test_what_no_longer_fits_fails_before_it_is_sent(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        first, second = await submit(queue, "a"), await submit(queue, "b")
        await until_async(lambda: vendor.jobs)
        vendor.qubits = 2
        vendor.end("v1")
        assert (await over(queue, first)).state == "Completed"
        done = await over(queue, second)
    assert done.note == (
        "the device has changed since the job was submitted: "
        "problem.variable_labels: 3 variables do not fit on 2 qubits"
    )
    assert vendor.names == ["a"]


# slices


async def ran(
    queue: JobQueue, vendor: Vendor, job: Job, slices: int
) -> dict[str, JSON]:
    """Let the slices of a job run to their ends, and read its result."""
    for number in range(max(1, len(vendor.jobs)), slices + 1):
        await until_async(lambda number=number: f"v{number}" in vendor.jobs)  # type: ignore[misc]
        vendor.end(f"v{number}")
    assert (await over(queue, job)).state == "Completed"
    told: dict[str, JSON] = json.loads(queue.store.jobs.result(job.number) or "")
    return told


async def test_a_long_job_runs_in_slices_that_are_merged(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a", shots=25)
        told = await ran(queue, vendor, job, 3)
        done = queue.find(ANN, job.id)
    assert [one.task.shots for one in vendor.jobs.values()] == [9, 8, 8]
    assert [one.tag for one in vendor.jobs.values()] == [
        f"sfq-{job.id}-1-{part}" for part in range(3)
    ]
    assert told["counter"] == {"all": 25, "v1": 9, "v2": 8, "v3": 8}
    info = told["info"]
    assert isinstance(info, dict)
    assert info["slices"] == [
        {"shots": shots, "qpu_seconds": 2.0, "calibration": "c1"} for shots in (9, 8, 8)
    ]
    assert (done.qpu_seconds, done.attempt) == (6.0, 1)


async def test_a_preempting_job_waits_for_one_slice(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        low = await submit(queue, "low", shots=25)
        await until_async(lambda: queue.find(ANN, low.id).state == "Running")
        whole = queue.forecasts.of(queue.find(ANN, low.id))
        high = await submit(queue, "high", "production")
        # the slice that runs is not cut
        assert vendor.jobs["v1"].state == "Running"
        vendor.end("v1")
        await until_async(lambda: "v2" in vendor.jobs)
        assert vendor.names == ["low", "high"]
        found = queue.find(ANN, low.id)
        assert (found.state, found.attempt, found.slices) == ("Queued", 2, 1)
        assert (found.lost_qpu_seconds, found.qpu_seconds) == (0.0, 2.0)
        rest = queue.forecasts.of(found)
        assert whole is not None
        assert rest is not None
        assert rest.expected_run_seconds < whole.expected_run_seconds
        vendor.end("v2")
        assert (await over(queue, high)).state == "Completed"
        told = await ran(queue, vendor, low, 4)
        done = queue.find(ANN, low.id)
    assert told["counter"] == {"all": 25, "v1": 9, "v3": 8, "v4": 8}
    assert (done.qpu_seconds, done.lost_qpu_seconds, done.attempt) == (6.0, 0.0, 2)


@pytest.mark.parametrize(("kind", "waits"), [("problem", False), ("circuit", True)])
async def test_a_loop_is_preempted_between_its_circuits(
    tmp_path: Path, vendor: Vendor, kind: Kind, waits: bool
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        low = await submit(queue, "low", kind=kind)
        await until_async(lambda: queue.find(ANN, low.id).state == "Running")
        after = await submit(queue, "after", kind=kind)
        high = await submit(queue, "high", "production")
        if waits:
            assert vendor.jobs["v1"].state == "Running"
            vendor.end("v1")
        await until_async(lambda: "v2" in vendor.jobs)
        vendor.end("v2")
        for number in range(3, 4 + (not waits)):
            await until_async(lambda number=number: f"v{number}" in vendor.jobs)  # type: ignore[misc]
            vendor.end(f"v{number}")
        done = [await over(queue, job) for job in (low, after, high)]
    assert [job.state for job in done] == ["Completed"] * 3
    assert done[0].attempt == 1 if waits else 2
    first = ["low", "high"]
    assert vendor.names == [*first, *["low"] * (not waits), "after"]


async def test_after_a_crash_the_slices_that_are_over_stay(
    tmp_path: Path, vendor: Vendor
) -> None:
    device = VendorDevice(vendor)
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a", shots=25)
        await until_async(lambda: "v1" in vendor.jobs)
        vendor.end("v1")
        await until_async(lambda: queue.find(ANN, job.id).device_job == "v2")
    async with service(tmp_path / "kept", device) as queue:
        told = await ran(queue, vendor, job, 3)
        done = queue.find(ANN, job.id)
    assert told["counter"] == {"all": 25, "v1": 9, "v2": 8, "v3": 8}
    assert (done.qpu_seconds, done.attempt) == (6.0, 1)


@pytest.mark.parametrize("sliced", [True, False])
async def test_a_slice_in_the_moment_of_a_crash_stays_as_it_was(
    tmp_path: Path, vendor: Vendor, sliced: bool
) -> None:
    vendor.late["submit"] = [QpuError("the connection was cut")]
    vendor.trouble["find"] = [QpuError("it does not answer")] * 10_000
    device = VendorDevice(vendor)
    device.timed = sliced
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a", shots=25)
        await until_async(lambda: vendor.jobs)
    vendor.trouble.clear()
    # the next service has not yet asked how long jobs take, or has just learnt it
    device.timed = not sliced
    async with service(tmp_path / "kept", device) as queue:
        told = await ran(queue, vendor, job, 2 if sliced else 1)
    parts = {"v1": 9, "v2": 16} if sliced else {"v1": 25}
    assert told["counter"] == {"all": 25, **parts}


async def test_a_slice_that_is_cancelled_is_charged_with_those_before(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a", shots=25)
        await until_async(lambda: "v1" in vendor.jobs)
        vendor.end("v1")
        await until_async(lambda: queue.find(ANN, job.id).device_job == "v2")
        await queue.cancel(ANN, job.id)
        done = queue.find(ANN, job.id)
        assert (done.state, done.qpu_seconds) == ("Cancelled", 2.5)
        assert queue.store.slices.of(job.number) == []


@pytest.mark.parametrize("how", ["cancel", "release", "crash"])
async def test_slices_of_a_cancelled_waiting_job_cost_their_time(
    tmp_path: Path, vendor: Vendor, how: str
) -> None:
    device = VendorDevice(vendor)
    device.price = 3.0
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a", shots=25)
        await until_async(lambda: queue.find(ANN, job.id).state == "Running")
        await submit(queue, "high", "production")
        vendor.end("v1")
        await until_async(lambda: "v2" in vendor.jobs)
        assert queue.find(ANN, job.id).state == "Queued"
        if how == "cancel":
            await queue.cancel(ANN, job.id)
        elif how == "release":
            await queue.leases.release(ANN, job.lease)
        else:
            queue.store.progress.note_cancellation(job.number, "cancelled").result()
        done = queue.find(ANN, job.id)
    if how == "crash":
        async with service(tmp_path / "kept", device) as queue:
            done = queue.find(ANN, job.id)
    assert (done.state, done.qpu_seconds, done.cost) == ("Cancelled", 2.0, 6.0)


async def test_a_job_that_runs_in_slices_costs_what_all_of_them_cost(
    tmp_path: Path, vendor: Vendor
) -> None:
    device = VendorDevice(vendor)
    device.price = 3.0
    async with service(tmp_path, device) as queue:
        job = await submit(queue, "a", shots=25)
        await ran(queue, vendor, job, 3)
        done = queue.find(ANN, job.id)
    assert (done.qpu_seconds, done.cost) == (6.0, 18.0)


@pytest.mark.parametrize(("later", "cost"), [(5.0, 22.0), (None, 12.0)])
async def test_each_slice_costs_what_the_device_asked_when_it_ended(
    tmp_path: Path, vendor: Vendor, later: float | None, cost: float
) -> None:
    device = VendorDevice(vendor)
    device.price = 3.0
    async with service(tmp_path, device) as queue:
        job = await submit(queue, "a", shots=25)
        for number in (1, 2):
            await until_async(lambda number=number: f"v{number}" in vendor.jobs)  # type: ignore[misc]
            vendor.end(f"v{number}")
        await until_async(lambda: "v3" in vendor.jobs)
        device.price = later
        vendor.end("v3")
        done = await over(queue, job)
    assert (done.qpu_seconds, done.cost) == (6.0, cost)


@pytest.mark.parametrize(
    ("technology", "reads", "seconds", "expected"),
    [
        # set-up 18 ms, 86 us for each read
        ("annealer", 1000, 60.0, 1000),
        ("annealer", 2_000_000, 60.0, 698_000),
        ("annealer", 2_000_000, None, 2_000_000),
        # set-up dominates
        ("superconducting", 1_000_000, 40.0, 1_000_000),
        ("superconducting", 1_000_000, 60.0, 201_000),
        ("neutral-atom", 10_000, 60.0, 10_000),
    ],
)
def test_slices_are_made_where_they_pay(
    technology: str, reads: int, seconds: float | None, expected: int
) -> None:
    device = EmulatedDevice(technology=technology, time_scale=1)
    shots = slice_parts(device, {"num_reads": reads}, seconds)
    assert shots == pytest.approx(expected, rel=1e-3)
    if shots < reads:
        assert device.cost({"num_reads": shots}).qpu_seconds <= (seconds or 0)


def test_slices_of_a_batch_have_fewer_shots() -> None:
    device = EmulatedDevice(technology="superconducting", time_scale=1)
    batch, parameters = Size(circuits=400), {"num_reads": 1000}
    whole = device.cost(parameters, batch).qpu_seconds
    assert slice_parts(device, parameters, 60.0) == 1000
    shots = slice_parts(device, parameters, 60.0, Cost(whole))
    assert 59.0 < device.cost({"num_reads": shots}, batch).qpu_seconds <= 60.0


class Unhurried(EmulatedDevice):
    """Runs at once what would take its time, as a device that has no time scale."""

    def elapsed_seconds(self, cost: Cost) -> float:
        """See :meth:`Device.elapsed_seconds`."""
        return cost.qpu_seconds


@pytest.mark.parametrize("seed", [None, 3])
async def test_merged_samples_are_distributed_as_those_of_one_slice(
    tmp_path: Path, seed: int | None
) -> None:
    reads = 4000
    device = Unhurried(time_scale=0, noise=20.0, seed=1)
    counts = []
    for number, slice_seconds in enumerate((None, 0.02 / MOST_SETUP)):
        path = tmp_path / str(number)
        path.mkdir()
        settings = ServiceSettings(slice_seconds=slice_seconds)
        async with running_queue(path, device, settings) as queue:
            lease = await queue.leases.acquire(ANN, LeaseRequest())
            parameters = {"num_reads": reads, "num_sweeps": 5, "seed": seed}
            asked = Submission("problem", example_bqm(), parameters, "a")
            job = (await queue.submit(ANN, lease.id, asked))[0]
            done = await over(queue, job)
            assert done.state == "Completed"
            text = queue.store.jobs.result(job.number) or ""
        samples: SampleSet = SampleSet.from_serializable(json.loads(text))  # type: ignore[no-untyped-call]
        counts.append(_counted(samples))
        slices = samples.info.get("slices", [])
        assert (len(slices) > 1) == (slice_seconds is not None)
        assert sum(one["shots"] for one in slices) in (0, reads)
        seeds = [one["seed"] for one in slices]
        assert len(set(seeds)) == len(seeds)
    assert [sum(one.values()) for one in counts] == [reads] * 2
    states = sorted(set(counts[0]) | set(counts[1]))
    table = [[one[state] for state in states] for one in counts]
    assert chi2_contingency(table).pvalue > 1e-3


def _counted(samples: SampleSet) -> Counter[tuple[int, ...]]:
    counted = Counter[tuple[int, ...]]()
    columns = [samples.variables.index(name) for name in "abc"]
    record = samples.record
    for row, times in zip(record.sample, record.num_occurrences, strict=True):
        counted[tuple(int(row[column]) for column in columns)] += int(times)
    return counted


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ("c1", CalibrationData("c1", "2026-01-01T00:00:00Z", {"error": 0.5})),
        ("c0", CalibrationData("c0")),
    ],
)
async def test_a_job_that_names_a_calibration_gets_the_described_one(
    tmp_path: Path, vendor: Vendor, used: str, expected: CalibrationData
) -> None:
    class Described(VendorDevice):
        @property
        def description(self) -> Description:
            now = CalibrationData("c1", "2026-01-01T00:00:00Z", {"error": 0.5})
            return replace(super().description, calibration=now)

        def result(self, job_id: str, task: Task) -> Outcome:
            calibration = CalibrationData(used)
            return replace(super().result(job_id, task), calibration=calibration)

    async with service(tmp_path, Described(vendor)) as queue:
        job = await submit(queue, "a")
        await ran(queue, vendor, job, 1)
        assert queue.find(ANN, job.id).calibration == expected


@pytest.mark.parametrize("shots", [5, 25])
async def test_what_is_no_json_in_a_devices_info_is_null(
    tmp_path: Path, vendor: Vendor, shots: int
) -> None:
    class Odd(VendorDevice):
        def result(self, job_id: str, task: Task) -> Outcome:
            outcome = super().result(job_id, task)
            assert outcome.result is not None
            info: dict[str, JSON] = {
                "nan": math.nan,
                "in": [math.inf, {"a": -math.inf}],
            }
            values = {"a": math.nan, "b": 10**400, "c": cast("float", "?"), "d": 0.5}
            return replace(
                outcome,
                result=replace(outcome.result, info={**info, "seed": math.nan}),
                calibration=CalibrationData("c1", values=values),
            )

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    async with service(tmp_path, Odd(vendor)) as queue:
        job = await submit(queue, "a", shots=shots)
        await ran(queue, vendor, job, 1 if shots == 5 else 3)
        text = queue.store.jobs.result(job.number) or ""
        done = queue.find(ANN, job.id)
    info = json.loads(text, parse_constant=refuse)["info"]
    assert (info["nan"], info["in"]) == (None, [None, {"a": None}])
    assert done.calibration == CalibrationData("c1", values={"d": 0.5})


@pytest.mark.parametrize("what", ["deep", "odd"])
async def test_info_that_cannot_be_written_fails_its_job_only(
    tmp_path: Path, vendor: Vendor, what: str
) -> None:
    class Odd(VendorDevice):
        def result(self, job_id: str, task: Task) -> Outcome:
            info: JSON = []
            for _ in range(100_000):
                info = [info]
            odd = {"deep": info, "odd": {1}}[what]
            result = Result(info={"told": odd})  # type: ignore[dict-item]
            return replace(super().result(job_id, task), result=result)

    async with service(tmp_path, Odd(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: vendor.jobs)
        vendor.end("v1")
        done = await over(queue, job)
        assert done.state == "Failed"
        assert (done.note or "").startswith("the device's info is no JSON: ")
        assert done.qpu_seconds == 2.0
        assert not queue.failure


@pytest.mark.parametrize("told", [float("nan"), float("inf"), -5.0, 10**400])
async def test_times_that_make_no_sense_are_not_booked(
    tmp_path: Path, vendor: Vendor, told: float
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: vendor.jobs)
        vendor.end("v1", billed=told)
        done = await over(queue, job)
    # as the device expected
    assert (done.state, done.qpu_seconds) == ("Completed", 0.5)


async def test_a_fault_of_the_device_leaves_nothing_at_the_vendor(
    tmp_path: Path, vendor: Vendor
) -> None:
    vendor.trouble["poll"] = [LookupError("oops")]
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        done = await over(queue, await submit(queue, "a"))
    assert (done.state, done.note) == ("Failed", "LookupError: oops")
    assert vendor.jobs["v1"].state == "Cancelled"


async def test_what_was_never_sent_runs_after_a_crash(
    tmp_path: Path, vendor: Vendor
) -> None:
    vendor.trouble["submit"] = [NotAccepted("it is closed")] * 100_000
    device = VendorDevice(vendor, Recovery.BY_ID)
    async with killed(tmp_path, device) as queue:
        job = await submit(queue, "a")
        await until_async(lambda: len(vendor.trouble["submit"]) < 99_990)
        await until_async(lambda: queue.find(ANN, job.id).device is None)
        vendor.trouble["submit"] = [NotAccepted("it is closed", 3600.0)] * 100_000
        before = len(vendor.trouble["submit"])
        await until_async(lambda: len(vendor.trouble["submit"]) < before)
        await until_async(lambda: queue.find(ANN, job.id).device is None)
    vendor.trouble.clear()
    async with service(tmp_path / "kept", device) as queue:
        await until_async(lambda: vendor.jobs)
        vendor.end("v1")
        assert (await over(queue, job)).state == "Completed"


async def test_a_job_that_only_waited_there_costs_nothing(
    tmp_path: Path, vendor: Vendor
) -> None:
    class Silent(VendorDevice):
        def result(self, job_id: str, task: Task) -> Outcome:
            return Outcome()

    async with service(tmp_path, Silent(vendor, depth=2)) as queue:
        jobs = [await submit(queue, name) for name in "ab"]
        await until_async(lambda: len(vendor.jobs) == 2)
        await queue.cancel(ANN, jobs[1].id)
        done = queue.find(ANN, jobs[1].id)
        assert (done.state, done.qpu_seconds, done.seconds) == ("Cancelled", 0.0, 0.0)
        await queue.cancel(ANN, jobs[0].id)


async def test_a_slice_that_only_waits_there_is_taken_back(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor, depth=2)) as queue:
        low = [await submit(queue, name, shots=25) for name in "ab"]
        await until_async(lambda: queue.find(ANN, low[0].id).state == "Running")
        await until_async(lambda: len(vendor.jobs) == 2)
        high = await submit(queue, "high", "production")
        await until_async(lambda: vendor.jobs["v2"].state == "Cancelled")
        await until_async(lambda: "high" in vendor.names)
        # the slice that runs ends, and no other is submitted before
        vendor.end("v1")
        await until_async(lambda: vendor.jobs["v3"].state == "Running")
        assert vendor.names[:3] == ["a", "b", "high"]
        vendor.end("v3")
        assert (await over(queue, high)).state == "Completed"
        for job in low:
            await queue.cancel(ANN, job.id)


async def test_a_closing_does_not_wait_for_a_slice(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, VendorDevice(vendor)) as queue:
        low = await submit(queue, "low", shots=25)
        await until_async(lambda: queue.find(ANN, low.id).state == "Running")
        await submit(queue, "high", "production")
        await queue.availability.set_status("closed")
        await until_async(lambda: vendor.jobs["v1"].state == "Cancelled")
        await until_async(lambda: queue.find(ANN, low.id).state == "Queued")
        assert queue.find(ANN, low.id).lost_qpu_seconds == 0.5


async def test_no_job_is_submitted_before_the_one_ahead_of_it(
    tmp_path: Path, vendor: Vendor
) -> None:
    vendor.trouble["submit"] = [NotAccepted("too many requests")] * 20
    async with service(tmp_path, VendorDevice(vendor, depth=3)) as queue:
        jobs = [await submit(queue, name) for name in "abcd"]
        await until_async(lambda: len(vendor.jobs) == 3)
        for number in range(1, 5):
            await until_async(lambda number=number: f"v{number}" in vendor.jobs)  # type: ignore[misc]
            vendor.end(f"v{number}")
        for job in jobs:
            await over(queue, job)
    assert vendor.names == ["a", "b", "c", "d"]


class CircuitsDevice(VendorDevice):
    """A vendor whose circuits take 0.32 s each."""

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        return Size(circuits=len(content) if isinstance(content, list) else 1)

    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        circuits = size.circuits if size else 1
        return Cost(0.004 * circuits * (parameters.get("num_reads") or 1))

    def result(self, job_id: str, task: Task) -> Outcome:
        outcome = super().result(job_id, task)
        if outcome.result is None:
            return outcome
        counters = [{text: task.shots} for text in json.loads(task.payload)]
        return replace(outcome, result=Result(json.dumps({"counters": counters})))


async def streamed(
    queue: JobQueue, job: Job, first: int, seconds: float = 0.0
) -> tuple[State, list[str]]:
    """Fetch the circuits of which there are counts."""
    on_loop = threading.get_ident()

    def make(found: Job, counters: list[str]) -> tuple[State, list[str]]:
        assert threading.get_ident() != on_loop  # they may be large
        return found.state, [next(iter(json.loads(each))) for each in counters]

    return await queue.reader.results(ANN, job.id, "circuit", first, seconds, make)


async def test_a_batch_is_interrupted_between_its_circuits(
    tmp_path: Path, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pre-empted after some, and with a service that is killed during others."""
    device = CircuitsDevice(vendor)

    def sent() -> list[JSON]:
        jobs = sorted(vendor.jobs.values(), key=lambda job: int(job.id[1:]))
        return [json.loads(job.task.payload) for job in jobs]

    async with killed(tmp_path, device) as queue:
        held: dict[UserClass, str] = {}
        classes: tuple[UserClass, ...] = ("test", "production")
        for job_class in classes:
            request = LeaseRequest(job_class=job_class)
            held[job_class] = (await queue.leases.acquire(ANN, request)).id

        async def submitted(job_class: UserClass, content: JSON) -> Job:
            asked = Submission("circuit", content, {"num_reads": 80}, job_class)
            return (await queue.submit(ANN, held[job_class], asked))[0]

        batch = await submitted("test", ["c0", "c1", "c2", "c3", "c4"])
        await until_async(lambda: queue.find(ANN, batch.id).state == "Running")
        urgent = await submitted("production", ["urgent"])
        # it goes on to the end of the circuits that run
        assert sent() == [["c0", "c1"]]
        assert await streamed(queue, batch, 0) == ("Running", [])
        waiting = asyncio.create_task(streamed(queue, batch, 0, SECONDS))
        vendor.end("v1")
        await until_async(lambda: len(vendor.jobs) == 2)
        assert (await waiting)[1] == ["c0", "c1"]
        assert (await streamed(queue, batch, 1))[1] == ["c1"]
        vendor.end("v2")
        assert (await over(queue, urgent)).state == "Completed"
        await until_async(lambda: len(vendor.jobs) == 3)
        await until_async(lambda: queue.find(ANN, batch.id).device_job == "v3")
        found = queue.find(ANN, batch.id)
        assert (found.slices, found.shots_done, found.slice_shots) == (1, 32, 160)
    async with service(tmp_path / "kept", device) as queue:
        waiting = asyncio.create_task(streamed(queue, batch, 2, SECONDS))
        vendor.end("v3")
        assert (await waiting)[1] == ["c2", "c3"]
        await until_async(lambda: len(vendor.jobs) == 4)
        waiting = asyncio.create_task(streamed(queue, batch, 4, SECONDS))
        vendor.end("v4")
        done = await over(queue, batch)
        assert done.state == "Completed", done.note
        assert (await waiting)[1] == ["c4"]
        assert await streamed(queue, batch, 3) == ("Completed", ["c3", "c4"])
        assert await streamed(queue, batch, 5, SECONDS) == ("Completed", [])
        monkeypatch.setattr(reading, "RESULT_CHARACTERS", 15)
        assert (await streamed(queue, batch, 1))[1] == ["c1", "c2"]
        told = json.loads(queue.store.jobs.result(batch.number) or "")
    assert sent() == [["c0", "c1"], ["urgent"], ["c2", "c3"], ["c4"]]
    assert all(job.task.shots == 80 for job in vendor.jobs.values())
    assert told["counters"] == [{f"c{n}": 80} for n in range(5)]
    parts = [(one["circuits"], one["shots"]) for one in told["info"]["slices"]]
    assert parts == [(2, 80), (2, 80), (1, 80)]


def test_parts_of_a_batch() -> None:
    assert Batch.read('"one"') is Batch.read('["one"]') is None
    several = Batch.read('["a", "b", "c"]')
    assert several is not None
    assert several.part(1, 2) == '["b", "c"]'
    program = {"program": "p", "values": [{"a": 1}, {"a": 2}]}
    with_values = Batch.read(json.dumps(program))
    assert with_values is not None
    assert with_values.size == 2
    assert json.loads(with_values.part(1, 1)) == {"program": "p", "values": [{"a": 2}]}


class BqmsDevice(VendorDevice):
    """A vendor whose BQMs take 0.4 s each, and which takes lists of them if it says so."""

    lists = False

    @property
    def takes_lists(self) -> bool:
        return self.lists

    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        reads = parameters.get("num_reads") or 1
        return Cost(0.005 * reads * (size.problems if size and self.lists else 1))

    def result(self, job_id: str, task: Task) -> Outcome:
        outcome = super().result(job_id, task)
        if outcome.result is None:
            return outcome
        payload = json.loads(task.payload)
        bqms = payload if isinstance(payload, list) else [payload]
        sets = [json.dumps({"type": "SampleSet", "of": _name(bqm)}) for bqm in bqms]
        several = f'{{"sample_sets": [{", ".join(sets)}]}}'
        text = several if isinstance(payload, list) else sets[0]
        return replace(outcome, result=Result(text, {"by": job_id, "bad": math.nan}))


def _name(bqm: dict[str, dict[str, str]]) -> str:
    return bqm["info"]["name"]


def _names(vendor: Vendor) -> list[str]:
    """The BQMs of each job at the vendor, one letter each; one by itself with a dot."""
    jobs = sorted(vendor.jobs.values(), key=lambda job: int(job.id[1:]))
    payloads = [json.loads(job.task.payload) for job in jobs]
    return [
        "".join(map(_name, one)) if isinstance(one, list) else f"{_name(one)}."
        for one in payloads
    ]


async def _submitted(queue: JobQueue, job_class: UserClass, content: JSON) -> Job:
    request = LeaseRequest(job_class=job_class)
    lease = await queue.leases.acquire(ANN, request)
    asked = Submission("problem", content, {"num_reads": 80}, job_class)
    return (await queue.submit(ANN, lease.id, asked))[0]


async def _finished(queue: JobQueue, job: Job, first: int) -> list[str]:
    def make(_: Job, sets: list[str]) -> list[str]:
        return [json.loads(one)["of"] for one in sets]

    return await queue.reader.results(ANN, job.id, "problem", first, SECONDS, make)


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        (True, ["ab", "u.", "cd", "e"]),
        (False, ["a.", "u.", "b.", "c.", "d.", "e."]),
    ],
)
async def test_a_list_of_bqms_is_interrupted_between_them(
    tmp_path: Path, vendor: Vendor, lists: bool, expected: list[str]
) -> None:
    """Pre-empted after some, and with a service that is killed during others."""
    device = BqmsDevice(vendor)
    device.lists = lists
    async with killed(tmp_path, device) as queue:
        several = await _submitted(queue, "test", [problem(one) for one in "abcde"])
        assert several.model_seconds == pytest.approx(2.0)
        await until_async(lambda: queue.find(ANN, several.id).state == "Running")
        urgent = await _submitted(queue, "production", problem("u"))
        assert _names(vendor) == expected[:1]
        vendor.end("v1", billed=0.25)
        assert await _finished(queue, several, 0) == [*expected[0].strip(".")]
        await until_async(lambda: len(vendor.jobs) == 2)
        vendor.end("v2")
        assert (await over(queue, urgent)).state == "Completed"
        await until_async(lambda: len(vendor.jobs) == 3)
        await until_async(lambda: queue.find(ANN, several.id).device_job == "v3")
    async with service(tmp_path / "kept", device) as queue:
        for number in range(3, len(expected) + 1):
            await until_async(lambda number=number: f"v{number}" in vendor.jobs)  # type: ignore[misc]
            vendor.end(f"v{number}", billed=0.25)
        done = await over(queue, several)
        assert done.state == "Completed", done.note
        assert done.qpu_seconds == 0.25 * (len(expected) - 1)
        assert await _finished(queue, several, 3) == ["d", "e"]
        told = json.loads(queue.store.jobs.result(several.number) or "")
    assert _names(vendor) == expected
    assert [one["of"] for one in told["sample_sets"]] == [*"abcde"]
    if not lists:  # each with what the vendor tells of it
        infos = [one["info"] for one in told["sample_sets"]]
        assert infos[1] == {"by": "v3", "bad": None}
    own = [one for one in expected if one != "u."]
    parts = [(one["problems"], one["shots"]) for one in told["info"]["slices"]]
    assert parts == [(len(one.strip(".")), 80) for one in own]


async def test_lists_of_one_bqm_and_jobs_without_any(
    tmp_path: Path, vendor: Vendor
) -> None:
    async with service(tmp_path, BqmsDevice(vendor)) as queue:
        job = await _submitted(queue, "test", [problem("a")])
        await until_async(lambda: "v1" in vendor.jobs)
        assert _names(vendor) == ["a."]
        vendor.end("v1")
        assert await _finished(queue, await over(queue, job), 0) == ["a"]
        circuit = await submit(queue, "c", kind="circuit")
        with pytest.raises(Refused, match="the job is a circuit, it has no BQMs"):
            await queue.reader.results(
                ANN, circuit.id, "problem", 0, 0.0, lambda _, found: found
            )
