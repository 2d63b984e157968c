"""The picture of a run: who was where, and who waited for it."""

from __future__ import annotations

import itertools
from pathlib import Path
from textwrap import shorten

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.typing import ColorType

from sf_quantum.errors import InputError
from sf_quantum.files import replacing
from sf_quantum.reporting.report import Row

# decisions shown, and letters of each
REASONS, WIDTH = 20, 170
Lanes = list[tuple[str, list[Row]]]


def draw(rows: list[Row], path: Path) -> None:
    """Draw a Gantt chart: a line for each place, a colour for each step, waits lighter.

    Below it stands why the quantum candidates went where they did.

    :param rows: of one run
    :param path: of the PNG file
    :raises InputError: if nothing has run, or the file cannot be written
    """
    rows = [row for row in rows if row.location]
    if not rows:
        raise InputError(
            f"{path}: nothing to draw: no job of this run found a place yet"
        )
    start = min(row.asked for row in rows)
    end = max(row.ended or row.started or row.asked for row in rows)
    steps = list(dict.fromkeys(row.step for row in rows))
    palette = mpl.color_sequences["tab10" if len(steps) <= 10 else "tab20"]
    colour_of = dict(zip(steps, itertools.cycle(palette), strict=False))
    lanes, reasons = _lanes(rows), _reasons(rows)
    figure = Figure(
        figsize=(11, 1.6 + 0.42 * len(lanes) + 0.17 * len(reasons)),
        dpi=130,
        layout="constrained",
    )
    axes = figure.add_subplot()
    for y, (_, lane) in enumerate(lanes):
        for row in lane:
            _bar(axes, y, row, start, end, colour_of[row.step])
    _label(axes, lanes, end - start)
    if reasons:
        figure.supxlabel("\n".join(reasons), x=0.01, ha="left", fontsize=8)
    legend = [Patch(color=colour, label=step) for step, colour in colour_of.items()]
    figure.legend(
        handles=[*legend, Patch(color="0.6", alpha=0.35, label="waiting (lighter)")],
        loc="outside upper center",
        ncols=min(len(legend) + 1, 6),
        frameon=False,
    )
    with replacing(path) as file:
        figure.savefig(file, format="png")


def _lanes(rows: list[Row]) -> Lanes:
    """The rows by place, and by as many lines of a place as jobs ran there at once."""
    places: dict[str, list[list[Row]]] = {}
    for row in sorted(rows, key=lambda row: row.started or row.asked):
        lines = places.setdefault(row.location, [])
        for line in lines:
            last = line[-1].ended
            if last is not None and last <= (row.started or row.asked):
                line.append(row)
                break
        else:
            lines.append([row])
    # the locations of a deployment stand together
    deployments = list(dict.fromkeys(place.split("/")[0] for place in places))
    order = sorted(places, key=lambda p: (deployments.index(p.split("/")[0]), p))
    return [
        (place if n == 0 else "", line)
        for place in order
        for n, line in enumerate(places[place])
    ]


def _reasons(rows: list[Row]) -> list[str]:
    """Why each candidate went where it did, as many as can be read."""
    told = [
        shorten(" ".join(filter(None, (row.step, row.round, "on", row.why))), WIDTH)
        for row in rows
        if row.why
    ]
    if len(told) > REASONS:
        told[REASONS:] = [f"... and {len(told) - REASONS} more, which sfq report tells"]
    return told


def _bar(
    axes: Axes, y: int, row: Row, start: float, end: float, colour: ColorType
) -> None:
    started = row.started or end
    finished = row.ended or end
    axes.barh(
        y,
        started - row.asked,
        left=row.asked - start,
        height=0.3,
        color=colour,
        alpha=0.3,
    )
    bar = axes.barh(
        y,
        finished - started,
        left=started - start,
        height=0.72,
        color=colour,
        edgecolor="white",
        hatch="" if row.status == "completed" else "///",
    )
    # a label only where it fits
    if row.round and finished - started > 0.02 * (end - start) * len(row.round):
        axes.bar_label(bar, [row.round], label_type="center", fontsize=8, color="white")


def _label(axes: Axes, lanes: Lanes, seconds: float) -> None:
    axes.set_yticks(range(len(lanes)), [name for name, _ in lanes])
    axes.invert_yaxis()
    axes.set_xlim(0, seconds * 1.01 or 1.0)
    axes.set_xlabel(
        "seconds since the first job asked for a place (hatched: not completed)"
    )
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
