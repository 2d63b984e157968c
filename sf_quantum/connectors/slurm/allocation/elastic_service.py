"""``elastic``: allocations are requested on demand, and kept for a while for further jobs.

This is malleability at the level of the workflow (Rocco et al. 2025, III-B): allocations are
released and requested between jobs, so no running job has to be resized.
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

    :param arrived: time at which the job arrived, on the monotonic clock
    :param has_alternative: whether the job can run on another target; it then does not wait
        for nodes that Slurm never grants
    """

    arrived: float
    length: JobLength
    has_alternative: bool


class Elastic:
    """The allocations of one service.

    After every event, :meth:`_balance` adjusts the allocations to the demand, with the rules
    of :class:`~sf_quantum.connectors.slurm.allocation.elastic_rules.ElasticPool`.

    An allocation is released and replaced if its remaining time is shorter than the time limit
    of the waiting job or, for a job without a limit, than the longest job of its step so far.
    The duration of a step's first jobs is unknown, so the time limit of an allocation may end
    jobs that have no time limit.

    :param directives: ``#SBATCH`` lines of the service's job script
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
        # waiting jobs, by the future that gets the job's allocation
        self._waiting_jobs: dict[asyncio.Future[SlurmAllocation], _Waiting] = {}
        # duration of the longest job of each step; 0 if unknown
        self._longest_seconds: defaultdict[str, float] = defaultdict(float)
        self._requested = Requests(
            queue, service, settings, directives, self._pool, self._balance
        )
        # Requests by the Slurm jobs on which they depend; None for no dependency.
        self._requests: dict[str | None, list[asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        if not service.quantum:
            quantum_steps.listeners.append(self)
            # With "dependent", pending times are not learned, since they would include the
            # wait for the quantum step.
            if settings.ahead is True:
                self._spawn(self._learn_from_journals())

    async def run(self, job: StepJob) -> JobOutcome:
        """Run a job on a free allocation, or on a new one."""
        with NodesWait(job.name, self._queue.deployment, job.service) as wait:
            return await self._run(job, wait)

    async def _run(self, job: StepJob, wait: NodesWait) -> JobOutcome:
        """Run a job on an allocation; on the next one if it ends before the job begins."""
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
                allocation = await self._await_allocation(waiting, wait)
                wait.granted()
                self._pool.job_began(allocation, step, time.monotonic())
                if self._service.quantum:
                    quantum_steps.begins(job.name, 0.0)
                ending = None
                last = not self._waiting_jobs and self._pool.is_last(step)
                if job.seconds is not None and last and self._requested.may_shorten:
                    # This task is not in _tasks: Slurm may not answer, and close() must not
                    # wait for it.
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
        for wanted in self._waiting_jobs:
            wanted.cancel()
        for allocation in [*self._pool.free, *self._pool.busy]:
            self._give_back(allocation)
        while self._tasks:
            # Not gather(): since Python 3.12, gather() of finished tasks does not run their
            # callbacks, which remove them from the set.
            await asyncio.wait(self._tasks)

    def quantum_step_started(self, step: str) -> None:
        """Release the allocations that need not be kept."""
        self._forecast.started(step, time.monotonic())
        self._balance()

    def quantum_job_submitted(self, step: str, deployment: str, slurm_job: str) -> None:
        """Request nodes with a dependency on the Slurm job."""
        # A dependency can only name jobs of the same cluster.
        is_same_cluster = (deployment, ids.cluster(slurm_job)) == (
            self._queue.deployment,
            self._service.clusters,
        )
        if self._settings.ahead == "dependent" and is_same_cluster:
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

    async def _learn_from_journals(self) -> None:
        """Learn from earlier runs, so that even the first quantum step is predicted."""
        if (record := journal.current()) is None:
            return
        place = (self._queue.deployment, self._service.name)
        earlier = JobForecast(self._settings.urgency)
        for events in await asyncio.to_thread(history.earlier_runs, record):
            history.replay(events, *place, earlier)
        self._forecast.learn(earlier)

    async def _await_allocation(
        self, waiting: _Waiting, wait: NodesWait
    ) -> SlurmAllocation:
        """Wait until an allocation is assigned to a job."""
        wanted: asyncio.Future[SlurmAllocation] = asyncio.Future()
        self._waiting_jobs[wanted] = waiting
        self._balance()
        if not wanted.done():
            wait.begin()
        try:
            return await wanted
        except asyncio.CancelledError:
            self._waiting_jobs.pop(wanted, None)
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
        """Assign, release and request allocations according to the demand."""
        if self._closed:
            return
        now = time.monotonic()
        for allocation in [
            candidate for candidate in self._pool.free if candidate.over
        ]:
            self._give_back(allocation)
        for wanted in [future for future in self._waiting_jobs if future.done()]:
            del self._waiting_jobs[wanted]
        self._assign()
        self._fail_refused_jobs()
        due = self._pool.due(now)
        for allocation in self._pool.remove_idle(now, due):
            self._spawn(allocation.give_back())
        self._pool.adjust(
            self._requests,
            len(self._waiting_jobs),
            due,
            lambda dependency: self._spawn(self._request_allocation(dependency)),
            asyncio.Task.cancel,
        )
        self._set_timer(now)

    def _assign(self) -> None:
        """Assign free allocations to waiting jobs; give back those that end too soon."""
        for wanted, waiting in list(self._waiting_jobs.items()):
            # Prefer the most recently used allocation, so that others reach the idle time.
            free = reversed(self._pool.free)
            long_enough = (idle for idle in free if idle.lasts(waiting.length))
            allocation = next(long_enough, None)
            if allocation is not None:
                self._pool.assign(allocation, waiting.arrived)
                del self._waiting_jobs[wanted]
                wanted.set_result(allocation)
        for waiting in self._waiting_jobs.values():
            # The remaining time of the free allocations is too short for the waiting jobs, so
            # they are replaced.
            for allocation in list(self._pool.free):
                self._pool.note_follower(allocation, waiting.arrived)
                self._give_back(allocation)

    def _fail_refused_jobs(self) -> None:
        """Fail waiting jobs that have another target, if Slurm never grants a request."""
        refused = next(
            (request for request in self._requested.pending if request.refusal.done()),
            None,
        )
        if refused is None:
            return
        for wanted, waiting in list(self._waiting_jobs.items()):
            if waiting.has_alternative:
                del self._waiting_jobs[wanted]
                wanted.set_exception(refused.never_granted())

    def _set_timer(self, now: float) -> None:
        """Schedule the next call of :meth:`_balance` for the pool's next change."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        change = self._pool.next_change(now)
        if change < math.inf:
            loop = asyncio.get_running_loop()
            # A timer may fire slightly early, within the resolution of its clock.
            self._timer = loop.call_later(change - now + 0.001, self._balance)

    async def _request_allocation(self, dependency: str | None) -> None:
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
        """Fail a waiting job for which there is no other request; if none, log the error."""
        waiting = [future for future in self._waiting_jobs if not future.done()]
        others = {*self._requests[None]} - {asyncio.current_task()}
        if dependency is None and len(waiting) > len(others):
            del self._waiting_jobs[waiting[0]]
            waiting[0].set_exception(error)
            return
        self._forecast.forget()
        logger.warning(str(error))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
