"""The silhouettes of one or many partitions, exact or estimated from a sample.

P. J. Rousseeuw, Silhouettes, J. Comput. Appl. Math. 20, 1987. The only point of a
cluster has s = 0, as in the paper and in scikit-learn. All distances are Euclidean:
``_kernels.c`` sums them, and the bounds that exclude clusters hold only for them.

The noise of a clustering is ignored here. Before a consensus is scored, ``consensus`` assigns
each point that is in no selected cluster to a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sf_quantum.clustering import kernels
from sf_quantum.errors import InputError

Doubles = kernels.Doubles
Ints = NDArray[np.integer]

#: default number of points above which silhouettes are estimated from a sample
EXACT_UP_TO = 200_000
#: number of points in a sample, over all strata
SAMPLE = 10_000
#: limit on points times groups, since several arrays have 8 bytes for each: above the limit,
#: silhouettes are estimated; above ten times the limit, an error is raised
MOST_SUMS = 20_000_000


class Score(NamedTuple):
    """A mean silhouette and its precision."""

    mean: float
    #: standard error of the mean; 0 if the mean is exact
    error: float
    exact: bool


@dataclass
class Silhouettes:
    """Silhouettes of all points, or of a stratified sample."""

    #: row numbers of the points
    rows: Ints
    #: silhouette of each point
    values: Doubles
    #: stratum of each point: a group of points that have equal labels in every partition
    strata: Ints
    #: the number of points in each stratum
    population: NDArray[np.int64]
    exact: bool

    def mean(self, chosen: NDArray[np.bool_] | None = None) -> Score:
        """Estimate the mean over all points, or over the strata in ``chosen``.

        W. G. Cochran, Sampling Techniques (1977), eq. 5.6, for a stratified sample.
        """
        taken, mean, error = self._strata_means()
        kept = taken > 0 if chosen is None else chosen & (taken > 0)
        if not kept.any():
            return Score(0.0, 0.0, self.exact)
        weights = self.population[kept] / self.population[kept].sum()
        total_error = np.sqrt(((weights * error[kept]) ** 2).sum())
        return Score(float(weights @ mean[kept]), float(total_error), self.exact)

    def means(self) -> list[Score]:
        """Estimate the mean of each stratum."""
        _, mean, error = self._strata_means()
        return [
            Score(float(a), float(e), self.exact)
            for a, e in zip(mean, error, strict=True)
        ]

    def _strata_means(self) -> tuple[NDArray[np.int64], Doubles, Doubles]:
        """Return each stratum's number of values, mean and standard error."""
        n = self.population
        taken = np.bincount(self.strata, minlength=len(n))
        m = np.maximum(taken, 1)
        mean = np.bincount(self.strata, self.values, len(n)) / m
        deviation = (self.values - mean[self.strata]) ** 2
        variance = np.bincount(self.strata, deviation, len(n)) / np.maximum(m - 1, 1)
        return taken, mean, np.sqrt(variance / m * (1 - m / np.maximum(n, 1)))


class DistanceSums:
    """Sums of distances between points and groups of points, shared by all partitions.

    :param points: shape (n, d)
    :param groups: group of each point, or -1 for points to ignore; a partition maps groups to
        clusters
    :param exact_up_to: above this number of points, a stratified sample is used
    :param seed: seed of the sample
    :raises InputError: if there are too many groups for the memory
    """

    def __init__(
        self,
        points: Doubles,
        groups: Ints,
        exact_up_to: int = EXACT_UP_TO,
        seed: int = 0,
    ) -> None:
        self.count = int(groups.max(initial=-1)) + 1
        sums = len(points) * self.count
        if sums > 10 * MOST_SUMS:
            raise InputError(
                f"{self.count} clusters of {len(points)} points: too many to score; "
                f"choose parameters that give at most {10 * MOST_SUMS // len(points)}"
            )
        self.exact = len(points) <= exact_up_to and sums <= MOST_SUMS
        # sorted by group, and within a group in spatial order
        rows = kernels.spatial_order(points)
        rows = rows[groups[rows] >= 0]
        self.rows = rows[np.argsort(groups[rows], kind="stable")]
        self.points = np.ascontiguousarray(points[self.rows])
        self.groups = groups[self.rows]
        self.sizes = np.bincount(self.groups, minlength=self.count)
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        # A group's mean, and the sum of squared distances from the mean, bound mean distances
        # to the group from below and above (Jensen). Coordinates are relative to the overall
        # mean, for precision.
        shifted = self.points - (self.points.mean(axis=0) if len(rows) else 0)
        self._rounding = 1e-12 * float(np.abs(shifted).max(initial=0))
        self._mean = _group_sum(shifted, self.offsets)
        self._mean /= np.maximum(self.sizes, 1)[:, None]
        squares = ((shifted - self._mean[self.groups]) ** 2).sum(axis=1, keepdims=True)
        self._spread = _group_sum(squares, self.offsets)[:, 0]
        self._tiles(shifted) if self.exact else self._sample(seed)

    def silhouettes(self, partitions: Sequence[Ints]) -> list[Silhouettes]:
        """Compute the silhouettes of several partitions of the same points.

        :param partitions: cluster (0 .. k - 1) of every group, in each partition
        :returns: the silhouettes of each partition; all 0 if the partition has one cluster
        """
        needed = [self._needed_clusters(partition) for partition in partitions]
        if self.exact:
            need = np.zeros((len(self._starts) - 1, self.count), bool)
            for partition, clusters in zip(partitions, needed, strict=True):
                need |= clusters[:, partition]
            sums = kernels.pair_sums(self.points, self._starts, self._tile_group, need)
        else:
            queries = self.points[self._sampled]
            sums = kernels.group_sums(queries, self.points, self.offsets)
        return [
            self._score(sums, partition, clusters)
            for partition, clusters in zip(partitions, needed, strict=True)
        ]

    def _tiles(self, shifted: Doubles) -> None:
        """Divide the points into tiles of one group each, with centres and radii."""
        starts = [
            np.arange(low, high, kernels.TILE)
            for low, high in zip(self.offsets[:-1], self.offsets[1:], strict=True)
        ]
        ends = [np.concatenate([*starts, [len(self.points)]])]
        self._starts = np.concatenate(ends).astype(np.int64)
        self._tile_group = self.groups[self._starts[:-1]].astype(np.int32)
        self._tile_of = np.repeat(
            np.arange(len(self._starts) - 1), np.diff(self._starts)
        )
        low = high = shifted
        if len(shifted):
            low = np.minimum.reduceat(shifted, self._starts[:-1])
            high = np.maximum.reduceat(shifted, self._starts[:-1])
        self._tile_centre = (low + high) / 2
        self._tile_radius = np.sqrt(((high - low) ** 2).sum(axis=1)) / 2

    def _sample(self, seed: int) -> None:
        """Draw the stratified sample."""
        random = np.random.default_rng(seed)
        share = SAMPLE / max(len(self.points), 1)
        # Each group has at least two points if possible, so that a variance is defined.
        takes = np.minimum(np.maximum(np.ceil(self.sizes * share), 2), self.sizes)
        chosen = [
            low + random.choice(size, int(take), replace=False)
            for low, size, take in zip(self.offsets, self.sizes, takes, strict=False)
        ]
        self._sampled = np.sort(np.concatenate([*chosen, []]).astype(np.int64))

    def _needed_clusters(self, partition: Ints) -> NDArray[np.bool_]:
        """Find each tile's own cluster, and all clusters that may be nearest to its points."""
        k = int(partition.max(initial=-1)) + 1
        if not self.exact:
            return np.ones((1, k), bool)
        size = np.maximum(np.bincount(partition, self.sizes, k), 1)
        mean = np.stack(
            [np.bincount(partition, f * self.sizes, k) / size for f in self._mean.T],
            axis=1,
        )
        apart = self.sizes * ((self._mean - mean[partition]) ** 2).sum(axis=1)
        spread = np.bincount(partition, self._spread + apart, k) / size
        distance = np.sqrt(
            ((self._tile_centre[:, None, :] - mean[None]) ** 2).sum(axis=2)
        )
        radius = self._tile_radius[:, None]
        least = np.maximum(distance - radius, 0)
        most = np.sqrt((distance + radius) ** 2 + spread)
        own_cluster = partition[self._tile_group]
        most[np.arange(len(own_cluster)), own_cluster] = np.inf
        # a cluster is excluded only if it is farther away by more than rounding errors
        nearest = most.min(axis=1, initial=np.inf)[:, None]
        needed: NDArray[np.bool_] = least * (1 - 1e-9) - self._rounding <= nearest
        needed[np.arange(len(own_cluster)), own_cluster] = True
        return needed

    def _score(
        self, sums: Doubles, partition: Ints, needed: NDArray[np.bool_]
    ) -> Silhouettes:
        """Compute the silhouettes of a partition from the sums of distances."""
        chosen = np.arange(len(self.points)) if self.exact else self._sampled
        strata = self.groups[chosen]
        k = needed.shape[1]
        values = np.zeros(len(chosen))
        if k > 1 and len(chosen):
            own_cluster = partition[strata]
            member = np.zeros((self.count, k))
            member[np.arange(self.count), partition] = 1
            size = np.bincount(partition, self.sizes, k)
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = (sums @ member) / size
                points = np.arange(len(chosen))
                inside = mean[points, own_cluster] * (size / (size - 1))[own_cluster]
                mean[points, own_cluster] = np.inf
                mean[:, size == 0] = np.inf
                if self.exact:
                    mean[~needed[self._tile_of]] = np.inf
                other = mean.min(axis=1)
                values = (other - inside) / np.maximum(inside, other)
            # the value is 0 for the only point of a cluster, and if all points are equal
            values[(size[own_cluster] < 2) | ~np.isfinite(values)] = 0
        return Silhouettes(self.rows[chosen], values, strata, self.sizes, self.exact)


def _group_sum(values: Doubles, offsets: NDArray[np.int64]) -> Doubles:
    sums = np.zeros((len(offsets) - 1, values.shape[1]))
    filled = np.diff(offsets) > 0
    if filled.any():
        sums[filled] = np.add.reduceat(values, offsets[:-1][filled])
    return sums
