"""The short form of the crash test with a vendor; the long one is the benchmark itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.folders import BENCHMARKS

pytestmark = pytest.mark.process

CRASH = BENCHMARKS / "vendor_crash.py"


def test_kills_leave_each_job_ended_and_billed_once() -> None:
    # it compares the vendor's counts with the service's jobs
    options = ["--kills", "3", "--vendor-kills", "2", "--seed", "6"]
    done = subprocess.run(
        [sys.executable, str(CRASH), *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, float] = json.loads(done.stdout)
    assert figures["kills"] >= 3
    assert figures["vendor_kills"] == 2
    assert figures["acknowledged"] > 10
    assert figures["completed"] > 0
    assert figures["vendor_jobs"] > figures["completed"]  # some ran in slices
