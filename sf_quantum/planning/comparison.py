"""The comparison of a workload's simulated strategies by the user's objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sf_quantum.errors import InputError
from sf_quantum.planning import experiment
from sf_quantum.planning.allocation_lines import not_granted
from sf_quantum.planning.experiment import WEIGHTED, Result
from sf_quantum.planning.random_draws import Load
from sf_quantum.planning.recommendation import Recommendation, recommend, weigh
from sf_quantum.planning.workloads.workload import Workload
from sf_quantum.validation import ValidationErrors

# errors for measures that can be compared only if the workload has prices or watts
_NEEDS = {
    "cost": "no price: give partitions or qpus one",
    "energy": "no watts: give partitions some",
}


@dataclass(frozen=True)
class Objective:
    """The measures that the recommended strategy minimises, and their bounds.

    :param weights: weight of each measure; with several measures, their weighted sum is
        minimised (see :func:`weigh`)
    :param bounds: largest value that each measure may have, as a multiple of the least
        value of all strategies
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {"wall": 1.0})
    bounds: Mapping[str, float] = field(default_factory=dict)


#: bound of the default objective: largest wall time, as a multiple of the least wall time
WITHIN = 1.1


def cheapest(workload: Workload) -> Objective:
    """Return the default objective: the least cost, near the least wall time.

    The cost is computed from the workload's prices, or is node-seconds if it has no prices.
    """
    priced = any(one.price for one in workload.partitions.values())
    priced |= any(one.price or one.lease_price for one in workload.qpus.values())
    measure = "cost" if priced else "node-seconds"
    return Objective({measure: 1.0}, {"wall": WITHIN})


@dataclass(frozen=True)
class Comparison:
    """The strategies' results, and the recommended strategy.

    :param results: results of the strategies that can run
    :param left_out: reasons why the other strategies cannot run, by name
    """

    results: Sequence[Result]
    left_out: Mapping[str, str]
    recommended: Recommendation


def compare(
    workload: Workload, recorded: Sequence[Load], objective: Objective
) -> Comparison:
    """Simulate all strategies of a workload, and recommend one.

    :raises InputError: if no strategy can run or is within the bounds, or the workload
        has no price or power with which a measure could be compared
    """
    results: list[Result] = []
    left_out: dict[str, str] = {}
    for strategy in workload.strategies:
        why = not_granted(workload, strategy)
        outcome = why or experiment.run(workload, strategy, recorded)
        if isinstance(outcome, str):
            left_out[strategy.name] = outcome
        else:
            results.append(outcome)
    if not results:
        reasons = [f"{name} {why}" for name, why in left_out.items()]
        raise ValidationErrors([f"no strategy can run: {one}" for one in reasons])
    for name in {*objective.weights, *objective.bounds} & _NEEDS.keys():
        if not any(one.mean(name) for one in results):
            raise InputError(f"{_NEEDS[name]} to compare {name}")
    measure, *more = objective.weights
    if more:
        results, measure = weigh(results, objective.weights), WEIGHTED
    return Comparison(results, left_out, recommend(results, measure, objective.bounds))
