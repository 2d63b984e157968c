"""Random small BQMs, and what exact arithmetic says of their states."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, product
from random import Random

import numpy
from dimod import BinaryQuadraticModel, SampleSet, Vartype

#: fractions of the annealing of :func:`boltzmann`'s tests are those of this schedule
_SCALES = (1.0, 1e-3, 1e6)
#: added to costs of about 1; published QUBOs have coefficients up to 1e18
PENALTIES = (1.0, 10.0, 1e3, 1e6, 1e9, 1e10 / 3, 1e12, 1e15, 1e18)


def random_bqm(
    number: int,
    variables: int = 6,
    graph: Mapping[int, Collection[int]] | None = None,
    *,
    penalty: float | None = None,
) -> BinaryQuadraticModel:
    """Return a random BQM; each number makes another.

    There are spins and binaries, biases that are integers, fractions of a power of two or
    neither, offsets, variables without a bias, and ones that no other interacts with.

    :param graph: neighbours of each qubit; if given, the variables are connected qubits,
        and only coupled ones interact
    :param penalty: added to a third of the biases
    """
    random = Random(number)
    vartype = (Vartype.SPIN, Vartype.BINARY)[number % 2]
    scale = _SCALES[number % 3] if penalty is None else 1.0

    def bias() -> float:
        return _penalty(random, penalty) + scale * _cost(random)

    names: list[str | int] = [*range(variables)]
    if graph is not None:
        names = [*_connected(random, graph, variables)]
    elif number % 4 > 1:
        names = [f"x{n}" for n in random.sample(range(variables), variables)]
    bqm = BinaryQuadraticModel(vartype)
    for name in names:
        bqm.add_variable(name, bias() if random.randrange(4) else 0.0)
    pairs = [*pairwise(names)]
    if graph is not None:
        coupled = combinations([*map(int, names)], 2)
        pairs = [(one, other) for one, other in coupled if other in graph[one]]
    for first, second in pairs:
        if random.randrange(4):
            bqm.add_quadratic(first, second, bias())
    for _ in range(variables // 2 if graph is None else 0):
        bqm.add_quadratic(*random.sample(names, 2), bias())
    if random.randrange(2):
        bqm.offset = random.choice((0.1, 1e6 + 0.1, -7.0)) * scale
    return bqm


def _cost(random: Random) -> float:
    integer, quarter = random.randint(-3, 3), random.randint(-9, 9) / 4
    return random.choice((integer, quarter, random.uniform(-2, 2)))


def _penalty(random: Random, penalty: float | None) -> float:
    if penalty is None or random.randrange(3):
        return 0.0
    return penalty * random.choice((1, 3, random.uniform(1, 2)))


def _connected(
    random: Random, graph: Mapping[int, Collection[int]], number: int
) -> list[int]:
    """Choose qubits each of which is coupled to one before it."""
    chosen = [random.choice(sorted(graph))]
    while len(chosen) < number:
        near = {one for qubit in chosen for one in graph[qubit]} - {*chosen}
        chosen.append(random.choice(sorted(near)))
    return chosen


def exact(bqm: BinaryQuadraticModel) -> Callable[[Mapping[str | int, int]], Fraction]:
    """Return the energy of a state in rational arithmetic, with the biases as they are stored.

    Their denominators are powers of two, so all are integers in units of the smallest.
    """
    linear = [(Fraction(float(bias)), name) for name, bias in bqm.linear.items()]
    quadratic = [(Fraction(float(bias)), *pair) for pair, bias in bqm.quadratic.items()]
    offset = Fraction(float(bqm.offset))
    biases = [offset, *(one[0] for one in linear), *(one[0] for one in quadratic)]
    unit = max(bias.denominator for bias in biases)
    ones = [(int(bias * unit), name) for bias, name in linear]
    pairs = [(int(bias * unit), one, other) for bias, one, other in quadratic]

    def energy(state: Mapping[str | int, int]) -> Fraction:
        total = int(offset * unit) + sum(bias * state[name] for bias, name in ones)
        total += sum(bias * state[one] * state[other] for bias, one, other in pairs)
        return Fraction(total, unit)

    return energy


def states(bqm: BinaryQuadraticModel) -> Iterator[dict[str | int, int]]:
    """Return all states."""
    values = (-1, 1) if bqm.vartype is Vartype.SPIN else (0, 1)
    names = [*bqm.variables]
    for state in product(values, repeat=len(names)):
        yield dict(zip(names, state, strict=True))


def wrong_energies(
    bqm: BinaryQuadraticModel, samples: SampleSet, added: float = 0.0
) -> list[str]:
    """Return the samples whose energy is not the closest double to that of the problem.

    :param added: constant term that a reader has added to the closest double of the rest
    :raises AssertionError: if the samples are of other variables, or have other values
    """
    assert {*samples.variables} == {*bqm.variables}
    assert samples.vartype is bqm.vartype
    names, energy = [*samples.variables], exact(bqm)
    wrong = []
    for row, told in zip(samples.record.sample, samples.record.energy, strict=True):
        here = energy(dict(zip(names, map(int, row), strict=True)))
        expected = float(here - Fraction(added)) + added
        if float(told) != expected:
            wrong.append(f"{row.tolist()}: {told!r} for {expected!r}")
    return wrong


def boltzmann(bqm: BinaryQuadraticModel, beta: float) -> dict[str, float]:
    """Return the probabilities of the states, by their values in the order of variables."""
    energy = exact(bqm)
    energies = {
        "".join("1" if value > 0 else "0" for value in state.values()): float(
            energy(state)
        )
        for state in states(bqm)
    }
    least = min(energies.values())
    weights = {bits: math.exp(-beta * (e - least)) for bits, e in energies.items()}
    total = math.fsum(weights.values())
    return {bits: weight / total for bits, weight in weights.items()}


def annealed(
    bqm: BinaryQuadraticModel,
    betas: Sequence[float],
    start: Mapping[str | int, int] | None = None,
) -> dict[str, float]:
    """Return the probabilities of the states after an annealing, keyed as in boltzmann().

    The distribution is multiplied by the transition probabilities of Metropolis's rule,
    for each variable in the order of the BQM, once per inverse temperature.

    :param start: state of all reads; by default each state is as likely as another
    """
    every = [*states(bqm)]
    energies = numpy.array([*map(float, map(exact(bqm), every))])
    shares = numpy.full(len(every), 1 / len(every))
    if start is not None:
        shares = numpy.array([float(state == start) for state in every])
    index = numpy.arange(len(every))
    variables = len(bqm.variables)
    for beta in betas:
        for variable in range(variables):
            # states() counts in binary, and its first variable is the highest bit
            flipped = index ^ (1 << (variables - 1 - variable))
            rise = numpy.maximum(energies[flipped] - energies, 0.0)
            moving = shares * numpy.exp(-beta * rise)
            shares = shares - moving + moving[flipped]
    bits = ["".join("1" if value > 0 else "0" for value in s.values()) for s in every]
    return dict(zip(bits, shares.tolist(), strict=True))
