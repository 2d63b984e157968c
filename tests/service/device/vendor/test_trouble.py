"""The service in front of a vendor that misbehaves: each job ends once, or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import OVER
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.device.vendor.settings import QpuSettings
from sf_quantum.service.domain.settings import ServiceSettings
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.vendor import Vendor
from tests.support.waiting import SECONDS, until

Run: TypeAlias = Callable[..., AbstractContextManager[RunningService]]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VENDOR", "ACCESS"):
        monkeypatch.setattr(backoff, name, Backoff(0.01, 0.02))


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    with Vendor(tmp_path / "vendor") as vendor:
        monkeypatch.syspath_prepend(vendor.site())
        yield vendor


@pytest.fixture
def run(vendor: Vendor) -> Run:
    """Run a service in front of the vendor; its keys as given."""

    @contextmanager
    def running(**keys: float) -> Iterator[RunningService]:
        often = {"refresh_seconds": 0.02, "poll_seconds": 0.02, "late_seconds": 0.2}
        given: dict[str, JSON] = {**often, **keys}
        settings = QpuSettings.model_validate(
            {"qpu": "acme", "name": "acme", "config": {**vendor.config}, **given}
        )
        device = QpuDevice(settings)
        with running_service(device, settings=ServiceSettings(vqpus=4)) as service:
            until(lambda: told(service)["status"] == "online", "it is online")
            yield service
        device.close()

    return running


def told(service: RunningService) -> Mapping[str, JSON]:
    return service.ask("GET", "/v1/device").json()


def when(service: RunningService, field: str) -> Mapping[str, JSON] | None:
    device = told(service)
    return device if device[field] else None


def submitted(service: RunningService, lease: str, key: str, reads: int = 10) -> str:
    body: dict[str, JSON] = {
        "problem": example_bqm(),
        "parameters": {"num_reads": reads},
        "idempotency_key": key,
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status == 201, answer.json()
    return str(answer.json()["id"])


def over(service: RunningService, job: str) -> Mapping[str, JSON]:
    def ended() -> Mapping[str, JSON] | None:
        answer = service.ask("GET", f"/v1/jobs/{job}?wait=5").json()
        return answer if answer["state"] in OVER else None

    return until(ended, f"job {job} is over")


def ran_once(vendor: Vendor) -> int:
    """Check that each submission was accepted, ran and was billed once; count them."""
    counts = vendor.counts().values()
    assert all((one.accepted, one.ran, one.billed) == (1, 1, 1) for one in counts)
    return len(counts)


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("busy", {}),
        ("busy", {"retry_after": 0.05}),
        ("error", {}),
        ("error after", {}),
        ("cut", {}),
        ("cut after", {}),
        ("cut amid", {}),
    ],
)
@pytest.mark.parametrize("path", ["/jobs", ""])
def test_trouble_on_the_way_costs_no_job(
    run: Run, vendor: Vendor, kind: str, more: dict[str, float], path: str
) -> None:
    with run() as service:
        lease = service.acquire()
        vendor.fault(kind, path, times=3, **more)  # type: ignore[arg-type]
        jobs = [submitted(service, lease, key) for key in "ab"]
        states = [over(service, job)["state"] for job in jobs]
    assert states == ["Completed"] * 2
    assert ran_once(vendor) == 2


def test_one_in_five_answers_is_an_error(run: Run, vendor: Vendor) -> None:
    with run() as service:
        lease = service.acquire()
        vendor.set(shares={"error after": 0.2})
        jobs = [submitted(service, lease, key) for key in "abcdef"]
        states = [over(service, job)["state"] for job in jobs]
    assert states == ["Completed"] * 6
    assert ran_once(vendor) == 6


def test_time_in_the_vendors_queue_is_not_busy(run: Run, vendor: Vendor) -> None:
    def metrics() -> list[str]:
        return service.ask("GET", "/metrics").body.decode().splitlines()

    def is_in(state: str) -> bool:
        return f'sfq_device_state{{state="{state}"}} 1.0' in metrics()

    with run() as service:
        vendor.set(queue_seconds=[3600.0])
        job = submitted(service, service.acquire(), "a")
        until(vendor.counts, "the vendor has it")
        assert is_in("waiting")
        assert "sfq_device_busy_seconds_total 0.0" in metrics()
        service.ask("DELETE", f"/v1/jobs/{job}")
        over(service, job)
        until(lambda: is_in("idle"), "it is idle")


def test_a_vendor_in_trouble_is_told_in_one_sentence(run: Run, vendor: Vendor) -> None:
    with run() as service:
        lease = service.acquire()
        vendor.fault("busy", "/jobs", method="POST", retry_after=3600)
        job = submitted(service, lease, "a")
        device = until(lambda: when(service, "trouble"), "it is in trouble")
        assert device["status"] == "online"
        trouble = str(device["trouble"])
        assert trouble.startswith("asked again in 3600 s: QPU 'acme'")
        assert "\n" not in trouble
        state = service.ask("GET", f"/v1/jobs/{job}").json()["state"]
        assert state == "Queued"
        # it can be cancelled all the same
        service.ask("DELETE", f"/v1/jobs/{job}")
        assert over(service, job)["state"] == "Cancelled"
    assert vendor.counts() == {}


def test_maintenance_there_is_offline_here_with_its_reason(
    run: Run, vendor: Vendor
) -> None:
    with run() as service:
        lease = service.acquire()
        vendor.set(state="maintenance", reason="the cryostat is warm")
        device = until(lambda: when(service, "reason"), "it is offline")
        assert device["status"] == "offline"
        assert "the cryostat is warm" in str(device["reason"])
        assert device["eta_seconds"] is None
        refused = service.ask("POST", "/v1/leases", {"job": "test"})
        assert refused.status == 503
        assert "the cryostat is warm" in str(refused.json()["detail"])
        job = submitted(service, lease, "a")
        vendor.set(state="up")
        assert over(service, job)["state"] == "Completed"


def test_a_key_that_is_wrong_from_now_on_makes_jobs_wait(
    run: Run, vendor: Vendor
) -> None:
    with run() as service:
        lease = service.acquire()
        vendor.set(key="another")
        job = submitted(service, lease, "a")
        until(lambda: told(service)["status"] == "offline", "it is offline")
        assert service.ask("GET", f"/v1/jobs/{job}").json()["state"] == "Queued"
        vendor.key_file.write_text("another")
        assert over(service, job)["state"] == "Completed"
    assert ran_once(vendor) == 1


def test_a_job_that_vanishes_says_that_it_may_have_run(
    run: Run, vendor: Vendor
) -> None:
    with run() as service:
        lease = service.acquire()
        vendor.next_jobs("never ends")
        job = submitted(service, lease, "a")
        service.until(lease, "Running")
        (tag,) = vendor.counts()
        vendor.vanish(tag)
        done = over(service, job)
        assert done["state"] == "Failed"
        assert "it may have run, and has left no result" in str(done["note"])
        assert over(service, submitted(service, lease, "b"))["state"] == "Completed"


def test_a_job_that_never_ends_is_cancelled_at_its_limit(
    run: Run, vendor: Vendor
) -> None:
    with run(longest_seconds=0.1) as service:
        lease = service.acquire()
        vendor.next_jobs("never ends")
        done = over(service, submitted(service, lease, "a"))
        assert (done["state"], done["note"]) == (
            *("Failed", "it ran for more than 0.1 s"),
        )
        # what the vendor bills for the part that ran
        assert isinstance(done["qpu_seconds"], float)
        assert done["qpu_seconds"] > 0


@pytest.mark.parametrize(
    ("kind", "more"),
    [("answer", {"body": "no JSON"}), ("large", {"size": 2**22})],
    ids=["malformed", "too large"],
)
def test_a_result_that_cannot_be_read_is_told(
    run: Run,
    vendor: Vendor,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    more: dict[str, JSON],
) -> None:
    monkeypatch.setattr("sf_quantum.protocol.tasks.RESULT_BYTES", 2**20)
    with run() as service:
        lease = service.acquire()
        vendor.fault(kind, "/jobs/1/spins", times=10_000, **more)  # type: ignore[arg-type]
        done = over(service, submitted(service, lease, "a"))
    assert done["state"] == "Failed"
    assert str(done["note"]).startswith("its result cannot be read: QPU 'acme'")
    assert "\n" not in str(done["note"])


def test_jobs_too_large_for_a_shrunk_device_fail_unbilled(
    run: Run, vendor: Vendor
) -> None:
    with run(describe_seconds=0.02, ahead=0) as service:
        lease = service.acquire()
        vendor.next_jobs("never ends")
        first = submitted(service, lease, "a")
        service.until(lease, "Running")
        second = submitted(service, lease, "b")
        before = told(service)["qubits"]
        assert isinstance(before, int)
        vendor.set(dead=[*range(before - 2)])
        until(lambda: told(service)["qubits"] == 2, "it has shrunk")
        service.ask("DELETE", f"/v1/jobs/{first}")
        done = over(service, second)
    assert done["note"] == (
        "the device has changed since the job was submitted: "
        "problem.variable_labels: 3 variables do not fit on 2 qubits"
    )
    assert len(vendor.counts()) == 1


def test_its_clock_may_be_wrong(run: Run, vendor: Vendor) -> None:
    vendor.set(skew_seconds=-7200.0)
    with run() as service:
        lease = service.acquire()
        done = over(service, submitted(service, lease, "a"))
        assert done["state"] == "Completed"
        assert isinstance(done["queued_seconds"], float)
        assert 0 <= done["queued_seconds"] < SECONDS
        age = told(service)["calibration_age_seconds"]
        assert isinstance(age, float)
        assert age >= 0
        result = json.loads(service.ask("GET", f"/v1/jobs/{done['id']}/result").body)
        assert result["info"]["calibration"]["id"]
