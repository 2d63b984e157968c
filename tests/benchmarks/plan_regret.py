"""What it costs to follow ``sfq plan``: the regret of its recommendations.

    python -m tests.benchmarks.plan_regret [--workloads 60] [--truth 40] [--jobs 2] [--page FILE]

Random workloads: a cluster with load of others or without, one or two QPUs of any time
scale, and hybrid applications of random phases. ``sfq plan`` recommends a strategy for
each, with the strategies and repetitions that it has by default. Then every strategy is
simulated with many more repetitions, from another seed. The regret is what the
recommended strategy costs beyond the best one, by these. The objectives take turns.

The seed is that of the figures; another one was used while the recommendation was made.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from sf_quantum.files import JSON
from sf_quantum.planning import random_draws
from sf_quantum.planning.comparison import Comparison, Objective, compare
from sf_quantum.planning.simulation.application import ClassicalStep
from sf_quantum.planning.workloads import reading
from sf_quantum.planning.workloads.workload import HOUR, Workload
from sf_quantum.validation import ValidationErrors
from tests.benchmarks.page import Block, wrapped

SEED = 2026
OBJECTIVES = ("wall", "node-seconds", "cost")
#: of the QPU phases, by technology: seconds of a job
TECHNOLOGIES = ((0.1, 10.0), (10.0, 200.0), (200.0, 2000.0))
#: between the seed of a recommendation and that of the repetitions that judge it
APART = 1_000_000
#: what the applications of a workload need at most: hours of a QPU, and of all nodes
MOST_HOURS = 2.0


class Regret(NamedTuple):
    """Of one workload; ``chosen`` and ``best`` are names of strategies.

    :param regret: relative to the cost of the best
    :param gap: by how much the second best costs more, relative to the best
    """

    number: int
    objective: str
    chosen: str
    best: str
    regret: float
    gap: float


def draw(seed: int, number: int) -> Workload:
    """Draw a workload that ``sfq plan`` accepts, and that takes some hours at most."""
    draws = random.Random(f"regret {seed} {number}")
    while True:
        content = _content(draws, number)
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump(content, file)  # JSON is valid YAML
            file.flush()
            with suppress(ValidationErrors):
                workload = reading.load(Path(file.name))
                if _hours(workload) <= MOST_HOURS:
                    return workload


def _hours(workload: Workload) -> float:
    """Return the hours for which the busiest QPU or all nodes are needed."""
    runs = random_draws.applications(workload, 0)
    nodes = workload.partitions["compute"].nodes
    classical = sum(
        task.nodes * task.seconds
        for run in runs
        for step in run.steps
        if isinstance(step, ClassicalStep)
        for task in step.tasks
    )
    seconds: dict[str, float] = defaultdict(float)
    for run in runs:
        for step in run.quantum_steps():
            seconds[step.qpu] += sum(step.jobs)
    return max(classical / nodes, *seconds.values()) / HOUR


def _content(draws: random.Random, number: int) -> dict[str, JSON]:
    """Draw the content of a workload file."""
    nodes = draws.choice((4, 8, 16, 64))
    names = [f"q{index}" for index in range(draws.choice((1, 1, 2)))]
    technology = draws.choice(TECHNOLOGIES)
    repeats = draws.randint(1, 8)
    phases: list[JSON] = [
        phase
        for qpu in names
        for phase in (_classical(draws, nodes), _quantum(draws, qpu, technology))
    ]
    phases.append(_classical(draws, nodes))
    application: dict[str, JSON] = {
        "count": draws.choice((1, 2, 5, 10)),
        "repeats": repeats,
        "phases": phases,
        "margin": draws.choice((1.2, 2, 5)),
    }
    if draws.random() < 0.5:
        application["per_hour"] = draws.choice((0.5, 2.0))
    return {
        "partitions": {
            "compute": {"nodes": nodes, "price": 1.0},
            "quantum": {"nodes": len(names)},
        },
        "qpus": {
            name: {
                "partition": draws.choice(("quantum", None)),
                "vqpus": draws.choice((1, 1, 2)),
                "setup_seconds": draws.choice((0.0, 5.0)),
                "price": draws.choice((10.0, 500.0)),
                "lease_price": draws.choice((0.0, 5.0)),
            }
            for name in names
        },
        "applications": {"hybrid": application},
        "background": _background(draws, nodes, names[0]),
        "overheads": {"job_seconds": draws.choice((0.5, 2.3, 10.0))},
        "seed": number,
    }


def _classical(draws: random.Random, nodes: int) -> dict[str, JSON]:
    tasks = draws.choice((1, 1, 2, 3))
    largest = max(1, nodes // 2 // tasks)
    own = draws.randint(1, largest)
    return {
        "tasks": tasks,
        "nodes": own,
        "least": draws.randint(1, own),
        "seconds": _between(draws, 10.0, 1000.0),
        "spread": draws.choice((0.0, 0.2, 0.5)),
    }


def _quantum(
    draws: random.Random, qpu: str, technology: tuple[float, float]
) -> dict[str, JSON]:
    return {
        "qpu": qpu,
        "seconds": _between(draws, *technology),
        "spread": draws.choice((0.0, 0.2)),
        "jobs": draws.choice((1, 1, 5)),
    }


def _background(draws: random.Random, nodes: int, qpu: str) -> dict[str, JSON]:
    """Draw others' load: on nodes up to 80 %, on the QPU up to 50 %."""
    load = draws.choice((0.0, 0.3, 0.6, 0.8))
    most = max(1, nodes // 4)
    seconds = _between(draws, 60.0, 1800.0)
    found: dict[str, JSON] = {"warm_up_seconds": 2 * HOUR}
    if load:
        rate = load * nodes / ((1 + most) / 2 * seconds) * HOUR
        found["jobs"] = [
            {"per_hour": rate, "nodes": 1, "most_nodes": most, "seconds": seconds}
        ]
    if share := draws.choice((0.0, 0.2, 0.5)):
        seconds = _between(draws, 5.0, 100.0)
        found["quantum"] = [
            {"qpu": qpu, "per_hour": share * HOUR / seconds, "seconds": seconds}
        ]
    return found


def _between(draws: random.Random, least: float, most: float) -> float:
    """Draw a time of which every order of magnitude is as likely."""
    return float(least * (most / least) ** draws.random())


def measure(number: int, seed: int, truth: int) -> Regret:
    """Recommend a strategy for a workload, and find what it costs."""
    workload = draw(seed, number)
    objective = OBJECTIVES[number % len(OBJECTIVES)]
    chosen = _compared(workload, objective).recommended.best.strategy.name
    many = {"repetitions": truth, "seed": workload.seed + APART}
    judged = _compared(workload.model_copy(update=many), objective).results
    costs = {one.strategy.name: one.mean(objective) for one in judged}
    best = min(costs, key=lambda name: costs[name])
    second = sorted(costs.values())[1]
    return Regret(
        number,
        objective,
        chosen,
        best,
        costs[chosen] / costs[best] - 1,
        second / costs[best] - 1,
    )


def _compared(workload: Workload, objective: str) -> Comparison:
    return compare(workload, [], Objective({objective: 1.0}))


def report(found: list[Regret], seed: int, truth: int) -> list[str]:
    """Format the regrets as lines of Markdown."""
    values = [one.regret for one in found]
    worst = max(found, key=lambda one: one.regret)
    right = sum(one.chosen == one.best for one in found)
    above = sum(value > 0.05 for value in values)
    deciles = quantiles(values, n=10, method="inclusive")
    text = (
        f"{len(found)} random workloads (seed {seed}), each strategy simulated {truth} times "
        f"afterwards: the recommended one was the best for {right}. Its cost exceeded that of "
        f"the best by {_percent(median(values))} in the median, by {_percent(deciles[-1])} for "
        f"one workload in ten, and by more than 5 % for {above}. The worst: "
        f"{_percent(worst.regret)} more {_called(worst.objective)}, with `{worst.chosen}` instead "
        f"of `{worst.best}`."
    )
    return [
        *wrapped(text),
        "",
        "| minimised | workloads | best chosen | median | largest | which was the best |",
        "|---|---|---|---|---|---|",
        *(_row(objective, found) for objective in OBJECTIVES),
    ]


def _row(objective: str, found: list[Regret]) -> str:
    own = [one for one in found if one.objective == objective]
    values = [one.regret for one in own]
    right = sum(one.chosen == one.best for one in own)
    best = Counter(one.best for one in own).most_common()
    names = ", ".join(f"`{name}` {count}" for name, count in best)
    return (
        f"| {_called(objective)} | {len(own)} | {right} | {_percent(median(values))} "
        f"| {_percent(max(values))} | {names} |"
    )


def _called(objective: str) -> str:
    return {"wall": "wall time"}.get(objective, objective)


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %"


def main() -> None:
    """Print the regrets, and write them to the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", type=int, default=60)
    parser.add_argument("--truth", type=int, default=40, help="repetitions that judge")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--page", type=Path, help="a page with a block for the figures")
    args = parser.parse_args()
    block = Block(args.page, "plan_regret") if args.page else None
    work = partial(measure, seed=args.seed, truth=args.truth)
    found = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for one in pool.map(work, range(args.workloads)):
            print(f"{one.number}: {one}", flush=True)
            found.append(one)
    lines = report(found, args.seed, args.truth)
    print("", *lines, sep="\n")
    if block:
        block.write(lines)


if __name__ == "__main__":
    main()
