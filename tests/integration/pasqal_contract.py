"""The contract of the job side on ``pasqal-local``, where the client finds its MUNGE.

Run by test_qpu_contract.py in a mount namespace, since the client knows no other socket
than MUNGE's default.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sf_quantum import qpu
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu
from sf_quantum.testing.qpus import JobContract

URL = "PASQAL_CONTRACT_URL"


class TestPasqalLocal(JobContract):
    """Our service through the stock client."""

    # the most that the device runs
    long_reads = 2000
    unknown_id = "999999999"

    @pytest.fixture
    def driver(self, tmp_path: Path) -> Qpu:
        environment: JSON = {"QRMI_WARDEN_URL": os.environ[URL]}
        entry: JSON = {
            "name": "local_qpu",
            "type": "pasqal-local",
            "environment": environment,
        }
        file = tmp_path / "qrmi_config.json"
        file.write_text(json.dumps({"resources": [entry]}))
        config: dict[str, JSON] = {"qrmiConfig": str(file)}
        return qpu.load("pasqal-local").from_config("local_qpu", config)
