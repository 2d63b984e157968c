"""The map of strategies as a picture that is readable even without its colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from sf_quantum.files import replacing
from sf_quantum.planning.comparison import Objective
from sf_quantum.planning.recommendation import OBJECTIVES
from sf_quantum.planning.simulation.strategies import Strategy
from sf_quantum.planning.strategy_map import LOADS, RATIOS, Cell

# Palette of Okabe and Ito, https://jfly.uni-koeln.de/color/, whose colours colour-blind
# readers can tell apart; black text is legible on each of them.
COLOURS = ("#56B4E9", "#E69F00", "#F0E442", "#009E73", "#CC79A7", "#D55E00")
NOBODY, UNKNOWN = "#DDDDDD", "#FFFFFF"
# Sizes in inches.
WIDTH, HEIGHT, LEGEND_LINE = 10.0, 4.6, 0.21


def draw(
    cells: Sequence[Cell],
    strategies: Sequence[Strategy],
    objective: Objective,
    title: str,
) -> Figure:
    """Draw a map: a letter and a colour for each strategy that wins in a cell.

    :param strategies: all strategies of the workload, in the workload's order
    """
    winners = [one for one in strategies if any(one in cell.as_good for cell in cells)]
    letters = dict(zip(winners, ascii_uppercase, strict=False))
    colours = {one: COLOURS[n % len(COLOURS)] for n, one in enumerate(winners)}
    handles = [
        Patch(facecolor=colours[one], edgecolor="black", label=f"{letter}: {one.name}")
        for one, letter in letters.items()
    ]
    handles += _marks(cells)
    below = (len(handles) + 3) * LEGEND_LINE
    height = HEIGHT + below
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0.08, below / height, 0.9, (HEIGHT - 0.7) / height))
    for cell in cells:
        _draw_cell(axes, cell, letters, colours)
    axes.set_xlim(0, len(RATIOS))
    axes.set_ylim(0, len(LOADS))
    axes.set_xticks([n + 0.5 for n in range(len(RATIOS))], [f"{r:g}" for r in RATIOS])
    axes.set_yticks([n + 0.5 for n in range(len(LOADS))], [f"{x:.0%}" for x in LOADS])
    axes.tick_params(length=0)
    axes.set_xlabel("ratio of quantum to classical time")
    axes.set_ylabel("load of others (of nodes and QPUs)")
    # a file's name may contain text that Matplotlib would parse as a formula
    what = f"{title}: the strategy with the least {_described(objective)}"
    axes.set_title(what, parse_math=False, fontsize=11)
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.07, 0.0), frameon=False
    )
    return figure


def _draw_cell(
    axes: Axes,
    cell: Cell,
    letters: Mapping[Strategy, str],
    colours: Mapping[Strategy, str],
) -> None:
    x, y = RATIOS.index(cell.ratio), LOADS.index(cell.load)
    best = cell.as_good
    shades = [colours[one] for one in best] or [NOBODY if cell.why else UNKNOWN]
    for n, shade in enumerate(shades):
        width = 1 / len(shades)
        axes.add_patch(Rectangle((x + n * width, y), width, 1, facecolor=shade))
    axes.add_patch(
        Rectangle((x, y), 1, 1, facecolor="none", edgecolor="white", linewidth=3)
    )
    names = [letters[one] for one in best]
    shown = "≈".join(names) if len(names) < 4 else f"{names[0]}≈{len(names) - 1} more"
    axes.text(
        x + 0.5,
        y + (0.62 if cell.lead is not None else 0.5),
        shown or ("none" if cell.why else "?"),
        ha="center",
        va="center",
        fontsize=13 if len(names) < 3 else 9,
        fontweight="bold" if len(names) == 1 else "normal",
    )
    if cell.lead is not None:
        more = f"+{cell.lead:.0%}" if cell.lead < 10 else f"x{1 + cell.lead:.0f}"
        axes.text(x + 0.5, y + 0.25, more, ha="center", va="center", fontsize=8)


def _marks(cells: Sequence[Cell]) -> list[Patch]:
    """Return entries that explain the marks on the map."""

    def entry(text: str, colour: str = "none") -> Patch:
        edge = "none" if colour == "none" else "#999999"
        return Patch(facecolor=colour, edgecolor=edge, label=text)

    entries = []
    if any(len(cell.as_good) > 1 for cell in cells):
        entries.append(
            entry("A≈B: as good as each other, or their difference may be chance")
        )
    if any(cell.lead is not None for cell in cells):
        entries.append(
            entry("+9%, x12: what the next strategy costs, relative to the best")
        )
    if why := {cell.why for cell in cells if cell.why}:
        entries.append(entry(f"none: {_shortest(why)}", NOBODY))
    if any(cell.comparison is None and cell.why is None for cell in cells):
        entries.append(entry("?: not simulated in the time", UNKNOWN))
    return entries


def _shortest(reasons: set[str]) -> str:
    if all("on average" in why or "per hour" in why for why in reasons):
        return "applications and others need more than there is"
    return min(reasons, key=len)


def _described(objective: Objective) -> str:
    if len(objective.weights) == 1:
        (measure,) = objective.weights
        text = OBJECTIVES[measure]
    else:
        weights = (
            f"{w:g} x {OBJECTIVES[name]}" for name, w in objective.weights.items()
        )
        text = f"weighted sum of {' and '.join(weights)}"
    bounds = (
        f"{OBJECTIVES[name]} at most {most:g} times the least"
        for name, most in objective.bounds.items()
    )
    return ",\n".join([text, *bounds])


def write(path: Path, figure: Figure) -> None:
    """Write a picture in the format of the file's suffix; equal maps give equal files.

    :param path: file to write, with the suffix ``.png`` or ``.svg``
    :raises InputError: if the file cannot be written
    """
    format_ = path.suffix[1:].lower()
    settings = mpl.rc_context(
        # texts are kept as text, so that they can be searched and read aloud
        {"svg.hashsalt": "sf_quantum", "svg.fonttype": "none"}
    )
    with replacing(path) as file, settings:
        metadata = {"Date": None} if format_ == "svg" else None
        figure.savefig(cast(str, file), format=format_, dpi=110, metadata=metadata)
