"""Conversions between dimod's models and sample sets and plain arrays, without rounding."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias, TypeVar, cast

import numpy as np
from dimod import BINARY, SPIN, BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray

from sf_quantum.samplers.reduction import Quadratic

#: shape (reads, variables)
Bits: TypeAlias = NDArray[np.int8]
Number: TypeAlias = float | Fraction
Whole = TypeVar("Whole", np.int64, np.object_)

# Variables of a part that is solved by enumeration: 65,536 states take 5 ms.
ENUMERATED = 16
# Largest number of variables times rows that are evaluated at once, 32 MiB of doubles.
_CELLS = 2**22
# Bits of a double's fraction, up to which sums of whole numbers are exact.
_EXACT_BITS = 53


def quadratic(bqm: BinaryQuadraticModel) -> Quadratic:
    """Index the biases by the positions of the variables, with bits instead of spins.

    :param bqm: problem of any type, also ``object`` with whole numbers and fractions
    """
    linear: list[Number]
    pairs: list[tuple[int, int, Number]]
    if bqm.dtype == np.dtype(object):
        place = {label: number for number, label in enumerate(bqm.variables)}
        linear = [cast(Number, bqm.get_linear(label)) for label in place]
        pairs = [
            (place[u], place[v], cast(Number, bias))
            for u, v, bias in bqm.iter_quadratic()
        ]
    else:
        vectors = bqm.to_numpy_vectors(variable_order=[*bqm.variables])
        linear = vectors.linear_biases.tolist()
        columns = (vector.tolist() for vector in vectors.quadratic)
        pairs = [*zip(*columns, strict=True)]
    problem = Quadratic.of(linear, pairs, cast(Number, bqm.offset))
    return problem.of_spins if bqm.vartype is SPIN else problem


def model(
    problem: Quadratic, labels: Sequence[Hashable], *, exact: bool = False
) -> BinaryQuadraticModel:
    """Convert a problem to a binary model, without its constant term.

    :param exact: if doubles round a bias, use dimod's type ``object`` and fractions
    """
    fractions = exact and not is_exact(problem)

    def number(bias: int) -> float:
        whole = bias * problem.unit
        # dimod does not name the numbers that it also takes
        return cast(float, whole) if fractions else float(whole)

    bqm = BinaryQuadraticModel("BINARY", dtype=object if fractions else None)
    linear = zip(labels, problem.linear, strict=True)
    bqm.add_linear_from((label, number(bias)) for label, bias in linear)
    bqm.add_quadratic_from(
        (labels[i], labels[j], number(bias)) for i, j, bias in problem.interactions
    )
    return bqm


def is_exact(problem: Quadratic) -> bool:
    """Return whether doubles hold all biases."""
    biases = {*problem.linear, *(b for _, _, b in problem.interactions)}
    return all((whole := bias * problem.unit) == float(whole) for bias in biases)


def energies(problem: Quadratic, rows: Bits) -> list[int]:
    """Evaluate a problem for rows of bits: exactly, in its unit, without its constant.

    NumPy adds doubles. So biases are cut into pieces that are short enough for their sums
    to be exact.
    """
    size = len(problem.linear)
    lower = [
        {j: bias for j, bias in row.items() if j < i}
        for i, row in enumerate(problem.pairs)
    ]
    count = size + sum(map(len, lower))
    width = _EXACT_BITS - count.bit_length()
    neighbours = [np.fromiter(row, np.intp, len(row)) for row in lower]
    biases = [[*problem.linear], *([*row.values()] for row in lower)]
    largest = max((abs(bias) for row in biases for bias in row), default=0)
    totals = [0] * len(rows)
    step = max(_CELLS // max(size, 1), 1)
    for shift in range(0, largest.bit_length(), width):
        cut = [np.array([_piece(b, shift, width) for b in row]) for row in biases]
        sums = [
            number
            for start in range(0, len(rows), step)
            for number in _sums(cut, neighbours, rows[start : start + step])
        ]
        totals = [t + (int(s) << shift) for t, s in zip(totals, sums, strict=True)]
    return totals


def _piece(bias: int, shift: int, width: int) -> float:
    piece = (abs(bias) >> shift) & ((1 << width) - 1)
    return float(piece if bias > 0 else -piece)


def _sums(
    biases: list[NDArray[np.float64]], neighbours: list[NDArray[np.intp]], rows: Bits
) -> list[float]:
    columns = rows.T.astype(np.float64)
    sums = biases[0] @ columns
    for column, near, row in zip(columns, neighbours, biases[1:], strict=True):
        if len(near) and row.any():
            sums += column * (row @ columns[near])
    return [*sums.tolist()]


def all_energies(problem: Quadratic) -> NDArray[np.int64] | NDArray[np.object_]:
    """Evaluate a small problem for all states: exactly, in its unit.

    :returns: shape (2**n,); in state s, bit i of s is the value of variable i
    """
    most = sum(map(abs, problem.linear)) + sum(abs(b) for *_, b in problem.interactions)
    if most < 2**63:
        return _all_energies(problem, np.zeros(1, np.int64))
    # Python's whole numbers are slower, and have no limit.
    return _all_energies(problem, np.zeros(1, np.object_))


def _all_energies(problem: Quadratic, zero: NDArray[Whole]) -> NDArray[Whole]:
    totals = zero
    for i, bias in enumerate(problem.linear):
        # the energy that x_i = 1 adds to each state of the variables so far
        added: NDArray[Whole] = zero + bias
        for j in range(i):
            added = np.concatenate([added, added + problem.pairs[i].get(j, 0)])
        totals = np.concatenate([totals, totals + added])
    return totals


def values(problem: Quadratic, exact: Sequence[int]) -> list[float]:
    """Round energies of a problem, with its constant term, to the closest doubles."""
    rounded: Mapping[int, float] = {each: problem.value(each) for each in {*exact}}
    return [rounded[each] for each in exact]


def sample_set(
    rows: Bits, bqm: BinaryQuadraticModel, problem: Quadratic | None = None
) -> SampleSet:
    """Build a sample set with the model's own variable type.

    :param rows: bits, one column per variable in the model's order
    :param problem: the model, if it is converted already
    """
    problem = problem or quadratic(bqm)
    # dimod leaves its methods untyped
    samples: SampleSet = SampleSet.from_samples(  # type: ignore[no-untyped-call]
        (rows, [*bqm.variables]),
        vartype=BINARY,
        energy=values(problem, energies(problem, rows)),
    )
    samples.change_vartype(bqm.vartype, inplace=True)  # type: ignore[no-untyped-call]
    return samples


def bits_of(samples: SampleSet, labels: list[Hashable]) -> Bits:
    """Extract the states of a sample set as bits, one column per label."""
    columns = [samples.variables.index(label) for label in labels]
    chosen = samples.record.sample[:, columns]
    bits: Bits = (chosen > 0).astype(np.int8)
    return bits
