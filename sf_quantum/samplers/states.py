"""Exact conversions between dimod's models and sample sets, and plain arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import TypeAlias, TypeVar, cast

import numpy as np
from dimod import BINARY, SPIN, BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray

from sf_quantum.samplers.reduction import Quadratic

#: samples as bits, shape (reads, variables)
Bits: TypeAlias = NDArray[np.int8]
Number: TypeAlias = float | Fraction
Integer = TypeVar("Integer", np.int64, np.object_)

# Parts with up to this many variables are solved by enumeration: 65,536 states take 5 ms.
MAX_ENUMERATED = 16
# Maximum of variables times rows that are evaluated in one step: 32 MiB of doubles.
_MAX_CELLS = 2**22
# A double represents whole numbers of up to this many bits exactly, and so their sums.
_EXACT_BITS = 53


def quadratic(bqm: BinaryQuadraticModel) -> Quadratic:
    """Convert a model to a problem in bits, with positions instead of labels.

    :param bqm: model of any numeric type, including ``object`` with integers or fractions
    """
    linear: list[Number]
    pairs: list[tuple[int, int, Number]]
    if bqm.dtype == np.dtype(object):
        position = {label: index for index, label in enumerate(bqm.variables)}
        linear = [cast(Number, bqm.get_linear(label)) for label in position]
        pairs = [
            (position[u], position[v], cast(Number, bias))
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

    :param labels: label of each variable
    :param exact: whether to store biases as fractions, with dimod's type ``object``, if
        doubles would round one of them
    """
    uses_fractions = exact and not is_exact(problem)

    def number(bias: int) -> float:
        fraction = bias * problem.unit
        # dimod also accepts fractions, but its annotations name only floats.
        return cast(float, fraction) if uses_fractions else float(fraction)

    bqm = BinaryQuadraticModel("BINARY", dtype=object if uses_fractions else None)
    linear = zip(labels, problem.linear, strict=True)
    bqm.add_linear_from((label, number(bias)) for label, bias in linear)
    bqm.add_quadratic_from(
        (labels[i], labels[j], number(bias)) for i, j, bias in problem.interactions
    )
    return bqm


def is_exact(problem: Quadratic) -> bool:
    """Return whether doubles represent all biases without rounding."""
    biases = {*problem.linear, *(bias for *_, bias in problem.interactions)}
    fractions = [bias * problem.unit for bias in biases]
    return all(fraction == float(fraction) for fraction in fractions)


def energies(problem: Quadratic, rows: Bits) -> list[int]:
    """Evaluate a problem exactly, without its constant term.

    NumPy adds doubles. So biases are cut into pieces of so few bits that no sum of pieces
    is rounded.

    :returns: the energy of each row, in units of ``problem.unit``
    """
    size = len(problem.linear)
    lower_pairs = [
        {j: bias for j, bias in row.items() if j < i}
        for i, row in enumerate(problem.pairs)
    ]
    terms = size + sum(map(len, lower_pairs))
    width = _EXACT_BITS - terms.bit_length()
    neighbours = [np.fromiter(row, np.intp, len(row)) for row in lower_pairs]
    biases = [[*problem.linear], *([*row.values()] for row in lower_pairs)]
    largest = max((abs(bias) for row in biases for bias in row), default=0)
    totals = [0] * len(rows)
    step = max(_MAX_CELLS // max(size, 1), 1)
    for shift in range(0, largest.bit_length(), width):
        pieces = [np.array([_piece(b, shift, width) for b in row]) for row in biases]
        sums = [
            energy
            for start in range(0, len(rows), step)
            for energy in _energies(pieces, neighbours, rows[start : start + step])
        ]
        totals = [t + (int(s) << shift) for t, s in zip(totals, sums, strict=True)]
    return totals


def _piece(bias: int, shift: int, width: int) -> float:
    """Return ``width`` bits of a bias, from bit ``shift``, with its sign."""
    piece = (abs(bias) >> shift) & ((1 << width) - 1)
    return float(piece if bias > 0 else -piece)


def _energies(
    biases: list[NDArray[np.float64]], neighbours: list[NDArray[np.intp]], rows: Bits
) -> list[float]:
    """Evaluate rows of bits.

    :param biases: linear biases, then for each variable its biases with earlier variables
    :param neighbours: for each variable, the positions of these earlier variables
    """
    columns = rows.T.astype(np.float64)
    sums = biases[0] @ columns
    for column, near, row in zip(columns, neighbours, biases[1:], strict=True):
        if len(near) and row.any():
            sums += column * (row @ columns[near])
    return [*sums.tolist()]


def all_energies(problem: Quadratic) -> NDArray[np.int64] | NDArray[np.object_]:
    """Evaluate a small problem exactly for all states, without its constant term.

    :returns: energies in units of ``problem.unit``, shape (2**n,); variable i of state s
        has the value of bit i of s
    """
    maximum = sum(abs(bias) for bias in problem.linear)
    maximum += sum(abs(bias) for *_, bias in problem.interactions)
    if maximum < 2**63:
        return _all_energies(problem, np.zeros(1, np.int64))
    # Python's integers are slower, but never overflow.
    return _all_energies(problem, np.zeros(1, np.object_))


def _all_energies(problem: Quadratic, zero: NDArray[Integer]) -> NDArray[Integer]:
    totals = zero
    for i, bias in enumerate(problem.linear):
        # Energy that x_i = 1 adds to each state of the earlier variables.
        added: NDArray[Integer] = zero + bias
        for j in range(i):
            added = np.concatenate([added, added + problem.pairs[i].get(j, 0)])
        totals = np.concatenate([totals, totals + added])
    return totals


def values(problem: Quadratic, exact: Sequence[int]) -> list[float]:
    """Add the constant term to energies of a problem, and round them to the closest doubles.

    :param exact: energies in units of ``problem.unit``, without the constant term
    """
    rounded = {energy: problem.value(energy) for energy in {*exact}}
    return [rounded[energy] for energy in exact]


def sample_set(
    rows: Bits, bqm: BinaryQuadraticModel, problem: Quadratic | None = None
) -> SampleSet:
    """Build a sample set with the variable type of the model.

    :param rows: samples as bits, one column per variable in the model's order
    :param problem: result of :func:`quadratic`, if the model was converted before
    """
    problem = problem or quadratic(bqm)
    # dimod does not annotate these methods.
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
    selected = samples.record.sample[:, columns]
    bits: Bits = (selected > 0).astype(np.int8)  # a spin of -1 is a bit of 0
    return bits
