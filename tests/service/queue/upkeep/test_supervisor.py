"""Background tasks of the service that die, and are started again."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.service.device.drift import DriftWatch
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.settings import QualitySettings, ServiceSettings
from sf_quantum.service.queue.upkeep.supervisor import Supervisor
from sf_quantum.service.queue.upkeep.telemetry import Telemetry
from sf_quantum.service.store.store import Store
from tests.support.service import running_queue, running_service
from tests.support.waiting import SECONDS, until, until_async

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")


async def test_a_task_that_ends_is_started_again_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "TASK", Backoff(0.0, 0.0))
    supervisor, runs = Supervisor(), asyncio.Event()

    async def work() -> None:
        if not supervisor.deaths["work"]:
            raise LookupError("no such reading")
        if supervisor.deaths["work"] == 1:
            raise asyncio.CancelledError
        if supervisor.deaths["work"] == 3:
            runs.set()
            await asyncio.Event().wait()

    supervisor.run("work", work)
    await asyncio.wait_for(runs.wait(), SECONDS)
    assert supervisor.problem is None
    supervisor.stop()
    assert supervisor.deaths == {"work": 3}


# the vendor's tasks do not run, either
@pytest.mark.devices
def test_while_a_task_does_not_run_the_service_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: DriftWatch | EmulatedDevice) -> None:
        raise LookupError("no such reading")

    monkeypatch.setattr(backoff, "TASK", Backoff(3600.0, 3600.0))
    with monkeypatch.context() as patch:
        patch.setattr(DriftWatch, "add_readings", failing)
        with running_service() as service:
            until(lambda: service.queue.supervisor.problem, "the end of the task")
            ready = service.ask("GET", "/v1/health/ready")
            why = "the background task 'drift' does not run: no such reading"
            assert (ready.status, ready.json()["detail"]) == (503, why)
            # it takes jobs nevertheless
            assert service.ask("GET", "/v1/health").status == 200
            patch.undo()
            metrics = service.ask("GET", "/metrics").body.decode()
    name = "sfq_background_task_deaths_total"
    lines = [line for line in metrics.splitlines() if line.startswith(f"{name}{{")]
    tasks = {line.partition('"')[2].partition('"')[0]: line[-3:] for line in lines}
    assert tasks.pop("drift") == "1.0"
    assert {"availability", "slurm", "retention"} <= tasks.keys()
    assert set(tasks.values()) == {"0.0"}


async def test_a_locked_database_does_not_end_the_quality_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "TASK", Backoff(0.0, 0.0))
    report, locked = Store.report, [sqlite3.OperationalError("database is locked")]

    def locked_once(
        store: Store, query: str, *values: str | float | None
    ) -> list[sqlite3.Row]:
        if "FROM quality" in query and locked:
            raise locked.pop()
        return report(store, query, *values)

    monkeypatch.setattr(Store, "report", locked_once)
    settings = ServiceSettings(quality=QualitySettings(every_seconds=0.01))
    async with running_queue(tmp_path, EmulatedDevice(time_scale=0), settings) as queue:
        watch = Telemetry(queue)
        watch.start()
        quality = watch.quality
        assert quality is not None
        await until_async(lambda: quality.last, "a quality job")
        assert queue.supervisor.deaths["quality"] == 1
