"""The short form of the trouble with a vendor; the long one is the benchmark itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TypedDict

import pytest

from tests.support.folders import ROOT

pytestmark = pytest.mark.process

TROUBLE = ["-m", "tests.benchmarks.vendor_trouble"]


class Figures(TypedDict):
    """What the benchmark prints, as far as it is checked."""

    sequences: float
    stops: float
    befallen: float
    stranger_heard: float
    failures: int
    others: dict[str, int]
    victims: dict[str, int]


def test_whatever_a_vendor_answers_only_its_own_job_suffers() -> None:
    options = ["--kind", "acme", "--sequences", "3", "--each", "2", "--seed", "3"]
    done = subprocess.run(
        [sys.executable, *TROUBLE, *options],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures: Figures = json.loads(done.stdout)
    assert figures["failures"] == 0, done.stderr
    assert (figures["sequences"], figures["stops"]) == (3, 2)
    assert figures["befallen"] > 0
    assert figures["stranger_heard"] == 0
    assert sum(figures["others"].values()) == 9
    assert sum(figures["victims"].values()) == 3
