"""Pictures of runs: a timeline of jobs, and the nodes in use over time."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Literal, TypeAlias

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
from sf_quantum.reporting.attempts import REUSED, JobAttempt
from sf_quantum.reporting.run_usage import RunUsage, together

# maximum number of decisions below the timeline, and of characters of each decision
REASONS, WIDTH = 20, 170
# Sizes of the timeline and its legend, in inches.
TIMELINE, KEY, CHARACTER, LINE = 11.0, 0.7, 0.085, 0.22
# maximum characters of a name in a picture
NAME = 60
# Hatches for readers who cannot distinguish the colours.
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")


@dataclass(frozen=True)
class Style:
    """The style in which a workflow's nodes are drawn."""

    colour: ColorType
    hatch: str


# Mark of nodes that are not released.
_mark = partial(
    Line2D,
    marker=">",
    color="black",
    markerfacecolor="white",
    linestyle="",
    markersize=9,
    clip_on=False,
)
#: runs by the names of their workflows
Panel: TypeAlias = dict[str, RunUsage]


def draw_timeline(rows: list[JobAttempt], path: Path) -> None:
    """Draw a :func:`timeline`.

    :param path: file to write, with the suffix ``.png`` or ``.svg``
    :raises InputError: if nothing has run, or the file cannot be written
    """
    figure = timeline(rows)
    if figure is None:
        raise InputError(
            f"{path}: nothing to draw: no job of this run has a location yet"
        )
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:])


def timeline(rows: list[JobAttempt]) -> Figure | None:
    """Return a Gantt chart with a line per location and per QPU, and a colour per step.

    Waiting times are lighter. A QPU is held while an attempt runs under its lease. The
    decisions on quantum candidates are below the chart.

    :returns: ``None`` if nothing has run
    """
    rows = [row for row in rows if row.location]
    # names come from users, so a $ in a name must not begin a formula
    with mpl.rc_context({"text.parse_math": False}):
        return _timeline(rows) if rows else None


def _timeline(rows: list[JobAttempt]) -> Figure:
    start = min(row.asked for row in rows)
    end = max(row.ended or row.started or row.asked for row in rows)
    steps = list(dict.fromkeys(row.step for row in rows))
    palette = mpl.color_sequences["tab10" if len(steps) <= 10 else "tab20"]
    colour_of = dict(zip(steps, itertools.cycle(palette), strict=False))
    legend = [
        Patch(color=colour, label=_short(step)) for step, colour in colour_of.items()
    ]
    legend.append(Patch(color="0.6", alpha=0.35, label="waiting (lighter)"))
    longest = max(len(str(key.get_label())) for key in legend)
    columns = min(len(legend), 6, int(TIMELINE / (KEY + CHARACTER * longest)))
    lines = math.ceil(len(legend) / columns)
    held, reasons = _lanes(_holdings(rows)), _reasons(rows)
    lanes = [*_lanes(rows), *held]
    height = 1.4 + LINE * lines + 0.42 * len(lanes) + 0.17 * len(reasons)
    figure = Figure(figsize=(TIMELINE, height), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for y, (_, lane) in enumerate(lanes):
        for row in lane:
            _bar(axes, y, row, start, end, colour_of[row.step])
    axes.set_yticks(range(len(lanes)), [_short(name) for name, _ in lanes])
    axes.set_ylabel("location, QPU held" if held else "location")
    axes.invert_yaxis()
    axes.set_xlim(0, (end - start) * 1.01 or 1.0)
    completed = all(row.status in ("completed", REUSED) for row in rows)
    hatches = "" if completed else "; hatched: not completed"
    axes.set_xlabel(
        f"seconds since the first job was ready (numbers: tags of jobs{hatches})"
    )
    _style_axes(axes, grid="x", without=("top", "right", "left"))
    axes.tick_params(axis="y", length=0)
    if reasons:
        figure.supxlabel("\n".join(reasons), x=0.01, ha="left", fontsize=8)
    figure.legend(
        handles=legend, loc="outside upper center", ncols=columns, frameon=False
    )
    return figure


def _holdings(rows: list[JobAttempt]) -> list[JobAttempt]:
    """Return the attempts that held leases, with QPUs as locations, and without waits."""
    return [
        replace(
            row, location=f"QPU {qpu}", asked=row.began, started=row.began, waits={}
        )
        for row in rows
        if row.began is not None
        for qpu in dict.fromkeys(event.qpu for event in row.qpu_jobs)
    ]


def _short(name: str) -> str:
    """Return the end of a long name, since similar names differ at the end."""
    return name if len(name) <= NAME else f"…{name[1 - NAME :]}"


def _lanes(rows: list[JobAttempt]) -> list[tuple[str, list[JobAttempt]]]:
    """Return the attempts by location, with one lane for each concurrent attempt."""
    locations: dict[str, list[list[JobAttempt]]] = {}
    for row in sorted(rows, key=lambda row: row.started or row.asked):
        lines = locations.setdefault(row.location, [])
        for line in lines:
            last = line[-1].ended
            if last is not None and last <= (row.started or row.asked):
                line.append(row)
                break
        else:
            lines.append([row])
    # the locations of a deployment are adjacent
    deployments = list(dict.fromkeys(location.split("/")[0] for location in locations))
    order = sorted(locations, key=lambda p: (deployments.index(p.split("/")[0]), p))
    return [
        (location if n == 0 else "", line)
        for location in order
        for n, line in enumerate(locations[location])
    ]


def _reasons(rows: list[JobAttempt]) -> list[str]:
    """Return the reasons of decisions, at most REASONS."""
    reasons = [shorten(row.decision, WIDTH) for row in rows if row.why]
    if len(reasons) > REASONS:
        reasons[REASONS:] = [f"... and {len(reasons) - REASONS} more: see sfq report"]
    return reasons


def _bar(
    axes: Axes, y: int, row: JobAttempt, start: float, end: float, colour: ColorType
) -> None:
    started, ended = row.began or end, row.ended or end
    waited, ran = started - row.asked, ended - started
    hatch = "" if row.status in ("completed", REUSED) else "///"
    axes.barh(y, waited, 0.3, row.asked - start, color=colour, alpha=0.3)
    bar = axes.barh(
        y, ran, 0.72, started - start, color=colour, edgecolor="white", hatch=hatch
    )
    # A label is drawn only if it fits; the tag 0, of jobs outside loops and scatters, is not.
    if row.tag != "0" and ran > 0.02 * (end - start) * len(row.tag):
        light = sum(mpl.colors.to_rgb(colour)) > 1.8
        ink = "black" if light else "white"
        axes.bar_label(bar, [row.tag], label_type="center", fontsize=8, color=ink)


def draw_nodes(runs: list[RunUsage], path: Path) -> None:
    """Draw the nodes held over time, stacked by workflow.

    The picture is like figure 2 of Rocco et al. (QCE 2025), with the quantum nodes below. Runs
    that overlap in time share a panel. Each panel starts at its first event; all panels have
    the same scale.

    :param runs: usage of at least one run
    :param path: file to write, with the suffix ``.png`` or ``.svg``
    :raises InputError: if no run held a node, or the file cannot be written
    """
    if not any(run.nodes(quantum=quantum) for run in runs for quantum in (False, True)):
        raise InputError(
            f"{path}: nothing to draw: Slurm granted no nodes to these runs; "
            "name journals of runs with a deployment of type sfq.slurm"
        )
    panels = [_name(panel) for panel in _overlapping(runs)]
    names = dict.fromkeys(name for panel in panels for name in panel)
    colours = itertools.cycle(mpl.color_sequences["tab10"])
    looks = map(Style, colours, itertools.cycle(HATCHES))
    styles = dict(zip(names, looks, strict=False))
    figure = _figure(panels, styles)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:])


def _overlapping(runs: list[RunUsage]) -> list[list[RunUsage]]:
    panels: list[list[RunUsage]] = []
    ended = float("-inf")
    for run in sorted(runs, key=lambda run: run.started):
        if run.started >= ended:
            panels.append([])
        panels[-1].append(run)
        ended = max(ended, run.ended)
    return panels


def _name(runs: list[RunUsage]) -> Panel:
    """Return the runs by workflow; runs of the same workflow are numbered."""
    total = Counter(run.workflow for run in runs)
    seen: Counter[str] = Counter()
    panel = {}
    for run in runs:
        seen[run.workflow] += 1
        number = f" ({seen[run.workflow]})" if total[run.workflow] > 1 else ""
        panel[run.workflow + number] = run
    return panel


def _figure(panels: list[Panel], styles: dict[str, Style]) -> Figure:
    """Draw the classical nodes, and any quantum nodes, of each panel."""
    sides = [
        (panel, quantum)
        for panel in panels
        for quantum in (False, True)
        if not quantum or together(panel.values()).nodes(quantum=True)
    ]
    inches = [0.9 if quantum else 2.3 for _, quantum in sides]
    figure = Figure(figsize=(9, 1.5 + sum(inches)), dpi=130, layout="constrained")
    grid = figure.subplots(len(sides), sharex=True, squeeze=False, height_ratios=inches)
    for axes, (panel, quantum) in zip(grid[:, 0], sides, strict=True):
        _stack(axes, panel, styles, quantum)
        _label(axes, panel, quantum)
    longest = max(
        run.ended - run.started
        for run in [together(panel.values()) for panel in panels]
    )
    grid[-1, 0].set_xlim(0, longest * 1.01 or 1.0)
    grid[-1, 0].set_xlabel("seconds since the first event")
    figure.suptitle("Nodes in use, by workflow")
    keys = list(_keys(panels, styles))
    figure.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _stack(axes: Axes, panel: Panel, styles: dict[str, Style], quantum: bool) -> None:
    """Draw the nodes of a panel's runs over time, one run above the other."""
    start = together(panel.values()).started
    runs = {name: run.nodes(quantum=quantum) for name, run in panel.items()}
    times = sorted({time for steps in runs.values() for time, _ in steps})
    below = [0] * (len(times) - 1)
    for name, steps in runs.items():
        if not steps:
            continue
        top = [low + _value_at(steps, t) for low, t in zip(below, times, strict=False)]
        pairs = zip(below, top, strict=True)
        # intervals without nodes have no outline
        held = [high if high > low else math.nan for low, high in pairs]
        edges = [time - start for time in times]
        stairs = partial(axes.stairs, held, edges, baseline=below, fill=True)
        style = styles[name]
        # the outline keeps short intervals visible
        stairs(facecolor=style.colour, edgecolor=style.colour, linewidth=0.8)
        stairs(facecolor="none", edgecolor="0.15", linewidth=0, hatch=style.hatch)
        if _unended(panel[name], quantum):
            last = times.index(panel[name].ended) - 1
            middle = (below[last] + top[last]) / 2
            axes.add_line(_mark([times[last + 1] - start], [middle]))
        below = top
    axes.set_ylim(0, (max(below, default=0) or 1) + 0.4)


def _label(axes: Axes, panel: Panel, quantum: bool) -> None:
    axes.set_ylabel("quantum\nnodes" if quantum else "classical nodes")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3 if quantum else 8))
    _style_axes(axes, grid="both", without=("top", "right"))
    if not quantum:
        whole = together(panel.values())
        classical = (a.strategy for a in whole.allocations if not a.quantum)
        title = (
            f"{', '.join(dict.fromkeys(classical)) or 'no classical nodes'}: "
            f"{whole.ended - whole.started:,.0f} s, "
            f"{whole.node_seconds():,.0f} classical node-seconds"
        )
        axes.set_title(title, fontsize=10, loc="left")


def _keys(panels: list[Panel], styles: dict[str, Style]) -> Iterator[Artist]:
    for name, style in styles.items():
        yield Patch(
            facecolor=style.colour, edgecolor="0.15", hatch=style.hatch, label=name
        )
    runs = [run for panel in panels for run in panel.values()]
    if any(_unended(run, quantum) for run in runs for quantum in (False, True)):
        yield _mark([0], [0], label="still held at the journal's last event")


def _unended(run: RunUsage, quantum: bool) -> bool:
    return any(
        a.unended and a.quantum == quantum and a.holds[-1].node_seconds
        for a in run.allocations
    )


def _value_at(steps: list[tuple[float, int]], time: float) -> int:
    """Return the value of a step function at a time."""
    index = bisect_right(steps, time, key=lambda step: step[0])
    return steps[index - 1][1] if index else 0


def _style_axes(
    axes: Axes, *, grid: Literal["both", "x"], without: tuple[str, ...]
) -> None:
    axes.grid(axis=grid, alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[[*without]].set_visible(False)
