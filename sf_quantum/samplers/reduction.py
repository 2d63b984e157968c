"""The reduction of a QUBO: variables on which all optima agree, and independent parts.

Only conclusions that hold in *every* optimum are used, so
the reduced problem has exactly the optima of the whole problem, ties included. With the
energy

    f(x) = sum_i a_i x_i + sum_{i<j} b_ij x_i x_j,    x_i in {0, 1},

write u+ for max(u, 0) and u- for max(-u, 0). If a move lowers the energy of a state, that
state is not an optimum. Three rules follow, each with a strict inequality:

1. Flipping i changes f by ``d = a_i + sum_k b_ik x_k`` (up) or ``-d`` (down), and d is
   between ``a_i - sum_k b_ik-`` and ``a_i + sum_k b_ik+``. If the minimum of d is positive,
   x_i = 0 in every optimum; if the maximum is negative, x_i = 1. A candidate without any
   overlap is the special case without any b.
2. i and j exclude each other if no optimum has both. Removing j from a state that has
   both changes f by ``-(a_j + b_ij + sum_{k != i} b_jk x_k)``, which is negative if
   ``a_j + b_ij - sum_{k != i} b_jk- > 0``; the same holds with i and j exchanged.
3. Let S be a set of variables that j excludes, with no positive b between them, and take
   an optimum with x_j = 1. In it, all of S is 0, and so is everything else that j excludes.
   Now remove j and add all of S. Removing j costs at most ``-a_j + sum_k b_jk-``; adding i
   costs at most ``-g_i`` with ``g_i = -a_i - sum b_ik+``, summed over the k that j does not
   exclude. If ``sum_S g_i`` is greater than the cost of removing j, the state was not an
   optimum, so x_j = 0 in every optimum. With penalties that forbid overlaps: j is dropped
   if it is strictly lighter than a set of candidates that overlap with j, but neither with
   each other nor with anything that j does not overlap with.

The rules apply again after a variable has been fixed, since the remaining optima are those
of the whole problem without that variable.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

# Relative to the biases that make up low energies: energies that differ by less are a tie,
# since sums that are equal on paper may differ by rounding.
_TIE = 1e-9
# Total steps of rule 3, about half a second: enough for 500 candidates of clusterings. On
# larger problems only the other rules continue.
EFFORT = 2_000_000


@dataclass(frozen=True)
class Quadratic:
    """A quadratic function of bits, indexed by position.

    :param linear: a
    :param pairs: b, stored twice: for each variable, by the other variable
    """

    linear: list[float]
    pairs: list[dict[int, float]]

    @classmethod
    def of(
        cls, linear: Iterable[float], pairs: Iterable[tuple[int, int, float]]
    ) -> Quadratic:
        """Build from biases; those of a repeated pair are added."""
        made = cls([*linear], [])
        made.pairs.extend({} for _ in made.linear)
        for i, j, bias in pairs:
            made.pairs[i][j] = made.pairs[j][i] = made.pairs[i].get(j, 0.0) + bias
        return made

    @property
    def interactions(self) -> Iterator[tuple[int, int, float]]:
        """Each pair with a bias other than 0 once: smaller index, larger index, b."""
        for i, row in enumerate(self.pairs):
            yield from ((i, j, bias) for j, bias in row.items() if i < j and bias)

    @property
    def deepest(self) -> float:
        """The largest absolute value of a negative bias.

        It is the scale of low energies: a state below the all-zero state gains more than it
        pays, so penalties that outweigh every gain do not contribute.
        """
        biases = chain(self.linear, *(row.values() for row in self.pairs))
        return max(-min(biases, default=0.0), 0.0)

    @property
    def tie(self) -> float:
        """The difference below which two low energies are a tie."""
        return _TIE * self.deepest

    def energy(self, bits: Sequence[int]) -> float:
        """Evaluate the function."""
        ones = [i for i, bit in enumerate(bits) if bit]
        pairs = sum(self.pairs[i].get(j, 0.0) for i in ones for j in ones if i < j)
        return sum(self.linear[i] for i in ones) + pairs


@dataclass(frozen=True)
class Reduction:
    """The decided variables of a problem, and what is left to solve.

    :param fixed: variables with the same value in every optimum, and that value
    :param free: variables that no longer affect the energy
    :param parts: the remaining variables, in parts that share no interaction
    :param left: the biases of the remaining problem, with the fixed variables inserted
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
    :param size: maximum number of variables; the part is the largest component, cut to it
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
    """What is left of a problem, and the rules.

    :ivar gain: the negative biases of each variable's pairs, added up
    """

    def __init__(self, problem: Quadratic) -> None:
        pairs = [{k: b for k, b in row.items() if b} for row in problem.pairs]
        self.left = Quadratic([*problem.linear], pairs)
        self.fixed: dict[int, int] = {}
        self.tie = self.left.tie
        self.gain = [sum(-b for b in row.values() if b < 0) for row in pairs]
        self.effort = EFFORT

    def value(self, i: int) -> int | None:
        linear = self.left.linear[i]
        if linear - self.gain[i] > self.tie:
            return 0
        losses = sum(b for b in self.left.pairs[i].values() if b > 0)
        if linear + losses < -self.tie:
            return 1
        return 0 if self._outdone(i) else None

    def fix(self, i: int, value: int) -> None:
        self.fixed[i] = value
        for k, bias in self.left.pairs[i].items():
            del self.left.pairs[k][i]
            self.left.linear[k] += value * bias
            self.gain[k] -= max(-bias, 0.0)
        self.left.pairs[i] = {}

    def _outdone(self, j: int) -> bool:
        """Apply rule 3 with an S that is chosen greedily by weight."""
        row = self.left.pairs[j]
        self.effort -= len(row) + sum(len(self.left.pairs[i]) for i in row)
        if self.effort < 0:
            return False
        excluded = {i for i in row if self.exclude(i, j)}
        gains = {i: self._gain(i, excluded | {j}) for i in excluded}
        cost = -self.left.linear[j] + self.gain[j] + self.tie
        chosen: list[int] = []
        for i in sorted(gains, key=lambda i: (-gains[i], i)):
            if gains[i] <= 0:
                break
            if all(self.left.pairs[i].get(k, 0.0) <= 0 for k in chosen):
                chosen.append(i)
        return sum(gains[i] for i in chosen) > cost

    def exclude(self, i: int, j: int) -> bool:
        """Apply rule 2."""
        bias = self.left.pairs[i][j]
        if bias <= 0:
            return False
        return any(self.left.linear[k] + bias - self.gain[k] > self.tie for k in (i, j))

    def _gain(self, i: int, without: set[int]) -> float:
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
