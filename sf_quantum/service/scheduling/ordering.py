"""Jobs sorted by a key, with the work before each: quick for tens of thousands."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

from sf_quantum.service.domain.jobs import Kind
from sf_quantum.service.scheduling.work import PendingJob, Work

# jobs in a block: 10,000 jobs have about 40 blocks
BLOCK = 512
K = TypeVar("K", bound="tuple[tuple[float, ...], int]")


class RunningSums:
    """Jobs in an order, and the work of the first so many of them.

    The sums are made as they are asked for, and again from the first change on.
    """

    def __init__(self, jobs: list[PendingJob]) -> None:
        self.jobs = jobs
        # by kind: for each length of prefix that is known, its jobs and their seconds
        self._sums: dict[Kind, tuple[list[int], list[float]]] = {}
        self._known = 0

    def insert(self, index: int, job: PendingJob) -> None:
        """Insert a job before the one that has this index now."""
        self.jobs.insert(index, job)
        self._forget(index)

    def delete(self, index: int) -> None:
        """Delete the job with an index."""
        del self.jobs[index]
        self._forget(index)

    def first(self, jobs: int) -> dict[Kind, Work]:
        """Add up the first so many jobs, by kind."""
        while self._known < jobs:
            self._extend(self.jobs[self._known])
        return {
            kind: Work(numbers[jobs], seconds[jobs])
            for kind, (numbers, seconds) in self._sums.items()
        }

    def _extend(self, job: PendingJob) -> None:
        if job.kind not in self._sums:
            zeros = self._known + 1
            self._sums[job.kind] = [0] * zeros, [0.0] * zeros
        for kind, (numbers, seconds) in self._sums.items():
            own = kind == job.kind
            numbers.append(numbers[-1] + own)
            seconds.append(seconds[-1] + own * job.seconds)
        self._known += 1

    def _forget(self, index: int) -> None:
        if index < self._known:
            self._known = index
            for numbers, seconds in self._sums.values():
                del numbers[index + 1 :], seconds[index + 1 :]


class _Block(RunningSums, Generic[K]):
    def __init__(self, keys: list[K], jobs: list[PendingJob]) -> None:
        super().__init__(jobs)
        self.keys = keys


class SortedJobs(Generic[K]):
    """A list sorted by key, in blocks: each method takes the square root of its length."""

    def __init__(self) -> None:
        self._blocks: list[_Block[K]] = []
        # the work before each of the first so many blocks, as far as it is known: a job
        # that is added at the end changes none of it
        self._before: list[dict[Kind, Work]] = [{}]

    def __iter__(self) -> Iterator[PendingJob]:
        """Iterate in the order of the keys."""
        for block in self._blocks:
            yield from block.jobs

    def add(self, key: K, job: PendingJob) -> None:
        """Add a job."""
        if not self._blocks:
            self._blocks.append(_Block([], []))
        number = self._find(key)
        block = self._blocks[number]
        del self._before[number + 1 :]
        index = bisect_left(block.keys, key)
        block.keys.insert(index, key)
        block.insert(index, job)
        if len(block.keys) > BLOCK:
            half = BLOCK // 2
            self._blocks[number : number + 1] = [
                _Block(block.keys[:half], block.jobs[:half]),
                _Block(block.keys[half:], block.jobs[half:]),
            ]

    def remove(self, key: K) -> None:
        """Remove the job with a key.

        :raises KeyError: if there is none
        """
        if not self._blocks:
            raise KeyError(key)
        number = self._find(key)
        block = self._blocks[number]
        index = bisect_left(block.keys, key)
        if index == len(block.keys) or block.keys[index] != key:
            raise KeyError(key)
        del self._before[number + 1 :]
        del block.keys[index]
        block.delete(index)
        if not block.keys:
            del self._blocks[number]

    def before(self, key: K) -> dict[Kind, Work]:
        """Add up, by kind, the jobs with lower keys."""
        if not self._blocks:
            return {}
        number = self._find(key)
        for block in self._blocks[len(self._before) - 1 : number]:
            self._before.append(_sum(self._before[-1], block.first(len(block.keys))))
        block = self._blocks[number]
        index = bisect_left(block.keys, key)
        return _sum(self._before[number], block.first(index))

    def _find(self, key: K) -> int:
        """Return the number of the first block that ends at the key or after, or the last."""
        return bisect_left(
            self._blocks,
            key,
            hi=len(self._blocks) - 1,
            key=lambda block: block.keys[-1],
        )


def _sum(one: dict[Kind, Work], other: dict[Kind, Work]) -> dict[Kind, Work]:
    return {
        kind: one.get(kind, Work()) + other.get(kind, Work()) for kind in one | other
    }
