"""``elastic``: allocations are requested on demand, and kept for a while for further jobs.

This is malleability at the level of the workflow (Rocco et al. 2025, III-B): allocations are
released and requested between jobs, so that no running job has to be resized.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass

from streamflow.core.utils import get_job_step_name
from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.connectors import hints
from sf_quantum.connectors.quantum.running_steps import quantum_steps
from sf_quantum.connectors.slurm.allocation import history
from sf_quantum.connectors.slurm.allocation.elastic_rules import (
    ElasticPool,
    ElasticSettings,
)
from sf_quantum.connectors.slurm.allocation.forecast import JobForecast
from sf_quantum.connectors.slurm.allocation.limits import JobLength
from sf_quantum.connectors.slurm.allocation.nodes_wait import NodesWait
from sf_quantum.connectors.slurm.allocation.requests import Requests
from sf_quantum.connectors.slurm.allocation.slurm_allocation import SlurmAllocation
from sf_quantum.connectors.slurm.allocation.step_job import AllocationGone, StepJob
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.slurm import ids


@dataclass(frozen=True)
class _Waiting:
    """A job that waits for an allocation.

    :param has_alternative: whether it can run on another target, so it does not wait
        for nodes that Slurm never grants
    """

    arrived: float
    length: JobLength
    has_alternative: bool


class Elastic:
    """The allocations of one service.

    After every event :meth:`_balance` adjusts the allocations to the demand, by the rules of
    :class:`~sf_quantum.connectors.slurm.allocation.elastic_rules.ElasticPool`.

    An allocation is given back, and replaced for the job, if its remaining time is shorter
    than the job's time limit, or, for a job without a limit, than the longest job of its
    step so far. The duration of the first jobs of a step is unknown, so the time limit of
    an allocation may end jobs without a time limit.

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
        self._pool: ElasticPool[SlurmAllocation] = ElasticPool(settings)
        self._forecast = self._pool.forecast
        # the allocations that jobs wait for
        self._wanted: dict[asyncio.Future[SlurmAllocation], _Waiting] = {}
        # the duration of the longest job of each step, 0 if unknown
        self._longest_seconds: defaultdict[str, float] = defaultdict(float)
        self._requested = Requests(
            queue, service, settings, directives, self._pool, self._balance
        )
        # Requests by the Slurm job that they depend on, None for no dependency.
        self._requests: dict[str | None, list[asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        if not service.quantum:
            quantum_steps.listeners.append(self)
            # Pending times are not learned with "dependent": they would include the
            # wait for the quantum step.
            if settings.ahead is True:
                self._spawn(self._learn())

    async def run(self, job: StepJob) -> JobOutcome:
        """Run a job on a free allocation, or on a new one."""
        with NodesWait(job.name, self._queue.deployment, job.service) as wait:
            return await self._run(job, wait)

    async def _run(self, job: StepJob, wait: NodesWait) -> JobOutcome:
        requested, step = time.time(), get_job_step_name(job.name)
        arrived = time.monotonic()
        self._pool.job_arrived(arrived)
        elsewhere = hints.of(job.name).has_alternative
        limit = math.inf if job.seconds is None else job.seconds
        requests = self._requested
        requests.longest_limit = max(requests.longest_limit, limit)
        try:
            while True:
                length = JobLength(job.seconds, self._longest_seconds[step])
                waiting = _Waiting(arrived, length, elsewhere)
                allocation = await self._get(waiting, wait)
                wait.granted()
                self._pool.job_began(allocation, step, time.monotonic())
                if self._service.quantum:
                    quantum_steps.begins(job.name, 0.0)
                ending = None
                last = not self._wanted and self._pool.is_last(step)
                if job.seconds is not None and last and self._requested.may_shorten:
                    # `close` does not wait for this task, since Slurm may not answer
                    ending = asyncio.create_task(allocation.end_with(job.seconds))
                try:
                    outcome = await allocation.run(job, requested)
                    began, ended = outcome.started, outcome.ended
                    if began is not None and ended is not None:
                        longest = self._longest_seconds[step]
                        self._longest_seconds[step] = max(longest, ended - began)
                    return outcome
                except AllocationGone:  # the job has not begun
                    continue
                finally:
                    if ending is not None:
                        ending.cancel()
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
        for allocation in [*self._pool.free, *self._pool.busy]:
            self._give_back(allocation)
        while self._tasks:
            # from Python 3.12, `gather` of finished tasks does not run their callbacks, which
            # remove them from the set
            await asyncio.wait(self._tasks)

    def quantum_step_started(self, step: str) -> None:
        """Give back the allocations that need not be kept."""
        self._forecast.started(step, time.monotonic())
        self._balance()

    def quantum_job_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        """Request nodes with a dependency on this job."""
        # a dependency can only name jobs of the same cluster
        same = (deployment, ids.cluster(slurm_job)) == (
            self._queue.deployment,
            self._service.clusters,
        )
        if self._settings.ahead == "dependent" and same:
            self._forecast.submitted(step, ids.number(slurm_job))
            self._balance()

    def quantum_job_begins(self, step: str, job: str, seconds: float) -> None:
        """Adjust the time at which nodes are requested."""
        self._forecast.begins(step, job, time.monotonic() + seconds)
        self._balance()

    def quantum_step_ended(self, step: str, *, completed: bool) -> None:
        """Hold nodes for the jobs that follow the step."""
        self._forecast.ended(step, time.monotonic(), completed=completed)
        self._balance()

    async def _learn(self) -> None:
        """Learn from earlier runs, so that even the first quantum step is predicted."""
        if (record := journal.current()) is None:
            return
        of = (self._queue.deployment, self._service.name)
        earlier = JobForecast(self._settings.urgency)
        for events in await asyncio.to_thread(history.earlier_runs, record):
            history.replay(events, *of, earlier)
        self._forecast.learn(earlier)

    async def _get(self, waiting: _Waiting, wait: NodesWait) -> SlurmAllocation:
        wanted: asyncio.Future[SlurmAllocation] = asyncio.Future()
        self._wanted[wanted] = waiting
        self._balance()
        if not wanted.done():
            wait.begin()
        try:
            return await wanted
        except asyncio.CancelledError:
            self._wanted.pop(wanted, None)
            if not wanted.cancelled() and wanted.exception() is None:
                self._make_free(wanted.result())
            self._balance()
            raise

    def _make_free(self, allocation: SlurmAllocation) -> None:
        if allocation.over or self._closed:
            self._give_back(allocation)
        else:
            self._pool.make_free(allocation, time.monotonic())
        self._balance()

    def _give_back(self, allocation: SlurmAllocation) -> None:
        self._pool.remove(allocation)
        self._spawn(allocation.give_back())

    def _balance(self) -> None:
        """Assign, give back and request allocations according to the demand."""
        if self._closed:
            return
        now = time.monotonic()
        for allocation in [one for one in self._pool.free if one.over]:
            self._give_back(allocation)
        for wanted in [one for one in self._wanted if one.done()]:
            del self._wanted[wanted]
        self._assign()
        self._send_elsewhere()
        due = self._pool.due(now)
        for allocation in self._pool.remove_idle(now, due):
            self._spawn(allocation.give_back())
        self._pool.adjust(
            self._requests,
            len(self._wanted),
            due,
            lambda dependency: self._spawn(self._take(dependency)),
            asyncio.Task.cancel,
        )
        self._set_timer(now)

    def _assign(self) -> None:
        for wanted, waiting in list(self._wanted.items()):
            # the most recently used allocation, so that the others reach the idle time
            free = reversed(self._pool.free)
            long_enough = (one for one in free if one.lasts(waiting.length))
            allocation = next(long_enough, None)
            if allocation is not None:
                self._pool.assign(allocation, waiting.arrived)
                del self._wanted[wanted]
                wanted.set_result(allocation)
        for waiting in self._wanted.values():
            # the free allocations' time is too short for the waiting jobs: replace them
            for allocation in list(self._pool.free):
                self._pool.note_follower(allocation, waiting.arrived)
                self._give_back(allocation)

    def _send_elsewhere(self) -> None:
        """Fail waiting jobs with another target if Slurm never grants a request."""
        refused = next(
            (one for one in self._requested.pending if one.refusal.done()), None
        )
        if refused is None:
            return
        for wanted, waiting in list(self._wanted.items()):
            if waiting.has_alternative:
                del self._wanted[wanted]
                wanted.set_exception(refused.never_granted())

    def _set_timer(self, now: float) -> None:
        """Schedule the next balance at the next idle or forecast time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        change = self._pool.next_change(now)
        if change < math.inf:
            loop = asyncio.get_running_loop()
            # a timer may fire early by the resolution of its clock
            self._timer = loop.call_later(change - now + 0.001, self._balance)

    async def _take(self, dependency: str | None) -> None:
        """Request one allocation, and wait for its nodes."""
        began = time.monotonic()
        requests: list[SlurmAllocation] = []
        granted = None
        try:
            granted = await self._requested.granted(requests, dependency)
        except Exception as error:  # noqa: BLE001 - the waiting job fails with it
            self._refused(error, dependency)
        finally:
            task = asyncio.current_task()
            for tasks in self._requests.values():
                if task in tasks:
                    tasks.remove(task)
            self._requested.pending.difference_update(requests)
            for request in requests:
                if request is not granted:
                    await request.give_back()
        if granted is None:
            self._balance()
        else:
            if dependency is None:
                self._forecast.granted(time.monotonic() - began)
            else:
                self._forecast.passed(dependency)
            self._pool.add(granted, time.monotonic())
            self._make_free(granted)

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
