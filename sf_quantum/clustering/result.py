"""A clustering, and its file, which ``sfq cluster`` writes for the other tools."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np

from sf_quantum.clustering.kernels import Doubles, Ints
from sf_quantum.clustering.methods import METHODS, Parameters
from sf_quantum.clustering.silhouette import DistanceSums
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, describe_missing, read_json, write_json


@dataclass(frozen=True)
class Cluster:
    """One cluster of a clustering."""

    label: int
    size: int
    #: mean silhouette of its points in its clustering; 0 if that has only one cluster
    silhouette: float
    #: standard error of the mean; 0 if it is exact
    error: float


@dataclass(frozen=True)
class Clustering:
    """The result of one method."""

    method: str
    parameters: Parameters
    seed: int
    #: whether the silhouettes are exact, not estimated from a sample
    exact: bool
    clusters: list[Cluster]
    #: n labels, -1 for noise
    labels: Ints

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.labels)


def assess(
    points: Doubles, labels: Ints, exact_up_to: int
) -> tuple[list[Cluster], bool]:
    """Return size and quality of each cluster; noise is ignored.

    :param labels: n canonical labels
    :param exact_up_to: above this number of points, silhouettes are estimated
    :returns: the clusters, and whether the silhouettes are exact
    :raises InputError: if there are too many clusters
    """
    distances = DistanceSums(points, labels, exact_up_to)
    scores = distances.silhouettes([np.arange(distances.count)])[0].means()
    clusters = [
        Cluster(label, int(distances.sizes[label]), score.mean, score.error)
        for label, score in enumerate(scores)
    ]
    return clusters, distances.exact


def write_clustering(path: str | Path, clustering: Clustering) -> None:
    """Write a clustering as JSON."""
    content = asdict(clustering) | {"labels": clustering.labels.tolist()}
    write_json(path, {"type": "clustering", **content})


def read_clustering(path: str | Path, points: int | None = None) -> Clustering:
    """Read a clustering.

    :param points: the expected number of points, if known
    :raises InputError: if the file is not a clustering, or is for another number of points
    """
    content = read_json(path, "clustering")
    try:
        clustering = _parsed(content)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a clustering as sfq cluster writes it ({describe_missing(error)})"
        ) from error
    if points is not None and clustering.size != points:
        raise InputError(
            f"{path}: {clustering.size} labels, but there are {points} points"
        )
    return clustering


def _parsed(content: dict[str, JSON]) -> Clustering:
    labels = np.array(content["labels"])
    clusters = [
        Cluster(
            int(c["label"]), int(c["size"]), float(c["silhouette"]), float(c["error"])
        )
        for c in cast("list[dict[str, float]]", content["clusters"])
    ]
    if labels.dtype.kind != "i" or labels.ndim != 1:
        raise ValueError("labels are not whole numbers")
    sizes = np.bincount(labels[labels >= 0], minlength=len(clusters)).tolist()
    numbers = [(c.label, c.size) for c in clusters]
    method = str(content["method"])
    if 0 in sizes or method not in METHODS or numbers != [*enumerate(sizes)]:
        raise ValueError("method, clusters and labels do not agree")
    if labels.min() < -1 or not all(math.isfinite(c.silhouette) for c in clusters):
        raise ValueError("a label is below -1, or a silhouette is not finite")
    parameters = cast(Parameters, content["parameters"])
    seed, exact = int(cast(int, content["seed"])), bool(content["exact"])
    return Clustering(
        method, parameters, seed, exact, clusters, labels.astype(np.int32)
    )
