"""Tasks for whose end nobody waits."""

from __future__ import annotations

import asyncio
import gc
import weakref

from sf_quantum.service.queue.background import BackgroundTasks


async def test_a_background_task_outlives_a_collection() -> None:
    background, begun, ended = BackgroundTasks(), asyncio.Event(), asyncio.Event()
    futures: list[weakref.ref[asyncio.Future[None]]] = []

    async def work() -> None:
        # The task alone refers to what it waits for.
        future = asyncio.get_running_loop().create_future()
        futures.append(weakref.ref(future))
        begun.set()
        await future
        ended.set()

    background.start(work())
    await begun.wait()
    gc.collect()
    future = futures[0]()
    assert future is not None
    future.set_result(None)
    await ended.wait()


async def test_cancelled_background_tasks_end() -> None:
    background, begun, ended = BackgroundTasks(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    background.start(work())
    await begun.wait()
    background.cancel()
    await ended.wait()
