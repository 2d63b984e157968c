"""The compiled loops, called on NumPy arrays (see ``_kernels.c``).

Points have shape (n, d), queries (m, d), centres (k, d).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from os import environ, sched_getaffinity
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sf_quantum.errors import QuantumError

Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
T = TypeVar("T")

#: maximum number of points in a tile, equal to TILE in ``_kernels.c``
TILE = 256
#: dtypes that the kernels read: double, int32, int64 and bytes
KINDS = ("f8", "i4", "i8", "u1")


def spatial_order(points: Doubles) -> Ints:
    """Return the rows in the order of a k-d tree's leaves, in which near points are adjacent.

    :returns: a permutation of 0 .. n - 1
    """
    order = np.empty(len(points), np.int32)
    _call("spatial_order", points, *points.shape, order)
    return order


def core_points(points: Doubles, radius: float, least: int) -> NDArray[np.bool_]:
    """Find points with at least ``least`` points, including themselves, within ``radius``.

    :returns: whether each point is a core point; shape (n,)
    """
    core = np.empty(len(points), np.uint8)
    _call("core_points", points, *points.shape, float(radius), least, core)
    return core.astype(bool)


def nearest(points: Doubles, queries: Doubles, radius: float) -> Ints:
    """Find the row of the nearest point within ``radius`` of each query, or -1.

    :returns: m row numbers
    """
    rows = np.empty(len(queries), np.int32)
    _call("nearest", points, *points.shape, queries, len(queries), float(radius), rows)
    return rows


def spanning_forest(points: Doubles, longest: float = np.inf) -> tuple[Ints, Doubles]:
    """Return the Euclidean minimum spanning forest of edges no longer than ``longest``.

    :returns: edges, pairs of row numbers of shape (m, 2), and their m lengths
    """
    edges = np.empty((len(points), 2), np.int32)
    lengths = np.empty(len(points))
    count = _call(
        "spanning_forest", points, *points.shape, float(longest), edges, lengths
    )
    return edges[:count], lengths[:count]


def kmeans_step(
    points: Doubles, centres: Doubles, labels: Ints
) -> tuple[int, Doubles, NDArray[np.int64]]:
    """Assign each point to its nearest centre, in place.

    :param labels: n labels, overwritten
    :returns: the number of changed labels, each cluster's sum of points, of shape (k,
        d), and each cluster's size
    """
    sums = np.empty_like(centres)
    sizes = np.empty(len(centres), np.int64)
    arguments = (points, *points.shape, centres, len(centres), labels, sums, sizes)
    changed = _call("kmeans_step", *arguments)
    return changed, sums, sizes


def pair_sums(
    points: Doubles, starts: NDArray[np.int64], group: Ints, need: NDArray[np.bool_]
) -> Doubles:
    """Sum each point's distances to every group that its tile needs.

    The result does not depend on the number of threads.

    :param points: sorted so that each tile lies in one group
    :param starts: rows at which tiles start, at most :data:`TILE` apart, and finally the
        number of rows
    :param group: the group of each tile
    :param need: shape (tiles, groups)
    :returns: shape (n, groups); entries that are not needed are incomplete
    """
    tiles, groups = need.shape
    columns, needed = np.ascontiguousarray(points.T), np.ascontiguousarray(need, "u1")
    tiled = (points, columns, *points.shape, tiles, starts, group, groups, needed)
    chunks = 4 if len(points) * groups < 4_000_000 else 2

    def work(chunk: int) -> Doubles:
        sums = np.zeros((len(points), groups))
        _call("pair_sums", *tiled, chunk, chunks, sums)
        return sums

    total = np.zeros((len(points), groups))
    for sums in _in_threads(work, range(chunks)):
        total += sums
    return total


def group_sums(
    queries: Doubles, points: Doubles, offsets: NDArray[np.int64]
) -> Doubles:
    """Sum each query's distances to every group of points.

    :param points: group g is the rows ``offsets[g]`` to ``offsets[g + 1]``
    :returns: shape (m, groups)
    """
    columns = np.ascontiguousarray(points.T)
    groups = len(offsets) - 1

    def work(part: Doubles) -> Doubles:
        sums = np.zeros((len(part), groups))
        if len(part):
            grouped = (columns, *points.shape, offsets, groups)
            _call("group_sums", part, len(part), *grouped, sums)
        return sums

    parts = np.array_split(np.ascontiguousarray(queries), 4)
    return np.concatenate(_in_threads(work, parts))


def _in_threads(work: Callable[[T], Doubles], items: Sequence[T]) -> list[Doubles]:
    # in OpenMP's format: "4", or "4,2" for nested loops
    wanted = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    threads = int(wanted) if wanted.isdecimal() else 0
    threads = min(len(items), threads or len(sched_getaffinity(0)))
    if threads == 1:
        return [*map(work, items)]
    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(work, items)]


def _call(name: str, *arguments: NDArray[np.generic] | float) -> int:
    function = _library()[f"sfq_{name}"]
    function.restype = ctypes.c_int64
    result = int(function(*map(_converted, arguments)))
    if result < 0:
        raise MemoryError
    return result


def _converted(
    value: NDArray[np.generic] | float,
) -> ctypes.c_void_p | ctypes.c_double | ctypes.c_int64:
    if not isinstance(value, np.ndarray):
        kind = ctypes.c_double if isinstance(value, float) else ctypes.c_int64
        return kind(value)
    # the kernels do not use strides, so arrays must be contiguous
    if not value.flags.c_contiguous or value.dtype.str[1:] not in KINDS:
        raise ValueError(
            "the kernels read contiguous arrays of double and integer only"
        )
    return ctypes.c_void_p(value.ctypes.data)


@cache
def _library() -> ctypes.CDLL:
    path = Path(__file__).with_name("_kernels.so")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise QuantumError(
            f"{path}: the compiled kernels cannot be loaded ({error}); "
            "install it again on this kind of machine: pip install --force-reinstall "
            "--no-deps sf-quantum, or . in a checkout"
        ) from error
