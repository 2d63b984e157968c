"""Requests for the allocations of ``elastic``: number of nodes, time limit, dependency."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm.allocation.elastic_rules import (
    ElasticPool,
    ElasticSettings,
)
from sf_quantum.connectors.slurm.allocation.limits import START_SECONDS
from sf_quantum.connectors.slurm.allocation.slurm_allocation import SlurmAllocation
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.files import JSON


class Requests:
    """Requests allocations of one service.

    :param directives: ``#SBATCH`` lines of the service's job script
    :param refused: function that is called if Slurm reports that it will never grant a request
    """

    def __init__(
        self,
        queue: SlurmQueue,
        service: SlurmService,
        settings: ElasticSettings,
        directives: Sequence[str],
        pool: ElasticPool[SlurmAllocation],
        refused: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._service = service
        self._settings = settings
        self._directives = directives
        self._pool = pool
        self._refused = refused
        #: pending requests after which no request for fewer nodes is made
        self.pending: set[SlurmAllocation] = set()
        #: longest time limit of all jobs; infinite if a job has no limit
        self.longest_limit = 0.0

    @property
    def may_shorten(self) -> bool:
        """Whether time limits may be lower than the limits that the user wrote."""
        time_min = self._service.options.get("timeMin")
        return bool(self._settings.ahead) and not self._settings.keep and not time_min

    async def granted(
        self, requests: list[SlurmAllocation], dependency: str | None
    ) -> SlurmAllocation:
        """Request nodes, and wait for them; after ``patience`` seconds, accept fewer nodes.

        :param requests: list to which every requested allocation is added
        """
        nodes = self._service.options.get("nodes")
        requests.append(await self._request(_max_nodes(nodes), dependency))
        if nodes == _max_nodes(nodes):
            return await requests[0].granted()
        patient = True
        while patient:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.patience):
                    return await requests[0].granted()
            patient = dependency in self._pool.forecast.dependent()

        # A new job is submitted: if the first job were updated, it would keep its place in the
        # queue, but Slurm would grant only the minimum.
        async def fewer() -> SlurmAllocation:
            requests.append(await self._request(nodes))
            return await requests[-1].granted()

        waiting = [
            asyncio.create_task(grant) for grant in (requests[0].granted(), fewer())
        ]
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
        """Request an allocation; if there is a dependency, for the time after other jobs."""
        service, deployment = self._service, self._queue.deployment
        overrides: dict[str, JSON] = {"nodes": nodes}
        least_minutes = self._least_minutes(dependency)
        if least_minutes is not None:
            overrides["timeMin"] = least_minutes
        if dependency is not None:
            dependencies = service.options.get("dependency")
            overrides["dependency"] = (
                f"afterany:{dependency}{f',{dependencies}' if dependencies else ''}"
            )
        name = f"an allocation of {service.name or deployment}"
        (allocation,) = await SlurmAllocation.request(
            self._queue, "elastic", name, [service], self._directives, **overrides
        )
        if least_minutes is not None:
            allocation.limit.least_seconds = 60.0 * least_minutes
        if nodes == service.options.get("nodes"):
            self.pending.add(allocation)
            allocation.refusal.add_done_callback(lambda _: self._refused())
        return allocation

    def _least_minutes(self, dependency: str | None) -> int | None:
        """Return a time limit in minutes that suffices for a use like the latest allocations'.

        :returns: ``None`` if only the time limit of the service is known to suffice
        """
        full = self._service.seconds
        longest = self._pool.longest_held()
        if full is None or not self.may_shorten or longest is None:
            return None
        held = 0.0 if dependency else self._pool.forecast.held_seconds(time.monotonic())
        used = max(self.longest_limit, longest)
        least = held + used + 2 * START_SECONDS
        return math.ceil(least / 60) if least <= full - 60 else None


def _max_nodes(nodes: JSON) -> JSON:
    """Return the maximum of a range of nodes."""
    match = re.search(r"-(\d+[km]?)$", str(nodes))
    return match[1] if match else nodes
