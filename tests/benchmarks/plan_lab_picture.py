"""A picture of how far predictions are from the runs of the lab.

    python -m tests.benchmarks.plan_lab_picture FIGURES.json PICTURE.svg

The figures are those that ``tests.benchmarks.plan_lab --save`` writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from sf_quantum.planning.map_picture import COLOURS, write
from tests.benchmarks.plan_lab import CLOSE, Cell, Comparison, Figures, in_order, place

_LINE = 0.3  # inches for each cell


def load(path: Path) -> list[Comparison]:
    """Read saved comparisons."""
    return [
        Comparison(
            Cell(*one["cell"]),
            *(Figures(**one[name]) for name in ("predicted", "before", "after")),
        )
        for one in json.loads(path.read_text())
    ]


def draw(found: Sequence[Comparison]) -> Figure:
    """Draw a line for each cell, with the difference of both figures and their spread."""
    cells = in_order(found)
    lines = range(len(cells))
    figure = Figure(figsize=(8.5, 1.2 + _LINE * len(cells)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(-100 * CLOSE, 100 * CLOSE, color="#EEEEEE", label=f"±{CLOSE:.0%}")
    axes.axvline(0, color="black", linewidth=0.8)
    series = (("wall time", "o", COLOURS[0]), ("node-seconds", "s", COLOURS[1]))
    for index, (label, marker, colour) in enumerate(series):
        axes.errorbar(
            [100 * one.misses[index] for one in cells],
            [line + 0.15 - 0.3 * index for line in lines],
            xerr=[100 * one.spreads[index] for one in cells],
            fmt=marker,
            color=colour,
            markeredgecolor="black",
            ecolor="#777777",
            capsize=2,
            label=label,
        )
    axes.set_yticks(lines, [f"{place(one.cell)}: {one.cell.strategy}" for one in cells])
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlabel(
        "predicted relative to measured [%]; bars: spread of the cell's own runs"
    )
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    write(args.picture, draw(load(args.figures)))


if __name__ == "__main__":
    main()
