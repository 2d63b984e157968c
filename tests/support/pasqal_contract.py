"""The contract of the job side on ``pasqal-local``, where the client finds its MUNGE.

Run by test_qpu_contract.py in a mount namespace, since the client knows no other socket
than MUNGE's default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sf_quantum import qpu
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu
from sf_quantum.testing.qpus import JobContract, Lie
from tests.support import lying
from tests.support.lying import Liars

URL, SLOW_URL = "PASQAL_CONTRACT_URL", "PASQAL_CONTRACT_SLOW_URL"


def driver_at(url: str, folder: Path) -> Qpu:
    environment: JSON = {"QRMI_WARDEN_URL": url}
    entry: JSON = {
        "name": "local_qpu",
        "type": "pasqal-local",
        "environment": environment,
    }
    file = folder / "qrmi_config.json"
    file.write_text(json.dumps({"resources": [entry]}))
    config: dict[str, JSON] = {"qrmiConfig": str(file)}
    return qpu.load("pasqal-local").from_config("local_qpu", config)


class TestPasqalLocal(JobContract):
    """Our service through the stock client."""

    # the most that the device runs
    long_reads = 2000
    unknown_id = "999999999"

    @pytest.fixture
    def driver(self, tmp_path: Path) -> Qpu:
        return driver_at(os.environ[URL], tmp_path)

    @pytest.fixture
    def slow_driver(self, tmp_path: Path) -> Qpu:
        return driver_at(os.environ[SLOW_URL], tmp_path)

    @pytest.fixture
    def make_lying(self, tmp_path: Path) -> Iterator[Callable[[Lie], Qpu | None]]:
        def make(lie: Lie) -> Qpu | None:
            url = liars.url(lie)
            return None if url is None else driver_at(url, tmp_path)

        with Liars(lying.warden, os.environ[URL]) as liars:
            yield make
