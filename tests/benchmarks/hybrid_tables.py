"""The figures of Rocco et al.'s experiment as tables, beside the paper's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean, quantiles, stdev

#: the baselines of the ratios; the first is the paper's own
BASELINE, LOADED_BASELINE = "rigid", "per-step"
LOADED = "loaded"
#: the end of the name of a row that was run with another checkout
OPPONENT = ", opponent"
#: the row of StreamFlow's own connector
STOCK = "stock"
#: wall seconds and node-seconds of tables I and II: baseline, workflow, malleability
PAPER = {
    ("I", "single"): ((1019.58, 3058.74), (1057.80, 1161.20), (1029.06, 1647.75)),
    ("I", "double"): ((2038.43, 6115.30), (1226.00, 2324.00), (1127.65, 2817.73)),
    ("II", "single"): ((539.44, 1618.33), (569.00, 1148.00), (549.60, 1168.29)),
    ("II", "double"): ((1076.98, 3230.95), (1089.00, 2324.00), (648.61, 1622.63)),
}
#: the part of classical resources that workflows and malleability save, in another
#: experiment of the same authors (arXiv:2604.14955)
SEQUEL = {"per-step": 0.64, "malleable": 0.457}


@dataclass(frozen=True)
class Case:
    """One measurement."""

    experiment: str
    mode: str
    row: str
    run: int


@dataclass(frozen=True)
class Figures:
    """The results of a measurement.

    :param wall: seconds
    :param nodes: classical node-seconds
    :param idle: those of them in which no job ran; of workflows, as the rest
    :param qnodes: quantum node-seconds
    :param queued: seconds that requests for classical nodes waited, by the journal
    :param account_error: see :func:`tests.benchmarks.slurm_runs.account_error_seconds`
    :param others: mean seconds that other users' jobs waited for their nodes, of those
        submitted while the phases alone would have run
    """

    wall: float
    nodes: float
    idle: float | None = None
    qnodes: float | None = None
    queued: float | None = None
    account_error: float = 0.0
    others: float | None = None


Results = dict[Case, Figures]


def table(results: Results, baseline: str) -> list[str]:
    """Format the figures of one experiment and mode, as lines of Markdown.

    :param baseline: the row for the ratios
    """
    lines = [
        "| row | wall s | node-s | idle node-s | quantum node-s | queued s | others queued s "
        "| wall ratio | node-s ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in dict.fromkeys(case.row for case in results):
        own = [figures for case, figures in results.items() if case.row == row]
        cells = [
            _spread([f.wall for f in own], 1),
            _spread([f.nodes for f in own], 1),
            *(
                _spread([value for value in values if value is not None], 1)
                for values in zip(
                    *((f.idle, f.qnodes, f.queued, f.others) for f in own), strict=True
                )
            ),
            *(_spread(values, 3) for values in ratios(results, row, baseline)),
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def ratios(
    results: Results, row: str, baseline: str
) -> tuple[list[float], list[float]]:
    """Divide a row by the baseline of the same run: wall seconds, node-seconds."""
    base = {case.run: f for case, f in results.items() if case.row == baseline}
    own = {case.run: f for case, f in results.items() if case.row == row}
    both = [(own[run], base[run]) for run in own if run in base]
    return [a.wall / b.wall for a, b in both], [a.nodes / b.nodes for a, b in both]


def duels(results: Results) -> list[str]:
    """Compare each row with the opponent's, as lines of Markdown.

    :returns: medians, with the quartiles, and of the ratios in the same run
    """
    lines = []
    for row in sorted({case.row for case in results}):
        own = {case.run: f for case, f in results.items() if case.row == row}
        other = {c.run: f for c, f in results.items() if c.row == row + OPPONENT}
        both = [(own[run], other[run]) for run in own if run in other]
        for what in ("wall", "idle") if len(both) > 1 else ():
            pairs = [(getattr(a, what), getattr(b, what)) for a, b in both]
            cells = [[a for a, _ in pairs], [b for _, b in pairs]]
            cells.append([a / b for a, b in pairs])
            words = " | ".join(_quartiles(values) for values in cells)
            lines.append(f"| {row}: {what} s | {words} |")
    if lines:
        lines = ["| | ours | opponent | ratio |", "|---|---|---|---|", *lines]
    return lines


def _quartiles(values: list[float]) -> str:
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def _spread(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def best_of_paper(experiment: str, mode: str) -> tuple[float, float]:
    """Return the paper's best ratios to its baseline: wall seconds, node-seconds."""
    walls, nodes = zip(*PAPER[experiment, mode], strict=True)
    return min(walls) / walls[0], min(nodes) / nodes[0]


def verdicts(results: Results) -> list[str]:
    """Compare the better of our rows with the paper's best, as lines of Markdown."""
    lines = ["| | best of the paper | better of ours | row |", "|---|---|---|---|"]
    for (experiment, mode), part in _parts(results):
        if experiment == LOADED:
            continue
        for index, what in enumerate(("wall", "node-s")):
            rows = {case.row for case in part} - {STOCK}
            own = {row: ratios(part, row, BASELINE)[index] for row in sorted(rows)}
            means = {row: mean(values) for row, values in own.items() if values}
            if not means:
                continue
            row = min(means, key=lambda name: means[name])
            target = best_of_paper(experiment, mode)[index]
            word = "" if means[row] <= target else " (worse)"
            lines.append(
                f"| table {experiment}, {mode}: {what} | {target:.3f} | "
                f"{means[row]:.3f}{word} | {row} |"
            )
    return lines


def savings(results: Results) -> list[str]:
    """Tell the most classical node-seconds that was saved, beside arXiv:2604.14955."""
    lines = []
    for row, theirs in SEQUEL.items():
        saved = [
            1 - mean(nodes)
            for _, part in _parts(results)
            if (nodes := ratios(part, row, BASELINE)[1])
        ]
        if saved:
            lines.append(
                f"{row} saves up to {max(saved):.1%} of the classical node-seconds; "
                f"in arXiv:2604.14955, up to {theirs:.1%}."
            )
    return lines


def _parts(results: Results) -> Iterator[tuple[tuple[str, str], Results]]:
    """Group the results by experiment and mode."""
    for key in dict.fromkeys((case.experiment, case.mode) for case in results):
        yield key, {c: f for c, f in results.items() if (c.experiment, c.mode) == key}


def report(results: Results, phases: Mapping[str, float]) -> str:
    """Format all tables as Markdown.

    :param phases: the seconds that the phases alone take, by experiment
    """
    lines: list[str] = []
    for (experiment, mode), part in _parts(results):
        loaded = experiment == LOADED
        title = "Loaded cluster" if loaded else f"Table {experiment}, {mode}"
        lines += ["", f"{title}; the phases alone: {phases[experiment]:.1f} s", ""]
        lines += table(part, LOADED_BASELINE if loaded else BASELINE)
    if len(compared := verdicts(results)) > 2:
        lines += ["", *compared]
    lines += ["", *savings(results)]
    if fought := duels(results):
        lines += ["", *fought]
    error = max(figures.account_error for figures in results.values())
    account = f"The account is at most {error:.2f} s per job from Slurm's record."
    return "\n".join([*lines[1:], "", account])
