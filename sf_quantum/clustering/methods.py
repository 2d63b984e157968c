"""The clustering methods, k-means, DBSCAN and single linkage, and their parameters.

Each method takes points of shape (n, d) and returns n labels from 0 on; -1 is noise. Clusters
are numbered in the order in which they first appear, so equal partitions have equal
labels. Parameters are drawn from ranges with a seed, or read from a file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sf_quantum.clustering import kernels
from sf_quantum.clustering.kernels import Doubles, Ints
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping, read_json

#: Keyword arguments of a method.
Parameters: TypeAlias = dict[str, JSON]

#: maximum iterations of k-means (from the reference code of Rocco et al., 2025)
MOST_ITERATIONS = 200


def kmeans(points: Doubles, centres: list[int]) -> Ints:
    """Cluster with Lloyd's algorithm, with the given points as initial centres.

    A centre that loses all its points keeps its position, so there may be fewer clusters
    than centres.

    Source: S. Lloyd, Least squares quantization in PCM, IEEE Trans. Inf. Theory 28(2),
    1982.

    :param centres: k row numbers
    :raises InputError: if there are more centres than points, or a row does not exist
    """
    check_clusters(len(centres), len(points))
    outside = [row for row in centres if not 0 <= row < len(points)]
    if outside:
        raise InputError(
            f"centre {outside[0]}: no such point; rows are 0 to {len(points) - 1}"
        )
    points = points - points.mean(axis=0)  # sums far from 0 lose precision
    positions = points[np.asarray(centres)]
    labels = np.full(len(points), -1, np.int32)
    for _ in range(MOST_ITERATIONS):
        changed, sums, sizes = kernels.kmeans_step(points, positions, labels)
        if not changed:
            break
        filled = sizes > 0
        positions[filled] = sums[filled] / sizes[filled, None]
    return canonical(labels)


def dbscan(points: Doubles, radius: float, least: int) -> Ints:
    """Cluster with DBSCAN: core points connected within ``radius``, and border points.

    Distances are Euclidean, computed in ``_kernels.c``.

    A border point within ``radius`` of several clusters joins the cluster of its nearest
    core point; in the original algorithm, this depends on the order of the points.

    Source: M. Ester et al., A density-based algorithm for discovering clusters, KDD
    1996. Clusters are the trees of the core points' minimum spanning forest cut at
    ``radius``.

    :param radius: largest distance of connected points, in the units of the features
    :param least: minimum number of points within ``radius`` of a core point, including the
        core point
    """
    # limited, since the kernel takes an int32; all numbers above the number of points are
    # equivalent
    core = kernels.core_points(points, radius, min(least, len(points) + 1))
    labels = np.full(len(points), -1, np.int32)
    if not core.any():
        return labels
    rows = np.flatnonzero(core)
    edges, _ = kernels.spanning_forest(points[rows], radius)
    labels[rows] = components(len(rows), edges)
    border = np.flatnonzero(~core)
    reached = kernels.nearest(points[rows], points[border], radius)
    labels[border[reached >= 0]] = labels[rows[reached[reached >= 0]]]
    return canonical(labels)


def single_linkage(points: Doubles, clusters: int) -> Ints:
    """Cluster with single linkage, cut into ``clusters`` clusters.

    The clusters are the trees that remain after the longest edges of the Euclidean minimum
    spanning tree are removed (J. C. Gower and G. J. S. Ross, Minimum spanning trees and
    single linkage cluster analysis, Applied Statistics 18(1), 1969).

    :raises InputError: if there are fewer points than clusters
    """
    check_clusters(clusters, len(points))
    edges, lengths = kernels.spanning_forest(points)
    # edges of equal length are ordered by their ends, so that the cut is reproducible
    order = np.lexsort((edges.max(axis=1), edges.min(axis=1), lengths))
    kept = edges[order[: len(points) - clusters]]
    return canonical(components(len(points), kept))


def check_clusters(clusters: int, points: int) -> None:
    """Check a number of clusters.

    :raises InputError: if ``clusters`` is not in 1 .. ``points``
    """
    if not 1 <= clusters <= points:
        raise InputError(
            f"{clusters} clusters of {points} points: "
            f"choose from 1 to {points} (--clusters)"
        )


def components(n: int, edges: Ints) -> Ints:
    """Label the connected components of a forest of n vertices, edges of shape (m, 2)."""
    # pointer jumping (Shiloach and Vishkin, 1982): each round halves the chains of
    # labels
    label = np.arange(n)
    while True:
        a, b = label[edges[:, 0]], label[edges[:, 1]]
        if np.array_equal(a, b):
            return label.astype(np.int32)
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(label, label[label]):
            label = label[label]


def canonical(labels: NDArray[np.integer]) -> Ints:
    """Number the clusters in the order of their first points; noise stays -1."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    noise = int(len(labels) > 0 and labels.min() < 0)
    order = np.argsort(first[noise:])
    rank = np.empty(len(first), np.int32)
    rank[:noise] = -1
    rank[noise:][order] = np.arange(len(order))
    return rank[inverse]


METHODS: dict[str, Callable[..., Ints]] = {
    "kmeans": kmeans,
    "dbscan": dbscan,
    "single-linkage": single_linkage,
}
# expected values of each parameter in a file
_EXPECTED = {
    "kmeans": {"centres": "a list of row numbers"},
    "dbscan": {
        "least": "a whole number of at least 1",
        "radius": "a number above 0",
    },
    "single-linkage": {"clusters": "a whole number of at least 1"},
}


@dataclass(frozen=True)
class Ranges:
    """Ranges from which parameters are drawn, by default as in Rocco et al. (2025)."""

    #: number of clusters, both ends included
    clusters: tuple[int, int] = (4, 10)
    #: DBSCAN's radius in the units of the features, the upper end excluded
    radius: tuple[float, float] = (1.2, 4.5)
    #: minimum number of points within the radius of a core point
    least: int = 10


def draw(method: str, points: int, ranges: Ranges, seed: int) -> Parameters:
    """Draw a method's parameters; the same seed gives the same parameters everywhere.

    :raises InputError: if more clusters are drawn than there are points
    """
    random = np.random.default_rng([seed, [*METHODS].index(method)])
    if method == "dbscan":
        return {"radius": float(random.uniform(*ranges.radius)), "least": ranges.least}
    clusters = int(random.integers(*ranges.clusters, endpoint=True))
    check_clusters(clusters, points)
    if method == "single-linkage":
        return {"clusters": clusters}
    rows = random.choice(points, clusters, replace=False)
    return {"centres": [int(row) for row in rows]}


def from_file(path: str | Path, method: str, seed: int) -> Parameters:
    """Read a method's parameters from a file, by seed and method.

    :param path: path of a JSON file such as ``{"0": {"single-linkage": {"clusters": 4}}}``
    :raises InputError: if the file has no parameters for this seed and method, or not
        exactly the method's parameters
    """
    content = read_json(path, "parameters")
    seeds = sorted(content, key=lambda text: (len(text), text))
    if str(seed) not in content:
        raise InputError(f"{path}: no seed {seed}; the seeds are {', '.join(seeds)}")
    parameters = mapping(content[str(seed)]).get(method)
    where = f"{path}, {seed}.{method}"
    expected = _EXPECTED[method]
    if not isinstance(parameters, dict) or parameters.keys() != expected.keys():
        raise InputError(f"{where}: expected an object with {' and '.join(expected)}")
    for name, value in parameters.items():
        if not _fits(name, value):
            raise InputError(f"{where}.{name}: expected {expected[name]}")
    return parameters


def apply(method: str, points: Doubles, parameters: Parameters) -> Ints:
    """Cluster points with a method of :data:`METHODS`.

    :raises InputError: if the parameters do not fit the points
    """
    return METHODS[method](points, **parameters)


def _fits(name: str, value: JSON) -> bool:
    if name == "centres":
        return isinstance(value, list) and bool(value) and all(map(_is_whole, value))
    if name == "radius":
        real = isinstance(value, int | float) and not isinstance(value, bool)
        return real and 0 < cast(float, value) <= sys.float_info.max
    return _is_whole(value) and cast(int, value) >= 1


def _is_whole(value: JSON) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
