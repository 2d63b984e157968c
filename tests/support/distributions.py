"""Counts compared with the probabilities that they should have."""

from __future__ import annotations

from collections.abc import Mapping

#: less is a difference: of a million correct comparisons, one may be below it
LEAST = 1e-6
# Outcomes of fewer counts are joined; a chi-squared test of them would be wrong.
_FEWEST = 5.0
# Rounding errors of simulations are less probable.
_IMPOSSIBLE = 1e-9


def p_value(counts: Mapping[str, int], probabilities: Mapping[str, float]) -> float:
    """Return the probability that counts differ as much as these, by a chi-squared test.

    :param probabilities: of all outcomes, or of all but impossible ones
    :returns: 0 if an outcome was counted that is impossible
    """
    from scipy.stats import chi2

    total = sum(counts.values())
    if any(
        n and probabilities.get(key, 0.0) < _IMPOSSIBLE for key, n in counts.items()
    ):
        return 0.0
    bins: list[tuple[float, int]] = []
    expected, counted = 0.0, 0
    for key in sorted(probabilities, key=lambda key: (probabilities[key], key)):
        expected += total * probabilities[key]
        counted += counts.get(key, 0)
        if expected >= _FEWEST:
            bins.append((expected, counted))
            expected, counted = 0.0, 0
    if bins:
        bins[-1] = bins[-1][0] + expected, bins[-1][1] + counted
    if len(bins) < 2:
        return 1.0
    statistic = sum((n - mean) ** 2 / mean for mean, n in bins)
    return float(chi2.sf(statistic, len(bins) - 1))
