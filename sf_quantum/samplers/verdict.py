"""The quality of samples: energy, feasibility, and the optimum where it is known."""

from __future__ import annotations

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray

from sf_quantum.files import JSON
from sf_quantum.samplers.reduction import Quadratic, Reduction, exclusions
from sf_quantum.samplers.states import Bits, bits_of

# Variables of a part that is solved by enumeration: 65,536 states take 5 ms.
ENUMERATED = 16


def verdict(
    binary: BinaryQuadraticModel,
    problem: Quadratic,
    reduction: Reduction,
    samples: SampleSet,
    *,
    proven: bool,
) -> dict[str, JSON]:
    """Assess samples.

    :param binary: the whole problem, with binary variables
    :param problem: the same problem, indexed by position
    :param reduction: the problem's :func:`~sf_quantum.samplers.reduction.reduce`
    :param proven: whether the sampler proves that its best sample is an optimum
    :returns: ``energy``, the lowest; ``feasible_share``, the share of reads without a
        pair of variables that exclude each other (``None`` if there is no such pair);
        ``optimum`` and ``optimal_share`` of the reads, both ``None`` unless the sampler
        proves the optimum, the presolve finds it, or all parts have at most 16
        variables and are enumerated
    """
    record = samples.record
    reads = int(record.num_occurrences.sum())
    lowest = float(record.energy.min()) if reads else None
    quality: dict[str, JSON] = {"energy": lowest, "feasible_share": None}
    pairs = exclusions(problem)
    if pairs and reads:
        feasible = _feasible(bits_of(samples, [*binary.variables]), pairs)
        quality["feasible_share"] = int(record.num_occurrences[feasible].sum()) / reads
    if proven and lowest is not None:
        optimum = lowest
    elif all(len(part) <= ENUMERATED for part in reduction.parts):
        optimum = _optimum(binary, reduction)
    else:
        return quality | {"optimum": None, "optimal_share": None}
    optimal = record.energy <= optimum + problem.tie
    share = int(record.num_occurrences[optimal].sum()) / reads if reads else None
    return quality | {"optimum": optimum, "optimal_share": share}


def _feasible(rows: Bits, pairs: list[tuple[int, int]]) -> NDArray[np.bool_]:
    # a matrix product, since there may be a million pairs
    matrix = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
    matrix[tuple(np.array(pairs).T)] = 1
    both = (rows.astype(np.float32) @ matrix) * rows
    return np.asarray(~both.any(axis=1))


def _optimum(binary: BinaryQuadraticModel, reduction: Reduction) -> float:
    """Enumerate all states of each part, and return the lowest energy of the whole."""
    left = reduction.left
    values = {**reduction.fixed, **dict.fromkeys(reduction.free, 0)}
    for part in reduction.parts:
        energies = np.zeros(1)
        for count, i in enumerate(part):
            # the energy that x_i = 1 adds to each state of the variables so far
            added = np.full(1, left.linear[i])
            for j in part[:count]:
                added = np.concatenate([added, added + left.pairs[i].get(j, 0.0)])
            energies = np.concatenate([energies, energies + added])
        best = int(energies.argmin())
        values |= {i: best >> number & 1 for number, i in enumerate(part)}
    state = {label: values[i] for i, label in enumerate(binary.variables)}
    return float(binary.energy(state))
