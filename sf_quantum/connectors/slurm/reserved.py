"""``reserved``: one allocation for the whole run, heterogeneous where services differ.

``reserve: [compute]`` is the baseline of paper 001, which holds its nodes while the QPU
works; ``[compute, quantum]`` is the co-scheduling of papers 000 and 003.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from streamflow.core.utils import get_job_step_name
from streamflow.log_handler import logger

from sf_quantum.connectors.slurm import options, policy, script
from sf_quantum.connectors.slurm.account import Entry
from sf_quantum.connectors.slurm.allocation import Allocation
from sf_quantum.connectors.slurm.jobs import Job, PerStep, Result
from sf_quantum.connectors.slurm.options import Service
from sf_quantum.connectors.slurm.queue import Queue


class Reserved:
    """One allocation, with a component for each job that may run at once.

    :param deployment: its name, for the account
    :param services: every service by name
    :param template: gives a service's job script, whose directives its nodes have
    """

    def __init__(
        self,
        deployment: str,
        queue: Queue,
        services: Mapping[str, Service],
        settings: policy.Reserve,
        template: Callable[[str], str],
        orphan_seconds: float,
    ) -> None:
        self._deployment = deployment
        self._queue = queue
        self._settings = settings
        self._template = template
        self._orphan_seconds = orphan_seconds
        names = [name for name, n in settings.places.items() for _ in range(n)]
        # the first component cannot be given back before the others
        names.sort(key=lambda name: services[name].quantum)
        self._components = [(name, services[name]) for name in names]
        self._apart = PerStep(deployment, queue)
        self._held: list[Allocation] = []
        self._free: dict[str, asyncio.Queue[Allocation]] = {}
        self._lock = asyncio.Lock()
        self._quantum_left = settings.release_times
        self._quantum_running = 0
        self._quantum_gone = False
        self._timer: asyncio.TimerHandle | None = None
        self._releasing: set[asyncio.Task[None]] = set()

    async def run(self, job: Job) -> Result:
        """Run a job on its component, or by itself once that has been given back."""
        submitted = time.time()
        quantum = job.service.quantum
        if quantum and self._quantum_gone:
            return await self._apart.run(job)
        free = await self._places(job)
        allocation = await free.get()
        if self._timer is not None and quantum:
            self._timer.cancel()
        self._quantum_running += quantum
        try:
            return await allocation.run(job, submitted)
        finally:
            self._quantum_running -= quantum
            free.put_nowait(allocation)
            self._consider_release(job)

    async def close(self) -> None:
        """Give everything back."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._releasing, return_exceptions=True)
        for allocation in reversed(self._held):
            await allocation.give_back()

    async def _places(self, job: Job) -> asyncio.Queue[Allocation]:
        """The places of a job's service, once there are nodes."""
        async with self._lock:
            if self._held and self._held[0].over:
                if logger.isEnabledFor(logging.WARNING):
                    logger.warning(
                        f"The allocation of {self._deployment} ended before the run: "
                        "another is asked for."
                    )
                self._held.clear()
            if not self._held:
                await self._reserve()
            return self._free[job.service_name or ""]

    async def _reserve(self) -> None:
        components = [c for c in self._components if not self._gone(c[1])]
        entries = [
            Entry(
                self._deployment, name, "reserved", service.partition, service.quantum
            )
            for name, service in components
        ]
        requests = " : ".join(
            " ".join(
                ["--output=/dev/null", f'--job-name="sfq {name}"', *service.words()]
            )
            for name, service in components
        )
        lines = self._directives([name for name, _ in components])
        leader = await self._queue.submit(
            f"The allocation of {self._deployment}",
            lambda key: requests,
            lambda key: script.holder(
                self._queue.login.spool, key, lines, self._orphan_seconds
            ),
            entries[0],
        )
        first = int(leader.slurm_job)
        several = len(components) > 1
        held = [Allocation(self._queue, leader, group=0 if several else None)]
        if several:
            entries[0].allocation += "+0"
        for group, entry in enumerate(entries[1:], start=1):
            # the components of a job have ids in a row (sbatch(1), heterogeneous jobs)
            own = self._queue.adopt(leader.name, str(first + group), entry)
            entry.requested(time.time())
            entry.submitted(f"{first}+{group}")
            held.append(Allocation(self._queue, leader, own, group))
        self._held = held
        mark = await held[0].granted()
        for entry in entries:
            entry.granted(mark.started)
        self._free = {name: asyncio.Queue() for name, _ in components}
        for (name, _), allocation in zip(components, held, strict=True):
            self._free[name].put_nowait(allocation)

    def _directives(self, names: list[str]) -> list[str]:
        lines: list[str] = []
        for name in names:
            lines += ["#SBATCH hetjob"] if lines or name is not names[0] else []
            lines += options.directives(self._template(name))
        return lines if any(line != "#SBATCH hetjob" for line in lines) else []

    def _gone(self, service: Service) -> bool:
        return self._quantum_gone and service.quantum

    def _consider_release(self, job: Job) -> None:
        """Give the quantum nodes back when they are not needed any more."""
        if self._quantum_gone or not any(s.quantum for _, s in self._components):
            return
        if get_job_step_name(job.name) == self._settings.release_after:
            self._quantum_left -= 1
        if self._settings.release_after is not None and self._quantum_left <= 0:
            self._release()
        elif job.service.quantum and self._settings.idle is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._settings.idle, self._release_idle)

    def _release_idle(self) -> None:
        if not self._quantum_running:
            self._release()

    def _release(self) -> None:
        self._quantum_gone = True
        for (_, service), allocation in list(
            zip(self._components, self._held, strict=False)
        )[::-1]:
            # the first component is the whole job
            if service.quantum and allocation is not self._held[0]:
                task = asyncio.create_task(allocation.give_back())
                self._releasing.add(task)
                task.add_done_callback(self._releasing.discard)
