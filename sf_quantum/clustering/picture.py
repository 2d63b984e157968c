"""The picture of a result: the consensus, its input clusterings, and the scores."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from sf_quantum.clustering.consensus import State
from sf_quantum.clustering.points import Points

#: seven colours from B. Wong, Points of view: Color blindness, Nature Methods 8, 2011, and
#: seven darker ones
COLOURS = (
    "#0072B2 #E69F00 #009E73 #D55E00 #56B4E9 #CC79A7 #F0E442 "
    "#004266 #8A5F00 #005C43 #7F3800 #7A4864 #4D4D4D #B8A800"
).split()
NOISE = "#BBBBBB"
#: maximum number of points drawn: more would only darken the picture
DRAWN = 20_000
#: maximum characters of a feature's name, and maximum labelled scores per input clustering
NAME, LABELS = 40, 5


def draw(points: Points, state: State, threshold: float) -> Figure:
    """Draw the best consensus next to its inputs, and the score by iteration.

    Points of more than two features are drawn along their first two principal
    components.
    """
    rows = np.arange(len(points.values))
    if len(rows) > DRAWN:
        rows = np.random.default_rng(0).choice(rows, DRAWN, replace=False)
    plane, names = _projection(points)
    names = [name if len(name) <= NAME else f"{name[:NAME]}…" for name in names]
    consensus = np.asarray(state.labels)
    inputs = [(c.method, np.asarray(c.labels)) for c in state.clusterings]
    panels = [("consensus", consensus), *inputs]
    figure = Figure(figsize=(4 * len(panels), 7.2), layout="constrained")
    grid = figure.add_gridspec(2, len(panels), height_ratios=(1.5, 1))
    best = state.best_iteration
    for index, (name, labels) in enumerate(panels):
        axes = figure.add_subplot(grid[0, index])
        axes.scatter(
            plane[rows, 0],
            plane[rows, 1],
            s=float(np.clip(20_000 / len(rows), 1, 16)),
            c=_colours(labels, consensus)[rows],
            linewidths=0,
            rasterized=True,
        )
        axes.set_title(_title(name, labels))
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1] if index == 0 else "")
    _scores(figure.add_subplot(grid[1, :]), state, threshold)
    drawn = "" if len(rows) == len(consensus) else f", {len(rows):,} of them drawn"
    estimate = "" if best.exact else f" ± {best.score_error:.4f} (estimated)"
    figure.suptitle(
        f"silhouette {state.score:.4f}{estimate} in iteration {state.best} of "
        f"{len(state.iterations)}: {len(consensus):,} points{drawn}"
    )
    return figure


def _title(name: str, labels: NDArray[np.int64]) -> str:
    noise = int((labels < 0).sum())
    clusters = f"{int(labels.max(initial=-1)) + 1} clusters"
    return f"{name}: {clusters}" + (f", {noise:,} noise" if noise else "")


def _projection(points: Points) -> tuple[NDArray[np.float64], list[str]]:
    values = points.values
    if values.shape[1] == 1:
        # spread vertically so that points do not hide each other
        jitter = np.random.default_rng(0).uniform(size=len(values))
        names = [points.features[0], "(spread at random)"]
        return np.column_stack([values[:, 0], jitter]), names
    if values.shape[1] == 2:
        return values, points.features
    centred = values - values.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    return centred @ axes[:, :-3:-1], ["principal component 1", "principal component 2"]


def _colours(
    labels: NDArray[np.int64], consensus: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Colour each cluster as the consensus cluster with which it shares most points.

    :returns: red, green, blue and opacity of each point
    """
    count, consensus_count = int(labels.max(initial=-1)) + 1, int(consensus.max()) + 1
    inside = labels >= 0
    shared = np.bincount(
        labels[inside] * consensus_count + consensus[inside],
        minlength=count * consensus_count,
    ).reshape(count, consensus_count)
    colour_of: dict[int, int] = {}
    for flat in np.argsort(-shared, axis=None, kind="stable")[: (shared > 0).sum()]:
        cluster, consensus_cluster = divmod(int(flat), consensus_count)
        if cluster not in colour_of and consensus_cluster not in colour_of.values():
            colour_of[cluster] = consensus_cluster
    rest = [cluster for cluster in range(count) if cluster not in colour_of]
    colour_of |= {
        cluster: consensus_count + extra for extra, cluster in enumerate(rest)
    }
    palette = [COLOURS[colour_of[i] % len(COLOURS)] for i in range(count)]
    return to_rgba_array([*palette, NOISE])[labels]


def _scores(axes: Axes, state: State, threshold: float) -> None:
    number = np.arange(1, len(state.iterations) + 1)
    scores = np.array([iteration.score for iteration in state.iterations])
    best = np.maximum.accumulate(scores)
    if len(number) > 1:
        axes.step(number, best, where="mid", color=COLOURS[4], label="best so far")
    axes.plot(number, scores, "o", color=COLOURS[3], label="this iteration")
    axes.axhline(threshold, color="0.4", linestyle="--", label="threshold")
    # Only the best iteration has a label if there are many.
    few = len(number) <= LABELS * len(state.clusterings)
    for x in number if few else [state.best]:
        y = scores[x - 1]
        axes.annotate(
            f"{y:.4f}",
            (x, y),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )
    axes.set_xlabel("iteration")
    axes.set_ylabel("silhouette")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(0.5, len(number) + 0.5)
    axes.margins(y=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
