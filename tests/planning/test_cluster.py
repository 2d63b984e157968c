"""Nodes under FIFO with EASY backfilling, against schedules computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import pytest
import simpy

from sf_quantum.planning.simulation.cluster import IDEAL, Cluster, Scheduling, Usage
from sf_quantum.planning.simulation.qpu import Process


class Job(NamedTuple):
    nodes: Mapping[str, int]
    seconds: float
    estimate: float | None = None
    submitted: float = 0.0


def starts(
    partitions: Mapping[str, int],
    *jobs: Job,
    licences: Mapping[str, int] | None = None,
    scheduling: Scheduling = IDEAL,
) -> list[float]:
    """Run jobs, and return when each of them started."""
    env = simpy.Environment()
    cluster = Cluster(env, partitions, licences, scheduling)
    started = [-1.0] * len(jobs)

    def run(number: int, job: Job) -> Process:
        yield env.timeout(job.submitted)
        seconds = job.seconds if job.estimate is None else job.estimate
        allocation = cluster.request(job.nodes, seconds, Usage())
        yield allocation.granted
        started[number] = env.now
        yield env.timeout(job.seconds)
        cluster.release(allocation)

    for number, job in enumerate(jobs):
        env.process(run(number, job))
    env.run()
    assert cluster.free == {**partitions, **(licences or {})}
    return started


def on(nodes: int, seconds: float, estimate: float | None = None) -> Job:
    return Job({"p": nodes}, seconds, estimate)


def test_fifo_without_backfilling() -> None:
    # the third would delay the second, which needs all nodes at 10
    assert starts({"p": 4}, on(3, 10), on(4, 5), on(1, 11)) == [0, 10, 15]


def test_a_short_job_is_backfilled() -> None:
    assert starts({"p": 4}, on(3, 10), on(4, 5), on(1, 10)) == [0, 10, 0]


def test_a_long_job_is_backfilled_on_spare_nodes() -> None:
    """At 10, the second takes 3 of 5 nodes: 2 are spare, for one job of 2 or two of 1."""
    jobs = on(3, 10), on(3, 5), on(1, 50), on(1, 50), on(1, 50)
    assert starts({"p": 5}, *jobs) == [0, 10, 0, 0, 15]


def test_a_schedule_of_ten_jobs() -> None:
    """Computed by hand; estimates are twice the run times of the first four jobs."""
    jobs = [
        on(6, 10, 20),  # 0 to 10
        on(3, 20, 40),  # 0 to 20
        on(8, 10, 20),  # at 40, by the estimate of the second, and then by the sixth
        on(1, 15, 30),  # backfilled: ends by 40; 0 to 15
        on(2, 5),  # after the end of the first, backfilled; 10 to 15
        on(4, 30),  # ends at 40: backfilled at 10, by its estimate
        on(2, 50),  # the eighth spares two nodes at 40; 15 to 65
        on(1, 50),  # no node is spare: after the third
        on(10, 5),  # after all
        on(1, 1),  # backfilled
    ]
    assert starts({"p": 10}, *jobs) == [0, 0, 40, 0, 10, 10, 15, 50, 100, 15]


def test_estimates_and_run_times_are_apart() -> None:
    """By its estimate the first holds its nodes until 100, so the third is backfilled."""
    jobs = on(3, 10, 100), on(4, 5), on(1, 60)
    assert starts({"p": 4}, *jobs) == [0, 60, 0]


def test_a_job_that_exceeds_its_estimate() -> None:
    """After 5, the first may end at any moment: nothing that would delay the second starts."""
    jobs = on(3, 20, 5), on(4, 5), Job({"p": 1}, 4, submitted=6)
    assert starts({"p": 4}, *jobs) == [0, 20, 25]


def test_partitions_do_not_wait_for_each_other() -> None:
    jobs = Job({"p": 2}, 10), Job({"p": 2}, 5), Job({"q": 1}, 100)
    assert starts({"p": 2, "q": 1}, *jobs) == [0, 10, 0]


def test_a_heterogeneous_job_starts_on_all_partitions_at_once() -> None:
    jobs = [
        Job({"p": 2}, 10),
        Job({"p": 2, "q": 1}, 5),
        Job({"q": 1}, 11),  # would delay the second
        Job({"q": 1}, 9),
    ]
    assert starts({"p": 2, "q": 1}, *jobs) == [0, 10, 15, 0]


def test_more_nodes_are_taken_if_they_are_free() -> None:
    env = simpy.Environment()
    cluster = Cluster(env, {"p": 4})
    first = cluster.request({"p": 1}, 10, Usage())
    second = cluster.request({"p": 1}, 10, Usage(), {"p": 8})
    env.run()
    assert first.nodes == {"p": 1}
    assert second.nodes == {"p": 3}


def test_more_nodes_are_not_taken_from_those_who_wait() -> None:
    env = simpy.Environment()
    cluster = Cluster(env, {"p": 4})
    cluster.request({"p": 2}, 10, Usage())
    cluster.request({"p": 4}, 10, Usage())
    second = cluster.request({"p": 1}, 5, Usage(), {"p": 2})
    env.run()
    assert second.nodes == {"p": 1}


def test_usage_is_charged_by_partition() -> None:
    env = simpy.Environment()
    cluster, usage = Cluster(env, {"p": 4, "q": 1}), Usage()
    allocation = cluster.request({"p": 3, "q": 1}, 10, usage)
    env.run(until=2)
    cluster.release(allocation, "q")
    env.run(until=10)
    cluster.release(allocation)
    assert usage.held == {"p": 30, "q": 2}
    assert cluster.free == {"p": 4, "q": 1}


def test_a_pending_request_is_cancelled() -> None:
    env = simpy.Environment()
    cluster, usage = Cluster(env, {"p": 1}), Usage()
    first = cluster.request({"p": 1}, 10, usage)
    second, third = (cluster.request({"p": 1}, 10, usage) for _ in range(2))
    env.run(until=1)
    cluster.release(second)
    cluster.release(first)
    env.run(until=2)
    assert third.started
    assert not second.started


@pytest.mark.parametrize("depth", [1, 3])
def test_only_so_many_requests_are_considered(depth: int) -> None:
    env = simpy.Environment()
    cluster = Cluster(env, {"p": 2}, scheduling=Scheduling(depth=depth))
    cluster.request({"p": 1}, 10, Usage())
    cluster.request({"p": 2}, 10, Usage())
    third = cluster.request({"p": 1}, 5, Usage())
    env.run(until=1)
    assert third.started == (depth == 3)


def test_a_job_without_a_licence_keeps_no_nodes() -> None:
    """The third and the fourth overtake the second, though they delay it."""
    jobs = [
        Job({"p": 1, "l": 1}, 10),
        Job({"p": 2, "l": 1}, 5),
        Job({"p": 1}, 20),
        Job({"p": 2}, 5),
    ]
    assert starts({"p": 4}, *jobs, licences={"l": 1}) == [0, 10, 0, 0]


def test_a_job_with_a_licence_that_lacks_nodes_keeps_them() -> None:
    """The third would delay the second; the fourth may take the licence first."""
    jobs = [
        Job({"p": 2}, 10),
        Job({"p": 4, "l": 1}, 5),
        Job({"p": 2}, 20),
        Job({"p": 2, "l": 1}, 10),
    ]
    assert starts({"p": 4}, *jobs, licences={"l": 1}) == [0, 10, 15, 0]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, [0, 10, 0, 2]), (4, [0, 10, 2, 15]), (8, [0, 10, 4, 15])],
)
def test_jobs_overtake_others_in_passes_of_backfilling(
    seconds: float, expected: list[float]
) -> None:
    """The first is after half an interval. In between, the second holds the others up."""
    jobs = on(2, 10), on(4, 5), on(1, 2), Job({"p": 2}, 6, submitted=1)
    scheduling = Scheduling(backfill_seconds=seconds, limit_seconds=0)
    assert starts({"p": 4}, *jobs, scheduling=scheduling) == expected


def test_passes_over_the_queue() -> None:
    """Jobs wait for one also where nobody is ahead of them."""
    jobs = on(4, 10), on(4, 5), Job({"p": 4}, 5, submitted=31)
    scheduling = Scheduling(queue_seconds=3)
    assert starts({"p": 4}, *jobs, scheduling=scheduling) == [3, 15, 33]


def test_a_queue_without_backfilling() -> None:
    scheduling = Scheduling(backfill_seconds=math.inf)
    found = starts({"p": 4}, on(3, 10), on(4, 5), on(1, 1), scheduling=scheduling)
    assert found == [0, 10, 15]


@pytest.mark.parametrize(("estimate", "start"), [(110, 0), (121, 105)])
def test_time_limits_are_whole_minutes(estimate: float, start: float) -> None:
    """The limit of the first lets the second start at 120, which a limit of 180 would delay."""
    jobs = on(3, 100), on(4, 5), on(1, 1, estimate)
    assert starts({"p": 4}, *jobs, scheduling=Scheduling()) == [0, 100, start]


def test_nodes_are_not_free_before_a_job_is_complete() -> None:
    """Its licence is."""
    jobs = Job({"p": 4, "l": 1}, 10), Job({"q": 1, "l": 1}, 5), Job({"p": 1}, 5)
    scheduling = Scheduling(completing_seconds=3)
    found = starts({"p": 4, "q": 1}, *jobs, licences={"l": 1}, scheduling=scheduling)
    assert found == [0, 10, 13]
