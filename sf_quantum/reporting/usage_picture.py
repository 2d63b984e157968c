"""The picture of what runs held: nodes in use over time, by workflow.

It is figure 2 of Rocco et al. (QCE 2025), with the quantum nodes below.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType

from sf_quantum.errors import InputError
from sf_quantum.files import replacing
from sf_quantum.reporting.usage import Usage, together

#: beside the colours, so that the picture can be read without them
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")


@dataclass(frozen=True)
class Style:
    """How a workflow's nodes are drawn."""

    colour: ColorType
    hatch: str


Panel = dict[str, Usage]


def draw(runs: list[Usage], path: Path) -> None:
    """Draw the nodes held over time, one workflow upon the other.

    Runs that were under way together share a panel; the others have panels of their own,
    each with a time axis from its first event, all on the same scale.

    :param runs: at least one
    :param path: of the file, whose ending, ``.png`` or ``.svg``, says its format
    :raises InputError: if no run held a node, or the file cannot be written
    """
    if not any(run.nodes(quantum=quantum) for run in runs for quantum in (False, True)):
        raise InputError(
            f"{path}: nothing to draw: no run of these was granted nodes by Slurm; "
            "name journals of runs with a deployment of type sfq.slurm"
        )
    panels = [_name(panel) for panel in _overlapping(runs)]
    names = dict.fromkeys(name for panel in panels for name in panel)
    colours = itertools.cycle(mpl.color_sequences["tab10"])
    styles = {
        name: Style(colour, hatch)
        for name, colour, hatch in zip(
            names, colours, itertools.cycle(HATCHES), strict=False
        )
    }
    figure = _figure(panels, styles)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix.lower().removeprefix("."))


def _overlapping(runs: list[Usage]) -> list[list[Usage]]:
    panels: list[list[Usage]] = []
    ended = float("-inf")
    for run in sorted(runs, key=lambda run: run.started):
        if run.started >= ended:
            panels.append([])
        panels[-1].append(run)
        ended = max(ended, run.ended)
    return panels


def _name(runs: list[Usage]) -> Panel:
    """The runs by workflow, numbered where one has the name of another."""
    total = Counter(run.workflow for run in runs)
    seen: Counter[str] = Counter()
    panel = {}
    for run in runs:
        seen[run.workflow] += 1
        number = f" ({seen[run.workflow]})" if total[run.workflow] > 1 else ""
        panel[run.workflow + number] = run
    return panel


def _figure(panels: list[Panel], styles: dict[str, Style]) -> Figure:
    sides = [
        (panel, quantum)
        for panel in panels
        for quantum in (False, True)
        if not quantum or _whole(panel).nodes(quantum=True)
    ]
    inches = [0.9 if quantum else 2.3 for _, quantum in sides]
    figure = Figure(figsize=(9, 1.5 + sum(inches)), dpi=130, layout="constrained")
    grid = figure.subplots(len(sides), sharex=True, squeeze=False, height_ratios=inches)
    for axes, (panel, quantum) in zip(grid[:, 0], sides, strict=True):
        _stack(axes, panel, styles, quantum)
        _label(axes, panel, quantum)
    longest = max(run.ended - run.started for run in map(_whole, panels))
    grid[-1, 0].set_xlim(0, longest * 1.01 or 1.0)
    grid[-1, 0].set_xlabel("seconds since the first event")
    figure.suptitle("Nodes in use, by workflow")
    figure.legend(
        handles=list(_keys(panels, styles)),
        loc="outside lower center",
        ncols=4,
        frameon=False,
    )
    return figure


def _stack(axes: Axes, panel: Panel, styles: dict[str, Style], quantum: bool) -> None:
    start = _whole(panel).started
    runs = {name: run.nodes(quantum=quantum) for name, run in panel.items()}
    times = sorted({time for steps in runs.values() for time, _ in steps})
    below = [0] * (len(times) - 1)
    for name, steps in runs.items():
        if not steps:
            continue
        top = [low + _at(steps, t) for low, t in zip(below, times, strict=False)]
        _fill(axes, [time - start for time in times], below, top, styles[name])
        if _unended(panel[name], quantum):
            last = times.index(panel[name].ended) - 1
            middle = (below[last] + top[last]) / 2
            axes.add_line(_mark(times[last + 1] - start, middle))
        below = top
    axes.set_ylim(0, (max(below, default=0) or 1) + 0.4)


def _fill(
    axes: Axes, edges: list[float], below: list[int], top: list[int], style: Style
) -> None:
    # no outline where nothing is held
    held = [
        high if high > low else math.nan for low, high in zip(below, top, strict=True)
    ]
    # outlined in its colour, so that what lasts a moment only has it too
    axes.stairs(
        held,
        edges,
        baseline=below,
        fill=True,
        facecolor=style.colour,
        edgecolor=style.colour,
        linewidth=0.8,
    )
    axes.stairs(
        held,
        edges,
        baseline=below,
        fill=True,
        facecolor="none",
        edgecolor="0.15",
        linewidth=0,
        hatch=style.hatch,
    )


def _label(axes: Axes, panel: Panel, quantum: bool) -> None:
    axes.set_ylabel("quantum" if quantum else "classical nodes")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3 if quantum else 8))
    axes.grid(axis="both", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if not quantum:
        whole = _whole(panel)
        strategies = dict.fromkeys(
            a.strategy for a in whole.allocations if not a.quantum
        )
        axes.set_title(
            f"{', '.join(strategies) or 'no classical nodes'}: "
            f"{whole.ended - whole.started:.0f} s, "
            f"{whole.node_seconds():.0f} classical node-seconds",
            fontsize=10,
            loc="left",
        )


def _keys(panels: list[Panel], styles: dict[str, Style]) -> Iterator[Artist]:
    for name, style in styles.items():
        yield Patch(
            facecolor=style.colour, edgecolor="0.15", hatch=style.hatch, label=name
        )
    runs = [run for panel in panels for run in panel.values()]
    if any(_unended(run, quantum) for run in runs for quantum in (False, True)):
        yield _mark(0, 0, label="still held at the journal's last event")


def _mark(x: float, y: float, label: str | None = None) -> Line2D:
    return Line2D(
        [x],
        [y],
        marker=">",
        color="black",
        markerfacecolor="white",
        linestyle="",
        markersize=9,
        clip_on=False,
        label=label,
    )


def _unended(run: Usage, quantum: bool) -> bool:
    return any(
        a.unended and a.quantum == quantum and a.holds[-1].node_seconds
        for a in run.allocations
    )


def _whole(panel: Panel) -> Usage:
    return together(list(panel.values()))


def _at(steps: list[tuple[float, int]], time: float) -> int:
    """The value of a step function at a time."""
    index = bisect_right(steps, time, key=lambda step: step[0])
    return steps[index - 1][1] if index else 0
