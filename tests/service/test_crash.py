"""The short form of the crash test; the long one is the benchmark itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support import devices
from tests.support.folders import BENCHMARKS

pytestmark = [pytest.mark.process, pytest.mark.devices("sfq", "dwave", "acme")]
CRASH = BENCHMARKS / "service_crash.py"


def _crash(*options: str) -> dict[str, float]:
    over = ["--device", devices.chosen, "--ahead", str(devices.ahead)]
    # what it starts is to end with it, not with the worker that runs this test, since it
    # keeps its standard error open
    own = {k: v for k, v in os.environ.items() if k != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(
        [sys.executable, str(CRASH), *options, *over],
        capture_output=True,
        text=True,
        timeout=600,
        env=own,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def test_a_kill_under_load_loses_and_repeats_nothing() -> None:
    figures = _crash("--kills", "5", "--seed", "1", "--waiting", "0")
    assert figures["kills"] == 5
    assert figures["acknowledged"] > 20
    # the test means something only if the service died in the middle of things
    assert figures["amid_a_job"] > 0


def test_a_long_queue_is_there_again() -> None:
    # it looks for the queue's length and the last job's position in the answers
    figures = _crash("--kills", "0", "--waiting", "10000")
    assert figures["waiting"] == 10_000
