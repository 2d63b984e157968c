"""``reserved``: one allocation for the whole run; heterogeneous if it has several components.

``reserve: [compute]`` is the baseline of Rocco et al. (2025), which holds its nodes while the
QPU is busy. ``[compute, quantum]`` is the co-scheduling of Viviani et al., Assessing the
Elephant in the Room (2025), and Esposito and Haus, Slurm Heterogeneous Jobs (2025).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from streamflow.core.utils import get_job_step_name
from streamflow.log_handler import logger

from sf_quantum.connectors import exit_codes, hints
from sf_quantum.connectors.slurm.allocation.nodes_wait import NodesWait
from sf_quantum.connectors.slurm.allocation.per_step import run_alone
from sf_quantum.connectors.slurm.allocation.slurm_allocation import SlurmAllocation
from sf_quantum.connectors.slurm.allocation.step_job import AllocationGone, StepJob
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.refusals import SlurmRefusal
from sf_quantum.connectors.slurm.services import ReservedSettings, SlurmService
from sf_quantum.connectors.slurm.transport.answers import JobOutcome


class Reserved:
    """One allocation, with a component for each concurrent job.

    :param services: services of the components
    :param directives: ``#SBATCH`` lines of the job scripts, by the name of the service
    """

    def __init__(
        self,
        queue: SlurmQueue,
        services: Iterable[SlurmService],
        settings: ReservedSettings,
        directives: Mapping[str, list[str]],
    ) -> None:
        self._queue = queue
        self._services = sorted(services, key=lambda service: service.component.place)
        self._settings = settings
        self._directives = directives
        self._lock = asyncio.Lock()
        self._held: list[Components] = []
        self._quantum_released = False
        self._jobs_before_release = settings.release_times
        self._quantum_running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        # done if Slurm never grants the allocation for which jobs wait
        self._refusal: asyncio.Future[SlurmRefusal] = asyncio.Future()

    async def run(self, job: StepJob) -> JobOutcome:
        """Run a job on a component or, if its nodes are released, as a separate Slurm job."""
        with NodesWait(job.name, self._queue.deployment, job.service) as wait:
            outcome = await self._run(job, wait)
        return outcome or await run_alone(self._queue, job)

    async def _run(self, job: StepJob, wait: NodesWait) -> JobOutcome | None:
        """Run a job on a component; return ``None`` if its service has no components left."""
        requested = time.time()
        while not (job.service.quantum and self._quantum_released):
            try:
                components = await self._components_for(job, wait)
            except AllocationGone:
                continue
            self._begin(job)
            try:
                outcome = await components.run(job, requested, wait)
            except AllocationGone:  # the job has not begun
                continue
            finally:
                self._end(job)
            if outcome.is_success(exit_codes.current()):
                if get_job_step_name(job.name) == self._settings.release_after:
                    self._jobs_before_release -= 1
                if self._jobs_before_release <= 0:
                    self._release()
            return outcome
        return None

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for components in self._held:
            await components.give_back()

    async def _components_for(self, job: StepJob, wait: NodesWait) -> Components:
        """Return the components, once their nodes are granted.

        :raises SlurmRefusal: if Slurm never grants the nodes, and the job has another target
        """
        if self._lock.locked() or not self._held or self._held[-1].over:
            wait.begin()
        if not hints.of(job.name).has_alternative:
            return await self._components()
        granted, refusal = asyncio.create_task(self._components()), self._refusal
        try:
            either: list[asyncio.Future[Components] | asyncio.Future[SlurmRefusal]]
            either = [granted, refusal]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not granted.done():
                raise refusal.result()
            return granted.result()
        finally:
            granted.cancel()
            await asyncio.wait([granted])

    async def _components(self) -> Components:
        """Return the components, once their nodes are granted."""
        async with self._lock:
            if self._closed:
                raise asyncio.CancelledError
            if self._held and self._held[-1].over:
                logger.warning(
                    f"The allocation of {self._queue.deployment} ended before the run; "
                    "another is requested."
                )
                lost = self._held[-1]
                lost.release(lost.services)
            if not self._held or self._held[-1].over:
                self._held.append(await self._reserve())
            return self._held[-1]

    async def _reserve(self) -> Components:
        """Request the components that are not released, and wait until they are granted."""
        released = self._quantum_released
        services = [s for s in self._services if not (released and s.quantum)]
        each = [self._directives[service.name] for service in services]
        lines = [
            line for directives in each for line in ["#SBATCH hetjob", *directives]
        ][1:]
        held = await SlurmAllocation.request(
            self._queue,
            "reserved",
            f"the allocation of {self._queue.deployment}",
            services,
            lines if any(each) else [],
        )
        names = [service.name for service in services]
        components = Components(zip(names, held, strict=True))

        def refuse(reason: asyncio.Future[str]) -> None:
            refused = next(
                component for component in held if component.refusal is reason
            )
            if not self._refusal.done():
                self._refusal.set_result(refused.never_granted())

        for component in held:
            component.refusal.add_done_callback(refuse)
        try:
            await held[0].granted()
        except BaseException:
            await components.give_back()
            raise
        finally:
            for component in held:
                component.refusal.remove_done_callback(refuse)
            if self._refusal.done():
                self._refusal = asyncio.Future()
        return components

    def _begin(self, job: StepJob) -> None:
        if job.service.quantum:
            self._quantum_running += 1
            if self._timer is not None:
                self._timer.cancel()

    def _end(self, job: StepJob) -> None:
        if job.service.quantum:
            self._quantum_running -= 1
            if self._quantum_running == 0 and self._settings.idle is not None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._settings.idle, self._release)

    def _release(self) -> None:
        """Release the quantum components, each as soon as it is idle."""
        self._quantum_released = True
        for components in self._held[-1:]:
            components.release(s.name for s in self._services if s.quantum)


class Components:
    """The components of one allocation, each of which runs one job at a time.

    :param held: pairs of a service's name and a component, in Slurm's order
    """

    def __init__(self, held: Iterable[tuple[str, SlurmAllocation]]) -> None:
        self._held = list(held)
        self._released: set[str] = set()
        self._busy: set[SlurmAllocation] = set()
        self._given_back: set[SlurmAllocation] = set()
        self._free: dict[str, asyncio.Queue[SlurmAllocation]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        for name, allocation in self._held:
            self._free.setdefault(name, asyncio.Queue()).put_nowait(allocation)
        self.services = [*self._free]

    @property
    def over(self) -> bool:
        """Whether an unreleased component has ended, or all components are released."""
        return self._released.issuperset(self._free) or any(
            allocation.over
            for name, allocation in self._held
            if name not in self._released
        )

    async def run(self, job: StepJob, requested: float, wait: NodesWait) -> JobOutcome:
        """Run a job on a component of the job's service, as soon as one is free.

        :raises AllocationGone: if the component ended before the job began
        """
        free = self._free[job.service.name]
        if free.empty():
            wait.begin()
        allocation = await free.get()
        self._busy.add(allocation)
        try:
            # The component may have been released since its last job ended.
            if allocation in self._given_back:
                raise AllocationGone
            wait.granted()
            return await allocation.run(job, requested)
        finally:
            self._busy.discard(allocation)
            # Even a component that has ended is put back, so that other waiting jobs notice.
            free.put_nowait(allocation)
            self._give_released_back()

    def release(self, services: Iterable[str]) -> None:
        """Release the components of services, each as soon as it is idle."""
        self._released.update(services)
        self._give_released_back()

    async def give_back(self) -> None:
        """Release all components immediately."""
        for _, allocation in reversed(self._held):
            await allocation.give_back()
        await asyncio.gather(*self._tasks)

    def _give_released_back(self) -> None:
        """Give back the released components that no job uses any more."""
        first = self._held[0][1]
        for name, allocation in reversed(self._held):
            # The end of the first component would end the others, so it waits for all jobs.
            busy = self._busy if allocation is first else self._busy & {allocation}
            if name in self._released and not busy | (self._given_back & {allocation}):
                self._given_back.add(allocation)
                task = asyncio.create_task(allocation.give_back())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
