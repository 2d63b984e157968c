"""Atom registers whose blockade graph is a given graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]
Pairs: TypeAlias = list[tuple[int, int]]

STARTS = 20
ROUNDS = 4
# Multiples of the blockade radius. The blockade falls with the sixth power of the
# distance: at these distances it is 2.6 times and 1/5 of its value at the radius.
_NEAR = 0.85
_FAR = 1.3
_DEMANDED = 100.0
_SAFE = 1.02
# Multiple of the radius: a pair that is off by this counts half in the next round.
_GIVEN_UP = 0.05


@dataclass(frozen=True)
class RegisterLimits:
    """Geometric limits of a device, in micrometres.

    :param radius: the blockade radius
    :param apart: the minimum distance of two atoms
    :param reach: the maximum distance from the centre
    """

    radius: float
    apart: float
    reach: float


@dataclass(frozen=True)
class Embedding:
    """A register, and where its blockade graph differs from the requested graph.

    :param positions: shape (atoms, 2), in micrometres
    :param missing: edges whose atoms are too far apart
    :param extra: pairs without an edge whose atoms are too close
    """

    positions: Doubles
    missing: Pairs
    extra: Pairs

    def distances(self) -> Doubles:
        """Compute the distance matrix, in micrometres."""
        across = self.positions[:, np.newaxis] - self.positions
        return np.asarray(np.hypot(across[..., 0], across[..., 1]))


def embed(
    count: int, edges: Pairs, limits: RegisterLimits, seed: int
) -> Embedding | None:
    """Find positions with distances below the blockade radius for edges only.

    Not every graph has such positions (one atom cannot block six others that do not
    block each other). Positions are optimized from several random starts; pairs that
    are wrong after a round get less weight in the next one, so that a few pairs are
    given up instead of all being slightly wrong. The result has the fewest wrong pairs;
    the search ends early with a result that has none.

    :param count: number of atoms
    :param seed: seed of the random starts
    :returns: ``None`` if no result respects the device's limits
    """
    from scipy.optimize import minimize

    near = np.zeros((count, count), bool)
    for i, j in edges:
        near[i, j] = near[j, i] = True
    random = np.random.default_rng(seed)
    best, fewest = None, np.inf
    for _ in range(STARTS):
        spread = min(limits.reach, limits.radius * np.sqrt(count)) / 2
        flat = random.normal(0.0, spread, 2 * count)
        target = _Target(near, limits)
        for _ in range(ROUNDS):
            flat = minimize(target.error, flat, jac=True, method="L-BFGS-B").x
            latest = _embedding(flat.reshape(count, 2), near, limits)
            wrong = len(latest.missing) + len(latest.extra) if latest else np.inf
            if wrong < fewest:
                best, fewest = latest, wrong
            if not fewest:
                return best
            target.distrust(flat)
    return best


class _Target:
    """The objective: how far positions are from the requested distances."""

    def __init__(self, near: NDArray[np.bool_], limits: RegisterLimits) -> None:
        self._limits = limits
        self._rows, self._columns = np.triu_indices(len(near), 1)
        edges = near[self._rows, self._columns]
        self._least = np.where(edges, limits.apart * _SAFE, _FAR * limits.radius)
        self._most = np.where(edges, _NEAR * limits.radius, np.inf)
        self._trust = np.ones(len(edges))

    def distrust(self, flat: Doubles) -> None:
        """Reduce the weight of pairs that are wrong at these positions."""
        _, _, wrong = self._wrong(flat.reshape(-1, 2))
        self._trust = 1 / (1 + (wrong / (_GIVEN_UP * self._limits.radius)) ** 2)

    def _wrong(self, positions: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        across = positions[self._rows] - positions[self._columns]
        distances = np.hypot(across[:, 0], across[:, 1]) + 1e-9
        wrong = np.maximum(distances - self._most, 0)
        wrong -= np.maximum(self._least - distances, 0)
        return across, distances, wrong

    def error(self, flat: Doubles) -> tuple[float, Doubles]:
        """Compute the sum of squared errors, and its gradient."""
        positions = flat.reshape(-1, 2)
        across, distances, wrong = self._wrong(positions)
        # the device's limits take precedence over the graph
        demanded = distances < self._limits.apart * _SAFE
        weight = np.where(demanded, _DEMANDED, self._trust)
        pull = (2 * weight * wrong / distances)[:, np.newaxis] * across
        gradient = np.zeros_like(positions)
        np.add.at(gradient, self._rows, pull)
        np.add.at(gradient, self._columns, -pull)
        out = np.hypot(positions[:, 0], positions[:, 1]) + 1e-9
        beyond = np.maximum(out - 0.98 * self._limits.reach, 0)
        gradient += (2 * beyond / out)[:, np.newaxis] * positions
        return float((weight * wrong**2).sum() + (beyond**2).sum()), gradient.ravel()


def _embedding(
    positions: Doubles, near: NDArray[np.bool_], limits: RegisterLimits
) -> Embedding | None:
    """Return the embedding; ``None`` if the device's limits are violated."""
    # Pulser rounds to picometres; rounding here keeps positions exact when re-read
    positions = np.round(positions - positions.mean(axis=0), 4)
    distances = Embedding(positions, [], []).distances()
    np.fill_diagonal(distances, np.inf)
    out = np.hypot(*positions.T).max(initial=0.0)
    if distances.min(initial=np.inf) < limits.apart or out > limits.reach:
        return None
    close = distances < limits.radius
    return Embedding(positions, _pairs(near & ~close), _pairs(close & ~near))


def _pairs(matrix: NDArray[np.bool_]) -> Pairs:
    rows, columns = np.nonzero(np.triu(matrix, 1))
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True)]
