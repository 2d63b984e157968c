"""Allocations with less time than their service asks for."""

from __future__ import annotations

import math

import pytest

from sf_quantum.connectors.slurm.allocation.limits import (
    START_SECONDS,
    JobLength,
    ShortLimit,
)
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.slurm.squeue import QueueRow


def running(started: float, ended: float | None) -> QueueRow:
    return QueueRow("7", "RUNNING", "None", started, ended, 1, "c1")


def test_a_limit_not_shortened_is_that_of_the_service() -> None:
    limit = ShortLimit()
    assert limit.end(running(0, 3600), 0) is None


def test_an_unknown_grant_counts_as_the_least() -> None:
    limit = ShortLimit()
    limit.least_seconds = 300
    assert limit.end(None, 1000) == 1300
    # squeue says it
    assert limit.end(running(1000, 1900), 1000) == 1900


def test_a_job_without_a_limit_never_has_shortened_time() -> None:
    limit = ShortLimit()
    assert limit.latest_start(None, 10**9) == -math.inf
    assert limit.latest_start(100, 1000) == 900 - START_SECONDS


@pytest.mark.parametrize("seconds", [1, 59, 60, 61, 3000])
def test_the_last_job_always_ends_before_its_allocation(seconds: int) -> None:
    limit = ShortLimit()
    # the job has begun at 130 or before
    minutes = limit.lower(started=7.0, ends=7207.0, job_end=130.0 + seconds)
    assert minutes is not None
    end = 7.0 + 60 * minutes
    assert 2 * START_SECONDS <= end - (130.0 + seconds) < 2 * START_SECONDS + 60
    # squeue has not noticed it yet
    assert limit.end(running(7, 7207), 8) == end
    # nor was it Slurm that did it
    assert limit.end(None, 8) == end
    # Slurm may have killed it sooner
    assert limit.end(running(7, end - 60), 8) == end - 60


def test_a_limit_is_never_raised() -> None:
    limit = ShortLimit()
    assert limit.lower(started=0, ends=600, job_end=480) is None
    assert limit.end(running(0, 600), 0) is None
    assert limit.lower(started=0, ends=600, job_end=400) == 9
    # Slurm would refuse it
    limit = ShortLimit()
    limit.least_seconds = 540
    assert limit.lower(started=0, ends=600, job_end=1) == 9
    # without any limit, each is lower
    assert ShortLimit().lower(started=0, ends=None, job_end=6000) == 102


def test_a_job_needs_as_long_as_it_may_take() -> None:
    row = running(0, 1000)
    assert JobLength(100, 500).fits(row, 900)
    assert not JobLength(101, 500).fits(row, 900)
    assert JobLength(None, 500).fits(row, 500)
    assert not JobLength(None, 500).fits(row, 501)
    assert JobLength(10**9, 0).fits(running(0, None), 0)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("10", 600),
        (10, 600),
        ("1:30", 90),
        ("2:00:30", 7230),
        ("1-2", 26 * 3600),
        ("1-2:30", 26.5 * 3600),
        ("1-00:00:05", 86405),
        ("UNLIMITED", None),
        ("1-1-1", None),
        ("$MINUTES", None),
        (None, None),
    ],
)
def test_a_service_tells_its_time_limit(
    time: str | int | None, seconds: float | None
) -> None:
    assert SlurmService(time=time).seconds == seconds
