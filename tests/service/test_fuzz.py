"""The short form of the fuzzing of the service; the long one is the benchmark itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support import forking
from tests.support.folders import BENCHMARKS

pytestmark = pytest.mark.process

FUZZ = BENCHMARKS / "fuzz.py"


@pytest.mark.parametrize(
    ("mode", "examples", "fewest"),
    # of who asks, no more depends than whether it is answered
    [("none", 3, 150), ("token", 1, 60), ("munge", 1, 60)],
)
def test_requests_are_answered_as_described_and_never_5xx(
    mode: str, examples: int, fewest: int, request: pytest.FixtureRequest
) -> None:
    options = ["--auth", mode, "--examples", str(examples), "--seed", "1"]
    options += ["--sequences", "4"]
    if mode == "munge":
        options += ["--munge-socket", str(request.getfixturevalue("munge_socket"))]
    done = subprocess.run(
        [sys.executable, str(FUZZ), *options],
        env={**os.environ, "PATH": f"{forking.stand_ins()}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    total = re.search(r"^(\d+) requests, 0 failures", done.stdout, re.M)
    assert total is not None
    # every operation was reached, in both ways where there are two
    assert int(total[1]) > fewest
