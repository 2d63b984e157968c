"""What of a QUBO needs no sampler: variables that every optimum agrees on, and its parts.

Needs neither dimod nor numpy. Only what holds in *every* optimum is used, so a reduced
problem has exactly the optima of the whole one, ties included. With energy

    f(x) = sum_i a_i x_i + sum_{i<j} b_ij x_i x_j,    x_i in {0, 1},

write u+ for max(u, 0) and u- for max(-u, 0). A move that lowers the energy of a state
shows that the state is no optimum. Three rules follow, each with a strict inequality:

1. Flipping i changes f by ``d = a_i + sum_k b_ik x_k`` (up) or ``-d`` (down), and d is
   between ``a_i - sum_k b_ik-`` and ``a_i + sum_k b_ik+``. If the least d is positive,
   x_i = 0 in every optimum; if the greatest is negative, x_i = 1. A candidate that
   overlaps with no other is the case of no b at all.
2. i and j exclude each other if no optimum has both. Taking j out of a state that has
   both changes f by ``-(a_j + b_ij + sum_{k != i} b_jk x_k)``, which is negative if
   ``a_j + b_ij - sum_{k != i} b_jk- > 0``; the same holds with i and j exchanged.
3. Let S be a set of variables that j excludes, with no positive b between them, and take
   an optimum with x_j = 1: all of S is 0 in it, and so is whatever else j excludes. Take
   j out and all of S in. Taking j out costs at most ``-a_j + sum_k b_jk-``; taking in
   i costs at most ``-g_i`` with ``g_i = -a_i - sum b_ik+`` over the k that j does not
   exclude. If ``sum_S g_i`` is greater than j's cost, the state was no optimum after all,
   so x_j = 0 in every optimum. With penalties that forbid overlaps this reads: j goes if
   it is strictly lighter than candidates that overlap with it, not with each other, and
   with nothing that j does not overlap with.

Each rule holds again in what is left after a variable was fixed, since the optima left are
those of the whole problem with that variable struck out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Of the biases that low energies are made of: what differs by less is taken for a tie,
# since sums of biases that are equal on paper may differ by rounding.
_TIE = 1e-9
# Steps that rule 3 may take in all, about half a second: enough for 500 candidates of
# clusterings. On larger problems it stops there, and the other rules go on.
EFFORT = 2_000_000


@dataclass(frozen=True)
class Quadratic:
    """A function of bits.

    :param linear: a, by the number of the variable
    :param pairs: b, twice: for each variable, by the number of the other one
    """

    linear: list[float]
    pairs: list[dict[int, float]]

    @classmethod
    def of(
        cls, linear: Iterable[float], pairs: Iterable[tuple[int, int, float]]
    ) -> Quadratic:
        """Make one of its biases; those of a pair that is told twice are added."""
        made = cls([*linear], [])
        made.pairs.extend({} for _ in made.linear)
        for i, j, bias in pairs:
            made.pairs[i][j] = made.pairs[j][i] = made.pairs[i].get(j, 0.0) + bias
        return made

    @property
    def deepest(self) -> float:
        """The greatest bias that lowers the energy, without its sign.

        All states that are as low as that of no variable at all gain more than they pay,
        so penalties that outweigh every gain have no part in how large their energies are.
        """
        lowest = min(self.linear, default=0.0)
        for row in self.pairs:
            lowest = min(lowest, *row.values(), 0.0)
        return max(-lowest, 0.0)

    @property
    def tie(self) -> float:
        """By how much low energies that are equal on paper may differ."""
        return _TIE * self.deepest

    def energy(self, bits: Sequence[int]) -> float:
        """Evaluate it."""
        ones = [i for i, bit in enumerate(bits) if bit]
        pairs = sum(self.pairs[i].get(j, 0.0) for i in ones for j in ones if i < j)
        return sum(self.linear[i] for i in ones) + pairs


@dataclass(frozen=True)
class Reduction:
    """What of a problem is decided, and what is left of it.

    :param fixed: the value that a variable has in every optimum
    :param free: variables that no longer change the energy; either value is as good
    :param parts: what is left, in pieces that share no interaction; variables in order
    :param left: the biases of what is left, those of the fixed variables added in
    """

    fixed: dict[int, int]
    free: list[int]
    parts: list[list[int]]
    left: Quadratic


def reduce(problem: Quadratic) -> Reduction:
    """Fix what every optimum agrees on, and take the rest apart.

    :returns: what was found; the problem itself is not changed
    """
    work = _Work(problem)
    work.run()
    left = work.left
    alive = [i for i in range(len(left.linear)) if i not in work.fixed]
    parts = [*_parts(left, alive)]
    return Reduction(
        work.fixed,
        [part[0] for part in parts if len(part) == 1],
        [part for part in parts if len(part) > 1],
        left,
    )


def focused(problem: Quadratic, found: Reduction, size: int) -> Reduction:
    """Ask of a problem that is decided once more, of a piece of it.

    :param found: a reduction that leaves no parts
    :param size: variables of the piece at most; where these suffice it is the largest that
        shares no interaction with the rest
    :returns: the piece, where the rest is an optimum's; what may be either and does not
        touch the piece still may
    """
    parts = _parts(problem, range(len(problem.linear)))
    part = max(parts, key=len, default=[])[:size]
    inside = {*part}
    free = [i for i in found.free if not inside & {i, *problem.pairs[i]}]
    decided = dict.fromkeys({*found.free} - {*free}, 0) | found.fixed
    fixed = {i: value for i, value in decided.items() if i not in inside}
    left = Quadratic([*problem.linear], [{} for _ in problem.linear])
    for i in part:
        for j, bias in problem.pairs[i].items():
            if j in inside:
                left.pairs[i][j] = bias
            else:
                left.linear[i] += bias * fixed[j]
    return Reduction(fixed, free, [part], left)


def exclusions(problem: Quadratic) -> list[tuple[int, int]]:
    """Find the pairs that no optimum has both of, by rule 2: the smaller number first."""
    work = _Work(problem)
    return [
        (i, j)
        for i, row in enumerate(work.left.pairs)
        for j in row
        if i < j and work.exclude(i, j)
    ]


@dataclass
class _Work:
    problem: Quadratic
    fixed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = [{k: b for k, b in row.items() if b} for row in self.problem.pairs]
        self.left = Quadratic([*self.problem.linear], pairs)
        self.tie = self.left.tie
        # negative biases of a variable, added up
        self.gain = [sum(-b for b in row.values() if b < 0) for row in pairs]
        self.effort = EFFORT

    def run(self) -> None:
        """Apply the rules until none says anything new."""
        waiting = deque(range(len(self.left.linear)))
        known = set(waiting)
        while waiting:
            i = waiting.popleft()
            known.discard(i)
            if i in self.fixed:
                continue
            value = self._value(i)
            if value is None:
                continue
            # a rule looks two steps far
            near = {*self.left.pairs[i]}
            near |= {k for j in near for k in self.left.pairs[j]}
            self._fix(i, value)
            again = [k for k in sorted(near) if k not in known and k not in self.fixed]
            waiting.extend(again)
            known.update(again)

    def _value(self, i: int) -> int | None:
        linear = self.left.linear[i]
        if linear - self.gain[i] > self.tie:
            return 0
        losses = sum(b for b in self.left.pairs[i].values() if b > 0)
        if linear + losses < -self.tie:
            return 1
        return 0 if self._outdone(i) else None

    def _fix(self, i: int, value: int) -> None:
        self.fixed[i] = value
        for k, bias in self.left.pairs[i].items():
            del self.left.pairs[k][i]
            self.left.linear[k] += value * bias
            self.gain[k] -= max(-bias, 0.0)
        self.left.pairs[i] = {}

    def _outdone(self, j: int) -> bool:
        """Rule 3, with the heaviest S that a greedy choice finds."""
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
        """Rule 2."""
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
