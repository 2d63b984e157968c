"""The short form of a site under faults; the long one is the benchmark itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support import lab_site
from tests.support.folders import ROOT
from tests.support.lab_supervisor import SYSTEM_PATH

pytestmark = pytest.mark.process

LACKING = lab_site.missing(SYSTEM_PATH)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, for jobs of several users")
@pytest.mark.skipif(bool(LACKING), reason=LACKING)
def test_every_job_that_can_start_runs_despite_kills(slurm: None) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.benchmarks.slurm_site_faults"),
            *("--jobs", "10", "--kills", "1", "--seed", "2"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["ran"] == figures["possible"] == 8
    assert figures["faults"]["controller"] == figures["faults"]["service"] == 1
