"""The contract of devices on ``pasqal-local``, where the client finds its MUNGE.

Run by test_device_contract.py in a mount namespace, since the client knows no other socket
than MUNGE's default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.testing.devices import VendorContract
from sf_quantum.testing.qpus import Lie, sequence
from tests.support import lying
from tests.support.lying import Liars
from tests.support.service import running_service
from tests.support.service_process import QpuService
from tests.support.waiting import until

URL = "PASQAL_CONTRACT_URL"
LASTING_URL = "PASQAL_CONTRACT_LASTING_URL"
SESSIONS_URL = "PASQAL_CONTRACT_SESSIONS_URL"


def config_at(url: str, folder: Path, poll_seconds: float = 0.1) -> dict[str, JSON]:
    environment: JSON = {"QRMI_WARDEN_URL": url}
    entry = {"name": "local_qpu", "type": "pasqal-local", "environment": environment}
    file = folder / "qrmi_config.json"
    file.write_text(json.dumps({"resources": [entry]}))
    return {
        "qpu": "pasqal-local",
        "name": "local_qpu",
        "config": {"qrmiConfig": str(file)},
        "poll_seconds": poll_seconds,
    }


def device_at(url: str, folder: Path, poll_seconds: float) -> Callable[[], Device]:
    config = config_at(url, folder, poll_seconds)
    return lambda: QpuDevice.from_config(config)


def job_of(specs: str) -> dict[str, JSON]:
    return {
        "sequence": sequence(specs),
        "parameters": {"num_reads": 5},
        "idempotency_key": "a",
    }


def test_a_job_ended_with_its_session_runs_in_another(
    tmp_path: Path,
) -> None:
    url = os.environ[SESSIONS_URL]
    vendor = Client(url, {})
    device = device_at(url, tmp_path, 0.1)()
    with running_service(device) as service:
        until(lambda: device.status.online, "the vendor is online")
        lease = service.acquire()
        service.ask("POST", "/v1/jobs", job_of(device.specs()), lease=lease)
        service.until(lease, "Running")
        (held,) = json.loads(vendor.request("GET", "/v1/leases").body)
        vendor.request("DELETE", f"/v1/leases/{held['id']}")
        service.until(lease, "Completed")
        (job,) = service.queue.store.jobs.latest()
    device.close()
    during = "interrupted during attempt 1"
    note = f"{during}: the vendor cancelled it, perhaps with its lease"
    assert (job.attempt, job.note) == (2, note)


def online(service: QpuService) -> bool:
    told = service.ask("GET", "/v1/device")
    return isinstance(told, dict) and told["status"] == "online"


def test_after_sigkill_the_session_goes_on_and_is_given_back(
    tmp_path: Path,
) -> None:
    url = os.environ[LASTING_URL]
    vendor = Client(url, {})

    def sessions() -> list[str]:
        held = json.loads(vendor.request("GET", "/v1/leases").body)
        return [lease["id"] for lease in held]

    config = tmp_path / "front.json"
    keys: dict[str, JSON] = {"type": "qpu", "idle_seconds": 0.1}
    config.write_text(json.dumps({"device": config_at(url, tmp_path) | keys}))
    service = QpuService(tmp_path / "front", "--config", str(config))
    service.start()
    until(lambda: online(service), "the vendor is online")
    before = sessions()
    specs = json.loads(vendor.request("GET", "/qpu/specs").body)["specs"]
    job = service.ask("POST", "/v1/jobs", job_of(specs), service.lease())
    assert isinstance(job, dict)
    until(lambda: service.jobs() == ["Running"], "it runs")
    (session,) = {*sessions()} - {*before}
    service.kill()
    service.start()
    until(lambda: online(service), "the vendor is online again")
    # it is followed, and cancelled
    assert service.jobs() == ["Running"]
    service.ask("DELETE", f"/v1/jobs/{job['id']}")
    until(lambda: service.jobs() == ["Cancelled"], "it is cancelled")
    until(lambda: sessions() == before, "the session is given back")
    assert session not in (tmp_path / "front/log").read_text()
    service.kill()


class TestPasqalLocal(VendorContract):
    """Our service through the stock client."""

    unknown_id = "999999999"

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], Device]:
        return device_at(os.environ[URL], tmp_path, 0.1)

    @pytest.fixture
    def make_lasting(self, tmp_path: Path) -> Callable[[], Device]:
        return device_at(os.environ[LASTING_URL], tmp_path, 1.0)

    @pytest.fixture
    def make_lying(self, tmp_path: Path) -> Iterator[Callable[[Lie], Device | None]]:
        def make(lie: Lie) -> Device | None:
            if lie == "other job":  # QRMI's client shows no ids in what it answers
                return None
            url = liars.url(lie)
            return None if url is None else device_at(url, tmp_path, 0.1)()

        with Liars(lying.warden, os.environ[URL]) as liars:
            yield make
