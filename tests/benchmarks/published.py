"""How low samplers come on QUBOs of published kinds: a table of docs/reference/figures.md.

    python -m tests.benchmarks.published [--kinds be,bqp] [--seconds 30] [--folder FILES]

The problems are made by the generators that the libraries name (see :data:`KINDS`); with
`--folder`, the files of the Biq Mac Library (`.sparse`, `x'Qx` with Q symmetric) and of
the G-set are read instead. `exact` and `neal` run behind the presolve, as `sfq solve` runs
them, with seed 1 and their defaults but for the time of `exact`. Of dwave-samplers, there
are 100 tabu searches of 1,000 updates per variable, and 1,000 steepest descents. The
reference is the best known value (:data:`KNOWN`) of a published problem, else the lowest
energy in the row. Seconds are CPU time.

The generators. P. M. Pardalos, G. P. Rodgers, Computing 45, 131 (1990): diagonal and
off-diagonal coefficients are uniform whole numbers of two ranges, and the latter are other
than 0 with a probability; `be` (A. Billionnet, S. Elloumi, Math. Program. 109, 55, 2007)
and `gka` (F. Glover, G. A. Kochenberger, B. Alidaee, Manage. Sci. 44, 336, 1998) have used
it, and `bqp` (J. E. Beasley, 1998, OR-Library) the same distribution. The seeds and random
numbers of these are not published with them, so the problems here have their
distributions, and are not theirs. The graphs of the G-set (C. Helmberg, F. Rendl, SIAM J.
Optim. 10, 673, 2000) and the `g05` and `pm1s` of Biq Mac come from G. Rinaldi's `rudy`,
which draws with the portable generator of D. E. Knuth's Stanford GraphBase (1993): G1 is
`rudy -rnd_graph 800 6 8001`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random

from dimod import BinaryQuadraticModel
from dimod.core.sampler import Sampler
from dwave.samplers import SteepestDescentSampler, TabuSampler

from sf_quantum.files import JSON
from sf_quantum.samplers.exact import ExactSampler
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.samplers.presolve import Presolve

Model = BinaryQuadraticModel


def pardalos_rodgers(
    size: int, density: float, diagonal: int, others: int, seed: int
) -> Model:
    """Draw x'Qx as Pardalos and Rodgers do.

    :param diagonal: largest absolute value on the diagonal
    :param others: largest absolute value of the other entries of the symmetric Q
    """
    draw = Random(seed)
    model = Model("BINARY")
    for i in range(size):
        model.add_linear(i, draw.randint(-diagonal, diagonal))
    for i, j in combinations(range(size), 2):
        if draw.random() < density:
            model.add_quadratic(i, j, 2 * draw.randint(-others, others))
    return model


class Flip:
    """The random numbers of the Stanford GraphBase: X_n = (X_(n-24) - X_(n-55)) mod 2**31.

    :param seed: a whole number from 0
    """

    def __init__(self, seed: int) -> None:
        self._values = [0] * 56
        previous, following = seed % 2**31, 1
        self._values[55] = previous
        place, bits = 21, previous
        while place:
            self._values[place] = following
            following = (previous - following) % 2**31
            bits = bits // 2 + (2**30 if bits % 2 else 0)
            following = (following - bits) % 2**31
            previous = self._values[place]
            place = (place + 21) % 55
        self._next = 0
        for _ in range(5):
            self._cycle()
        # the first number of the last cycle is not used
        self._next = 54

    def _cycle(self) -> None:
        values = self._values
        for place in range(1, 56):
            other = place + 31 if place <= 24 else place - 24
            values[place] = (values[place] - values[other]) % 2**31
        self._next = 55

    def below(self, limit: int) -> int:
        """Draw a whole number from 0, below a limit."""
        most = 2**31 - 2**31 % limit
        while True:
            if not self._next:
                self._cycle()
            number = self._values[self._next]
            self._next -= 1
            if number < most:
                return number % limit


def random_graph(size: int, density: float, seed: int) -> list[list[int]]:
    """Draw a graph as `rudy -rnd_graph` does.

    :param density: percentage of all pairs
    :returns: by node, the others in the order in which their edges were drawn
    """
    flip = Flip(seed)
    near: list[list[int]] = [[] for _ in range(size)]
    left = int(size * (size - 1) * density / 200 + 0.5)
    while left:
        u, v = flip.below(size), flip.below(size)
        if u != v and v not in near[u]:
            near[u].append(v)
            near[v].append(u)
            left -= 1
    return near


def cut(size: int, density: float, seed: int, *, signs: bool = False) -> Model:
    """Return minus the cut of a graph of `rudy`, whose weights are 1 or, with signs, 1 and -1.

    The signs are those of `-random 0 1 <seed> -times 2 -plus -1`.
    """
    model = Model("SPIN")
    model.add_linear_from((i, 0.0) for i in range(size))
    flip = Flip(seed)
    for u, others in enumerate(random_graph(size, density, seed)):
        # the list of a node begins with its last edge
        for v in reversed(others):
            if u < v:
                weight = 2 * flip.below(2) - 1 if signs else 1
                model.add_quadratic(u, v, weight / 2)
                model.offset -= weight / 2
    return model


#: by kind: the names of the problems, and what makes each
KINDS: dict[str, dict[str, Callable[[], Model]]] = {
    "be": {
        "be100 (d = 1)": partial(pardalos_rodgers, 100, 1.0, 100, 50, 1),
        "be150 (d = 0.3)": partial(pardalos_rodgers, 150, 0.3, 100, 50, 1),
        "be250 (d = 0.1)": partial(pardalos_rodgers, 250, 0.1, 100, 50, 1),
    },
    "bqp": {
        "bqp50": partial(pardalos_rodgers, 50, 0.1, 100, 100, 1),
        "bqp100": partial(pardalos_rodgers, 100, 0.1, 100, 100, 1),
        "bqp250": partial(pardalos_rodgers, 250, 0.1, 100, 100, 1),
        "bqp500": partial(pardalos_rodgers, 500, 0.1, 100, 100, 1),
    },
    "gka": {
        "gka d (100, d = 0.5)": partial(pardalos_rodgers, 100, 0.5, 75, 50, 1),
        "gka e (200, d = 0.3)": partial(pardalos_rodgers, 200, 0.3, 100, 50, 1),
    },
    "rudy": {
        "g05 (80)": partial(cut, 80, 50, 1),
        "pm1s (80)": partial(cut, 80, 10, 1, signs=True),
        "G1": partial(cut, 800, 6, 8001),
    },
}
#: the lowest energies known of published problems: Biq Mac Library, and of G1 to G6 minus
#: the cuts of U. Benlic, J.-K. Hao, Eng. Appl. Artif. Intell. 26, 1162 (2013)
KNOWN = {
    "be100.1": -19412,
    "bqp50-1": -2098,
    "bqp100-1": -7970,
    "bqp250-1": -45607,
    "bqp500-1": -116586,
    "G1": -11624,
    "G2": -11620,
    "G3": -11622,
    "G6": -2178,
}


def files(folder: Path) -> Iterator[tuple[str, Model]]:
    """Read the published files in a folder."""
    for path in sorted(folder.iterdir()):
        rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
        entries = [(int(i), int(j), float(b)) for i, j, b in rows[1:]]
        graph = path.name.startswith("G")
        model = Model("SPIN" if graph else "BINARY")
        model.add_linear_from((i, 0.0) for i in range(1, int(rows[0][0]) + 1))
        for i, j, bias in entries:
            if graph:
                model.add_quadratic(i, j, bias / 2)
                model.offset -= bias / 2
            elif i == j:
                model.add_linear(i, bias)
            else:
                model.add_quadratic(i, j, 2 * bias)
        yield path.name.removesuffix(".sparse").removesuffix(".txt"), model


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=30.0, help="of exact")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.folder:
        problems = files(args.folder)
    else:
        kinds = args.kinds.split(",")
        problems = ((n, make()) for kind in kinds for n, make in KINDS[kind].items())
    print(f"| problem | variables | reference | {' | '.join(RUNS)} |")
    print("|---|---|---|" + "---|" * len(RUNS))
    for name, model in problems:
        runs = [run(args.seconds, model) for run in RUNS.values()]
        reference = KNOWN.get(name, min(energy for energy, *_ in runs))
        proven = any("proven" in told for *_, told in runs)
        mark = " (proven)" if proven else " (best known)" if name in KNOWN else ""
        cells = [cell(each, reference) for each in runs]
        row = [name, str(len(model.variables)), f"{reference:,.0f}{mark}", *cells]
        print(f"| {' | '.join(row)} |", flush=True)


#: the lowest energy, the CPU seconds, and what is said of it
Answer = tuple[float, float, str]


def solved(sampler: Sampler, model: Model, parameters: dict[str, JSON]) -> Answer:
    """Sample, and time it."""
    begin = time.process_time()
    samples = sampler.sample(model, seed=1, **parameters)
    seconds, info = time.process_time() - begin, samples.info
    told = ""
    if "gap" in info:
        told = ", proven" if info["proven"] else f", gap {info['gap']:,.0f}"
    return float(samples.record.energy.min()), seconds, told


def run_exact(seconds: float, model: Model) -> Answer:
    return solved(Presolve(ExactSampler()), model, {"time_limit": seconds})


def run_neal(_: float, model: Model) -> Answer:
    return solved(Presolve(NealSampler()), model, {})


def run_tabu(_: float, model: Model) -> Answer:
    own: dict[str, JSON] = {"num_reads": 100, "num_restarts": 0, "timeout": None}
    own |= {"coefficient_z_first": 1000, "lower_bound_z": 1}
    return solved(TabuSampler(), model, own)


def run_descent(_: float, model: Model) -> Answer:
    return solved(SteepestDescentSampler(), model, {"num_reads": 1000})


RUNS: dict[str, Callable[[float, Model], Answer]] = {
    "`exact`": run_exact,
    "`neal`": run_neal,
    "tabu search": run_tabu,
    "steepest descent": run_descent,
}


def cell(answer: Answer, reference: float) -> str:
    """Format how far an energy is above the reference, and the seconds."""
    energy, seconds, told = answer
    above = (energy - reference) / abs(reference)
    return f"{100 * above:.2g} %, {seconds:.2g} s{told}"


if __name__ == "__main__":
    main()
