"""The parameters of the methods: drawn from ranges by a seed, or read from a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

from sf_quantum.clustering.methods import (
    Doubles,
    Ints,
    check_clusters,
    dbscan,
    kmeans,
    single_linkage,
)
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, read_json

#: of a method: ``centres``, or ``radius`` and ``least``, or ``clusters``
Parameters: TypeAlias = dict[str, JSON]

METHODS = ("kmeans", "dbscan", "single-linkage")
_NAMES = {
    "kmeans": {"centres"},
    "dbscan": {"radius", "least"},
    "single-linkage": {"clusters"},
}


@dataclass(frozen=True)
class Ranges:
    """Ranges to draw parameters from; the defaults are those of Rocco et al. (2025)."""

    #: number of clusters, both ends included
    clusters: tuple[int, int] = (4, 10)
    #: DBSCAN's radius in the units of the features, the upper end excluded
    radius: tuple[float, float] = (1.2, 4.5)
    #: minimum number of points within the radius of a core point
    least: int = 10


def draw(method: str, points: int, ranges: Ranges, seed: int) -> Parameters:
    """Draw a method's parameters; the same seed gives the same parameters everywhere.

    :param points: number of points
    :raises InputError: if more clusters are drawn than there are points
    """
    random = np.random.default_rng([seed, METHODS.index(method)])
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

    :param path: JSON such as ``{"0": {"single-linkage": {"clusters": 4}}}``
    :raises InputError: if the file has no parameters for this seed and method, or
        others than the method's own
    """
    content = read_json(path, "parameters")
    seeds = sorted(content, key=lambda text: (len(text), text))
    if str(seed) not in content:
        raise InputError(f"{path}: no seed {seed}; the seeds are {', '.join(seeds)}")
    of_seed = content[str(seed)]
    parameters = of_seed.get(method) if isinstance(of_seed, dict) else None
    where = f"{path}, {seed}.{method}"
    if not isinstance(parameters, dict) or parameters.keys() != _NAMES[method]:
        raise InputError(
            f"{where}: expected an object with {' and '.join(sorted(_NAMES[method]))}"
        )
    for name, value in parameters.items():
        if not _fits(name, value):
            raise InputError(f"{where}.{name}: expected {_EXPECTED[name]}")
    return parameters


def apply(method: str, points: Doubles, parameters: Parameters) -> Ints:
    """Run a method with its parameters.

    :returns: n labels, -1 for noise
    :raises InputError: if the parameters do not fit the points
    """
    if method == "kmeans":
        return kmeans(points, cast("list[int]", parameters["centres"]))
    if method == "dbscan":
        radius = float(cast(float, parameters["radius"]))
        return dbscan(points, radius, int(cast(int, parameters["least"])))
    return single_linkage(points, int(cast(int, parameters["clusters"])))


_EXPECTED = {
    "centres": "a list of row numbers",
    "radius": "a number above 0",
    "least": "a whole number of at least 1",
    "clusters": "a whole number of at least 1",
}


def _fits(name: str, value: JSON) -> bool:
    if name == "centres":
        return isinstance(value, list) and bool(value) and all(map(_is_whole, value))
    if name == "radius":
        real = isinstance(value, int | float) and not isinstance(value, bool)
        return real and 0 < cast(float, value) <= sys.float_info.max
    return _is_whole(value) and cast(int, value) >= 1


def _is_whole(value: JSON) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
