"""What each strategy holds, and for how long: small cases computed by hand.

The application computes for 100 s on two nodes, 60 s on the QPU, and 40 s on one node.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import simpy

from sf_quantum.connectors.slurm.allocation.forecast import FOLLOWS_SECONDS
from sf_quantum.planning.simulation.application import (
    Application,
    ClassicalStep,
    Outcome,
    QuantumStep,
    Task,
)
from sf_quantum.planning.simulation.cluster import Cluster, Usage
from sf_quantum.planning.simulation.qpu import Device, Process, QpuService
from sf_quantum.planning.simulation.site import Overheads, Site, licence
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    PerStep,
    Reserved,
    Strategy,
)
from sf_quantum.service.domain.jobs import LeaseRequest

NONE = Overheads(step_seconds=0, job_seconds=0, resume_seconds=0)
SOME = Overheads(step_seconds=1, job_seconds=10, resume_seconds=0.25)


def task(nodes: int, seconds: float, least: int | None = None) -> Task:
    return Task("compute", nodes, least or nodes, seconds, seconds)


def sampling(seconds: float) -> QuantumStep:
    return QuantumStep("qpu", "quantum", (seconds,), seconds, 0.0)


STEPS = (
    ClassicalStep((task(1, 100), task(1, 100))),
    sampling(60),
    ClassicalStep((task(1, 40),)),
)
HYBRID = Application("me", 0.0, STEPS, 2.0, LeaseRequest())


def run(
    strategy: Strategy,
    *applications: Application,
    nodes: int = 2,
    overheads: Overheads = NONE,
    vqpus: int = 1,
    others: tuple[float, float, int] | None = None,
) -> list[Outcome]:
    """Run applications; others hold nodes from one time to another."""
    env = simpy.Environment()
    vqpus = strategy.vqpus or vqpus
    partitions = {"compute": nodes, "quantum": vqpus}
    cluster = Cluster(env, partitions, {licence("qpu"): vqpus})
    site = Site(env, cluster, {"qpu": QpuService(env, Device(), vqpus)}, overheads)
    outcomes = [Outcome(one.arrival) for one in applications]

    def start(application: Application, outcome: Outcome) -> Process:
        yield env.timeout(application.arrival)
        yield from strategy.run(site, application, outcome)
        outcome.ended = env.now

    def hold(begin: float, end: float, count: int) -> Process:
        yield env.timeout(begin)
        allocation = cluster.request({"compute": count}, end - begin, Usage())
        yield env.timeout(end - begin)
        cluster.release(allocation)

    if others is not None:
        env.process(hold(*others))
    for application, outcome in zip(applications, outcomes, strict=True):
        env.process(start(application, outcome))
    env.run()
    there = {**partitions, licence("qpu"): vqpus}
    assert cluster.free == there, "something is still held"
    return outcomes


def test_co_scheduled_holds_everything() -> None:
    (found,) = run(CoScheduled(), HYBRID)
    assert found.wall == 200
    assert found.nodes.held == {"compute": 400, "quantum": 200, licence("qpu"): 200}
    assert found.nodes.busy == {"compute": 240, "quantum": 60}
    assert found.leased == {"qpu": 200}


def test_reserved_releases_the_quantum_part() -> None:
    (found,) = run(Reserved(), HYBRID)
    assert found.wall == 200
    assert found.nodes.held == {"compute": 400, "quantum": 160, licence("qpu"): 160}
    assert found.leased == {"qpu": 160}


def test_per_step_holds_what_it_uses() -> None:
    (found,) = run(PerStep(), HYBRID)
    assert found.wall == 200
    assert found.nodes.held == {"compute": 240, "quantum": 60, licence("qpu"): 60}
    assert found.leased == {"qpu": 60}


def test_elastic_keeps_a_node() -> None:
    (found,) = run(Elastic(keep=1), HYBRID)
    assert found.wall == 200
    # two for 100 s, then one
    assert found.nodes.held["compute"] == 300
    (found,) = run(Elastic(keep=2), HYBRID)
    # the second is idle after the last quantum step, and given back at the end
    assert found.nodes.held["compute"] == 400
    (found,) = run(Elastic(idle=0), HYBRID)
    assert found.nodes.held["compute"] == 240


def test_elastic_gives_an_idle_node_back() -> None:
    """One task is shorter: its node is idle for 5 s, and then given back."""
    steps = (ClassicalStep((task(1, 100), task(1, 30))), *STEPS[1:])
    (found,) = run(Elastic(keep=1, idle=5), replace(HYBRID, steps=steps))
    assert found.nodes.held["compute"] == 200 + 35


def test_overheads() -> None:
    walls = [
        run(strategy, HYBRID, overheads=SOME)[0].wall - 200
        for strategy in (CoScheduled(), Reserved(), PerStep(), Elastic(keep=1))
    ]
    # a kept allocation has no job_seconds, and the quantum step has
    assert walls == [10, 10 + 3 * 1.25, 3 * 11, 3 + 2 * 10 + 2 * 0.25]


def test_nodes_are_held_for_a_part_of_the_overhead_of_a_job() -> None:
    """Of 10 s for each job, its nodes are held for 4 s, or 7 s as an allocation."""
    overheads = SOME.model_copy(
        update={"job_held_seconds": 4.0, "allocation_held_seconds": 7.0}
    )
    for strategy, wall, held in (
        (CoScheduled(), 210, 2 * 207),
        (Reserved(), 210 + 3 * 1.25, 2 * (207 + 3 * 1.25)),
        (PerStep(), 200 + 3 * 11, 240 + 3 * 4),
        # one is released when the quantum step starts, the other at the end
        (Elastic(keep=1), 200 + 3 + 20.5, 108.25 + 219.5),
    ):
        (found,) = run(strategy, HYBRID, overheads=overheads)
        assert found.wall == pytest.approx(wall), strategy
        assert found.nodes.held["compute"] == pytest.approx(held), strategy


def test_an_allocation_may_take_longer_than_the_job_of_a_step() -> None:
    overheads = SOME.model_copy(update={"allocation_seconds": 13.0})
    walls = [
        run(strategy, HYBRID, overheads=overheads)[0].wall - 200
        for strategy in (CoScheduled(), Reserved(), PerStep(), Elastic(keep=1))
    ]
    # with `elastic`, the quantum step is a job of its own
    assert walls == [13, 13 + 3 * 1.25, 3 * 11, 3 + 13 + 10 + 2 * 0.25]


def test_co_scheduled_runs_are_one_after_the_other() -> None:
    outcomes = run(CoScheduled(), HYBRID, HYBRID, nodes=4)
    assert [one.wall for one in outcomes] == [200, 400]
    # with two vQPUs, only the phases on the QPU are
    outcomes = run(CoScheduled(vqpus=2), HYBRID, HYBRID, nodes=4)
    assert [one.wall for one in outcomes] == [200, 260]
    assert outcomes[1].leased == {"qpu": 260}


def test_steps_of_two_runs_are_interleaved() -> None:
    """100 s of each on both nodes, the QPU meanwhile, and the last steps."""
    outcomes = run(PerStep(), HYBRID, HYBRID, nodes=2)
    assert [one.wall for one in outcomes] == [240, 300]


def test_elastic_accepts_fewer_nodes() -> None:
    """Others take one of two nodes: after the patience, the task runs on the other."""
    steps = (ClassicalStep((task(2, 100, least=1),)),)
    mouldable = replace(HYBRID, steps=steps)
    others = 0.0, 1000.0, 1
    (found,) = run(Elastic(patience=30), mouldable, others=others)
    assert found.wall == 30 + 200
    (found,) = run(Elastic(patience=2000), mouldable, others=others)
    assert found.wall == 1100


def test_elastic_requests_nodes_ahead() -> None:
    """Slurm takes 10 s for a job; ahead, that passes while the QPU computes.

    As in ``sfq.slurm``, the first run of a quantum step tells how long it takes.
    """
    steps = (*STEPS[:2], *STEPS[:2], *STEPS)
    application = replace(HYBRID, steps=steps)
    overheads = Overheads(step_seconds=0, job_seconds=10, resume_seconds=0)
    (late,) = run(Elastic(idle=0), application, overheads=overheads)
    (ahead,) = run(Elastic(idle=0, ahead=True), application, overheads=overheads)
    assert late.wall - ahead.wall == pytest.approx(2 * 10)
    # the last step has one task less than expected: a node waits for it for five seconds
    held = ahead.nodes.held["compute"] - late.nodes.held["compute"]
    assert held == pytest.approx(FOLLOWS_SECONDS)


def test_a_later_run_knows_how_long_the_quantum_step_takes() -> None:
    """As in ``sfq.slurm``, which reads the journals of earlier runs."""
    overheads = Overheads(step_seconds=0, job_seconds=10, resume_seconds=0)
    strategy = Elastic(idle=0, ahead=True)
    later = replace(HYBRID, arrival=1000.0)
    first, second = run(strategy, HYBRID, later, overheads=overheads)
    assert first.ended == 230
    assert second.ended == 1220


def test_urgency_requests_nodes_earlier() -> None:
    """Quantum steps of 60 and 80 s: a request is in time for the first, or for most."""
    quantum = [sampling(seconds) for seconds in (60, 80, 60, 80, 80)]
    steps = [one for each in quantum for one in (STEPS[2], each)]
    application = replace(HYBRID, steps=(*steps, STEPS[2]))
    overheads = Overheads(step_seconds=0, job_seconds=10, resume_seconds=0)
    idle, patient = (
        run(
            Elastic(idle=0, ahead=True, urgency=urgency),
            application,
            overheads=overheads,
        )
        for urgency in (9, 0)
    )
    assert idle[0].wall < patient[0].wall
    assert idle[0].nodes.held["compute"] > patient[0].nodes.held["compute"]


def test_at_most_so_many_allocations_are_held() -> None:
    (found,) = run(Elastic(max=1, keep=1), HYBRID)
    assert found.wall == 200 + 60 + 40
    assert found.nodes.held["compute"] == 300


def test_runs_that_hold_what_others_need_end_at_time_limits() -> None:
    """Each keeps one of two nodes, and then needs both: until the limit of 2 x 200 s."""
    steps = (ClassicalStep((task(1, 100),)), ClassicalStep((task(2, 100),)))
    application = replace(HYBRID, steps=steps)
    first, second = run(Elastic(keep=1), application, application)
    assert first.wall == 400 + 100
    assert second.wall == 400 + 100 + 100
    # without `keep`, the idle time of 5 s is enough
    outcomes = run(Elastic(), application, application)
    assert [one.wall for one in outcomes] == [205, 305]


def test_a_client_on_the_drivers_host_holds_no_node() -> None:
    step = replace(sampling(60), partition=None)
    application = replace(HYBRID, steps=(STEPS[0], step, STEPS[2]))
    (found,) = run(PerStep(), application)
    assert found.nodes.held == {"compute": 240}
    assert found.leased == {"qpu": 60}


def test_latency_and_computation_part_the_jobs_of_a_step() -> None:
    step = QuantumStep("qpu", None, (5.0, 7.0), 12.0, 2.0)
    (found,) = run(PerStep(), replace(HYBRID, steps=(step,)))
    assert found.wall == 16


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (CoScheduled(vqpus=4), "co-scheduled, 4 vQPUs"),
        (PerStep(vqpus=1), "per-step, 1 vQPU"),
        (Elastic(), "elastic"),
        (Elastic(keep=1, ahead=True, idle=2), "elastic keep 1 idle 2 ahead"),
    ],
)
def test_names(strategy: Strategy, name: str) -> None:
    assert strategy.name == name
