"""``sfq plan``: predict what each allocation strategy costs, and recommend one."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sf_quantum.cli.arguments import checked, picture
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, check_writable, mapping

if TYPE_CHECKING:
    from sf_quantum.planning.comparison import Comparison, Objective
    from sf_quantum.planning.experiment import Result
    from sf_quantum.planning.plan import Plan
    from sf_quantum.planning.random_draws import Load
    from sf_quantum.planning.strategy_map import Cell
    from sf_quantum.planning.workloads.streamflow_workload import WorkflowPlan
    from sf_quantum.planning.workloads.workload import Workload

OBJECTIVES = ("wall", "node-seconds", "cost", "energy")
# Largest number of repetitions, the same as in a workload file.
MOST_REPETITIONS = 10_000
MAP_MINUTES = 10
# Pause between two lines about the progress of the map.
_PROGRESS_SECONDS = 10.0
# header of each measure in the table, and factor that converts the measure to this unit
_COLUMNS: Mapping[str, tuple[str, float]] = {
    "wall": ("wall [s]", 1),
    "wait": ("wait [s]", 1),
    "slowdown": ("slowdown", 1),
    "node-seconds": ("nodes [node-s]", 1),
    "quantum-node-seconds": ("quantum nodes [node-s]", 1),
    "lease-seconds": ("lease [s]", 1),
    "qpu-seconds": ("QPU [s]", 1),
    "utilisation": ("QPU busy [%]", 100),
    "gap": ("QPU gap [s]", 1),
    "makespan": ("makespan [s]", 1),
    "energy": ("energy [Wh]", 1),
    "cost": ("cost", 1),
    "others-wait": ("others' wait [s]", 1),
    "others-slowdown": ("others' slowdown", 1),
    "weighted-sum": ("weighted sum", 1),
}


def _parse_bound(text: str) -> tuple[str, float]:
    measure, _, factor = text.partition("=")
    return measure, float(factor)


def _nodes(text: str) -> tuple[str, int]:
    partition, _, nodes = text.rpartition("=")
    return partition, int(nodes)


def _bounds(given: Sequence[tuple[str, float]]) -> dict[str, float]:
    bounds = dict(given)
    if len(bounds) < len(given):
        raise InputError("--at-most: give each measure one factor only")
    return bounds


def _weights(text: str) -> dict[str, float]:
    """Parse weights of measures, such as ``wall=2,node-seconds``; the default weight is 1."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        measure, given, weight = part.partition("=")
        if measure in weights:
            raise ValueError(text)
        weights[measure] = float(weight) if given else 1.0
    return weights


def _are_weights(weights: Mapping[str, float]) -> bool:
    return all(
        name in OBJECTIVES and 0 < weight < float("inf")
        for name, weight in weights.items()
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Each strategy is simulated on the same draws. Figures are means per run of an "
        "application, with 95 %% confidence intervals over the repetitions."
    )
    add = parser.add_argument
    add("file", metavar="FILE", type=Path, help="a workload, or a StreamFlow file")
    add(
        "--journal",
        metavar="PATH",
        nargs="+",
        type=Path,
        default=[],
        help="measure phases and overheads in these journals of earlier runs, or folders "
        "of journals (default: of a StreamFlow file, its own)",
    )
    add(
        "--save",
        metavar="WORKLOAD.yml",
        type=Path,
        help="write what is simulated as a workload file, to add to it",
    )
    add(
        "--minimise",
        metavar="MEASURE[=WEIGHT],...",
        type=checked(
            _weights,
            f"one of {', '.join(OBJECTIVES)}, or several with weights above 0, as in "
            "wall=1,node-seconds=0.2",
            _are_weights,
        ),
        help="recommend the strategy with the least wall, node-seconds, cost or energy, or "
        "with the least weighted sum of several, each relative to its least (default: the "
        "cheapest, by cost if there are prices and else by node-seconds, within 10 %% of the "
        "least wall; with --at-most, wall)",
    )
    add(
        "--at-most",
        metavar="MEASURE=FACTOR",
        action="append",
        default=[],
        type=checked(
            _parse_bound,
            f"one of {', '.join(OBJECTIVES)}, and a factor of at least 1, as in wall=1.1",
            lambda bound: bound[0] in OBJECTIVES and 1 <= bound[1] < float("inf"),
        ),
        help="only strategies with at most so many times the least wall time, "
        "node-seconds, cost or energy; may be repeated",
    )
    add(
        "--repetitions",
        metavar="N",
        type=checked(
            int, "a whole number from 2 to 10000", lambda n: 2 <= n <= MOST_REPETITIONS
        ),
        help="simulate each strategy so many times (default: as the file says)",
    )
    add(
        "--map",
        type=picture,
        metavar="FILE.png|svg",
        help="draw which strategy wins over the ratio of quantum to classical time and the "
        "load of others",
    )
    add(
        "--map-minutes",
        type=checked(float, "minutes, above 0", lambda n: 0 < n < float("inf")),
        metavar="N",
        help="stop simulating the map after so many minutes (default: "
        f"{MAP_MINUTES}); what is left stays blank",
    )
    add(
        "--nodes",
        metavar="PARTITION=N",
        action="append",
        default=[],
        type=checked(
            _nodes,
            "a partition and its number of nodes, as in compute=16",
            lambda pair: pair[0] != "" and pair[1] > 0,
        ),
        help="for a StreamFlow file: the nodes that a partition has, which no allocation "
        "exceeds (default: as sinfo says, if the file uses the Slurm of this host); may be "
        "repeated",
    )
    add("--json", action="store_true", help="print all figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Simulate the strategies of a workload file, or of a StreamFlow file."""
    from sf_quantum.planning import plan as plans
    from sf_quantum.planning import strategy_map
    from sf_quantum.planning.comparison import compare
    from sf_quantum.planning.workloads import reading
    from sf_quantum.validation import ValidationErrors

    plan = plans.load(args.file, args.journal, dict(args.nodes))
    workload = plan.workload
    recorded = reading.recorded(workload, args.file)
    if args.save is not None:
        plan.save(args.save)
    if args.repetitions is not None:
        workload = workload.model_copy(update={"repetitions": args.repetitions})
    objective = _objective(args, workload)
    if args.map_minutes is not None and args.map is None:
        raise InputError("--map-minutes: only with --map")
    cells: list[Cell] = []
    try:
        if args.map is not None:
            check_writable(args.map)
            strategy_map.check(workload)
        comparison = compare(workload, recorded, objective)
        if args.map is not None:
            seconds = 60.0 * (args.map_minutes or MAP_MINUTES)
            cells += _with_progress(strategy_map.cells(workload, objective, seconds))
    except InputError as error:
        raise ValidationErrors(
            [f"{args.file}: {line}" for line in error.lines]
        ) from error
    if args.json:
        content = {
            "weights": dict(objective.weights),
            **_json(plan, workload, recorded, comparison),
        }
        if cells:
            content["map"] = [cell.to_json() for cell in cells]
        print(json.dumps(content, indent=2))
    else:
        print(*_recommendation_lines(plan, recorded, comparison), sep="\n")
    if cells:
        _draw(args.map, cells, workload, objective, args.file.stem)
    return 0


def _objective(args: argparse.Namespace, workload: Workload) -> Objective:
    """Return the objective that the options set, or the default objective."""
    from sf_quantum.planning.comparison import Objective, cheapest

    if args.minimise or args.at_most:
        return Objective(args.minimise or {"wall": 1.0}, _bounds(args.at_most))
    return cheapest(workload)


def _with_progress(cells: Iterator[Cell]) -> Iterator[Cell]:
    """Print now and then how many points are done, and a lower bound of the remaining time."""
    from sf_quantum.planning.strategy_map import LOADS, RATIOS

    total, began = len(LOADS) * len(RATIOS), time.monotonic()
    printed = began
    for number, cell in enumerate(cells, 1):
        yield cell
        now = time.monotonic()
        if now >= printed + _PROGRESS_SECONDS and number < total:
            printed = now
            left = (now - began) / number * (total - number)
            # A lower bound: the remaining points have more load, and take longer.
            print(
                f"map: {number} of {total} points, at least {left:.0f} s more",
                file=sys.stderr,
            )


def _draw(
    path: Path,
    cells: Sequence[Cell],
    workload: Workload,
    objective: Objective,
    title: str,
) -> None:
    """Draw the map of strategies, and report points that were not simulated in time."""
    # Imported here: Matplotlib takes half a second.
    from sf_quantum.planning import map_picture

    figure = map_picture.draw(cells, workload.strategies, objective, title)
    map_picture.write(path, figure)
    if late := sum(cell.comparison is None and cell.why is None for cell in cells):
        print(
            f"{path}: {late} of {len(cells)} points were not simulated in time; "
            "--map-minutes allows more",
            file=sys.stderr,
        )


def _json(
    plan: Plan, workload: Workload, recorded: Sequence[Load], comparison: Comparison
) -> dict[str, JSON]:
    """Return the object that ``--json`` prints."""
    from sf_quantum.planning.measured.sources import default_overheads

    return {
        "repetitions": workload.repetitions,
        "overheads": workload.overheads.model_dump(),
        "default_overheads": [*default_overheads(workload)],
        "sources": plan.sources.to_json(),
        "current": None if plan.current is None else plan.current.name,
        "strategies": [result.to_json() for result in comparison.results],
        "left_out": {**plan.left_out, **comparison.left_out},
        "recorded": [
            {"file": load.file, "jobs": len(load), "left_out": dict(load.left_out)}
            for load in recorded
        ],
        "recommended": comparison.recommended.to_json(),
        "streamflow": plan.config(comparison.recommended.best.strategy),
    }


def _recommendation_lines(
    plan: Plan, recorded: Sequence[Load], comparison: Comparison
) -> list[str]:
    """Return the lines of the report: a table of the strategies, and the recommendation."""
    from sf_quantum.planning.traces.bounded_files import described

    recommended = comparison.recommended
    text = [*_table(comparison.results), ""]
    left_out = {**plan.left_out, **comparison.left_out}
    text += [f"left out: {name} {why}" for name, why in left_out.items()]
    text += [
        f"{load.file}: jobs left out: {described(load.left_out)}"
        for load in recorded
        if load.left_out
    ]
    text += [f"recommended: {recommended.sentence()}", recommended.costs()]
    text += _change(plan, recommended.best, comparison.results)
    text += ["", *(f"  {line}" for line in plan.lines(recommended.best.strategy))]
    if sources := plan.sources.lines(plan.workload):
        text += ["", *sources]
    if plan.flow is not None:
        text += [*_sizes(plan.flow)]
    return text


def _sizes(flow: WorkflowPlan) -> Iterator[str]:
    """Yield a line with the known sizes of partitions, and a line on unknown sizes."""
    if flow.site:
        sizes = ", ".join(f"{name} {nodes}" for name, nodes in flow.site.items())
        yield f"nodes of the site's partitions: {sizes}"
    used = mapping(flow.workload["partitions"])
    if unknown := [name for name in used if name not in flow.site]:
        options = " ".join(f"--nodes {name}=N" for name in unknown)
        yield f"partitions of unknown size, assumed to be large enough: {options}"


def _change(plan: Plan, best: Result, results: Sequence[Result]) -> list[str]:
    """Return a line that compares the recommendation with the file's strategy, if known."""
    from sf_quantum.planning.recommendation import OBJECTIVES as measure_names

    current = next(
        (result for result in results if result.strategy == plan.current), None
    )
    if current is None:
        return []
    text = f"the file has {current.strategy.name} now"
    if current is not best:
        changes = [
            f"{measure_names[name]} {100 * best.relative(current, name).mean:+.1f} %"
            for name in ("wall", "node-seconds")
        ]
        text += f"; the change: {', '.join(changes)}"
    return [text]


def _table(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table with the measures of each strategy."""
    from sf_quantum.planning.experiment import MEASURES
    from sf_quantum.planning.recommendation import interval
    from sf_quantum.reporting.aligned import align

    shown = [
        (name, *_COLUMNS[name])
        for name in MEASURES
        if any(any(result.values(name)) for result in results)
    ]
    rows = [["strategy", *(header for _, header, _ in shown)]]
    for result in results:
        cells = [
            # A measure of other users' jobs has no values if no repetition has such jobs.
            interval(result.estimate(name), factor) if result.values(name) else "-"
            for name, _, factor in shown
        ]
        rows.append([result.strategy.name, *cells])
    return align(rows, {header for _, header, _ in shown})
