"""What papers say in words about strategies, and what the model predicts.

- Viviani et al., Assessing the Elephant in the Room in Scheduling for Current Hybrid
  HPC-QC Clusters, arXiv:2504.10520
- Bettonte, SmartHPC-QC: evaluating the impact of malleability for HPC-QC integration,
  QRUCH workshop, ISC 2025 (slides)
- Esposito and Haus, Slurm Heterogeneous Jobs for Hybrid Classical-Quantum Workflows, 2025

Where the model disagrees or qualifies, docs/explanation/allocation.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sf_quantum.planning import experiment
from sf_quantum.planning.experiment import Result
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    PerStep,
    Reserved,
    Strategy,
)
from sf_quantum.planning.workloads.workload import Workload

MINUTE = 60.0
NODES = 10
# the load of others: 84 % of 48 nodes, with jobs of 10 min on 4.5 nodes
BUSY = {"per_hour": 54, "nodes": 1, "most_nodes": 8, "seconds": 600, "spread": 0.5}


def results(
    classical: float,
    quantum: float,
    strategies: Sequence[Strategy],
    *,
    count: int = 4,
    others: bool = True,
) -> list[Result]:
    """Simulate applications that alternate six times between ten nodes and a QPU.

    :param classical: seconds of each phase on nodes
    :param quantum: seconds of each phase on the QPU
    :param count: of applications, which are submitted at the same time
    :param others: whether there are jobs of others on the nodes
    """
    phases: list[Mapping[str, str | float]] = [
        {"tasks": NODES, "seconds": classical, "spread": 0.02},
        {"qpu": "qpu", "seconds": quantum, "spread": 0.1},
    ]
    return simulate(phases, strategies, repeats=6, count=count, others=others)


def simulate(
    phases: Sequence[Mapping[str, str | float]],
    strategies: Sequence[Strategy],
    *,
    repeats: int = 1,
    count: int,
    others: bool,
) -> list[Result]:
    application = {"count": count, "repeats": repeats, "phases": phases}
    workload = Workload.model_validate(
        {
            "partitions": {"compute": {"nodes": 48}},
            "qpus": {"qpu": {}},
            "applications": {"hybrid": application},
            "background": {
                "jobs": [BUSY] if others else [],
                # six times as long as a job
                "warm_up_seconds": 60 * MINUTE,
            },
            # one application alone meets less of the others' load: its mean needs more
            "repetitions": 12 if others and count == 1 else 2,
        }
    )
    found = [experiment.run(workload, one, []) for one in strategies]
    return [one for one in found if isinstance(one, Result)]


def used(one: Result) -> float:
    """The share of the time of its leases in which the QPU ran jobs."""
    return one.mean("qpu-seconds") / one.mean("lease-seconds")


@pytest.mark.parametrize(
    ("classical", "quantum", "of_qpu", "of_nodes"),
    [
        # superconducting: "each quantum task will last ~ 10 s", in a job of an hour
        (590.0, 10.0, 0.02, 0.98),
        # neutral atoms: "a quantum task could easily last more than 30 min"
        (10 * MINUTE, 35 * MINUTE, 0.78, 0.22),
    ],
)
def test_co_scheduling_under_utilises_what_is_held(
    classical: float, quantum: float, of_qpu: float, of_nodes: float
) -> None:
    """Viviani et al., section 3, Workload imbalance.

    A superconducting QPU is under-utilised in a job that holds it for an hour, and the
    nodes are while a QPU of neutral atoms works; so "simple co-scheduling with exclusive
    QPU access is inadequate" (in italics there).
    """
    held, steps = results(
        classical, quantum, [CoScheduled(), PerStep()], count=1, others=False
    )
    node_seconds = 6 * NODES * classical
    assert used(held) == pytest.approx(of_qpu, abs=0.03)
    assert node_seconds / held.mean("node-seconds") == pytest.approx(of_nodes, abs=0.03)
    # a workflow holds what it uses, at the price of the overheads of its steps
    assert used(steps) == pytest.approx(1)
    assert node_seconds / steps.mean("node-seconds") == pytest.approx(1, abs=0.03)
    assert steps.mean("wall") < 1.02 * held.mean("wall")


def test_queues_outweigh_short_steps_of_a_workflow() -> None:
    """Viviani et al., section 4, Workflows.

    "The queuing time that each step has to go through may introduce a significant overhead
    when its duration outweighs the length of the computation."
    """
    slowdowns = [
        results(seconds, seconds, [PerStep()], count=1)[0].mean("slowdown")
        for seconds in (MINUTE, 30 * MINUTE)
    ]
    short, long = slowdowns
    assert short > 1.3
    assert long < 1.2
    # in a job that holds everything, there is one queue
    (held,) = results(MINUTE, MINUTE, [CoScheduled()], count=1)
    assert held.mean("slowdown") < short - 0.2


def test_virtual_qpus_serve_short_jobs_between_computations() -> None:
    """Viviani et al., section 4, Virtual QPUs; Bettonte, slide on vQPUs.

    Sharing helps above all "when applications spend much time performing long running
    classical computation interleaved with very short quantum jobs": there co-scheduling
    reserves the QPU "without using it for too long", and a workflow suffers "from
    significant queue times". But "if the time needed by the quantum partition is
    comparable to or greater", the gains are marginal.
    """
    one, four = CoScheduled(), CoScheduled(vqpus=4)
    alone, shared, steps = results(10 * MINUTE, 5.0, [one, four, PerStep()])
    # four applications side by side, and not one after the other
    assert alone.mean("makespan") > 2.5 * shared.mean("makespan")
    assert steps.mean("wait") > 2 * shared.mean("wait")
    alone, shared = results(10.0, 30 * MINUTE, [one, four])
    assert alone.mean("makespan") < 1.01 * shared.mean("makespan")
    # in between, at equal durations, at most the nodes' idle half can be gained
    alone, shared = results(10 * MINUTE, 10 * MINUTE, [one, four])
    assert 1 < alone.mean("makespan") / shared.mean("makespan") < 2


@pytest.mark.parametrize("quantum", [MINUTE, 10 * MINUTE])
def test_malleability_avoids_the_queues_of_short_phases(quantum: float) -> None:
    """Viviani et al., section 4, Malleability.

    It is "especially advantageous when both the classical and quantum phases are short",
    since the job is not queued again, and "independent of quantum phase duration".
    """
    held, kept, steps = results(
        MINUTE, quantum, [CoScheduled(), Elastic(keep=NODES), PerStep()], count=1
    )
    assert kept.mean("wall") < 1.03 * held.mean("wall")
    assert steps.mean("wait") > 3 * kept.mean("wait")
    # the QPU is released all the same
    assert used(kept) == pytest.approx(1)


def test_workflows_for_long_quantum_phases() -> None:
    """Bettonte, slide on workflows: "ideal when quantum portion of a hybrid job lasts long
    (e.g. > 30 min.)".
    """
    strategies: list[Strategy] = [
        PerStep(),
        CoScheduled(),
        CoScheduled(vqpus=4),
        Elastic(keep=1),
    ]
    steps, *others = results(10 * MINUTE, 45 * MINUTE, strategies, count=2)
    for other in others:
        assert steps.mean("makespan") < 1.05 * other.mean("makespan")
        assert steps.mean("node-seconds") < 0.7 * other.mean("node-seconds")


def test_balance_alone_does_not_make_malleability_win() -> None:
    """Bettonte, slide on malleability: "ideal when classical and quantum parts of a hybrid
    job have approximately same duration".

    The model agrees where the phases are short against the waits for nodes, and not where
    they are long: then a workflow waits as little, and holds half of the node-seconds.
    """
    kept, steps = results(MINUTE, MINUTE, [Elastic(keep=NODES), PerStep()], count=1)
    assert kept.mean("wall") < 0.85 * steps.mean("wall")
    kept, steps = results(
        30 * MINUTE, 30 * MINUTE, [Elastic(keep=NODES), PerStep()], count=1
    )
    assert kept.mean("wall") > 0.88 * steps.mean("wall")
    assert kept.mean("node-seconds") > 1.9 * steps.mean("node-seconds")


def test_splitting_a_job_lets_two_use_the_qpu_by_turns() -> None:
    """Esposito and Haus, sections 2.3 and 4.

    With one device, jobs that hold it throughout "will be scheduled sequentially"; split
    into a sub-job for each quantum block, "the combined wall time of two jobs is reduced
    compared to a sequential scheduling", and so is the idle time of the device.
    """
    whole, split = results(
        10 * MINUTE, 5 * MINUTE, [CoScheduled(), PerStep()], count=2, others=False
    )
    (one,) = results(10 * MINUTE, 5 * MINUTE, [CoScheduled()], count=1, others=False)
    assert whole.mean("makespan") == pytest.approx(2 * one.mean("makespan"), rel=0.05)
    assert split.mean("makespan") < 0.7 * whole.mean("makespan")
    assert split.mean("utilisation") > 1.4 * whole.mean("utilisation")
    assert split.mean("gap") < whole.mean("gap")
    assert used(split) == pytest.approx(1)
    assert used(whole) < 0.5


def test_the_quantum_part_is_released_early() -> None:
    """Esposito and Haus, section 2.3: the device is released "right after the quantum block
    is done", which saves what a job otherwise holds of it.
    """
    phases: list[Mapping[str, str | float]] = [
        {"qpu": "qpu", "seconds": 5 * MINUTE},
        {"nodes": NODES, "seconds": 10 * MINUTE},
    ]
    whole, early = simulate(phases, [CoScheduled(), Reserved()], count=2, others=False)
    assert used(whole) == pytest.approx(1 / 3, abs=0.01)
    assert used(early) > 0.97
    # the second waits for the first one's quantum block, and not for its end
    assert early.mean("makespan") < 0.7 * whole.mean("makespan")
