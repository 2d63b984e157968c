"""Calls that come at the same time are one, and calls are not too often."""

from __future__ import annotations

import asyncio

from sf_quantum.connectors.slurm.transport.pacing import Paced
from tests.support.waiting import until_async


class Work:
    """Answers by how often it has run, when it is let go."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.began.append(asyncio.get_running_loop().time())
        await self.go.wait()
        return len(self.began)


async def test_who_calls_while_it_runs_shares_the_next() -> None:
    work = Work()
    paced = Paced(work, 0, 0)
    first = asyncio.create_task(paced())
    await until_async(lambda: bool(work.began), "it has begun")
    later = [asyncio.create_task(paced()) for _ in range(3)]
    later[0].cancel()
    await asyncio.sleep(0)
    work.go.set()
    assert [await first, *await asyncio.gather(*later[1:])] == [1, 2, 2]


async def test_it_is_often_only_at_first() -> None:
    work = Work()
    work.go.set()
    paced = Paced(work, 0.05, 0.1)
    for _ in range(6):
        await paced()
    # the third is the last that may be early
    first, *_, last = work.began
    assert last - first >= 3 * 0.05 - 0.001
    assert work.began[2] - first < last - first


async def test_an_error_is_that_of_all_and_not_of_the_next() -> None:
    errors = [OSError("lost"), None]

    async def fail() -> None:
        if error := errors.pop(0):
            raise error

    paced = Paced(fail, 0, 0)
    results = await asyncio.gather(paced(), paced(), return_exceptions=True)
    assert [str(one) for one in results] == ["lost", "lost"]
    await paced()


async def test_at_the_end_nobody_waits() -> None:
    work = Work()
    work.go.set()
    paced = Paced(work, 1000, 0)
    assert await paced() == 1
    paced.hurried = True
    assert await paced() == 2
