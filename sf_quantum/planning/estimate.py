"""Means of repetitions, with their 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Self

# quantiles of Student's t distribution at 0.975, for 1 and more degrees of freedom
_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def quantile(degrees: int) -> float:
    """Return the 0.975 quantile of Student's t; above 30 degrees, to within 0.002."""
    if degrees <= len(_QUANTILES):
        return _QUANTILES[degrees - 1]
    normal = 1.959964
    return normal + (normal**3 + normal) / (4 * degrees)


@dataclass(frozen=True)
class Estimate:
    """A mean, and half the width of its 95 % confidence interval.

    :param half_width: infinite for a single value
    """

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Estimate the mean of one or more independent values."""
        number = len(values)
        if number == 1:
            return cls(values[0], math.inf)
        error = stdev(values) / math.sqrt(number)
        return cls(fmean(values), quantile(number - 1) * error)

    def covers(self, value: float) -> bool:
        return abs(self.mean - value) <= self.half_width
