"""What ``sfq plan`` predicts for the cells of ``two_queues``, from runs at other waits.

The lengths of the phases, of the circuits and of the wait are known. Overheads of Slurm
and StreamFlow, and how long a circuit takes beside its wait and its time on the QPU, come
from the runs of the same way at other waits; the predicted cell is never used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from sf_quantum.files import JSON
from sf_quantum.planning import experiment
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    PerStep,
    Reserved,
    Strategy,
)
from sf_quantum.planning.workloads.workload import Workload
from tests.benchmarks import hybrid, plan_lab
from tests.benchmarks.page import wrapped

#: those that the model has; one that keeps a session has one wait
STRATEGIES: Mapping[str, Strategy] = {
    "plain": CoScheduled(),
    "session": CoScheduled(),
    "per-step": PerStep(),
    "per-step, session": PerStep(),
    "elastic": Elastic(idle=1, max=1),
    "ahead": Elastic(idle=1, max=1, ahead=True),
    "reserved": Reserved(),
    "site plugins": CoScheduled(),
    "site plugins, session": CoScheduled(),
}


@dataclass(frozen=True)
class Known:
    """A run, in real seconds.

    :param wait: seconds of each wait for the vendor
    :param run: its journals and allocations; None without a workflow
    :param wall: from the first submission to the last end
    :param nodes: node-seconds
    """

    way: str
    wait: float
    wall: float
    nodes: float
    run: hybrid.Run | None


@dataclass(frozen=True)
class Program:
    """The phases of the program, in real seconds."""

    phase: float
    circuit: float
    circuits: int

    def phases(self, way: str, wait: float, beside: float) -> list[JSON]:
        """Return the phases of a workload file.

        :param beside: seconds of each circuit beside its wait and its time on the QPU
        """
        circuit: dict[str, JSON] = {"step": "/iterate/solve", "qpu": "qpu"}
        own = self.circuit + beside
        node: dict[str, JSON] = {"seconds": self.phase}
        if not way.endswith("session"):
            quantum: list[JSON] = [{**circuit, "seconds": own + wait}]
        else:
            first = [{**circuit, "seconds": wait, "only": "first"}] if wait else []
            quantum = [*first, {**circuit, "seconds": own}]
        cluster, score = "/iterate/cluster", "/iterate/score"
        return [{**node, "step": cluster}, *quantum, {**node, "step": score}]

    def waits(self, way: str, wait: float) -> float:
        """Return the seconds of all waits."""
        return wait if way.endswith("session") else wait * self.circuits


def predict(
    program: Program, way: str, wait: float, known: Sequence[Known]
) -> tuple[float, float]:
    """Predict wall seconds and node-seconds of a cell, in real seconds.

    :param known: runs of all cells, of which those at this wait are not used
    """
    others = [one for one in known if one.way == way and one.wait != wait]
    fitted: dict[str, JSON] = {}
    if runs := [one.run for one in others if one.run is not None]:
        fitted = plan_lab.fit_all(runs)

    def simulate(at: float, beside: float) -> tuple[float, float]:
        planned = Workload.model_validate(
            {
                "partitions": {"compute": {"nodes": 1}},
                "qpus": {"qpu": {}},
                "applications": {
                    "program": {
                        "repeats": program.circuits,
                        "limit_seconds": plan_lab.UNLIMITED,
                        "phases": program.phases(way, at, beside),
                    }
                },
                "overheads": fitted.get("overheads", NONE),
                "scheduling": {"backfill_seconds": 1},
            }
        )
        result = experiment.run(planned, STRATEGIES[way], [])
        if isinstance(result, str):
            raise SystemExit(f"{way}: {result}")
        return result.mean("makespan"), result.mean("node-seconds")

    beside = fmean(
        (one.wall - simulate(one.wait, 0.0)[0]) / program.circuits for one in others
    )
    return simulate(wait, max(0.0, beside))


#: of a program that is one job
NONE: Mapping[str, JSON] = {
    f"{name}_seconds": 0.0 for name in ("step", "job", "resume", "job_held")
}


def table(program: Program, known: Sequence[Known], scale: float) -> list[str]:
    """Compare each cell's prediction with the median of its runs, in unscaled seconds.

    :returns: lines of Markdown; none without runs at several waits
    """
    lines = [
        "| wait | way | node-s: predicted, measured | error "
        "| makespan [s]: predicted, measured | error |",
        "|---|---|---|---|---|---|",
    ]
    keys = sorted({(one.wait, one.way) for one in known if one.way in STRATEGIES})
    errors = []
    for wait, way in keys:
        own = [one for one in known if (one.wait, one.way) == (wait, way)]
        if not any(one.way == way and one.wait != wait for one in known):
            continue
        wall, nodes = predict(program, way, wait, known)
        measured = median(one.nodes for one in own), median(one.wall for one in own)
        cells = []
        for value, true in zip((nodes, wall), measured, strict=True):
            errors.append(value / true - 1)
            cells.append(f"{value / scale:.0f}, {true / scale:.0f}")
            cells.append(f"{100 * errors[-1]:+.1f} %")
        lines.append(f"| {wait / scale:g} | {way} | {' | '.join(cells)} |")
    if not errors:
        return []
    close = sum(abs(one) <= plan_lab.CLOSE for one in errors)
    text = (
        f"{close} of {len(errors)} predictions are within {100 * plan_lab.CLOSE:g} %, "
        f"and all within {100 * max(map(abs, errors)):.1f} %."
    )
    return [*lines, "", *wrapped(text)]
