"""The working graphs of annealers and of gate-based devices: qubits and couplers.

Pegasus: Boothby et al., "Next-Generation Topology of D-Wave Quantum Processors"
(arXiv:2003.00133). Zephyr: Boothby, Raymond and King, "Zephyr Topology of D-Wave Quantum
Processors" (D-Wave technical report 14-1056A-A, 2021). Qubits have D-Wave's linear
numbering, so that D-Wave's tools recognize the graph.

Lattices of 5, 20 and 54 qubits are those of IQM's Adonis, Apollo and Aphrodite, as in the
fake backends of iqm-client 36 (``iqm.qiskit_iqm.fake_backends``); QB1 is qubit 0.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from heapq import heappop, heappush
from itertools import count, product
from math import ceil

from sf_quantum.protocol.descriptions import Topology

# offsets of the twelve qubits of a Pegasus tile, vertical and horizontal
_SHIFTS = (2, 2, 2, 2, 10, 10, 10, 10, 6, 6, 6, 6)
_OTHER_SHIFTS = (6, 6, 6, 6, 2, 2, 2, 2, 10, 10, 10, 10)
# qubits per orientation of a Zephyr tile
_TILE = 4
Pair = tuple[int, int]


def pegasus(size: int) -> Topology:
    """Build P(size), for sizes of 2 or more, without qubits outside the main fabric."""
    pairs = sorted({(min(pair), max(pair)) for pair in _pegasus(size)})
    return Topology("pegasus", (size,), 24 * size * (size - 1), tuple(pairs))


def zephyr(size: int) -> Topology:
    """Build Z(size, 4), for sizes of 1 or more."""
    pairs = sorted({(min(pair), max(pair)) for pair in _zephyr(size)})
    labels = 4 * _TILE * size * (2 * size + 1)
    return Topology("zephyr", (size, _TILE), labels, tuple(pairs))


@cache
def smallest_pegasus(qubits: int) -> Topology:
    """Build the smallest Pegasus graph with at least the given number of qubits."""
    # P(m) has 24 m (m - 1) labels, of which 8 (m - 1) are outside the main fabric
    return pegasus(next(m for m in count(2) if 8 * (3 * m - 1) * (m - 1) >= qubits))


@cache
def smallest_zephyr(qubits: int) -> Topology:
    """Build the smallest Zephyr graph with at least the given number of qubits."""
    return zephyr(next(m for m in count(1) if 4 * _TILE * m * (2 * m + 1) >= qubits))


def outwards(graph: Topology) -> tuple[int, ...]:
    """Order the qubits so that the first qubits always form a connected, dense graph.

    Each qubit has at least as many couplers to earlier qubits as any later qubit has.
    """
    neighbours = defaultdict[int, list[int]](list)
    for one, other in graph.couplers:
        neighbours[one].append(other)
        neighbours[other].append(one)
    ordered = dict[int, None]()
    links = Counter[int]()
    # Ties go to the lower number. Outdated heap entries have fewer couplers, so they are
    # popped later.
    best = [(0, graph.qubits[0])]
    while best:
        _, qubit = heappop(best)
        if qubit in ordered:
            continue
        ordered[qubit] = None
        for neighbour in neighbours[qubit]:
            if neighbour not in ordered:
                links[neighbour] += 1
                heappush(best, (-links[neighbour], neighbour))
    return tuple(ordered)


# Rows of the lattices by number of qubits: first column and length of each row.
LATTICES: Mapping[int, tuple[tuple[int, int], ...]] = {
    5: ((1, 1), (0, 3), (1, 1)),
    20: ((1, 2), (0, 5), (0, 5), (0, 5), (1, 3)),
    54: ((4, 2), (2, 5), (1, 7), (0, 8), (0, 9), (1, 8), (1, 7), (2, 5), (3, 3)),
}


@lru_cache(8)
def square(qubits: int, lacking: frozenset[int]) -> Topology:
    """Build a square lattice, numbered row by row.

    :param lacking: qubits that are out of service
    """
    width = ceil(qubits**0.5)
    full = [(0, min(width, qubits - first)) for first in range(0, qubits, width)]
    rows = LATTICES.get(qubits, full)
    places = [
        (row, first + n)
        for row, (first, length) in enumerate(rows)
        for n in range(length)
    ]
    numbers = {place: number for number, place in enumerate(places)}
    pairs = [
        (number, numbers[other])
        for (row, column), number in numbers.items()
        for other in ((row, column + 1), (row + 1, column))
        if other in numbers
    ]
    shape = len(rows), max(first + length for first, length in rows)
    return Topology("square", shape, qubits, tuple(sorted(pairs))).without(lacking)


#: Topologies of gate-based devices.
COMPLETE, SQUARE = "complete", "square"
#: the default topology of annealers
DEFAULT_TOPOLOGY = "pegasus"
#: Topologies of annealers, with the functions that build them.
TOPOLOGIES: Mapping[str, Callable[[int], Topology]] = {
    "pegasus": smallest_pegasus,
    "zephyr": smallest_zephyr,
}


@lru_cache(8)
def working(kind: str, qubits: int, lacking: frozenset[int]) -> Topology:
    """Build the graph of an annealer; like a real annealer's graph, it is incomplete.

    :param kind: name of the graph's kind in :data:`TOPOLOGIES`
    :param qubits: number of qubits of the annealer, including those out of service
    :param lacking: numbers of the qubits that are out of service
    """
    whole = TOPOLOGIES[kind](qubits)
    here = [qubit for qubit in outwards(whole) if qubit not in lacking]
    # at least two, since a graph cannot contain a qubit without a coupler
    left = max(2, qubits - len(lacking))
    return whole.without(lacking.union(here[left:]))


def _pegasus(m: int) -> Iterator[Pair]:
    last = m - 1

    def number(u: int, w: int, k: int, z: int) -> int:
        return ((u * m + w) * 12 + k) * last + z

    def inside(u: int, w: int, k: int) -> bool:
        # qubits at the rim have no internal couplers
        shifts = (_OTHER_SHIFTS, _SHIFTS)[u]
        return (w > 0 or k >= min(shifts)) and (w < last or k < max(shifts))

    for u, w, k, z in product((0, 1), range(m), range(12), range(last)):
        if not inside(u, w, k):
            continue
        if z + 1 < last:  # external
            yield number(u, w, k, z), number(u, w, k, z + 1)
        if k % 2 == 0:  # odd
            yield number(u, w, k, z), number(u, w, k + 1, z)
    for w, k, j, z in product(range(m), range(12), range(12), range(last)):
        column, row = z + (j < _SHIFTS[k]), w - (k < _OTHER_SHIFTS[j])
        if 0 <= row < last and inside(0, w, k) and inside(1, column, j):
            yield number(0, w, k, z), number(1, column, j, row)


def _zephyr(m: int) -> Iterator[Pair]:
    def number(u: int, w: int, k: int, j: int, z: int) -> int:
        return (((u * (2 * m + 1) + w) * _TILE + k) * 2 + j) * m + z

    for u, w, k in product((0, 1), range(2 * m + 1), range(_TILE)):
        for j, z in product((0, 1), range(m - 1)):
            yield number(u, w, k, j, z), number(u, w, k, j, z + 1)  # external
        for a in (0, 1):
            for z in range(a, m):
                yield number(u, w, k, 0, z), number(u, w, k, 1, z - a)  # odd
    both, tile = (0, 1), range(_TILE)
    for w, z, h, k in product(range(m), range(m), tile, tile):
        for i, j, a, b in product(both, both, both, both):  # internal
            vertical = number(0, 2 * w + 1 + a * (2 * i - 1), k, j, z)
            yield vertical, number(1, 2 * z + 1 + b * (2 * j - 1), h, i, w)
