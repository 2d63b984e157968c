"""All optima, with a proof, from an integer program that HiGHS (https://highs.dev) solves.

HiGHS computes with doubles, so its bounds hold only up to its tolerances. Each bound is
therefore weakened by a margin, and all energies are compared in whole numbers:

- The solution of an integer program may violate the bounds, constraints and integrality of
  its variables by ``_TOLERANCE``, and the dual solution that bounds the objective may violate
  its own constraints by as much. An objective is off by no more than the *margin*:
  ``_TOLERANCE`` times (1 + the sum of the absolute values of all coefficients). HiGHS's
  bound minus the margin is therefore a lower bound of the energies of all states that are
  not listed yet (see the next item). Since energies are multiples of a unit, the lower bound
  is rounded up to the next multiple.
- States are listed, lowest first, and each listed state is excluded from the next solve
  with a constraint, in HiGHS a *row*. When the lower bound for the other states exceeds the
  lowest listed energy, all optima are listed. Before the lower bound reaches the lowest listed
  energy, nothing is proven.
- With large penalties, small costs could vanish in the margin, so large penalties are reduced
  in a way that keeps the order of all states. If all large biases are close to multiples of a
  number, the *step*, each energy is a multiple of the step plus a small remainder. The factor
  of the step is the *first level* of the state. Any number above the difference between the
  largest and the smallest remainder may replace the step. This also works if the remainders
  are only rounding errors of decimal weights.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, combinations, islice, product
from typing import ClassVar

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from highspy import (
    Highs,
    HighsModelStatus,
    HighsSolution,
    HighsVarType,
    SolutionStatus,
    kHighsInf,
)

from sf_quantum.files import JSON
from sf_quantum.samplers.energies import rounded
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.samplers.parameters import (
    CheckedSampler,
    check,
    check_number,
    seeded,
)
from sf_quantum.samplers.reduction import Quadratic, exclusions
from sf_quantum.samplers.states import (
    all_energies,
    bits_of,
    energies,
    model,
    quadratic,
    sample_set,
)

# Largest number of variables for enumeration: a million states take 25 to 200 ms. HiGHS takes
# longer, and solves the program again for each optimum.
ENUMERATED = 20
READS = 1000
TIME_LIMIT = 30.0
#: values of ``info["incomplete"]``
MORE_OPTIMA = "there are more optima than num_reads"
OUT_OF_TIME = "time_limit was too short"
UNSOLVED = "HiGHS ended without a solution"
CLOSE = "energies are too close for HiGHS's tolerances"
# HiGHS's tolerances for bounds, rows, integrality and reduced costs
_TOLERANCE = 1e-9
# The largest gain (the largest absolute value of a negative bias) is scaled by a power of two,
# to less than 2**_SCALE_BITS and at least half of it.
_SCALE_BITS = 10
# Reads of the first annealing, before any solve by HiGHS, and of the second annealing, which
# follows the first solve that does not finish within the share _FIRST of the time limit.
_SHORT, _LONG = 10, 1000
# Largest shares of the time limit: _FIRST for the first annealing, and for each solve before
# the second annealing; _SECOND for the second annealing.
_FIRST, _SECOND = 0.1, 0.5


class ExactSampler(CheckedSampler):
    """All optima, with a proof that no state has a lower energy.

    Problems of up to 20 variables are enumerated. In larger problems, pairs of variables that
    exclude each other become rows "at most one of these", one row for each clique.
    Independent sets of hundreds of candidates are therefore easy. Every other interaction gets
    an auxiliary variable for its product. The search starts from the best state of a short
    simulated annealing, and never returns a worse state.
    """

    checks: ClassVar[dict[str, Callable[[str, JSON], None]]] = {
        "num_reads": partial(check, least=1, most=sys.maxsize),
        "time_limit": partial(check_number, above=0),
    }
    #: additional properties: samples are distinct states, not reads; biases may be fractions
    more: ClassVar[dict[str, JSON]] = {"distinct": True, "fractions": True}

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = READS,
        seed: int | None = None,
        time_limit: float = TIME_LIMIT,
    ) -> SampleSet:
        """List the optima, each once.

        ``info`` reports whether the energy is ``proven`` to be the lowest, a lower
        ``bound`` of all energies, the ``gap`` between the energy and the bound, whether the
        list of optima is ``complete``, and otherwise why it is ``incomplete``. If nothing
        can be proven in time, the result is the best state found.

        :param num_reads: maximum number of optima
        :param seed: seed of the annealing and of HiGHS; it determines which optima are
            found first
        :param time_limit: seconds for the whole problem
        :raises InputError: if a parameter is out of range
        """
        self.check_parameters(num_reads=num_reads, time_limit=time_limit)
        seed = seeded(seed)
        problem = quadratic(bqm)
        if len(problem.linear) <= ENUMERATED:
            result = _enumerated(problem, num_reads)
        else:
            result = _Search(problem, seed, time_limit).run(num_reads)
        samples = sample_set(np.array(result.states, np.int8), bqm, problem)
        gap = (result.energy - result.bound) * problem.unit
        bound = result.bound * problem.unit + problem.offset
        samples.info.update(
            sampler="exact",
            seed=seed,
            reads=num_reads,
            time_limit=time_limit,
            proven=not gap,
            complete=result.incomplete is None,
            incomplete=result.incomplete,
            bound=rounded(bound, -math.inf),
            gap=rounded(gap, math.inf),
        )
        return samples


@dataclass(frozen=True)
class _Found:
    """The states with the lowest energy found.

    :param energy: energy of these states, in the problem's unit
    :param bound: lower bound of the energies of all states
    :param incomplete: why optima may be missing
    """

    states: list[list[int]]
    energy: int
    bound: int
    incomplete: str | None


def _enumerated(problem: Quadratic, max_states: int) -> _Found:
    all_of_them = all_energies(problem)
    lowest = all_of_them.min()
    (numbers,) = np.nonzero(all_of_them == lowest)
    size = len(problem.linear)
    listed = numbers[:max_states].tolist()
    states = [[number >> i & 1 for i in range(size)] for number in listed]
    incomplete = MORE_OPTIMA if len(numbers) > max_states else None
    return _Found(states, int(lowest), int(lowest), incomplete)


class _Search:
    """A search that lists the states of lowest energy one by one.

    Each listed state is excluded from the integer program, which is then solved again. From
    each group of interchangeable variables, the program has only the first variable. An
    optimum of the program represents all states in which another variable of a group
    replaces the first.

    :param whole: the problem
    :param seconds: time limit
    """

    def __init__(self, whole: Quadratic, seed: int, seconds: float) -> None:
        self._size = len(whole.linear)
        self._twins = _twins(whole)
        self._problem = problem = whole.part([*self._twins])
        self._seed = seed
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._best: tuple[int, list[int]] = 0, [0] * len(problem.linear)
        self._annealed = False
        self._anneal(_SHORT, seconds * _FIRST)
        self._program = _Program(problem, seed)

    def run(self, max_states: int) -> _Found:
        """Find optima until none is left, ``max_states`` are found, or the time is up."""
        order = self._program.order
        bound = order.bound(_least(order.problem))
        listed: dict[tuple[int, ...], int] = {}
        reason: str | None = OUT_OF_TIME
        is_solved = True
        while is_solved:
            state, floor, is_solved = self._solve()
            if state is None and is_solved:
                bound = self._best[0] + 1  # all states are listed
            elif floor is not None:
                bound = max(bound, order.bound(floor))
            reason = self._reason(bound, listed, max_states, is_solved=is_solved)
            if state is None or reason != CLOSE or (*state,) in listed:
                break
            # the reason is CLOSE, so nothing is proven yet: list and exclude this state
            listed[*state,] = self._problem.energy(state)
            self._program.cut(state)
        energy = self._best[0]
        optima = [[*state] for state, each in listed.items() if each == energy]
        if sum(map(self._count, optima)) > max_states:
            reason = MORE_OPTIMA
        every = chain(*map(self._expanded, optima or [self._best[1]]))
        states = [*islice(every, max_states)]
        return _Found(states, energy, min(bound, energy), reason)

    def _reason(
        self,
        bound: int,
        listed: Mapping[tuple[int, ...], int],
        max_states: int,
        *,
        is_solved: bool,
    ) -> str | None:
        """Return why optima may be missing; ``None`` if all optima are listed.

        :param bound: lower bound of the energies of states that are not listed
        """
        lowest = self._best[0]
        if bound > lowest:
            return None
        if not is_solved:
            return OUT_OF_TIME if self._program.out_of_time else UNSOLVED
        optima = sum(self._count(s) for s, each in listed.items() if each == lowest)
        return MORE_OPTIMA if bound == lowest and optima > max_states else CLOSE

    def _count(self, state: Sequence[int]) -> int:
        """Count the states of the whole problem that a state of the program represents."""
        sizes = map(len, self._twins.values())
        return math.prod(n for n, bit in zip(sizes, state, strict=True) if bit)

    def _expanded(self, state: Sequence[int]) -> Iterator[list[int]]:
        """Yield the states of the whole problem that a state of the program represents."""
        classes = self._twins.values()
        chosen = [c for c, bit in zip(classes, state, strict=True) if bit]
        for ones in map(set, product(*chosen)):
            yield [int(i in ones) for i in range(self._size)]

    def _solve(self) -> tuple[list[int] | None, int | None, bool]:
        """Solve the program; the first solve that does not finish is repeated once.

        The repetition starts from the best state of an annealing.

        :returns: the best state, a lower bound of the objective, and whether the program is
            solved
        """
        left = self._until - time.monotonic()
        limit = left if self._annealed else min(left, self._seconds * _FIRST)
        state, floor, is_solved = self._program.solve(limit, self._best[1])
        if not is_solved and not self._annealed:
            self._annealed = True
            self._keep_best(state)
            left = self._until - time.monotonic()
            self._anneal(_LONG, min(left, self._seconds * _SECOND))
            left = self._until - time.monotonic()
            again, higher, is_solved = self._program.solve(left, self._best[1])
            state = again or state
            floors = [each for each in (floor, higher) if each is not None]
            floor = max(floors, default=None)
        self._keep_best(state)
        return state, floor, is_solved

    def _keep_best(self, state: list[int] | None) -> None:
        if state is not None:
            self._best = min(self._best, (self._problem.energy(state), state))

    def _anneal(self, reads: int, seconds: float) -> None:
        """Search for a better state with simulated annealing."""
        until = time.monotonic() + seconds
        labels = [*range(len(self._problem.linear))]
        bqm = model(self._problem, labels)
        annealer = NealSampler(lambda: time.monotonic() > until)
        samples = annealer.sample(bqm, num_reads=reads, seed=self._seed)
        rows = bits_of(samples, [*labels])
        exact = energies(self._problem, rows)
        lowest = min(exact)
        best = [*map(int, rows[exact.index(lowest)])]
        self._best = min(self._best, (lowest, best))


def _twins(problem: Quadratic) -> dict[int, list[int]]:
    """Group interchangeable variables, *twins*, of which at most one is 1 in an optimum.

    Twins exclude each other, have the same linear bias, and have the same quadratic bias with
    every other variable, like equal clusters of several clusterings. The energy of a state
    does not change if one twin replaces another.

    :returns: all variables of each group, by the group's first variable
    """
    first = [*range(len(problem.linear))]
    for i, j in exclusions(problem):
        if first[j] == j and problem.linear[i] == problem.linear[j]:
            rows = [
                {k: b for k, b in problem.pairs[one].items() if b and k != other}
                for one, other in ((i, j), (j, i))
            ]
            if rows[0] == rows[1]:
                first[j] = first[i]
    twins: dict[int, list[int]] = {}
    for i, representative in enumerate(first):
        twins.setdefault(representative, []).append(i)
    return twins


def _least(problem: Quadratic) -> int:
    """Add up all negative biases; the sum is a lower bound of all energies."""
    linear = sum(min(a, 0) for a in problem.linear)
    return linear + sum(min(b, 0) for _, _, b in problem.interactions)


def _total(problem: Quadratic) -> int:
    """Add up the absolute values of all biases, the largest difference of two energies."""
    linear = sum(map(abs, problem.linear))
    return linear + sum(abs(b) for _, _, b in problem.interactions)


@dataclass(frozen=True)
class _Order:
    """A problem with smaller biases, and with the same order of all states by energy.

    :param problem: the problem with smaller biases
    :param bound: function that converts a lower bound of the energies of ``problem`` to a
        lower bound of the original problem's energies
    """

    problem: Quadratic
    bound: Callable[[int], int]


def _ordered(problem: Quadratic) -> _Order:
    """Reduce large penalties as far as the order of all states certainly stays the same."""
    biases = [*problem.linear, *(b for _, _, b in problem.interactions)]
    step = _step(sorted({abs(b) for b in biases if b}, reverse=True), len(biases))

    def changed(of: Callable[[int], int]) -> Quadratic:
        pairs = [{j: of(b) for j, b in row.items()} for row in problem.pairs]
        return replace(problem, linear=[of(a) for a in problem.linear], pairs=pairs)

    rest = changed(lambda bias: bias - step * _nearest(bias, step))
    if not _total(rest) or _total(rest) >= step:
        return _Order(problem, lambda bound: bound)
    low = _ordered(rest)
    # the remainders of two states differ by less than this weight
    weight = _total(low.problem) + 1
    upper = changed(lambda bias: weight * _nearest(bias, step))
    linear = [a + b for a, b in zip(upper.linear, low.problem.linear, strict=True)]
    pairs = [
        {j: bias + below[j] for j, bias in row.items()}
        for row, below in zip(upper.pairs, low.problem.pairs, strict=True)
    ]
    highest = _total(low.problem) + _least(low.problem)

    def bound(lowest: int) -> int:
        # Any state whose reduced energy is at least `lowest` has at least this first level.
        first = -((highest - lowest) // weight)
        remaining = min(low.bound(lowest - weight * first), step + _least(rest))
        return step * first + remaining

    return _Order(replace(problem, linear=linear, pairs=pairs), bound)


def _step(sizes: list[int], count: int) -> int:
    """Find a large number such that all large biases are close to its multiples.

    :param sizes: absolute values of biases, in descending order
    :param count: number of biases; a remainder is small if ``count`` times the remainder is
        less than the step
    """
    if not sizes:
        return 1
    step = sizes[0]
    for size in sizes:
        if size * count < step:
            break
        high, low = step, size
        while low and abs(high - low * _nearest(high, low)) * count >= low:
            high, low = low, abs(high - low * _nearest(high, low))
        step = low or high
    # A large bias may be a penalty plus a small cost, so the step may include a cost. So each
    # large bias of about n steps yields another candidate, bias / n; the candidate with the
    # smallest sum of remainders is taken.
    near = {size // _nearest(size, step) for size in sizes if 2 * size > step}
    return min(near, key=lambda n: sum(abs(s - n * _nearest(s, n)) for s in sizes))


def _nearest(number: int, step: int) -> int:
    """Divide, and round to the nearest whole number."""
    return (2 * number + step) // (2 * step)


class _Program:
    """An integer program over the states in which no two mutually exclusive variables are 1.

    :ivar order: the problem with reduced biases, without the penalties of exclusive pairs
    :ivar out_of_time: whether the last solve ended at the time limit
    """

    def __init__(self, problem: Quadratic, seed: int) -> None:
        self.out_of_time = False
        apart = {*exclusions(problem)}
        count = len(problem.linear)
        pairs = [each for each in problem.interactions if each[:2] not in apart]
        rows: list[dict[int, int]] = [{} for _ in problem.linear]
        for i, j, bias in pairs:
            rows[i][j] = rows[j][i] = bias
        self.order = _ordered(replace(problem, pairs=rows))
        self._products = [(i, j) for i, j, _ in pairs]
        self._highs = _highs(seed)
        size = count + len(pairs)
        self._columns = np.arange(size, dtype=np.int32)
        self._highs.addVars(size, np.zeros(size), np.ones(size))
        whole = np.full(count, HighsVarType.kInteger)
        self._highs.changeColsIntegrality(count, self._columns[:count], whole)
        for clique in _cliques(count, apart):
            _add_row(self._highs, -kHighsInf, 1.0, dict.fromkeys(clique, 1.0))
        self._minimize()

    def _minimize(self) -> None:
        """Set the objective."""
        objective = self.order.problem
        products = [objective.pairs[i][j] for i, j in self._products]
        biases = [*objective.linear, *products]
        # without the penalties, energies may be multiples of a larger unit
        self._unit = math.gcd(*biases) or 1
        gains = -sum(b for b in biases if b < 0)
        # Penalties above twice the sum of all gains are reduced to that value, which improves
        # the conditioning. Without gains, optima are the same for all positive penalties.
        biases = [min(b, 2 * gains or self._unit) for b in biases]
        largest_gain = max((-b for b in biases), default=1)
        self._scale = Fraction(2) ** (_SCALE_BITS - max(largest_gain, 1).bit_length())
        costs = np.array([float(b * self._scale) for b in biases])
        self._margin = Fraction(_TOLERANCE * (1 + float(np.abs(costs).sum())))
        self._highs.changeColsCost(len(costs), self._columns, costs)
        for y, ((i, j), bias) in enumerate(
            zip(self._products, products, strict=True), len(objective.linear)
        ):
            if bias > 0:
                _add_row(self._highs, -kHighsInf, 1.0, {i: 1.0, j: 1.0, y: -1.0})
            else:
                _add_row(self._highs, -kHighsInf, 0.0, {y: 1.0, i: -1.0})
                _add_row(self._highs, -kHighsInf, 0.0, {y: 1.0, j: -1.0})

    def cut(self, state: list[int]) -> None:
        """Exclude a state: require that at least one bit differs from the state."""
        # sum_{x=0} x_i + sum_{x=1} (1 - x_i) >= 1
        signs = {i: 1.0 - 2.0 * value for i, value in enumerate(state)}
        _add_row(self._highs, 1.0 - sum(state), kHighsInf, signs)

    def solve(
        self, seconds: float, start: list[int]
    ) -> tuple[list[int] | None, int | None, bool]:
        """Find the best state.

        :param start: state from which to start, unless it is excluded
        :returns: the state, a lower bound of the objective, and whether the program is solved
        """
        self.out_of_time = seconds <= 0
        if self.out_of_time:
            return None, None, False
        highs = self._highs
        # HiGHS's time limit applies to the total time of all its runs
        highs.setOptionValue("time_limit", highs.getRunTime() + seconds)
        solution = HighsSolution()
        products = [start[i] * start[j] for i, j in self._products]
        solution.col_value = [*map(float, (*start, *products))]
        highs.setSolution(solution)
        highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        is_solved = status == HighsModelStatus.kOptimal
        self.out_of_time = status == HighsModelStatus.kTimeLimit
        if status == HighsModelStatus.kInfeasible:
            return None, None, True
        floor = None
        if math.isfinite(bound := float(info.mip_dual_bound)):
            units = (Fraction(bound) - self._margin) / self._scale / self._unit
            floor = math.ceil(units) * self._unit
        if info.primal_solution_status != SolutionStatus.kSolutionStatusFeasible:
            return None, floor, False
        values = highs.getSolution().col_value[: len(start)]
        return [round(value) for value in values], floor, is_solved


class _SilentHighs(Highs):
    """HiGHS without output: otherwise, its banner would be part of a command's output."""

    def enableCallbacks(self) -> None:
        # the constructor calls this method, which prints the banner (highspy 1.16)
        self.silent()
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def _highs(seed: int) -> Highs:
    highs = _SilentHighs()  # type: ignore[no-untyped-call]
    for name in ("mip_rel_gap", "mip_abs_gap"):
        highs.setOptionValue(name, 0.0)
    for kind in ("mip", "primal", "dual"):
        highs.setOptionValue(f"{kind}_feasibility_tolerance", _TOLERANCE)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", seed)
    return highs


def _add_row(
    highs: Highs, lower: float, upper: float, terms: Mapping[int, float]
) -> None:
    """Add bounds on a weighted sum of variables (in HiGHS, *columns*).

    :param terms: factor of each column, by the column's number
    """
    columns, factors = np.array([*terms], np.int32), np.array([*terms.values()])
    highs.addRow(lower, upper, len(terms), columns, factors)


def _cliques(count: int, pairs: set[tuple[int, int]]) -> Iterator[list[int]]:
    """Cover the edges of a graph with cliques, chosen greedily."""
    near: list[set[int]] = [set() for _ in range(count)]
    for i, j in pairs:
        near[i].add(j)
        near[j].add(i)
    covered: set[tuple[int, int]] = set()
    for i, j in sorted(pairs):
        if (i, j) in covered:
            continue
        clique = [i, j]
        common = near[i] & near[j]
        while common:
            k = max(common, key=lambda k: (len(common & near[k]), -k))
            clique.append(k)
            common &= near[k]
        clique.sort()
        covered.update(combinations(clique, 2))
        yield clique
