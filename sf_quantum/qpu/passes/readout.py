"""Read-out mitigation from the calibration of the QPU.

The matrix-free method M3: P. D. Nation, H. Kang, N. Sundaresan, J. M. Gambetta, PRX Quantum
2, 040326 (2021), section II. It assumes that the read-out errors of the bits are
independent, and restricts the matrix of assignment errors to the bit strings that were
read. The solution may have negative entries, and is replaced with the nearest distribution:
J. A. Smolin, J. M. Gambetta, G. Smith, Physical Review Letters 108, 070502 (2012).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sf_quantum.errors import InputError
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.values import number
from sf_quantum.qpu.passes import Counts, Pass

#: largest number of different bit strings; the matrix has as many rows and columns
MOST_STRINGS = 4096
# larger error probabilities are reduced to this: at one half, a bit carries no information
MOST_ERROR = 0.49


class Readout(Pass):
    """Corrects for the read-out errors that the QPU's calibration reports."""

    def __init__(self, described: Description) -> None:
        super().__init__(described)
        values = (described.calibration or CalibrationData()).values
        names = "readout_false_one", "readout_false_zero"
        errors = [number(values.get(name)) for name in names]
        if None in errors:
            raise InputError(
                "mitigation readout: the QPU's calibration tells no read-out errors "
                f"({' and '.join(names)})"
            )
        self.false_one, self.false_zero = (
            min(float(error or 0.0), MOST_ERROR) for error in errors
        )

    def counts(self, counts: Sequence[Counts]) -> Counts:
        """See :meth:`Pass.counts`.

        :raises InputError: if there are too many different bit strings
        """
        (read,) = counts
        words, shots = [*read], sum(read.values())
        if len(words) > MOST_STRINGS:
            raise InputError(
                f"mitigation readout: {len(words):,} different bit strings; at most "
                f"{MOST_STRINGS:,}"
            )
        if not shots:
            return read
        bits = np.array([[bit == "1" for bit in word] for word in words], dtype=float)
        frequencies = np.array([read[word] / shots for word in words], dtype=float)
        solved: NDArray[np.float64] = np.linalg.solve(
            self._assignment(bits), frequencies
        )
        mitigated = shots * nearest_distribution(solved)
        return {word: float(n) for word, n in zip(words, mitigated, strict=True) if n}

    def _assignment(self, bits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the matrix whose element (i, j) is the probability of reading i if j is true.

        :param bits: the bit strings, in an array of shape (strings, bits)
        """
        zeros = 1.0 - bits
        chances = (
            self.false_one ** (bits @ zeros.T)
            * (1.0 - self.false_one) ** (zeros @ zeros.T)
            * self.false_zero ** (zeros @ bits.T)
            * (1.0 - self.false_zero) ** (bits @ bits.T)
        )
        restricted: NDArray[np.float64] = chances / chances.sum(axis=0)
        return restricted


def nearest_distribution(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability distribution nearest to values whose sum is 1."""
    order = np.argsort(values)[::-1]
    sums = np.cumsum(values[order])
    counts = np.arange(1, len(values) + 1)
    excess = (sums - 1.0) / counts
    kept = np.nonzero(values[order] > excess)[0][-1]
    nearest: NDArray[np.float64] = np.maximum(values - excess[kept], 0.0)
    return nearest
