"""What reads are worth: energy, feasibility, and the optimum where it is known."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray

from sf_quantum.files import JSON
from sf_quantum.samplers.reduction import Quadratic, Reduction, exclusions
from sf_quantum.samplers.states import Bits, bits_of

# Variables of a part whose states are all tried: 65,536 states take 5 ms.
TRIED = 16


def verdict(
    binary: BinaryQuadraticModel,
    problem: Quadratic,
    found: Reduction,
    samples: SampleSet,
    *,
    proven: bool,
) -> dict[str, JSON]:
    """Judge samples.

    :param binary: the whole problem, of bits
    :param problem: the same, by numbers
    :param found: what :func:`~sf_quantum.samplers.reduction.reduce` made of it
    :param proven: whether the sampler proves that its best is the optimum
    :returns: ``energy``, the lowest; ``feasible_share`` of the reads, those that have no
        two variables which no optimum has both of (``None`` if there are no such two);
        ``optimum`` and ``optimal_share`` of the reads, ``None`` where no one knows the
        optimum: neither the sampler, nor the presolve, nor who tries all states of parts
        of up to 16 variables
    """
    record = samples.record
    reads = int(record.num_occurrences.sum())
    lowest = float(record.energy.min()) if reads else None
    told: dict[str, JSON] = {"energy": lowest, "feasible_share": None}
    pairs = exclusions(problem)
    if pairs and reads:
        feasible = _feasible(bits_of(samples, [*binary.variables]), pairs)
        told["feasible_share"] = int(record.num_occurrences[feasible].sum()) / reads
    if proven and lowest is not None:
        optimum = lowest
    elif all(len(part) <= TRIED for part in found.parts):
        optimum = float(binary.energy(_best(binary, found)))
    else:
        return told | {"optimum": None, "optimal_share": None}
    optimal = record.energy <= optimum + problem.tie
    share = int(record.num_occurrences[optimal].sum()) / reads if reads else None
    return told | {"optimum": optimum, "optimal_share": share}


def _feasible(rows: Bits, pairs: list[tuple[int, int]]) -> NDArray[np.bool_]:
    # a product of matrices, since there may be a million pairs
    matrix = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
    matrix[tuple(np.array(pairs).T)] = 1
    both = (rows.astype(np.float32) @ matrix) * rows
    return np.asarray(~both.any(axis=1))


def _best(binary: BinaryQuadraticModel, found: Reduction) -> dict[object, int]:
    values = {**found.fixed, **dict.fromkeys(found.free, 0)}
    for part in found.parts:
        values.update(zip(part, minimum(found.left, part), strict=True))
    return {label: values[i] for i, label in enumerate(binary.variables)}


def minimum(left: Quadratic, part: list[int]) -> Iterable[int]:
    """Try every state of a part.

    :returns: the bits of the best, in the order of the part
    """
    energies = np.zeros(1)
    for count, i in enumerate(part):
        # of the variables so far: what x_i = 1 adds to each of their states
        added = np.full(1, left.linear[i])
        for j in part[:count]:
            added = np.concatenate([added, added + left.pairs[i].get(j, 0.0)])
        energies = np.concatenate([energies, energies + added])
    best = int(energies.argmin())
    return [best >> number & 1 for number in range(len(part))]
