"""Which allocations ``elastic`` gives back and requests, at stated times and without Slurm."""

from __future__ import annotations

import math
from itertools import count

import pytest

from sf_quantum.connectors.slurm.allocation.elastic_rules import (
    ElasticPool,
    ElasticSettings,
)
from sf_quantum.connectors.slurm.allocation.forecast import FOLLOWS_SECONDS


def with_jobs(settings: ElasticSettings, *allocations: str) -> ElasticPool[str]:
    """Return a pool whose allocations have had a job of ``/step`` until 10 s."""
    pool: ElasticPool[str] = ElasticPool(settings)
    for allocation in allocations:
        pool.add(allocation, 0.0)
        pool.assign(allocation, 0.0)
        pool.job_began(allocation, "/step", 0.0)
    for allocation in allocations:
        pool.make_free(allocation, 10.0)
    return pool


def adjusted(
    pool: ElasticPool[str], pending: int, waiting: int, due: int = 0
) -> tuple[int, int]:
    """Return how many requests are made and cancelled, of those without dependencies."""
    numbers = count()
    requests: dict[str | None, list[int]] = {
        None: [next(numbers) for _ in range(pending)]
    }
    made: list[int] = []
    cancelled: list[int] = []

    def request(_: str | None) -> int:
        made.append(next(numbers))
        return made[-1]

    pool.adjust(requests, waiting, due, request, cancelled.append)
    assert len(requests[None]) == pending + len(made) - len(cancelled)
    return len(made), len(cancelled)


def test_idle_allocations_are_given_back_but_the_kept_ones() -> None:
    pool = with_jobs(ElasticSettings(keep=1, idle=5), "a", "b", "c")
    assert pool.remove_idle(14.9, 0) == []
    assert pool.next_change(14.9) == 15
    assert pool.remove_idle(15.0, 0) == ["a", "b"]
    assert [*pool.free] == ["c"]
    assert pool.longest_held() == 15


def test_nothing_idle_is_given_back_that_is_due() -> None:
    pool = with_jobs(ElasticSettings(idle=5), "a", "b", "c")
    assert pool.remove_idle(100.0, 2) == ["a"]


def test_busy_allocations_count_as_kept() -> None:
    pool = with_jobs(ElasticSettings(keep=2, idle=0), "a", "b", "c")
    pool.assign("c", 11.0)
    assert pool.remove_idle(11.0, 0) == ["a"]


def test_during_a_quantum_step_nothing_waits_for_the_idle_time() -> None:
    pool = with_jobs(ElasticSettings(idle=5), "a")
    pool.forecast.started("/quantum", 10.0)
    assert pool.remove_idle(10.0, 0) == ["a"]


def test_after_the_last_step_nothing_waits_for_the_idle_time() -> None:
    """With ``ahead``, once an allocation was given back after a step without a follower."""
    pool = with_jobs(ElasticSettings(idle=5, ahead=True), "a", "b")
    assert not pool.is_last("/step")
    assert pool.remove_idle(15.0, 0) == ["a", "b"]
    assert pool.is_last("/step")
    pool.add("c", 20.0)
    pool.assign("c", 20.0)
    pool.job_began("c", "/step", 20.0)
    pool.make_free("c", 30.0)
    assert pool.remove_idle(30.0, 0) == ["c"]
    # a job comes within the idle time after all
    pool.job_arrived(32.0)
    assert not pool.is_last("/step")


def test_a_following_job_shows_that_its_step_is_not_the_last() -> None:
    pool = with_jobs(ElasticSettings(idle=5, ahead=True), "a", "b")
    pool.assign("a", 12.0)
    assert pool.remove_idle(15.0, 0) == ["b"]
    assert not pool.is_last("/step")


@pytest.mark.parametrize(
    ("settings", "pending", "waiting", "due", "made", "cancelled"),
    [
        (ElasticSettings(), 0, 3, 0, 3, 0),
        (ElasticSettings(max=2), 0, 3, 0, 2, 0),
        (ElasticSettings(), 1, 3, 0, 2, 0),
        (ElasticSettings(), 3, 1, 0, 0, 2),
        # the request for one that would be kept goes on
        (ElasticSettings(keep=1), 3, 0, 0, 0, 2),
        (ElasticSettings(ahead=True), 0, 0, 2, 2, 0),
        (ElasticSettings(ahead=True, max=1), 0, 1, 2, 1, 0),
    ],
)
def test_requests(
    settings: ElasticSettings,
    pending: int,
    waiting: int,
    due: int,
    made: int,
    cancelled: int,
) -> None:
    assert adjusted(ElasticPool(settings), pending, waiting, due) == (made, cancelled)


def test_the_forecast_counts_only_with_ahead() -> None:
    """A quantum step of 20 s, after which a job came: is one due at the end of the next?"""
    for ahead, due in ((False, 0), (True, 1)):
        pool: ElasticPool[str] = ElasticPool(ElasticSettings(ahead=ahead))
        pool.forecast.started("/quantum", 0.0)
        pool.forecast.ended("/quantum", 20.0, completed=True)
        pool.job_arrived(21.0)
        pool.forecast.job_ended()
        pool.forecast.started("/quantum", 100.0)
        assert pool.due(100.0) == 0
        assert pool.due(121.0) == due
        change = 121.0 + FOLLOWS_SECONDS if ahead else math.inf
        assert pool.next_change(121.0) == change
