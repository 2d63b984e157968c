"""The proven optimum: an integer program solved by HiGHS (https://highs.dev)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import ClassVar

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from highspy import Highs, HighsModelStatus, HighsVarType, SolutionStatus, kHighsInf

from sf_quantum.files import JSON
from sf_quantum.samplers.parameters import (
    CheckedSampler,
    check,
    check_number,
    seeded,
)
from sf_quantum.samplers.reduction import Quadratic, exclusions
from sf_quantum.samplers.states import as_binary, quadratic, sample_set

READS = 1000
TIME_LIMIT = 30.0
# HiGHS proves an optimum up to 1e-6. With the greatest gain scaled to this, that is
# 1e-9 of it, the difference that counts as a tie.
_SCALE = 1000.0


class ExactSampler(CheckedSampler):
    """All optima, with a proof that no state has a lower energy.

    Pairs of variables that exclude each other become rows "at most one of these", one
    row for each clique, which makes independent sets of hundreds of candidates easy.
    Every other interaction gets an auxiliary variable for its product. Each optimum
    found is cut off by a further row, until the best remaining state is worse.
    """

    checks: ClassVar[dict[str, Callable[[str, JSON], None]]] = {
        "num_reads": partial(check, least=1),
        "time_limit": partial(check_number, above=0),
    }
    #: samples are distinct states, not reads
    more: ClassVar[dict[str, JSON]] = {"distinct": True}

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
        ``bound`` of all energies, and whether the list of optima is ``complete``. If
        the time does not suffice, the result is the best state found, unproven.

        :param num_reads: maximum number of optima
        :param seed: HiGHS's random seed, which decides which optima are found first
        :param time_limit: seconds for the whole problem
        :raises InputError: if a parameter is out of range
        """
        self.check_parameters(num_reads=num_reads, time_limit=time_limit)
        seed = seeded(seed)
        binary = as_binary(bqm)
        search = _Search(quadratic(binary), seed, time.monotonic() + time_limit)
        search.run(num_reads)
        samples = sample_set(np.array(search.states, np.int8), bqm)
        samples.info.update(
            sampler="exact",
            seed=seed,
            reads=num_reads,
            time_limit=time_limit,
            proven=search.proven,
            complete=search.complete,
            bound=search.bound + float(binary.offset),
        )
        return samples


class _Search:
    """An integer program from which optima are cut off one by one.

    :param until: deadline on the monotonic clock
    """

    def __init__(self, problem: Quadratic, seed: int, until: float) -> None:
        self.states: list[list[int]] = []
        self.proven = self.complete = False
        self.bound = sum(min(a, 0.0) for a in problem.linear) + sum(
            min(b, 0.0) / 2 for row in problem.pairs for b in row.values()
        )
        self._problem = problem
        self._until = until
        self._tie = problem.tie
        self._scale = _SCALE / (problem.deepest or 1.0)
        self._highs = _program(problem, self._scale)
        self._highs.setOptionValue("random_seed", seed)

    def run(self, most: int) -> None:
        """Find optima until there are no more, ``most`` are found, or time is up."""
        lowest = 0.0
        final = True
        while final:
            state, final = self._solve()
            if state is None:
                break
            energy = self._problem.energy(state)
            if not self.states:
                lowest, self.proven = energy, final
                dual_bound = float(self._highs.getInfo().mip_dual_bound) / self._scale
                self.bound = energy if final else max(self.bound, dual_bound)
            elif energy > lowest + self._tie:
                break
            elif len(self.states) == most:
                return
            self.states.append(state)
            # at least one bit differs: sum_{x=0} x_i + sum_{x=1} (1 - x_i) >= 1
            signs = {i: 1.0 - 2.0 * value for i, value in enumerate(state)}
            _add_row(self._highs, 1.0 - sum(state), kHighsInf, signs)
        self.complete = final
        # out of time before any state was found: the zero state is always feasible
        self.states = self.states or [[0] * len(self._problem.linear)]

    def _solve(self) -> tuple[list[int] | None, bool]:
        """Return the best remaining state, and whether the time sufficed."""
        left = self._until - time.monotonic()
        if left <= 0:
            return None, False
        # HiGHS counts the time of all its runs
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + left)
        self._highs.run()
        status = self._highs.getModelStatus()
        final = status != HighsModelStatus.kTimeLimit
        solution = self._highs.getInfo().primal_solution_status
        feasible = solution == SolutionStatus.kSolutionStatusFeasible
        if status == HighsModelStatus.kInfeasible or not feasible:
            return None, final
        values = self._highs.getSolution().col_value[: len(self._problem.linear)]
        return [round(value) for value in values], final


def _program(problem: Quadratic, scale: float) -> Highs:
    highs = Highs()  # type: ignore[no-untyped-call]
    highs.silent()
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("threads", 1)
    count = len(problem.linear)
    apart = {*exclusions(problem)}
    products = [each for each in problem.interactions if each[:2] not in apart]
    biases = np.array([*problem.linear, *(bias for _, _, bias in products)])
    # penalties above the sum of all gains are reduced, which improves the conditioning
    gains = -float(biases[biases < 0].sum())
    biases = np.minimum(biases, 2 * gains) if gains else np.sign(biases)
    size = len(biases)
    highs.addVars(size, np.zeros(size), np.ones(size))
    columns = np.arange(size, dtype=np.int32)
    highs.changeColsCost(size, columns, biases * scale)
    whole = np.full(count, HighsVarType.kInteger)
    highs.changeColsIntegrality(count, columns[:count], whole)
    for clique in _cliques(count, apart):
        _add_row(highs, -kHighsInf, 1.0, dict.fromkeys(clique, 1.0))
    for y, (i, j, bias) in enumerate(products, count):
        if bias > 0:
            _add_row(highs, -kHighsInf, 1.0, {i: 1.0, j: 1.0, y: -1.0})
        else:
            _add_row(highs, -kHighsInf, 0.0, {y: 1.0, i: -1.0})
            _add_row(highs, -kHighsInf, 0.0, {y: 1.0, j: -1.0})
    return highs


def _add_row(
    highs: Highs, least: float, most: float, terms: Mapping[int, float]
) -> None:
    """Bound a sum of columns.

    :param terms: the factor of each column
    """
    columns, factors = np.array([*terms], np.int32), np.array([*terms.values()])
    highs.addRow(least, most, len(terms), columns, factors)


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
