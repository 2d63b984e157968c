"""The short form of Slurm's faults; the long one is the benchmark itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.folders import ROOT

pytestmark = pytest.mark.process


def test_under_faults_no_job_is_lost_and_none_succeeds_falsely(slurm: None) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.benchmarks.slurm_faults"),
            *("--faults", "12", "--jobs", "10", "--seed", "1"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["faults"] >= 10
    # the test means something only if jobs were hit
    assert figures["failed"] > 0
