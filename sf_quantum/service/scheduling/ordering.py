"""Jobs in the order of a key: what stands before one of them, however many there are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from sf_quantum.service.domain.jobs import Kind
from sf_quantum.service.scheduling.work import PendingJob, Work

# of one block: a line of 10,000 has about 40
MOST = 512
K = TypeVar("K", bound="tuple[tuple[float, ...], int]")


class Sums:
    """Running sums over some jobs, made again from the first change on."""

    def __init__(self, entries: list[PendingJob]) -> None:
        self.entries = entries
        # of the first so many jobs, as far as it is known: how many, and their seconds
        self._sums: dict[Kind, tuple[list[int], list[float]]] = {}
        self._known = 0

    def insert(self, place: int, entry: PendingJob) -> None:
        """Put a job before the one that has its place now."""
        self.entries.insert(place, entry)
        self._forget(place)

    def delete(self, place: int) -> None:
        """Take a job out."""
        del self.entries[place]
        self._forget(place)

    def first(self, jobs: int) -> dict[Kind, Work]:
        """Add up the first so many jobs."""
        while self._known < jobs:
            self._count(self.entries[self._known])
        return {
            kind: Work(numbers[jobs], seconds[jobs])
            for kind, (numbers, seconds) in self._sums.items()
        }

    def _count(self, entry: PendingJob) -> None:
        if entry.kind not in self._sums:
            zeros = self._known + 1
            self._sums[entry.kind] = [0] * zeros, [0.0] * zeros
        for kind, (numbers, seconds) in self._sums.items():
            own = kind == entry.kind
            numbers.append(numbers[-1] + own)
            seconds.append(seconds[-1] + own * entry.seconds)
        self._known += 1

    def _forget(self, place: int) -> None:
        if place < self._known:
            self._known = place
            for numbers, seconds in self._sums.values():
                del numbers[place + 1 :], seconds[place + 1 :]


class _Block(Sums, Generic[K]):
    def __init__(self, keys: list[K], entries: list[PendingJob]) -> None:
        super().__init__(entries)
        self.keys = keys


class Row(Generic[K]):
    """A sorted list in blocks: a change and a question cost the square root of it."""

    def __init__(self) -> None:
        self._blocks: list[_Block[K]] = []
        # what stands before each of the first so many blocks, as far as it is known: who
        # joins at the end changes none of it
        self._works: list[dict[Kind, Work]] = [{}]

    def __iter__(self) -> Iterator[PendingJob]:
        """List the jobs by their keys."""
        for block in self._blocks:
            yield from block.entries

    def add(self, key: K, entry: PendingJob) -> None:
        """Put a job at its place."""
        if not self._blocks:
            self._blocks.append(_Block([], []))
        place = self._block(key)
        block = self._blocks[place]
        del self._works[place + 1 :]
        at = bisect_left(block.keys, key)
        block.keys.insert(at, key)
        block.insert(at, entry)
        if len(block.keys) > MOST:
            half = MOST // 2
            self._blocks[place : place + 1] = [
                _Block(block.keys[:half], block.entries[:half]),
                _Block(block.keys[half:], block.entries[half:]),
            ]

    def remove(self, key: K) -> None:
        """Take the job with a key out.

        :raises KeyError: if there is none
        """
        place = self._block(key) if self._blocks else 0
        block = self._blocks[place] if self._blocks else _Block[K]([], [])
        at = bisect_left(block.keys, key)
        if at == len(block.keys) or block.keys[at] != key:
            raise KeyError(key)
        del self._works[place + 1 :]
        del block.keys[at]
        block.delete(at)
        if not block.keys:
            del self._blocks[place]

    def before(self, key: K) -> dict[Kind, Work]:
        """Add up, by kind, the jobs with lower keys."""
        if not self._blocks:
            return {}
        place = self._block(key)
        for block in self._blocks[len(self._works) - 1 : place]:
            whole = block.first(len(block.keys))
            self._works.append(_added(self._works[-1], whole))
        block = self._blocks[place]
        return _added(self._works[place], block.first(bisect_left(block.keys, key)))

    def _block(self, key: K) -> int:
        """Find the first block that ends at the key or behind it, or else the last."""
        low, high = 0, len(self._blocks) - 1
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle].keys[-1] < key:
                low = middle + 1
            else:
                high = middle
        return low


def _added(one: Mapping[Kind, Work], other: Mapping[Kind, Work]) -> dict[Kind, Work]:
    works = dict(one)
    for kind, work in other.items():
        works[kind] = works[kind] + work if kind in works else work
    return works
