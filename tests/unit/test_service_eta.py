"""The device's timing model, corrected by what was observed."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from sf_quantum.service.eta import HOST_SECONDS, Inflow, Pace
from sf_quantum.service.line import Work

ETA = Path(__file__).parents[1] / "benchmarks" / "eta.py"


def test_nothing_observed_the_model_holds() -> None:
    pace = Pace()
    assert pace.job_seconds("problem", 2.0) == pytest.approx(2 + HOST_SECONDS)
    works = {"problem": Work(3, 6.0), "sequence": Work(1, 1.0)}
    assert pace.seconds(works) == pytest.approx(7 + 4 * HOST_SECONDS)  # type: ignore[arg-type]
    assert pace.seconds({}) == 0


def test_a_slow_device_is_found_out_by_kind() -> None:
    pace = Pace()
    for _ in range(20):
        pace.observe("problem", 1.0, 3.0)
    assert pace.job_seconds("problem", 2.0) == pytest.approx(6, rel=0.01)
    assert pace.job_seconds("sequence", 2.0) == pytest.approx(2, rel=0.01)


def test_a_device_without_waits_is_told_by_what_jobs_cost_the_host() -> None:
    pace = Pace()
    for _ in range(20):
        pace.observe("problem", 0.0, 0.02)
    assert pace.seconds({"problem": Work(10, 0.0)}) == pytest.approx(0.2)


def test_what_changed_is_forgotten() -> None:
    pace = Pace()
    for ratio in (5.0, 1.0):
        for _ in range(200):
            pace.observe("problem", 1.0, ratio)
    assert pace.job_seconds("problem", 1.0) == pytest.approx(1, rel=0.1)


def test_those_who_keep_coming_are_counted_in() -> None:
    draws, inflow = random.Random(1), Inflow()
    for _ in range(1000):
        for _ in range(2):  # on average 0.3 production jobs during a job
            if draws.random() < 0.15:
                inflow.came("production")
        inflow.next()
    assert inflow.factor("production") == 1
    # and half a job for each, which is pre-empted
    load = 1.5 * 0.3
    assert inflow.factor("test") == pytest.approx(1 / (1 - load), rel=0.3)
    assert inflow.factor("test") == inflow.factor("development")


def test_a_batch_does_not_go_on() -> None:
    inflow = Inflow()
    for _ in range(1000):
        inflow.came("test")
    inflow.next()
    for _ in range(100):
        assert inflow.factor("development") < 1.1
        inflow.next()


def test_however_many_come_there_is_an_end() -> None:
    inflow = Inflow()
    for _ in range(1000):
        inflow.came("production")
        inflow.next()
    assert math.isfinite(inflow.factor("development"))


def test_after_a_hundred_mixed_jobs_half_the_etas_are_right() -> None:
    options = ["--jobs", "60", "--only", "burst", "--time-scale", "0.003", "--json"]
    done = subprocess.run(
        [sys.executable, str(ETA), *options], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["burst"]
    assert figures["jobs"] > 50
    assert figures["median"] < 0.2
