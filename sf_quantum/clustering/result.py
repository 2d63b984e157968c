"""A clustering, and the file that ``sfq cluster`` writes for the other tools."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np

from sf_quantum import structs
from sf_quantum.clustering.kernels import Doubles, Ints
from sf_quantum.clustering.methods import METHODS
from sf_quantum.clustering.silhouette import DistanceSums
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, read_json, write_json


def labels_array(value: JSON) -> Ints:
    """Read labels, of which -1 is noise.

    :raises WrongValue: if the value is not a list of them
    """
    labels = np.array(value if isinstance(value, list) else 0)
    if labels.dtype.kind != "i" or labels.ndim != 1 or labels.min() < -1:
        raise structs.WrongValue("expected a list of whole numbers from -1, noise")
    return labels.astype(np.int32)


def _seed(value: JSON) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise structs.expected("a whole number", value)
    return value


Seed: TypeAlias = Annotated[int, _seed]


@dataclass(frozen=True)
class Cluster:
    """One cluster of a clustering."""

    label: int
    size: int
    #: mean silhouette of the cluster's points; 0 if the clustering has only one cluster
    silhouette: float
    #: standard error of the mean; 0 if the mean is exact
    error: float


@dataclass(frozen=True)
class Clustering:
    """The result of one method."""

    method: str
    parameters: dict[str, JSON]
    seed: Seed
    #: whether the silhouettes are exact, not estimated from a sample
    exact: bool
    clusters: list[Cluster]
    #: n labels, -1 for noise
    labels: Annotated[Ints, labels_array]
    #: hash of the points in their order; empty if unknown
    points: str = ""

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


def read_clustering(
    path: str | Path, points: int | None = None, digest: str = ""
) -> Clustering:
    """Read a clustering.

    :param points: expected number of points, if known
    :param digest: expected hash of the points, if known
    :raises InputError: if the file is not a clustering, or is for other points
    """
    content = read_json(path, "clustering")
    try:
        clustering = structs.read(Clustering, content)
        _check(clustering)
    except ValueError as error:
        raise InputError(
            f"{path}: not a clustering as sfq cluster writes it ({error})"
        ) from error
    if points is not None and clustering.size != points:
        raise InputError(
            f"{path}: {clustering.size} labels, but there are {points} points"
        )
    if digest and clustering.points not in ("", digest):
        raise InputError(
            f"{path}: a clustering of other points, or of the same points in another "
            "order; give the file of points that sfq cluster got"
        )
    return clustering


def _check(clustering: Clustering) -> None:
    labels, clusters = clustering.labels, clustering.clusters
    sizes = np.bincount(labels[labels >= 0], minlength=len(clusters)).tolist()
    numbers = [(c.label, c.size) for c in clusters]
    is_method = clustering.method in METHODS
    if 0 in sizes or not is_method or numbers != [*enumerate(sizes)]:
        raise ValueError("method, clusters and labels do not agree")
