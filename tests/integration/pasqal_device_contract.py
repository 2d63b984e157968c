"""The contract of devices on ``pasqal-local``, where the client finds its MUNGE.

Run by test_device_contract.py in a mount namespace, since the client knows no other socket
than MUNGE's default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.service.device.protocol import Device
from sf_quantum.service.device.qpu import QpuDevice
from sf_quantum.testing.devices import DeviceContract
from sf_quantum.testing.qpus import sequence
from tests.service import RunningService, running_service
from tests.waiting import until

URL = "PASQAL_CONTRACT_URL"
LASTING_URL = "PASQAL_CONTRACT_LASTING_URL"
SESSIONS_URL = "PASQAL_CONTRACT_SESSIONS_URL"


def device_at(url: str, folder: Path, poll_seconds: float) -> Callable[[], Device]:
    environment: JSON = {"QRMI_WARDEN_URL": url}
    entry = {"name": "local_qpu", "type": "pasqal-local", "environment": environment}
    file = folder / "qrmi_config.json"
    file.write_text(json.dumps({"resources": [entry]}))
    return lambda: QpuDevice.from_config(
        {
            "qpu": "pasqal-local",
            "name": "local_qpu",
            "config": {"qrmiConfig": str(file)},
            "poll_seconds": poll_seconds,
        }
    )


@contextmanager
def front(
    url: str, folder: Path, state: Path | None = None
) -> Iterator[RunningService]:
    device = device_at(url, folder, 0.1)()
    with running_service(device, state=state) as service:
        yield service
    device.close()


def submitted(service: RunningService) -> str:
    """Submit a sequence, and wait until it runs at the vendor; its lease here."""
    device = service.queue.device
    until(lambda: device.status.online, "the vendor is online")
    lease = service.acquire()
    body: dict[str, JSON] = {
        "sequence": sequence(device.specs()),
        "parameters": {"num_reads": 5},
        "idempotency_key": "a",
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status == 201, answer.json()
    service.until(lease, "Running")
    return lease


def test_what_the_vendor_ends_with_its_session_runs_again_in_another(
    tmp_path: Path,
) -> None:
    url = os.environ[SESSIONS_URL]
    vendor = Client(url, {})
    with front(url, tmp_path) as service:
        lease = submitted(service)
        (held,) = json.loads(vendor.request("GET", "/v1/leases").body)
        vendor.request("DELETE", f"/v1/leases/{held['id']}")
        service.until(lease, "Completed")
        (job,) = service.queue.store.jobs()
    during = "interrupted during attempt 1"
    note = f"{during}: the vendor cancelled it, perhaps with its lease"
    assert (job.attempt, job.note) == (2, note)


class TestPasqalLocal(DeviceContract):
    """Our service through the stock client."""

    unknown_id = "999999999"

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], Device]:
        return device_at(os.environ[URL], tmp_path, 0.1)

    @pytest.fixture
    def make_lasting(self, tmp_path: Path) -> Callable[[], Device]:
        return device_at(os.environ[LASTING_URL], tmp_path, 1.0)
