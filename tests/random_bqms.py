"""Random small BQMs, and what exact arithmetic says of their states."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise, product
from random import Random

from dimod import BinaryQuadraticModel, SampleSet, Vartype

#: fractions of the annealing of :func:`boltzmann`'s tests are those of this schedule
_SCALES = (1.0, 1e-3, 1e6)


def random_bqm(number: int, variables: int = 6) -> BinaryQuadraticModel:
    """Return a random BQM; each number makes another.

    There are spins and binaries, biases that are integers, fractions of a power of two or
    neither, offsets, variables without a bias, and ones that no other interacts with.
    """
    random = Random(number)
    vartype = (Vartype.SPIN, Vartype.BINARY)[number % 2]
    scale = _SCALES[number % 3]

    def bias() -> float:
        integer, quarter = random.randint(-3, 3), random.randint(-9, 9) / 4
        return scale * random.choice((integer, quarter, random.uniform(-2, 2)))

    names: list[str | int] = [*range(variables)]
    if number % 4 > 1:
        names = [f"x{n}" for n in random.sample(range(variables), variables)]
    bqm = BinaryQuadraticModel(vartype)
    for name in names:
        bqm.add_variable(name, bias() if random.randrange(4) else 0.0)
    for first, second in pairwise(names):
        if random.randrange(4):
            bqm.add_quadratic(first, second, bias())
    for _ in range(variables // 2):
        bqm.add_quadratic(*random.sample(names, 2), bias())
    if random.randrange(2):
        bqm.offset = random.choice((0.1, 1e6 + 0.1, -7.0)) * scale
    return bqm


def energy(bqm: BinaryQuadraticModel, state: Mapping[str | int, int]) -> Fraction:
    """Compute an energy in rational arithmetic, with the biases as they are stored."""
    total = Fraction(float(bqm.offset))
    for name, bias in bqm.linear.items():
        total += Fraction(float(bias)) * int(state[name])
    for (one, other), bias in bqm.quadratic.items():
        total += Fraction(float(bias)) * int(state[one]) * int(state[other])
    return total


def states(bqm: BinaryQuadraticModel) -> Iterator[dict[str | int, int]]:
    """Return all states."""
    values = (-1, 1) if bqm.vartype is Vartype.SPIN else (0, 1)
    names = [*bqm.variables]
    for state in product(values, repeat=len(names)):
        yield dict(zip(names, state, strict=True))


def wrong_energies(bqm: BinaryQuadraticModel, samples: SampleSet) -> list[str]:
    """Return the samples whose energy is not that of the problem, to its rounding errors.

    :raises AssertionError: if the samples are of other variables, or have other values
    """
    assert {*samples.variables} == {*bqm.variables}
    assert samples.vartype is bqm.vartype
    names = [*samples.variables]
    terms = [float(bqm.offset), *bqm.linear.values(), *bqm.quadratic.values()]
    # each of so many sums and products is rounded once, also in a change of the vartype
    error = 8 * len(terms) * sys.float_info.epsilon * math.fsum(map(abs, terms))
    wrong = []
    for row, told in zip(samples.record.sample, samples.record.energy, strict=True):
        exact = energy(bqm, dict(zip(names, map(int, row), strict=True)))
        if abs(Fraction(float(told)) - exact) > error:
            wrong.append(f"{row.tolist()}: {told} for {float(exact)}")
    return wrong


def boltzmann(bqm: BinaryQuadraticModel, beta: float) -> dict[str, float]:
    """Return the probabilities of the states, by their values in the order of variables."""
    energies = {
        "".join("1" if value > 0 else "0" for value in state.values()): float(
            energy(bqm, state)
        )
        for state in states(bqm)
    }
    least = min(energies.values())
    weights = {bits: math.exp(-beta * (e - least)) for bits, e in energies.items()}
    total = math.fsum(weights.values())
    return {bits: weight / total for bits, weight in weights.items()}
