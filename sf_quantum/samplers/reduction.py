"""The reduction of a QUBO: variables on which all optima agree, and independent parts.

Only conclusions that hold in *every* optimum are used, so the reduced problem has exactly the
optima of the whole problem, ties included. With the energy

    f(x) = sum_i a_i x_i + sum_{i<j} b_ij x_i x_j,    x_i in {0, 1},

write u+ for max(u, 0) and u- for max(-u, 0). If a move lowers the energy of a state, that
state is not an optimum. Three rules follow, each with a strict inequality:

1. Flipping i changes f by ``d = a_i + sum_k b_ik x_k`` (up) or ``-d`` (down), and d is
   between ``a_i - sum_k b_ik-`` and ``a_i + sum_k b_ik+``. If the minimum of d is positive,
   x_i = 0 in every optimum; if the maximum is negative, x_i = 1. A candidate without any
   overlap is the special case in which all b_ik are 0.
2. i and j exclude each other if no optimum has both. Removing j from a state that has
   both changes f by ``-(a_j + b_ij + sum_{k != i} b_jk x_k)``, which is negative if
   ``a_j + b_ij - sum_{k != i} b_jk- > 0``; the same holds with i and j exchanged.
3. Let S be a set of variables that j excludes, with no positive b between them, and take
   an optimum with x_j = 1. In this optimum, all variables that j excludes are 0, including S.
   Now remove j and add all of S. Removing j costs at most ``-a_j + sum_k b_jk-``; adding i
   costs at most ``-g_i`` with ``g_i = -a_i - sum b_ik+``, summed over the k that j does not
   exclude. If ``sum_S g_i`` is greater than the cost of removing j, the state was not an
   optimum, so x_j = 0 in every optimum. In terms of candidates whose overlaps are forbidden by
   penalties: j is dropped if it is strictly lighter than a set of candidates that overlap with
   j, but neither with each other nor with any candidate that does not overlap with j.

The rules are applied again after a variable has been fixed, since the optima of the remaining
problem are the optima of the whole problem without that variable.

All computations use whole numbers. A double is a rational number, so the energies of a problem
are multiples of a unit, and ties are exact: no tolerance is needed, even with large penalties.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import copysign, gcd, inf, lcm

# Total steps of rule 3, about half a second: enough for 500 candidates of clusterings. After
# this limit, only the other rules are applied.
EFFORT = 2_000_000


@dataclass(frozen=True)
class Quadratic:
    """A quadratic function of bits in whole numbers, indexed by position.

    :param linear: linear biases, a
    :param pairs: quadratic biases, b, stored twice: for each variable, by the other variable
    :param unit: value that the whole number 1 represents
    :param offset: constant term, which :meth:`energy` does not include
    """

    linear: list[int]
    pairs: list[dict[int, int]]
    unit: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)

    @classmethod
    def of(
        cls,
        linear: Sequence[float | Fraction],
        pairs: Sequence[tuple[int, int, float | Fraction]],
        offset: float | Fraction = 0,
    ) -> Quadratic:
        """Build from biases without rounding; the biases of a repeated pair are added."""
        ratios = [bias.as_integer_ratio() for bias in linear]
        ratios += [bias.as_integer_ratio() for _, _, bias in pairs]
        common = lcm(*{denominator for _, denominator in ratios})
        biases = [number * (common // denominator) for number, denominator in ratios]
        quadratic = cls(
            biases[: len(linear)], [{} for _ in linear], Fraction(1, common)
        )
        for (i, j, _), bias in zip(pairs, biases[len(linear) :], strict=True):
            quadratic.pairs[i][j] = quadratic.pairs[j][i] = (
                quadratic.pairs[i].get(j, 0) + bias
            )
        constant = Fraction(*offset.as_integer_ratio())
        return replace(quadratic, offset=constant)._in_largest_unit()

    @property
    def of_spins(self) -> Quadratic:
        """The equivalent function of bits x, if this is a function of the spins 2x - 1."""
        sums = [sum(row.values()) for row in self.pairs]
        linear = [2 * (h - row) for h, row in zip(self.linear, sums, strict=True)]
        pairs = [{j: 4 * b for j, b in row.items()} for row in self.pairs]
        # each pair is in two rows, so its bias is counted twice in the sums
        constant = self.unit * (sum(sums) // 2 - sum(self.linear))
        bits = Quadratic(linear, pairs, self.unit, self.offset + constant)
        return bits._in_largest_unit()

    def _in_largest_unit(self) -> Quadratic:
        step = gcd(*self.linear, *(b for row in self.pairs for b in row.values()))
        if step <= 1:
            return self
        linear = [a // step for a in self.linear]
        pairs = [{j: b // step for j, b in row.items()} for row in self.pairs]
        return Quadratic(linear, pairs, self.unit * step, self.offset)

    def part(self, variables: Sequence[int]) -> Quadratic:
        """Keep some variables, numbered in their order, without the constant term."""
        place = {i: number for number, i in enumerate(variables)}
        pairs = [
            {place[j]: b for j, b in self.pairs[i].items() if j in place}
            for i in variables
        ]
        return Quadratic([self.linear[i] for i in variables], pairs, self.unit)

    @property
    def interactions(self) -> Iterator[tuple[int, int, int]]:
        """Each pair with a bias other than 0 once: smaller index, larger index, b."""
        for i, row in enumerate(self.pairs):
            yield from ((i, j, bias) for j, bias in row.items() if i < j and bias)

    def energy(self, bits: Sequence[int]) -> int:
        """Evaluate the function in its unit, without the constant term."""
        ones = [i for i, bit in enumerate(bits) if bit]
        pairs = sum(self.pairs[i].get(j, 0) for i in ones for j in ones if i < j)
        return sum(self.linear[i] for i in ones) + pairs

    def value(self, energy: int) -> float:
        """Round an energy, with the constant term, to the closest double."""
        whole = energy * self.unit + self.offset
        try:
            return float(whole)
        except OverflowError:
            return copysign(inf, whole)


@dataclass(frozen=True)
class Reduction:
    """The decided variables of a problem, and the remaining problem.

    :param fixed: values of the variables that have the same value in every optimum
    :param free: variables that no longer affect the energy
    :param parts: remaining variables, in parts that share no interaction
    :param left: biases of the remaining problem, after insertion of the fixed values
    """

    fixed: dict[int, int]
    free: list[int]
    parts: list[list[int]]
    left: Quadratic


def reduce(problem: Quadratic) -> Reduction:
    """Fix the variables on which all optima agree, and split the rest into parts."""
    work = _Reducer(problem)
    left, fixed = work.left, work.fixed
    waiting = OrderedDict.fromkeys(range(len(left.linear)))
    while waiting:
        i, _ = waiting.popitem(last=False)
        value = work.value(i)
        if value is None:
            continue
        # a rule depends on neighbours up to distance two
        near = {*left.pairs[i]}
        near |= {k for j in near for k in left.pairs[j]}
        work.fix(i, value)
        waiting.update(dict.fromkeys(k for k in sorted(near) if k not in fixed))
    parts = [*_parts(left, (i for i in range(len(left.linear)) if i not in fixed))]
    free = [part[0] for part in parts if len(part) == 1]
    return Reduction(fixed, free, [part for part in parts if len(part) > 1], left)


def focused(problem: Quadratic, reduction: Reduction, size: int) -> Reduction:
    """Open one part of a completely decided problem again.

    :param reduction: a reduction without parts
    :param size: maximum number of variables; the part is the largest component, cut to this
        size
    :returns: the part, with all other variables fixed as in an optimum; variables that
        are free and do not interact with the part stay free
    """
    parts = _parts(problem, range(len(problem.linear)))
    part = max(parts, key=len, default=[])[:size]
    inside = {*part}
    free = [i for i in reduction.free if not inside & {i, *problem.pairs[i]}]
    decided = dict.fromkeys({*reduction.free} - {*free}, 0) | reduction.fixed
    work = _Reducer(problem)
    for i in decided.keys() - inside:
        work.fix(i, decided[i])
    return Reduction(work.fixed, free, [part], work.left)


def exclusions(problem: Quadratic) -> list[tuple[int, int]]:
    """Find the pairs that exclude each other by rule 2, as (smaller, larger) index."""
    work = _Reducer(problem)
    return [(i, j) for i, j, _ in work.left.interactions if work.exclude(i, j)]


class _Reducer:
    """The remaining problem, and the rules that reduce it.

    :ivar gain: sum of the absolute negative biases of each variable's pairs
    """

    def __init__(self, problem: Quadratic) -> None:
        pairs = [{k: b for k, b in row.items() if b} for row in problem.pairs]
        self.left = replace(problem, linear=[*problem.linear], pairs=pairs)
        self.fixed: dict[int, int] = {}
        self.gain = [sum(-b for b in row.values() if b < 0) for row in pairs]
        self.effort = EFFORT

    def value(self, i: int) -> int | None:
        """Return a variable's value in every optimum by rules 1 and 3; ``None`` if unknown."""
        linear = self.left.linear[i]
        if linear > self.gain[i]:
            return 0
        losses = sum(b for b in self.left.pairs[i].values() if b > 0)
        if linear + losses < 0:
            return 1
        return 0 if self._outdone(i) else None

    def fix(self, i: int, value: int) -> None:
        """Insert the value of a variable into the remaining problem."""
        self.fixed[i] = value
        for k, bias in self.left.pairs[i].items():
            del self.left.pairs[k][i]
            self.left.linear[k] += value * bias
            self.gain[k] -= max(-bias, 0)
        self.left.pairs[i] = {}

    def _outdone(self, j: int) -> bool:
        """Return whether rule 3 drops j, with an S that is chosen greedily by weight."""
        row = self.left.pairs[j]
        self.effort -= len(row) + sum(len(self.left.pairs[i]) for i in row)
        if self.effort < 0:
            return False
        excluded = {i for i in row if self.exclude(i, j)}
        gains = {i: self._gain(i, excluded | {j}) for i in excluded}
        cost = -self.left.linear[j] + self.gain[j]
        chosen: list[int] = []
        for i in sorted(gains, key=lambda i: (-gains[i], i)):
            if gains[i] <= 0:
                break
            if all(self.left.pairs[i].get(k, 0) <= 0 for k in chosen):
                chosen.append(i)
        return sum(gains[i] for i in chosen) > cost

    def exclude(self, i: int, j: int) -> bool:
        """Return whether two variables exclude each other by rule 2."""
        bias = self.left.pairs[i][j]
        if bias <= 0:
            return False
        return any(self.left.linear[k] + bias > self.gain[k] for k in (i, j))

    def _gain(self, i: int, without: set[int]) -> int:
        """Return g_i of rule 3, where ``without`` is j and all that j excludes."""
        row = self.left.pairs[i].items()
        return -self.left.linear[i] - sum(
            b for k, b in row if b > 0 and k not in without
        )


def _parts(left: Quadratic, alive: Iterable[int]) -> Iterable[list[int]]:
    seen: set[int] = set()
    for start in alive:
        if start in seen:
            continue
        part, waiting = {start}, [start]
        while waiting:
            new = left.pairs[waiting.pop()].keys() - part
            part |= new
            waiting += new
        seen |= part
        yield sorted(part)
