"""``elastic``: allocations taken when jobs want them, and kept a while for the next.

This is malleability at the level of the workflow (paper 001, section III-B): between two
jobs an allocation can be given back or another be taken, and nothing has to be moved.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress

from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.utils import get_job_step_name
from streamflow.log_handler import logger

from sf_quantum.connectors.phases import Phases
from sf_quantum.connectors.slurm import options, policy, script
from sf_quantum.connectors.slurm.account import Entry
from sf_quantum.connectors.slurm.allocation import Allocation
from sf_quantum.connectors.slurm.jobs import Job, Result
from sf_quantum.connectors.slurm.options import Service
from sf_quantum.connectors.slurm.queue import Queue

# beside what an allocation waited in the queue last time
MARGIN_SECONDS = 0.5


class Elastic:
    """The allocations of one service.

    :param deployment: its name, for the account
    :param name: the service's
    :param template: a job script of the service, whose directives its allocations have
    """

    def __init__(
        self,
        deployment: str,
        queue: Queue,
        name: str | None,
        service: Service,
        settings: policy.Elastic,
        template: str,
        orphan_seconds: float,
        phases: Phases,
    ) -> None:
        self._deployment = deployment
        self._queue = queue
        self._name = name
        self._service = service
        self._settings = settings
        self._template = template
        self._orphan_seconds = orphan_seconds
        self._plan = _Plan()
        self._asked: dict[asyncio.Task[None], Allocation | None] = {}
        self._free: dict[Allocation, asyncio.TimerHandle | None] = {}
        self._busy: set[Allocation] = set()
        self._wanted: deque[asyncio.Future[Allocation]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ahead: asyncio.TimerHandle | None = None
        # how many will be wanted when the quantum step ends
        self._awaited = 0
        self._quantum = 0
        self._closed = False
        if not service.quantum:
            phases.planners.append(self)

    async def run(self, job: Job) -> Result:
        """Run a job on an allocation, which is taken if none is free."""
        submitted = time.time()
        self._plan.arrived(get_job_step_name(job.name))
        try:
            allocation = await self._get()
            try:
                return await allocation.run(job, submitted)
            finally:
                self._busy.discard(allocation)
                self._offer(allocation)
        finally:
            self._plan.left()

    async def close(self) -> None:
        """Give every allocation back."""
        self._closed = True
        if self._ahead is not None:
            self._ahead.cancel()
        held = [*self._free, *self._busy, *filter(None, self._asked.values())]
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for timer in filter(None, self._free.values()):
            timer.cancel()
        self._free.clear()
        for allocation in held:
            await allocation.give_back()

    def quantum_began(self, step: str, seconds: float | None) -> None:
        """Fall to what is kept; ask ahead for what will be wanted."""
        self._quantum += 1
        for allocation in list(self._free):
            self._spare(allocation)
        count = self._plan.quantum_began(step)
        if self._settings.ahead and seconds is not None and count:
            lead = self._plan.queued_seconds + MARGIN_SECONDS
            delay = max(0.0, seconds - lead)
            loop = asyncio.get_running_loop()
            self._ahead = loop.call_later(delay, self._ask_ahead, count)

    def quantum_ended(self, step: str) -> None:
        """What is there now is kept for as long as ever."""
        self._quantum -= 1
        self._plan.quantum_ended(step)
        if self._ahead is not None:
            self._ahead.cancel()
        self._awaited = 0
        for allocation, timer in self._free.items():
            if timer is not None:
                timer.cancel()
            self._free[allocation] = self._timer(allocation)

    async def _get(self) -> Allocation:
        while self._free:
            allocation, timer = self._free.popitem()
            if timer is not None:
                timer.cancel()
            if not allocation.over:
                self._busy.add(allocation)
                return allocation
        wanted: asyncio.Future[Allocation] = asyncio.Future()
        self._wanted.append(wanted)
        if len(self._asked) < len(self._wanted):
            self._ask()
        try:
            return await wanted
        except asyncio.CancelledError:
            self._not_wanted(wanted)
            raise

    def _not_wanted(self, wanted: asyncio.Future[Allocation]) -> None:
        if wanted in self._wanted:
            self._wanted.remove(wanted)
            self._drop_surplus()
        elif wanted.done() and not wanted.cancelled() and wanted.exception() is None:
            self._busy.discard(wanted.result())
            self._offer(wanted.result())

    def _ask(self) -> None:
        """Ask Slurm for one more allocation, if there may be one."""
        there = len(self._asked) + len(self._free) + len(self._busy)
        if self._closed or there >= (self._settings.maximum or there + 1):
            return
        task = asyncio.create_task(self._take())
        self._asked[task] = None
        task.add_done_callback(lambda done: self._asked.pop(done, None))

    async def _take(self) -> None:
        """One allocation from the request to its nodes."""
        asked = time.monotonic()
        task = asyncio.current_task()
        assert task is not None
        try:
            allocation = await self._request()
            self._asked[task] = allocation
            self._drop_surplus()  # it may be wanted no more
            await self._granted(allocation)
        except WorkflowExecutionException as error:
            if self._wanted:
                self._wanted.popleft().set_exception(error)
            elif logger.isEnabledFor(logging.WARNING):
                logger.warning(str(error))
            return
        self._plan.queued_seconds = time.monotonic() - asked
        self._asked.pop(task, None)
        self._offer(allocation)

    async def _request(self) -> Allocation:
        about = self._service
        entry = Entry(
            self._deployment, self._name, "elastic", about.partition, about.quantum
        )
        words = [
            "--output=/dev/null",
            f'--job-name="sfq {self._name or self._deployment}"',
            *about.words(nodes=_most(about.options.get("nodes"))),
        ]
        leader = await self._queue.submit(
            f"An allocation of {self._name or self._deployment}",
            lambda key: " ".join(words),
            lambda key: script.holder(
                *(self._queue.login.spool, key),
                *(options.directives(self._template), self._orphan_seconds),
            ),
            entry,
        )
        return Allocation(self._queue, leader)

    async def _granted(self, allocation: Allocation) -> None:
        """Wait for the nodes; after a while fewer will do."""
        nodes = str(self._service.options.get("nodes") or "")
        if "-" in nodes:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.patience):
                    await allocation.granted()
                    return
            await allocation.take_fewer(nodes)
        await allocation.granted()

    def _offer(self, allocation: Allocation) -> None:
        """An allocation has no job: the next one gets it, or it waits for one."""
        while self._wanted:
            wanted = self._wanted[0]
            if allocation.over or self._closed:
                break
            self._wanted.popleft()
            if not wanted.done():
                self._busy.add(allocation)
                wanted.set_result(allocation)
                self._drop_surplus()
                return
        if allocation.over or self._closed:
            self._spawn(allocation.give_back())
            if len(self._asked) < len(self._wanted):
                self._ask()
        else:
            # one that was asked for ahead waits for the quantum step's end
            timer = None if self._awaited else self._timer(allocation)
            self._free[allocation] = timer

    def _timer(self, allocation: Allocation) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        idle = 0.0 if self._quantum else self._settings.idle
        return loop.call_later(idle, self._spare, allocation)

    def _spare(self, allocation: Allocation) -> None:
        """Give an idle allocation back, unless it is one of those that are kept."""
        if allocation not in self._free:
            return
        if len(self._free) + len(self._busy) > self._settings.keep:
            timer = self._free.pop(allocation)
            if timer is not None:
                timer.cancel()
            self._spawn(allocation.give_back())

    def _drop_surplus(self) -> None:
        """Take back requests that no job waits for any more."""
        kept = len(self._free) + len(self._busy)
        needed = max(len(self._wanted), self._settings.keep - kept, self._awaited)
        for task, allocation in list(self._asked.items())[::-1]:
            # one that is being submitted is looked at again when it has been
            if allocation is not None and len(self._asked) > needed:
                del self._asked[task]
                task.cancel()
                self._spawn(allocation.give_back())

    def _ask_ahead(self, count: int) -> None:
        self._awaited = count
        for _ in range(count - len(self._asked) - len(self._free)):
            self._ask()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Plan:
    """What happened after a quantum step last time."""

    def __init__(self) -> None:
        self.queued_seconds = 0.0
        self._counts: dict[str, int] = {}
        self._quantum: str | None = None
        self._step: str | None = None
        self._now = 0

    def quantum_began(self, step: str) -> int:
        """How many jobs at once came after it last time."""
        self._quantum = None
        return self._counts.get(step, 0)

    def quantum_ended(self, step: str) -> None:
        """The next step to come is the one after it."""
        self._quantum, self._step = step, None

    def arrived(self, step: str) -> None:
        """A job wants its nodes."""
        self._now += 1
        if self._quantum is None:
            return
        if self._step is None:
            self._step, self._counts[self._quantum] = step, 0
        if step == self._step:
            self._counts[self._quantum] = max(self._counts[self._quantum], self._now)

    def left(self) -> None:
        """A job has ended."""
        self._now -= 1


def _most(nodes: object) -> str | None:
    """The upper end of a range of nodes."""
    found = re.search(r"(\d+)\D*$", str(nodes))
    return str(nodes) if found is None and nodes is not None else found and found[1]
