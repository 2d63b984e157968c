"""The recommendation: the strategy with the least cost within the user's bounds, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.planning.estimate import Estimate
from sf_quantum.planning.experiment import WEIGHTED, Result

#: measures that can be minimised or bounded, and their names in a sentence
OBJECTIVES: Mapping[str, str] = {
    "wall": "wall time",
    "node-seconds": "node-seconds",
    "cost": "cost",
    "energy": "energy",
}
# Names in a sentence, including the name of several objectives combined.
_CALLED = {**OBJECTIVES, WEIGHTED: "weighted sum"}
# units of measures whose names contain none
_UNITS = {"wall": " s", "energy": " Wh"}
# smaller relative differences are treated as equality
_EQUAL = 0.005


@dataclass(frozen=True)
class Recommendation:
    """The recommended strategy.

    :param others: other strategies within the bounds, the second best first
    :param excluded: strategies beyond a bound
    """

    objective: str
    bounds: Mapping[str, float]
    best: Result
    others: Sequence[Result]
    excluded: Sequence[Result]

    @property
    def unsure(self) -> list[Result]:
        """The others that may be as good: the interval of their difference contains 0."""
        return [
            other
            for other in self.others
            if (relative := other.relative(self.best, self.objective)).covers(0.0)
            and relative.half_width > 0
        ]

    @property
    def as_good(self) -> list[Result]:
        """The best strategy, and the others that cost or may cost equally little."""
        equal = [
            other
            for other in self.others
            if other.relative(self.best, self.objective).mean < _EQUAL
        ]
        return [self.best, *equal, *(one for one in self.unsure if one not in equal)]

    def sentence(self) -> str:
        """Explain the recommendation, with the figures."""
        return " ".join(filter(None, (self._reason(), self._how_sure())))

    def costs(self) -> str:
        """Describe the time and nodes of the strategy, and of the fastest strategy."""
        fastest = min(
            (self.best, *self.others, *self.excluded), key=lambda one: one.mean("wall")
        )
        text = f"it takes {_time_and_nodes(self.best)}"
        if fastest is self.best:
            return f"{text}; none is faster"
        return (
            f"{text}; the fastest, {fastest.strategy.name}, {_time_and_nodes(fastest)}"
        )

    def to_json(self) -> dict[str, JSON]:
        return {
            "strategy": self.best.strategy.name,
            "minimise": self.objective,
            "at_most": dict(self.bounds),
            "why": self.sentence(),
            "maybe_as_good": [other.strategy.name for other in self.unsure],
        }

    def _reason(self) -> str:
        name, called = self.best.strategy.name, _CALLED[self.objective]
        value = figure(self.best.mean(self.objective)) + _UNITS.get(self.objective, "")
        sentence = f"{name} has the least {called} ({value})"
        if self.bounds:
            within = " and ".join(
                f"at most {factor:g} times the least {OBJECTIVES[measure]}"
                for measure, factor in self.bounds.items()
            )
            sentence += f" of the strategies with {within}"
        if self.others:
            second = self.others[0]
            relative = second.relative(self.best, self.objective).mean
            more = f"{100 * max(relative, _EQUAL):.1f} % more"
            if relative < _EQUAL:
                more = f"less than {more}"
            sentence += f"; the next is {second.strategy.name}, with {more}"
        return f"{sentence}. {self._price()}"

    def _price(self) -> str:
        """Describe the strategy's cost in another measure: node-seconds or wall time."""
        name = self.best.strategy.name
        other = "node-seconds" if self.objective == "wall" else "wall"
        compared = [self.best, *self.others, *self.excluded]
        least = min(compared, key=lambda result: result.mean(other))
        relative = self.best.relative(least, other).mean
        are, those = ("are", "those") if other == "node-seconds" else ("is", "that")
        sentence = f"The {OBJECTIVES[other]} of {name} {are}"
        if relative < _EQUAL:
            return f"{sentence} also the least."
        return (
            f"{sentence} {1 + relative:.2f} times {those} of {least.strategy.name}, "
            "which has the least."
        )

    def _how_sure(self) -> str:
        names = [other.strategy.name for other in self.unsure]
        if not names:
            return ""
        return f"More repetitions may show that it is {' or '.join(names)}."


def _time_and_nodes(result: Result) -> str:
    nodes = figure(result.mean("node-seconds"))
    text = f"{figure(result.mean('wall'))} s and {nodes} node-seconds"
    if result.values("quantum-node-seconds") and result.mean("quantum-node-seconds"):
        text += f", {figure(result.mean('quantum-node-seconds'))} on quantum nodes"
    return text


def weigh(results: Sequence[Result], weights: Mapping[str, float]) -> list[Result]:
    """Add a weighted sum to the measures of each result.

    Each measure is divided by the least mean of all strategies, and each weight by the sum of
    the weights: a strategy with the least mean of every measure has the sum 1.

    :param weights: weight of each measure, not negative
    :raises InputError: if the least mean of a measure is 0
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
    """Choose among one or more results.

    :param objective: measure to minimise
    :param bounds: largest value that each measure may have, as a multiple of the least
        value of all strategies
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
    """Return the mean of the objective, and the means of measures that break ties."""
    ties = (name for name in ("quantum-node-seconds", "wall") if result.values(name))
    return (result.mean(objective), *map(result.mean, ties))


def figure(value: float, digits: int = 3) -> str:
    """Write a figure with up to ``digits`` digits; from 100 on, as a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def interval(estimate: Estimate, factor: float) -> str:
    """Write a mean, multiplied by a factor, with its confidence interval if it is known."""
    mean, half_width = estimate.mean * factor, estimate.half_width * factor
    # a smaller interval is a rounding error of equal values
    uncertain = half_width > 1e-9 * abs(mean)
    if half_width == math.inf:
        return f"{figure(mean)} ± ?"
    return figure(mean) + (f" ± {figure(half_width, 2)}" if uncertain else "")
