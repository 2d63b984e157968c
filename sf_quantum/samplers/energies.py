"""The energies of samples, beside those that somebody else has computed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dimod import BinaryQuadraticModel
    from numpy.typing import NDArray


def difference(
    bqm: BinaryQuadraticModel,
    reported: NDArray[np.float64],
    energies: NDArray[np.float64],
) -> float:
    """Return the largest difference of two computations of energies.

    :param reported: energies of samples of ``bqm``, as somebody has computed them
    :param energies: energies of the same samples, computed from ``bqm``
    :returns: 0.0 if no difference is larger than what the rounding of two sums of the
        biases in double precision, in any order, explains (Higham, "Accuracy and Stability
        of Numerical Algorithms", 2002, section 4.2)
    """
    biases = [*bqm.linear.values(), *bqm.quadratic.values(), bqm.offset]
    size = float(sum(abs(float(bias)) for bias in biases))
    rounding = 2 * len(biases) * sys.float_info.epsilon * size
    largest = float(np.abs(reported - energies).max(initial=0.0))
    return largest if largest > rounding else 0.0
