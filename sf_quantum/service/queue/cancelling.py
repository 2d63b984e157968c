"""How a job leaves that is not to run: out of the line, or off the device."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.queue.worker import Running, Stop, Worker
from sf_quantum.service.scheduling.pending import PendingJobs
from sf_quantum.service.scheduling.work import PendingJob
from sf_quantum.service.store.store import Store

# how long to wait for the device to let go of a job: one read of a large problem may
# take seconds
LET_GO_SECONDS = 5.0


class Cancelling:
    """Takes jobs out of a line and off its device; belongs to the event loop's thread.

    :param holds: says whether a lease is held and not about to end
    :param over: called with each job of the line that is cancelled; the worker tells of
        its own
    """

    def __init__(
        self,
        store: Store,
        line: PendingJobs,
        worker: Worker,
        *,
        holds: Callable[[str], bool],
        over: Callable[[PendingJob], None],
    ) -> None:
        self._store = store
        self._line = line
        self._worker = worker
        self._holds = holds
        self._over = over
        # jobs out of the line of which it is not yet on disk that they are cancelled
        self._leaving: dict[int, asyncio.Event] = {}

    async def cancel(self, number: int, why: str) -> None:
        """Cancel a job that is not over; one that runs has left the device after this.

        :param why: what the job's note is to say
        :raises sqlite3.Error: if it cannot be written down, and the job still waits
        """
        while True:
            if (leaving := self._leaving.get(number)) is not None:
                await leaving.wait()
                continue
            running = self._worker.running
            if running is None or running.entry.number != number:
                # not in the line either while it moves to another lease
                await self._cancel_waiting(number, self._line.remove(number), why)
                return
            self._worker.interrupt(Stop(why, cancel=True))
            if not await _let_go(running):
                return

    async def wait(self, number: int) -> None:
        """Wait until a job that is being cancelled is over.

        :raises Refused: 503 if the device does not let go of it
        """
        while (leaving := self._leaving.get(number)) is not None:
            await leaving.wait()
        running = self._worker.running
        if running is None or running.entry.number != number:
            return
        if running.why is None or not running.why.cancel:
            return
        if not await _let_go(running):
            detail = "the job is being cancelled, try again later"
            raise Refused(503, detail, headers={"Retry-After": "1"})

    def drop(self, lease_id: str, note: str) -> Callable[[], Awaitable[None]]:
        """Let none of a lease's jobs start any more, and stop the one that runs.

        That those of the line are cancelled is for the caller to write down.

        :returns: waits until the device has let go of it
        """
        dropped = [
            self._line.remove(number) for number in self._line.of_lease(lease_id)
        ]
        running = self._worker.running
        if running is not None and running.entry.lease != lease_id:
            running = None
        if running is not None:
            self._worker.interrupt(Stop(note, cancel=True))

        async def left() -> None:
            for entry in dropped:
                if entry is not None:
                    self._over(entry)
            if running is not None:
                await _let_go(running)

        return left

    async def _cancel_waiting(
        self, number: int, entry: PendingJob | None, why: str
    ) -> None:
        over = self._leaving[number] = asyncio.Event()
        try:
            await asyncio.wrap_future(self._store.cancel_waiting(number, why))
        except sqlite3.Error:
            # it still waits, unless its lease has ended, which cancels it on disk
            if entry is not None and self._holds(entry.lease):
                self._line.add(entry)
                self._worker.look()
                entry = None
            raise
        finally:
            if entry is not None:
                self._over(entry)
            del self._leaving[number]
            over.set()


async def _let_go(running: Running) -> bool:
    try:
        await asyncio.wait_for(running.over.wait(), LET_GO_SECONDS)
    except TimeoutError:
        return False
    return True
