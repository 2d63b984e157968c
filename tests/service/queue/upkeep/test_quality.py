"""Quality jobs: how they enter the queue, what is learned of them, what they find."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dimod import BinaryQuadraticModel, ExactSolver

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Result, Task
from sf_quantum.service.device import quality_problem
from sf_quantum.service.device.emulator.computation import Computation
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.runners import ProblemRunner, Runner
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.domain.jobs import Job, Kind
from sf_quantum.service.domain.settings import QualitySettings, ServiceSettings
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.queue.upkeep.telemetry import (
    SERIES,
    Baseline,
    QualityJobs,
    QualityResult,
)
from sf_quantum.service.store.retention import purge
from sf_quantum.service.store.store import Store
from tests.support.service import RunningService, emulated, example_bqm, running_service
from tests.support.waiting import SECONDS, until

# an hour's jobs in a moment
OFTEN = ServiceSettings(
    quality=QualitySettings(every_seconds=0.001, num_reads=50, learn=5)
)
ONCE = ServiceSettings(quality=QualitySettings(every_seconds=1e6, num_reads=50))


def listed(service: RunningService, path: str) -> list[dict[str, JSON]]:
    """What a list of the service has in it."""
    found: list[dict[str, JSON]] = json.loads(service.ask("GET", path).body)
    return found


def ended(service: RunningService, jobs: int) -> int:
    """Wait until so many quality jobs are on the disk."""
    rows = "SELECT count(*) FROM quality"

    def count() -> int | None:
        found = int(service.queue.store.report(rows)[0][0])
        return found if found >= jobs else None

    return until(count, f"fewer than {jobs} quality jobs ended")


@pytest.mark.parametrize("qubits", [1, 2, 7, 12])
def test_the_planted_state_is_the_only_optimum(qubits: int) -> None:
    bqm = quality_problem.problem(qubits)
    model = BinaryQuadraticModel.from_serializable(bqm)
    found = ExactSolver().sample(model)  # type: ignore[no-untyped-call]
    energies = sorted(found.record.energy)
    assert len(model) == qubits
    assert energies[0] == pytest.approx(quality_problem.optimum(bqm))
    assert energies[1] > energies[0] + 0.1
    serialized = found.to_serializable()  # type: ignore[no-untyped-call]
    assert quality_problem.hits(serialized, energies[0]) == (1, 2**qubits)


@pytest.mark.parametrize("technology", ["annealer", "superconducting", "neutral-atom"])
def test_errors_show(technology: str) -> None:
    def hits(faults: Faults) -> int:
        # its calibration drifts with time, which a busy machine takes
        device = EmulatedDevice(
            technology=technology,
            noise=1,
            time_scale=0,
            seed=1,
            faults=faults,
            clock=lambda: 1000.0,
            started=1000.0,
        )
        bqm = quality_problem.problem(device.size)
        parameters = {"num_reads": 200, "num_sweeps": None}
        task = Task("t", "problem", json.dumps(bqm), parameters, 1)
        outcome = device.run(task, threading.Event())
        assert outcome.result
        result = json.loads(outcome.result.text)
        found, reads = quality_problem.hits(result, quality_problem.optimum(bqm))
        assert reads == 200
        return found

    assert 2 * hits(Faults(calibration=1)) <= hits(Faults()) > 120


def test_a_job_has_its_own_class_and_takes_no_vqpu() -> None:
    with running_service(settings=ONCE) as service:
        ended(service, 1)
        (job,) = listed(service, "/v1/jobs")
        assert (job["class"], job["user"]) == ("quality", "service:quality")
        assert job["state"] == "Completed"
        calibration = job["calibration"]
        assert isinstance(calibration, dict)
        assert calibration["id"] == emulated(service.queue).calibrations.present.id
        assert listed(service, "/v1/leases") == []
        # the only vQPU is free
        assert service.acquire()


def test_its_lease_is_reported_and_forgotten() -> None:
    with running_service(settings=ONCE) as service:
        ended(service, 1)
        sessions = json.loads(service.ask("GET", "/acct/sessions").body)
        assert [row["total_duration"] for row in sessions["data"]] == [0]
        store = service.queue.store
        assert purge(store, store.clock() + SECONDS).result() == 1
        assert store.leases.latest() == []


def test_users_cannot_ask_for_its_class() -> None:
    with running_service() as service:
        answer = service.ask("POST", "/v1/leases", {"class": "quality"})
        assert answer.status == 422
        assert answer.json()["field"] == "class"


class LongUntilCancelled(ProblemRunner):
    """Runs jobs of many reads until they are cancelled, and others as they are."""

    def run(self, computation: Computation, interrupted: Callable[[], bool]) -> Result:
        never = threading.Event()
        while computation.parameters["num_reads"] == 100_000 and not interrupted():
            never.wait(0.01)
        return super().run(computation, interrupted)


def test_it_goes_after_production_and_before_the_others() -> None:
    runners: dict[Kind, Runner] = {"problem": LongUntilCancelled()}
    device = EmulatedDevice(time_scale=0, seed=1, runners=runners)
    often = ServiceSettings(vqpus=3, quality=QualitySettings(every_seconds=0.3))
    with running_service(device, settings=often) as service:

        def submit(name: str, reads: int) -> tuple[str, str]:
            answer = service.ask("POST", "/v1/leases", {"class": name})
            lease = str(answer.json()["id"])
            body: dict[str, JSON] = {
                "problem": example_bqm(),
                "idempotency_key": lease,
                "parameters": {"num_reads": reads},
            }
            job = service.ask("POST", "/v1/jobs", body, lease=lease).json()
            return lease, str(job["id"])

        def of(name: str) -> list[Job]:
            return [
                job
                for job in service.queue.store.jobs.latest()
                if job.job_class == name
            ]

        ended(service, 1)
        # it runs while the next quality job becomes due
        _, running = submit("production", 100_000)
        until(lambda: of("production")[0].started, "it runs")
        test, _ = submit("test", 5)
        production, _ = submit("production", 5)
        (due,) = until(lambda: [job for job in of("quality") if not job.started], "one")
        service.ask("DELETE", f"/v1/jobs/{running}")
        service.until(test, "Completed")
        (last,) = service.queue.store.jobs.latest(lease=production)
        (first,) = service.queue.store.jobs.latest(lease=test)
        (waited,) = (job for job in of("quality") if job.id == due.id)
    assert started(last) < started(waited) < started(first)


def started(job: Job) -> float:
    assert job.started is not None
    return job.started


def test_a_restart_neither_forgets_nor_repeats_it(tmp_path: Path) -> None:
    state = tmp_path / "service.sqlite"
    with running_service(state=state, settings=ONCE) as service:
        ended(service, 1)
    with running_service(state=state, settings=ONCE) as service:
        # what is due is submitted before the service answers its first request
        assert service.ask("GET", "/v1/device").status == 200
        quality = service.telemetry.quality
        assert quality is not None
        last = until(lambda: quality.last, "nothing was read")
        assert last.time < time.time()
        assert len(listed(service, "/v1/jobs")) == 1
    soon = ServiceSettings(
        quality=QualitySettings(every_seconds=time.time() - last.time, num_reads=50)
    )
    with running_service(state=state, settings=soon) as service:
        ended(service, 2)


def test_a_job_left_behind_is_cancelled_and_run_anew(
    tmp_path: Path,
) -> None:
    state = tmp_path / "service.sqlite"
    slow = EmulatedDevice(technology="neutral-atom")
    with running_service(slow, state=state, settings=ONCE) as service:
        until(lambda: service.queue.running, "no quality job runs")
    with running_service(state=state, settings=ONCE) as service:
        ended(service, 1)
        states = [job["state"] for job in listed(service, "/v1/jobs")]
        assert states == ["Cancelled", "Completed"]


def test_none_runs_while_the_qpu_is_closed(tmp_path: Path) -> None:
    state = tmp_path / "service.sqlite"
    with running_service(state=state) as service:
        service.ask("POST", "/v1/device/close", {"message": "for now"})
    with running_service(state=state, settings=OFTEN) as service:
        # it was due before the service answered anybody
        assert service.ask("POST", "/v1/leases", {}).status == 503
        assert listed(service, "/v1/jobs") == []
        service.ask("POST", "/v1/device/open")
        ended(service, 1)


def test_what_is_usual_is_learned_over_all_ages() -> None:
    draws = random.Random(1)

    def sample(age: float, success: float) -> QualityResult:
        hits = sum(draws.random() < success for _ in range(400))
        return QualityResult(0, age, 400, hits)

    ages = [number / 20 for number in range(20)]
    samples = [sample(age, 0.6 - 0.2 * age) for age in ages]
    assert Baseline.fit(samples[:10], 5) is None
    usual = Baseline.fit(samples, 5)
    assert usual is not None
    assert 1 <= usual.spread < 2
    fresh = [usual.deviation(sample(0.1, 0.58)) for _ in range(50)]
    old = [usual.deviation(sample(0.9, 0.42)) for _ in range(50)]
    low = [usual.deviation(sample(0.1, 0.42)) for _ in range(50)]
    assert abs(sum(fresh) / 50) < 1
    assert abs(sum(old) / 50) < 1
    assert sum(low) / 50 < -4


def test_a_device_that_went_wrong_is_found_by_its_quality_jobs(tmp_path: Path) -> None:
    state = tmp_path / "service.sqlite"
    clock = Clock()
    kept = EmulatedDevice(noise=1, time_scale=0, seed=1, clock=clock, started=clock.now)
    with running_service(kept, state=state, settings=OFTEN) as service:
        quality = service.telemetry.quality
        assert quality is not None
        while quality.baseline is None:
            clock.now += 200.0
            ended(service, len(service.queue.store.report("SELECT 1 FROM quality")) + 1)
        assert (
            json.loads(service.ask("GET", "/v1/device").body)["drift"]["alarms"] == []
        )
        wrong: dict[str, JSON] = {"parameters": {"calibration": 1}}
        service.ask("POST", "/v1/admin/operations/set-faults", wrong)
        until(lambda: SERIES in service.queue.drift.alarms, "no alarm was raised")


async def test_a_long_report_keeps_no_request_waiting(tmp_path: Path) -> None:
    store = Store(tmp_path / "service.sqlite")
    begun, end = threading.Event(), threading.Event()

    def linger() -> bool:
        begun.set()
        return end.wait(SECONDS)

    store._reports._db.create_function("linger", 0, linger)
    queue = JobQueue(store, EmulatedDevice(time_scale=0))
    report = asyncio.create_task(asyncio.to_thread(store.report, "SELECT linger()"))
    assert await asyncio.to_thread(begun.wait, SECONDS)
    work = asyncio.create_task(
        QualityJobs(queue, QualitySettings(every_seconds=1e6)).work()
    )
    for _ in range(3):
        await asyncio.sleep(0)
    end.set()
    # it was told in time, by an event loop that could go on
    assert (await report)[0][0] == 1
    work.cancel()
    await asyncio.wait([work])
    store.close()


class Clock:
    """A time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
