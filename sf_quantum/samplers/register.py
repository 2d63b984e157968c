"""Where atoms have to stand so that those, and only those, that overlap are close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]
Pairs: TypeAlias = list[tuple[int, int]]

STARTS = 20
ROUNDS = 4
# Of the blockade radius: the blockade falls with the sixth power of the distance, so at
# these it is 2.6 times and 1/5 of what it is at the radius.
_NEAR = 0.85
_FAR = 1.3
_DEMANDED = 100.0
_SAFE = 1.02
# Of the radius: a pair that is wrong by this counts half in the next round.
_GIVEN_UP = 0.05


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

    @property
    def wrong(self) -> int:
        """How many pairs are not as they should be."""
        return len(self.missing) + len(self.extra)

    def distances(self) -> Doubles:
        """Atoms by atoms, in micrometres."""
        across = self.positions[:, np.newaxis] - self.positions
        return np.asarray(np.hypot(across[..., 0], across[..., 1]))


def embed(count: int, edges: Pairs, limits: Limits, seed: int) -> Embedding | None:
    """Find positions whose distances are below the radius for edges, and above else.

    Not every graph has such positions (one atom cannot block six that do not block each
    other). Several starts are made, and what is wrong after each counts less in its next
    rounds, so that a few pairs are given up rather than all be a little wrong. The answer
    is the one with the fewest wrong pairs; the first without any ends the search.

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
    best: Embedding | None = None
    for _ in range(STARTS):
        spread = min(limits.reach, limits.radius * np.sqrt(count)) / 2
        flat = random.normal(0.0, spread, 2 * count)
        target.trust_all()
        for _ in range(ROUNDS):
            flat = minimize(target.error, flat, jac=True, method="L-BFGS-B").x
            found = target.embedding(flat.reshape(count, 2))
            if found and (best is None or found.wrong < best.wrong):
                best = found
            if best and not best.wrong:
                return best
            target.trust(flat)
    return best


class _Target:
    """How far positions are from what is wanted."""

    def __init__(self, near: NDArray[np.bool_], limits: Limits) -> None:
        self._near = near
        self._limits = limits
        self._rows, self._columns = np.triu_indices(len(near), 1)
        self._edges = near[self._rows, self._columns]
        self.trust_all()

    def trust_all(self) -> None:
        """Let every pair count alike."""
        self._trust = np.ones(len(self._rows))

    def trust(self, flat: Doubles) -> None:
        """Let the pairs count less that these positions have wrong."""
        _, _, wrong = self._wrong(flat.reshape(-1, 2))
        self._trust = 1 / (1 + (wrong / (_GIVEN_UP * self._limits.radius)) ** 2)

    def _wrong(self, positions: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        across = positions[self._rows] - positions[self._columns]
        distances = np.hypot(across[:, 0], across[:, 1]) + 1e-9
        radius = self._limits.radius
        least = np.where(self._edges, self._limits.apart * _SAFE, _FAR * radius)
        most = np.where(self._edges, _NEAR * radius, np.inf)
        wrong = np.maximum(distances - most, 0) - np.maximum(least - distances, 0)
        return across, distances, wrong

    def error(self, flat: Doubles) -> tuple[float, Doubles]:
        """The sum of squared errors, and its gradient."""
        positions = flat.reshape(-1, 2)
        across, distances, wrong = self._wrong(positions)
        # what the device demands comes before what the graph wants
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
