"""What is expected after a quantum step, and who is told of quantum steps."""

from __future__ import annotations

import pytest

from sf_quantum.connectors.slurm.elastic import (
    FOLLOWS_SECONDS,
    MARGIN_SECONDS,
    JobForecast,
)
from sf_quantum.connectors.steps import QuantumSteps


def learned(wave: int = 3) -> JobForecast:
    """A forecast after a quantum step, from 0 to 10, and the jobs that came after it."""
    forecast = JobForecast()
    forecast.started("q", None)
    assert forecast.quantum
    assert forecast.due(10) == 0
    forecast.ended("q", 10)
    assert not forecast.quantum
    for _ in range(wave):
        forecast.job_arrived(11)
    forecast.job_ended()
    # these come after one of the first has ended, so that they had its nodes
    for _ in range(2):
        forecast.job_arrived(12)
        forecast.job_ended()
    return forecast


def test_as_many_are_due_as_came_at_once_last_time() -> None:
    forecast = learned()
    forecast.queued_seconds = 4
    forecast.started("q", ends=30)
    asked = 30 - 4 - MARGIN_SECONDS
    assert list(forecast.changes(20)) == [asked]
    assert [forecast.due(asked - 0.1), forecast.due(asked)] == [0, 3]
    # for as long as the step takes
    assert forecast.due(1000) == 3
    forecast.ended("q", 1000)
    assert forecast.due(1000) == 3
    forecast.job_arrived(1001)
    assert forecast.due(1001) == 2


def test_nodes_that_come_sooner_than_expected_are_kept() -> None:
    forecast = learned()
    forecast.queued_seconds = 20
    forecast.started("q", ends=30)
    assert forecast.due(10) == 3
    # they were granted at once, which is as expected from now on
    forecast.queued_seconds = 0
    assert forecast.due(11) == 3
    forecast.ended("q", 30)
    for _ in range(3):
        forecast.job_arrived(31)
    forecast.started("q", ends=60)
    assert forecast.due(50) == 0


def test_one_that_ends_early_is_followed_all_the_same() -> None:
    forecast = learned()
    forecast.started("q", ends=30)
    forecast.ended("q", 21)
    assert forecast.due(21) == 3


def test_nobody_comes() -> None:
    forecast = learned()
    forecast.started("q", ends=30)
    forecast.ended("q", 30)
    (until,) = forecast.changes(30)
    assert until == 30 + FOLLOWS_SECONDS
    assert [forecast.due(until - 0.1), forecast.due(until)] == [3, 0]
    # nor are any expected next time
    forecast.started("q", ends=60)
    assert forecast.due(60) == 0


def test_jobs_that_come_late_came_for_another_reason() -> None:
    forecast = JobForecast()
    forecast.started("q", None)
    forecast.ended("q", 10)
    forecast.job_arrived(10 + FOLLOWS_SECONDS)
    forecast.job_ended()
    forecast.started("q", ends=30)
    assert forecast.due(30) == 0


def test_each_quantum_step_has_its_own_followers() -> None:
    forecast = learned()
    forecast.started("other", None)
    forecast.ended("other", 20)
    forecast.job_arrived(21)
    forecast.job_ended()
    forecast.started("q", ends=30)
    forecast.started("other", ends=30)
    assert forecast.due(30) == 4


def test_slurm_waits_for_its_own_jobs() -> None:
    forecast = learned()
    forecast.started("q", ends=30)
    forecast.submitted("q", "7")
    assert forecast.dependent() == {"7": 3}
    # of several, for all
    forecast.submitted("q", "8")
    assert forecast.dependent() == {"7:8": 3}
    assert forecast.due(30) == 0
    # nodes that were given after them are there before the driver sees the end
    forecast.passed("7:8")
    assert forecast.dependent() == {}
    assert forecast.due(20) == 3


def test_what_slurm_refused_is_not_asked_for_again() -> None:
    forecast = learned()
    forecast.started("q", ends=30)
    forecast.forget()
    assert forecast.due(30) == 0


class Told:
    """A planner that keeps what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.seconds: list[float | None] = []

    def quantum_step_started(self, step: str, seconds: float | None) -> None:
        self.words.append(f"{step} began")
        self.seconds.append(seconds)

    def quantum_job_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        self.words.append(f"{step} is {deployment}'s {slurm_job}")

    def quantum_step_ended(self, step: str) -> None:
        self.words.append(f"{step} ended")


def test_a_step_begins_with_its_first_job_and_ends_with_its_last() -> None:
    quantum_steps, told = QuantumSteps(), Told()
    quantum_steps.listeners.append(told)
    with quantum_steps.running("/solve/0"):
        quantum_steps.submitted("/solve/0", "cluster", "7")
        quantum_steps.submitted("/classical/0", "cluster", "8")
        with quantum_steps.running("/solve/1"):
            pass
        with quantum_steps.running("/other/0"):
            pass
    assert told.words == [
        "/solve began",
        "/solve is cluster's 7",
        "/other began",
        "/other ended",
        "/solve ended",
    ]


def test_how_long_a_step_took_is_told_next_time() -> None:
    quantum_steps, told = QuantumSteps(), Told()
    quantum_steps.listeners.append(told)
    with quantum_steps.running("/solve/0"):
        pass
    with pytest.raises(ValueError, match="no"), quantum_steps.running("/solve/0"):
        raise ValueError("no")
    with quantum_steps.running("/solve/0"):
        pass
    first, second, third = told.seconds
    assert first is None
    # one that failed tells nothing
    assert second == third
    assert second is not None
    assert 0 <= second < 1
