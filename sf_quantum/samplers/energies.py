"""The energies of samples, computed in the same way for all reports.

Biases are doubles, which are rational numbers, so energies are also rational. Sums in double
precision lose the last bits of an energy and, next to a large penalty, entire costs. So
energies are computed in rational arithmetic, and rounded once, to the closest double.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from dimod import BINARY

from sf_quantum.samplers.states import energies, quadratic, values

if TYPE_CHECKING:
    from dimod import BinaryQuadraticModel, SampleSet
    from numpy.typing import NDArray

# Number of bits up to which a double's sums of whole numbers are exact, minus one, since the
# sum of the biases' absolute values is itself rounded.
_EXACT_BITS = 52


def exact_energies(
    bqm: BinaryQuadraticModel,
    rows: NDArray[np.int8],
    labels: Sequence[Hashable],
    *,
    offset: bool = True,
) -> NDArray[np.float64]:
    """Return the energies of samples, each rounded to the closest double.

    :param rows: shape (samples, variables), bits or spins
    :param labels: variables of the columns
    :param offset: whether the energies include the model's constant term
    """
    if not offset:
        bqm = bqm.copy()  # type: ignore[no-untyped-call]
        bqm.offset = 0.0
    bits = (rows > 0).astype(np.int8)
    if _sums_are_exact(bqm):
        states = bits if bqm.vartype is BINARY else 2 * bits - 1
        return np.asarray(bqm.energies((states, [*labels])), dtype=np.float64)
    place = {label: number for number, label in enumerate(labels)}
    problem = quadratic(bqm)
    ordered = bits[:, [place[label] for label in bqm.variables]]
    return np.array(values(problem, energies(problem, ordered)), np.float64)


def recompute(samples: SampleSet, bqm: BinaryQuadraticModel) -> SampleSet:
    """Return samples with energies recomputed from their model.

    :param samples: samples of all variables of the model
    """
    rows, labels = samples.record.sample, [*samples.variables]
    return with_energies(samples, exact_energies(bqm, rows, labels))


def with_energies(samples: SampleSet, energies: NDArray[np.float64]) -> SampleSet:
    """Return samples with the given energies, as doubles."""
    record = samples.record
    other_fields = {
        name: record[name]
        for name in record.dtype.names
        if name not in ("sample", "energy")
    }
    # dimod does not annotate this method
    changed: SampleSet = type(samples).from_samples(  # type: ignore[no-untyped-call]
        (record.sample, [*samples.variables]),
        samples.vartype,
        energy=energies,
        info=samples.info,
        sort_labels=False,
        **other_fields,
    )
    return changed


def rounded(number: Fraction, towards: float) -> float:
    """Round a number to a double; if no double equals it, round in a direction.

    :param towards: direction of rounding, infinity of either sign
    """
    try:
        closest = float(number)
    except OverflowError:
        return towards
    if number == closest or (number < closest) == (towards > 0):
        return closest
    return math.nextafter(closest, towards)


def difference(
    bqm: BinaryQuadraticModel,
    reported: NDArray[np.float64],
    energies: NDArray[np.float64],
) -> float:
    """Return the largest difference of two computations of energies.

    :param reported: energies of samples of ``bqm``, as reported with the samples
    :param energies: energies of the same samples, computed from ``bqm``
    :returns: the difference; 0.0 if rounding explains the difference, since both sums of the
        biases may be computed in double precision, in any order (Higham, "Accuracy and
        Stability of Numerical Algorithms", 2002, section 4.2)
    """
    biases = [*bqm.linear.values(), *bqm.quadratic.values(), bqm.offset]
    size = float(sum(abs(float(bias)) for bias in biases))
    rounding = 2 * len(biases) * sys.float_info.epsilon * size
    largest = float(np.abs(reported - energies).max(initial=0.0))
    return largest if largest > rounding else 0.0


def _sums_are_exact(bqm: BinaryQuadraticModel) -> bool:
    """Return whether doubles represent all sums of biases: dimod's energies are then exact."""
    if bqm.dtype != np.float64:
        return False
    vectors = bqm.to_numpy_vectors(variable_order=[*bqm.variables])
    offset = np.array([float(bqm.offset)])
    biases = [vectors.linear_biases, vectors.quadratic.biases, offset]
    sizes = np.abs(np.concatenate(biases))
    with np.errstate(over="ignore"):  # a sum that is not finite is not exact
        _, exponent = np.frexp(total := sizes.sum())
    unit = np.ldexp(1.0, int(exponent) - _EXACT_BITS)
    with np.errstate(invalid="ignore"):  # below the smallest double, the unit is 0
        return bool(np.isfinite(total) and (np.fmod(sizes, unit) == 0).all())
