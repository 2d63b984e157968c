"""Where atoms have to stand so that those, and only those, that overlap are close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]
Pairs: TypeAlias = list[tuple[int, int]]

STARTS = 40
# Of the blockade radius: the blockade falls with the sixth power of the distance, so at
# these it is 2.6 times and 1/5 of what it is at the radius.
_NEAR = 0.85
_FAR = 1.3
_DEMANDED = 100.0
_ENOUGH = 1e-9


@dataclass(frozen=True)
class Limits:
    """What a device allows, in micrometres.

    :param radius: within which one atom blocks another
    :param apart: the least distance of two atoms
    :param reach: the greatest distance from the middle
    """

    radius: float
    apart: float
    reach: float


@dataclass(frozen=True)
class Embedding:
    """A register, and where its blockade graph is not the graph that was wanted.

    :param positions: atoms by 2, in micrometres
    :param missing: edges whose atoms are too far from each other
    :param extra: pairs without an edge whose atoms are too close
    """

    positions: Doubles
    missing: Pairs
    extra: Pairs

    def distances(self) -> Doubles:
        """Atoms by atoms, in micrometres."""
        across = self.positions[:, np.newaxis] - self.positions
        return np.asarray(np.hypot(across[..., 0], across[..., 1]))


def embed(count: int, edges: Pairs, limits: Limits, seed: int) -> Embedding | None:
    """Find positions whose distances are below the radius for edges, and above else.

    Not every graph has such positions (one atom cannot block six that do not block each
    other). Of several starts that of the least squared error is taken; the first without
    error ends the search.

    :param count: of the atoms
    :param seed: of the starts
    :returns: ``None`` if no start keeps the device's limits
    """
    from scipy.optimize import minimize

    near = np.zeros((count, count), bool)
    if edges:
        near[tuple(np.array(edges).T)] = True
    target = _Target(near | near.T, limits)
    random = np.random.default_rng(seed)
    best: tuple[float, Embedding] | None = None
    for _ in range(STARTS):
        spread = min(limits.reach, limits.radius * np.sqrt(count)) / 2
        start = random.normal(0.0, spread, 2 * count)
        found = minimize(target.error, start, jac=True, method="L-BFGS-B")
        embedding = target.embedding(found.x.reshape(count, 2))
        if embedding is None:
            continue
        if best is None or found.fun < best[0]:
            best = float(found.fun), embedding
        if best[0] < _ENOUGH * limits.radius**2:
            break
    return best[1] if best else None


class _Target:
    """How far positions are from what is wanted."""

    def __init__(self, near: NDArray[np.bool_], limits: Limits) -> None:
        self._near = near
        self._limits = limits
        self._rows, self._columns = np.triu_indices(len(near), 1)
        self._edges = near[self._rows, self._columns]

    def error(self, flat: Doubles) -> tuple[float, Doubles]:
        """The sum of squared errors, and its gradient."""
        positions = flat.reshape(-1, 2)
        across = positions[self._rows] - positions[self._columns]
        distances = np.hypot(across[:, 0], across[:, 1]) + 1e-9
        radius = self._limits.radius
        least = np.where(self._edges, self._limits.apart * 1.02, _FAR * radius)
        most = np.where(self._edges, _NEAR * radius, np.inf)
        wrong = np.maximum(distances - most, 0) - np.maximum(least - distances, 0)
        # what the device demands comes before what the graph wants
        weight = np.where(distances < self._limits.apart * 1.02, _DEMANDED, 1.0)
        pull = (2 * weight * wrong / distances)[:, np.newaxis] * across
        gradient = np.zeros_like(positions)
        np.add.at(gradient, self._rows, pull)
        np.add.at(gradient, self._columns, -pull)
        out = np.hypot(positions[:, 0], positions[:, 1]) + 1e-9
        beyond = np.maximum(out - 0.98 * self._limits.reach, 0)
        gradient += (2 * beyond / out)[:, np.newaxis] * positions
        return float((weight * wrong**2).sum() + (beyond**2).sum()), gradient.ravel()

    def embedding(self, positions: Doubles) -> Embedding | None:
        """Look what became of the edges, or refuse what the device would."""
        # Pulser counts in picometres; written out, a position is read again as it was
        found = Embedding(np.round(positions - positions.mean(axis=0), 4), [], [])
        distances = found.distances()
        np.fill_diagonal(distances, np.inf)
        out = np.hypot(*found.positions.T).max(initial=0.0)
        if (
            distances.min(initial=np.inf) < self._limits.apart
            or out > self._limits.reach
        ):
            return None
        close = distances < self._limits.radius
        return Embedding(
            found.positions,
            _pairs(self._near & ~close),
            _pairs(close & ~self._near),
        )


def _pairs(matrix: NDArray[np.bool_]) -> Pairs:
    rows, columns = np.nonzero(np.triu(matrix, 1))
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True)]
