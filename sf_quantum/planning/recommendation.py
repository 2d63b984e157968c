"""The recommendation: the strategy that costs least within the user's bounds, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.planning.estimate import Estimate
from sf_quantum.planning.experiment import WEIGHTED, Result

#: what can be minimised or bounded, and how it is called in a sentence
OBJECTIVES: Mapping[str, str] = {
    "wall": "wall time",
    "node-seconds": "node-seconds",
    "cost": "cost",
    "energy": "energy",
}
# Names in a sentence, including that of several objectives combined.
_CALLED = {**OBJECTIVES, WEIGHTED: "weighted sum"}
# differences below this are not worth telling
_EQUAL = 0.005


@dataclass(frozen=True)
class Recommendation:
    """The recommended strategy.

    :param others: other strategies within the bounds, the second best first
    :param excluded: strategies beyond a bound
    :param unsure: others whose difference in the objective may be chance
    """

    objective: str
    bounds: Mapping[str, float]
    best: Result
    others: Sequence[Result]
    excluded: Sequence[Result]

    @property
    def unsure(self) -> list[Result]:
        """The others that may be as good: the interval of the difference has both signs."""
        return [
            other
            for other in self.others
            if (relative := other.relative(self.best, self.objective)).covers(0.0)
            and relative.half_width > 0
        ]

    @property
    def as_good(self) -> list[Result]:
        """The best, and the others that cost as little, or may do so."""
        equal = [
            other
            for other in self.others
            if other.relative(self.best, self.objective).mean < _EQUAL
        ]
        return [self.best, *equal, *(one for one in self.unsure if one not in equal)]

    def sentence(self) -> str:
        """Say why, with the figures."""
        return " ".join(filter(None, (self._why(), self._how_sure())))

    def costs(self) -> str:
        """Say what the strategy takes, and what the fastest one does."""
        fastest = min(
            (self.best, *self.others, *self.excluded), key=lambda one: one.mean("wall")
        )
        text = f"it takes {_taken(self.best)}"
        if fastest is self.best:
            return f"{text}; none is faster"
        return f"{text}; the fastest, {fastest.strategy.name}, {_taken(fastest)}"

    def to_json(self) -> dict[str, JSON]:
        return {
            "strategy": self.best.strategy.name,
            "minimise": self.objective,
            "at_most": dict(self.bounds),
            "why": self.sentence(),
            "maybe_as_good": [other.strategy.name for other in self.unsure],
        }

    def _why(self) -> str:
        name, called = self.best.strategy.name, _CALLED[self.objective]
        within = "".join(
            f" of those with at most {factor:g} times the least {OBJECTIVES[measure]}"
            for measure, factor in self.bounds.items()
        )
        value = figure(self.best.mean(self.objective))
        sentence = f"{name} has the least {called}{within}: {value}"
        if self.others:
            second = self.others[0]
            relative = second.relative(self.best, self.objective).mean
            more = f"{100 * relative:.1f} % more" if relative >= _EQUAL else "as little"
            sentence += f" ({second.strategy.name}: {more})"
        return f"{sentence}{self._price()}."

    def _price(self) -> str:
        """Tell what the strategy costs in the other measure."""
        other = "node-seconds" if self.objective == "wall" else "wall"
        called = OBJECTIVES[other]
        compared = [self.best, *self.others, *self.excluded]
        least = min(compared, key=lambda result: result.mean(other))
        relative = self.best.relative(least, other).mean
        if relative < _EQUAL:
            return f", and the least {called}"
        return (
            f", and {1 + relative:.2f} times the least {called} ({least.strategy.name})"
        )

    def _how_sure(self) -> str:
        names = [other.strategy.name for other in self.unsure]
        if not names:
            return ""
        return f"More repetitions may show that it is {' or '.join(names)}."


def _taken(result: Result) -> str:
    nodes = figure(result.mean("node-seconds"))
    text = f"{figure(result.mean('wall'))} s and {nodes} node-seconds"
    if result.values("quantum-node-seconds") and result.mean("quantum-node-seconds"):
        text += f", {figure(result.mean('quantum-node-seconds'))} on quantum nodes"
    return text


def weigh(results: Sequence[Result], weights: Mapping[str, float]) -> list[Result]:
    """Add a weighted sum to the measures of each result.

    Each measure counts relative to the least mean of all strategies, and the weights
    relative to their sum: a strategy with the least of all measures has 1.

    :param weights: weight of each measure, not negative
    :raises InputError: if the least of a measure is 0
    """
    least = {name: min(one.mean(name) for one in results) for name in weights}
    for name, value in least.items():
        if not value:
            raise InputError(
                f"{name}: the least is 0, relative to which no other can be weighed"
            )
    factors = {
        name: weight / sum(weights.values()) / least[name]
        for name, weight in weights.items()
    }
    return [
        Result(
            one.strategy,
            [
                {**each, WEIGHTED: sum(f * each[name] for name, f in factors.items())}
                for each in one.repetitions
            ],
        )
        for one in results
    ]


def recommend(
    results: Sequence[Result], objective: str, bounds: Mapping[str, float]
) -> Recommendation:
    """Choose among results, of which there is at least one.

    :param objective: the measure that is minimised
    :param bounds: largest value that each measure may have, as a multiple of the least
        of all strategies
    :raises InputError: if no strategy is within all bounds
    """
    least = {name: min(one.mean(name) for one in results) for name in bounds}
    within = [
        one
        for one in results
        if all(one.mean(name) <= most * least[name] for name, most in bounds.items())
    ]
    if not within:
        wanted = " and ".join(f"{name}={most:g}" for name, most in bounds.items())
        raise InputError(f"no strategy has at most {wanted}: allow more of one of them")
    best, *others = sorted(within, key=lambda one: _rank(one, objective))
    excluded = [one for one in results if one not in within]
    return Recommendation(objective, bounds, best, others, excluded)


def _rank(result: Result, objective: str) -> tuple[float, ...]:
    """The mean of the objective; what is as good is ranked by what else it takes."""
    ties = (name for name in ("quantum-node-seconds", "wall") if result.values(name))
    return (result.mean(objective), *map(result.mean, ties))


def figure(value: float, digits: int = 3) -> str:
    """Write a figure with at least so many digits, and none behind the point from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def interval(estimate: Estimate, factor: float) -> str:
    """Write a mean, in some unit, with its confidence interval if it has one."""
    mean, half_width = estimate.mean * factor, estimate.half_width * factor
    # less is a rounding error of equal values
    uncertain = half_width > 1e-9 * abs(mean)
    if half_width == math.inf:
        return f"{figure(mean)} ± ?"
    return figure(mean) + (f" ± {figure(half_width, 2)}" if uncertain else "")
