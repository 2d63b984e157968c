"""``elastic``: allocations are requested on demand, and kept for a while for further jobs.

This is malleability at the level of the workflow (paper 001, section III-B): allocations are
released and requested between jobs, so that no running job has to be resized.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.utils import get_job_step_name
from streamflow.log_handler import logger

from sf_quantum.connectors.slurm.answers import JobOutcome
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.services import ElasticSettings, SlurmService
from sf_quantum.connectors.slurm.step_job import (
    AllocationGone,
    SlurmAllocation,
    StepJob,
)
from sf_quantum.connectors.steps import quantum_steps
from sf_quantum.files import JSON

# added to the time that the last allocation was pending
MARGIN_SECONDS = 0.5
#: jobs that arrive within this time after a quantum step are counted as its followers
FOLLOWS_SECONDS = 5.0


class Elastic:
    """The allocations of one service.

    After every event :meth:`_balance` adjusts the allocations to the demand.

    An allocation is given back, and replaced for the job, if its remaining time is shorter
    than the job's time limit, or, for a job without one, than the longest job of its step
    so far. The duration of the first jobs of a step is unknown, so jobs without a time
    limit may be ended by that of their allocation.

    :param directives: the ``#SBATCH`` lines of the service's job script
    """

    def __init__(
        self,
        queue: SlurmQueue,
        service: SlurmService,
        settings: ElasticSettings,
        directives: Sequence[str],
    ) -> None:
        self._queue = queue
        self._service = service
        self._settings = settings
        self._directives = directives
        self._forecast = JobForecast()
        # the allocations that jobs wait for, with the seconds needed
        self._wanted: dict[asyncio.Future[SlurmAllocation], float] = {}
        # the duration of the longest job of each step, 0 if unknown
        self._longest_seconds: defaultdict[str, float] = defaultdict(float)
        # idle allocations, with the time since which they are idle
        self._free: dict[SlurmAllocation, float] = {}
        self._busy: set[SlurmAllocation] = set()
        # by the Slurm jobs on which they depend, None for no dependency
        self._requests: dict[str | None, list[asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        if not service.quantum:
            quantum_steps.listeners.append(self)

    async def run(self, job: StepJob) -> JobOutcome:
        """Run a job on a free allocation, or on a new one."""
        requested, step = time.time(), get_job_step_name(job.name)
        self._forecast.job_arrived(time.monotonic())
        try:
            while True:
                longest = self._longest_seconds[step]
                seconds = longest if job.seconds is None else job.seconds
                allocation = await self._get(seconds)
                try:
                    outcome = await allocation.run(job, requested)
                    began, ended = outcome.started, outcome.ended
                    if began is not None and ended is not None:
                        longest = self._longest_seconds[step]
                        self._longest_seconds[step] = max(longest, ended - began)
                    return outcome
                except AllocationGone:  # before the job began
                    continue
                finally:
                    self._make_free(allocation)
        finally:
            self._forecast.job_ended()
            self._balance()

    async def close(self) -> None:
        self._closed = True
        if self in quantum_steps.listeners:
            quantum_steps.listeners.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        for tasks in self._requests.values():
            for task in tasks:
                task.cancel()
        for wanted in self._wanted:
            wanted.cancel()
        for allocation in [*self._free, *self._busy]:
            self._give_back(allocation)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def quantum_step_started(self, step: str, seconds: float | None) -> None:
        """Give back the allocations that need not be kept."""
        ends = None if seconds is None else time.monotonic() + seconds
        self._forecast.started(step, ends)
        self._balance()

    def quantum_job_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        """Request nodes with a dependency on this job."""
        if self._settings.ahead == "dependent" and deployment == self._queue.deployment:
            self._forecast.submitted(step, slurm_job)
            self._balance()

    def quantum_step_ended(self, step: str) -> None:
        """Hold nodes for the jobs that follow the step."""
        self._forecast.ended(step, time.monotonic())
        self._balance()

    async def _get(self, seconds: float) -> SlurmAllocation:
        wanted: asyncio.Future[SlurmAllocation] = asyncio.Future()
        self._wanted[wanted] = seconds
        self._balance()
        try:
            return await wanted
        except asyncio.CancelledError:
            self._wanted.pop(wanted, None)
            if not wanted.cancelled() and wanted.exception() is None:
                self._make_free(wanted.result())
            self._balance()
            raise

    def _make_free(self, allocation: SlurmAllocation) -> None:
        self._busy.discard(allocation)
        if allocation.over or self._closed:
            self._give_back(allocation)
        else:
            self._free[allocation] = time.monotonic()
        self._balance()

    def _give_back(self, allocation: SlurmAllocation) -> None:
        self._free.pop(allocation, None)
        self._spawn(allocation.give_back())

    def _balance(self) -> None:
        """Assign, give back and request allocations according to the demand."""
        if self._closed:
            return
        now = time.monotonic()
        for allocation in [one for one in self._free if one.over]:
            self._give_back(allocation)
        for wanted in [one for one in self._wanted if one.done()]:
            del self._wanted[wanted]
        self._assign()
        due = self._forecast.due(now) if self._settings.ahead else 0
        self._give_idle_back(now, due)
        self._request_or_cancel(due)
        self._set_timer(now)

    def _assign(self) -> None:
        for wanted, seconds in list(self._wanted.items()):
            # the most recently used one, so that the others reach the idle time
            long_enough = (one for one in reversed(self._free) if one.lasts(seconds))
            allocation = next(long_enough, None)
            if allocation is not None:
                del self._free[allocation], self._wanted[wanted]
                self._busy.add(allocation)
                wanted.set_result(allocation)
        if self._wanted:
            # their remaining time is too short for the waiting jobs: replace them
            for allocation in list(self._free):
                self._give_back(allocation)

    def _give_idle_back(self, now: float, due: int) -> None:
        kept = max(due, self._settings.keep - len(self._busy))
        for allocation, since in list(self._free.items()):
            if len(self._free) > kept and now >= since + self._idle_seconds():
                self._give_back(allocation)

    def _idle_seconds(self) -> float:
        return 0.0 if self._forecast.quantum else self._settings.idle

    def _request_or_cancel(self, due: int) -> None:
        """Request missing allocations, and cancel requests that are not needed."""
        there = len(self._free) + len(self._busy)
        maximum = self._settings.max
        room = math.inf if maximum is None else maximum - there
        lacking = len(self._wanted) + max(0, due - len(self._free))
        lacking_by: dict[str | None, int] = {None: lacking}
        for ended, count in self._forecast.dependent().items():
            lacking_by[ended] = max(0, count - len(self._free))
        for stale in [one for one in self._requests if one not in lacking_by]:
            # the step has ended or has another job now
            self._requests.setdefault(None, []).extend(self._requests.pop(stale))
        for dependency, count in lacking_by.items():
            requests = self._requests.setdefault(dependency, [])
            needed = min(count, room)
            # a request for an allocation that would be kept need not be cancelled
            spared = 0 if dependency else min(self._settings.keep - there, room)
            while len(requests) > max(needed, spared):
                requests.pop().cancel()
            while len(requests) < needed:
                requests.append(self._spawn(self._take(dependency)))
            room -= len(requests)

    def _set_timer(self, now: float) -> None:
        """Schedule the next balance at the next idle or forecast time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        idle = [since + self._idle_seconds() for since in self._free.values()]
        times = [*idle, *self._forecast.changes(now)]
        later = [at for at in times if now < at < math.inf]
        if later:
            loop = asyncio.get_running_loop()
            # a timer may fire early by the resolution of its clock
            self._timer = loop.call_later(min(later) - now + 0.001, self._balance)

    async def _take(self, dependency: str | None) -> None:
        """Request one allocation, and wait for its nodes."""
        began = time.monotonic()
        requests: list[SlurmAllocation] = []
        granted = None
        try:
            granted = await self._granted(requests, dependency)
        except Exception as error:  # noqa: BLE001 - the waiting job fails with it
            self._refused(error, dependency)
        finally:
            task = asyncio.current_task()
            for tasks in self._requests.values():
                if task in tasks:
                    tasks.remove(task)
            for request in requests:
                if request is not granted:
                    await request.give_back()
        if granted is None:
            self._balance()
        else:
            if dependency is None:
                self._forecast.queued_seconds = time.monotonic() - began
            else:
                self._forecast.passed(dependency)
            self._make_free(granted)

    async def _granted(
        self, requests: list[SlurmAllocation], dependency: str | None
    ) -> SlurmAllocation:
        """Wait for nodes; after ``patience`` seconds, accept fewer.

        :param requests: receives every allocation that is requested
        """
        nodes = self._service.options.get("nodes")
        requests.append(await self._request(_most(nodes), dependency))
        if nodes == _most(nodes):
            return await requests[0].granted()
        patient = True
        while patient:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.patience):
                    return await requests[0].granted()
            patient = dependency in self._forecast.dependent()

        # updating the job would keep its place in the queue, but Slurm then grants the minimum
        async def fewer() -> SlurmAllocation:
            requests.append(await self._request(nodes))
            return await requests[-1].granted()

        waiting = [asyncio.create_task(one) for one in (requests[0].granted(), fewer())]
        try:
            for finished in asyncio.as_completed(waiting):
                try:
                    return await finished
                except WorkflowExecutionException as error:
                    refusal = error
            raise refusal
        finally:
            for task in waiting:
                task.cancel()

    async def _request(
        self, nodes: JSON, dependency: str | None = None
    ) -> SlurmAllocation:
        service, deployment = self._service, self._queue.deployment
        instead: dict[str, JSON] = {"nodes": nodes}
        if dependency is not None:
            own = service.options.get("dependency")
            instead["dependency"] = f"afterany:{dependency}{f',{own}' if own else ''}"
        name = f"an allocation of {service.name or deployment}"
        (allocation,) = await SlurmAllocation.request(
            self._queue, "elastic", name, [service], self._directives, **instead
        )
        return allocation

    def _refused(self, error: Exception, dependency: str | None) -> None:
        """Fail a waiting job that no other request can serve, or log the error."""
        waiting = [one for one in self._wanted if not one.done()]
        others = {*self._requests[None]} - {asyncio.current_task()}
        if dependency is None and len(waiting) > len(others):
            del self._wanted[waiting[0]]
            waiting[0].set_exception(error)
            return
        self._forecast.forget()
        logger.warning(str(error))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _most(nodes: JSON) -> JSON:
    """The maximum of a range of nodes."""
    found = re.search(r"-(\d+[km]?)$", str(nodes))
    return found[1] if found else nodes


@dataclass
class _QuantumStep:
    """A quantum step: its current run, and the jobs that followed its last one.

    :param followers: the number of jobs that arrived before the first of them ended
    :param arrived: the number of jobs that have arrived since the current run ended
    :param due: whether nodes have been due during the current run: granted sooner than
        expected, they are not given back to be requested again
    """

    followers: int = 0
    arrived: int = 0
    running: bool = False
    due: bool = False
    ends: float = math.inf
    jobs: tuple[str, ...] = ()


class JobForecast:
    """Predicts the jobs after a quantum step from its last run; times are of one clock."""

    def __init__(self) -> None:
        #: how long the last allocation was pending
        self.queued_seconds = 0.0
        self._steps: dict[str, _QuantumStep] = {}
        # the step whose followers are being counted, and the latest arrival of the first
        self._last: _QuantumStep | None = None
        self._until = 0.0

    @property
    def quantum(self) -> bool:
        """Whether a quantum step is running."""
        return any(step.running for step in self._steps.values())

    def started(self, name: str, ends: float | None) -> None:
        """Record the start of a quantum step, and its expected end."""
        self._stop_counting()
        step = self._steps.setdefault(name, _QuantumStep())
        step.running, step.due, step.jobs = True, False, ()
        step.ends = math.inf if ends is None else ends

    def submitted(self, name: str, slurm_job: str) -> None:
        """Record a Slurm job of the step, on whose end allocations can depend."""
        if name in self._steps:
            self._steps[name].jobs += (slurm_job,)

    def passed(self, dependency: str) -> None:
        """Record that the Slurm jobs of a dependency have ended."""
        for step in self._steps.values():
            if step.running and ":".join(step.jobs) == dependency:
                step.ends, step.jobs = -math.inf, ()

    def ended(self, name: str, now: float) -> None:
        self._stop_counting()
        if name in self._steps:
            self._last, self._until = self._steps[name], now + FOLLOWS_SECONDS
            self._last.running, self._last.arrived = False, 0

    def forget(self) -> None:
        """Expect no jobs after any step until followers are counted again."""
        self._last = None
        for step in self._steps.values():
            step.followers = 0

    def job_arrived(self, now: float) -> None:
        if self._last is not None and (self._last.arrived or now < self._until):
            self._last.arrived += 1

    def job_ended(self) -> None:
        """Stop counting followers: jobs that arrive from now on can reuse nodes."""
        if self._last is not None and self._last.arrived:
            self._stop_counting()

    def due(self, now: float) -> int:
        """The number of jobs expected so soon that nodes may be held for them."""
        running = [s for s in self._steps.values() if s.running and not s.jobs]
        for step in running:
            step.due = step.due or now >= self._request_time(step)
        expected = sum(step.followers for step in running if step.due)
        return expected + self._still_to_come(now)

    def dependent(self) -> dict[str, int]:
        """The number of jobs expected after Slurm jobs, by ids in ``--dependency`` form."""
        return {
            ":".join(step.jobs): step.followers
            for step in self._steps.values()
            if step.running and step.jobs and step.followers
        }

    def changes(self, now: float) -> Iterator[float]:
        """The times at which :meth:`due` changes without an event."""
        for step in self._steps.values():
            if step.running and step.followers and not step.jobs:
                yield self._request_time(step)
        if self._still_to_come(now):
            yield self._until

    def _request_time(self, step: _QuantumStep) -> float:
        return step.ends - self.queued_seconds - MARGIN_SECONDS

    def _still_to_come(self, now: float) -> int:
        if self._last is None or now >= self._until:
            return 0
        return max(0, self._last.followers - self._last.arrived)

    def _stop_counting(self) -> None:
        if self._last is not None:
            self._last.followers = self._last.arrived
            self._last = None
