"""The contract of devices on ``pasqal-local``, where the client finds its MUNGE.

Run by test_device_contract.py in a mount namespace, since the client knows no other socket
than MUNGE's default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.protocol import Device
from sf_quantum.service.device.qpu import QpuDevice
from sf_quantum.testing.devices import DeviceContract

URL = "PASQAL_CONTRACT_URL"
LASTING_URL = "PASQAL_CONTRACT_LASTING_URL"


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


class TestPasqalLocal(DeviceContract):
    """Our service through the stock client."""

    unknown_id = "999999999"

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], Device]:
        return device_at(os.environ[URL], tmp_path, 0.1)

    @pytest.fixture
    def make_lasting(self, tmp_path: Path) -> Callable[[], Device]:
        return device_at(os.environ[LASTING_URL], tmp_path, 1.0)
