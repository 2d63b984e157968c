"""``elastic``: allocations are requested on demand, and kept for a while for further jobs.

This is malleability at the level of the workflow (paper 001, section III-B): allocations are
released and requested between jobs, so that no running job has to be resized.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from contextlib import suppress

from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.utils import get_job_step_name
from streamflow.log_handler import logger

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.allocation import AllocationGone, SlurmAllocation
from sf_quantum.connectors.slurm.forecast import JobForecast
from sf_quantum.connectors.slurm.job import BatchJob, NodeUsage
from sf_quantum.connectors.slurm.per_step import StepJob, StepResult, StrategyContext
from sf_quantum.connectors.slurm.services import ElasticSettings, SlurmService
from sf_quantum.connectors.steps import quantum_steps
from sf_quantum.files import JSON


class Elastic:
    """The allocations of one service.

    After every event :meth:`_balance` adjusts the allocations to the demand.

    An allocation is given back, and replaced for the job, if its remaining time is shorter
    than the job's time limit, or, for a job without one, than the longest job of its step
    so far. The duration of the first jobs of a step is unknown, so jobs without a time
    limit may be ended by that of their allocation.

    :param template: a job script of the service; allocations get its directives
    """

    def __init__(
        self,
        context: StrategyContext,
        service: SlurmService,
        settings: ElasticSettings,
        template: str,
    ) -> None:
        self._context = context
        self._service = service
        self._settings = settings
        self._template = template
        self._forecast = JobForecast()
        # the allocations that jobs wait for, with the seconds needed
        self._wanted: dict[asyncio.Future[SlurmAllocation], float] = {}
        # the duration of the longest job of each step
        self._longest_seconds: dict[str, float] = {}
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

    async def run(self, job: StepJob) -> StepResult:
        """Run a job on a free allocation, or on a new one."""
        requested = time.time()
        self._forecast.job_arrived(time.monotonic())
        try:
            while True:
                allocation = await self._get(self._needed(job))
                try:
                    done = await allocation.run(job, requested)
                    self._learn(job, done)
                    return done
                except AllocationGone:  # before the job began
                    continue
                finally:
                    self._busy.discard(allocation)
                    self._make_free(allocation)
        finally:
            self._forecast.job_ended()
            self._balance()

    async def close(self) -> None:
        """Give all allocations back."""
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
        if (
            self._settings.ahead == "dependent"
            and deployment == self._context.deployment
        ):
            self._forecast.submitted(step, slurm_job)
            self._balance()

    def quantum_step_ended(self, step: str) -> None:
        """Hold nodes for the jobs that follow the step."""
        self._forecast.ended(step, time.monotonic())
        self._balance()

    def _needed(self, job: StepJob) -> float:
        """The longest expected duration of a job in seconds, 0 if unknown."""
        if job.seconds is not None:
            return job.seconds
        return self._longest_seconds.get(get_job_step_name(job.name), 0.0)

    def _learn(self, job: StepJob, done: StepResult) -> None:
        began, ended = done.outcome.started, done.outcome.ended
        if began is not None and ended is not None:
            step = get_job_step_name(job.name)
            self._longest_seconds[step] = max(
                self._longest_seconds.get(step, 0.0), ended - began
            )

    async def _get(self, seconds: float) -> SlurmAllocation:
        wanted: asyncio.Future[SlurmAllocation] = asyncio.Future()
        self._wanted[wanted] = seconds
        self._balance()
        try:
            return await wanted
        except asyncio.CancelledError:
            self._wanted.pop(wanted, None)
            if not wanted.cancelled() and wanted.exception() is None:
                self._busy.discard(wanted.result())
                self._make_free(wanted.result())
            self._balance()
            raise

    def _make_free(self, allocation: SlurmAllocation) -> None:
        if allocation.over or self._closed:
            self._give_back(allocation)
        else:
            self._free[allocation] = time.monotonic()
        self._balance()

    def _give_back(self, allocation: SlurmAllocation) -> None:
        self._free.pop(allocation, None)
        self._spawn(asyncio.create_task(allocation.give_back()))

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
                task = asyncio.create_task(self._take(dependency))
                requests.append(task)
                self._spawn(task)
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
        :raises WorkflowExecutionException: if all requests are refused
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

        waiting = [asyncio.ensure_future(requests[0].granted())]
        waiting.append(asyncio.ensure_future(fewer()))
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
        service, deployment = self._service, self._context.deployment
        instead: dict[str, JSON] = {"nodes": nodes}
        if dependency is not None:
            own = service.options.get("dependency")
            instead["dependency"] = f"afterany:{dependency}{f',{own}' if own else ''}"
        usage = NodeUsage(deployment, service, "elastic")
        leader = BatchJob(f"an allocation of {service.name or deployment}", usage)
        directives = scripts.directives(self._template)
        await self._context.hold(leader, [service], directives, **instead)
        return SlurmAllocation(self._context.queue, leader, leader)

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

    def _spawn(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _most(nodes: JSON) -> JSON:
    """The maximum of a range of nodes."""
    found = re.search(r"-(\d+[km]?)$", str(nodes))
    return found[1] if found else nodes
