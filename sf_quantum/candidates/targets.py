"""The current state of targets: the status of QPUs, the free slots of classical targets.

Every query has a timeout, which applies even if a QPU or a connector blocks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from streamflow.core.deployment import Target
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.core.workflow import Status
from streamflow.deployment.connector import connector_classes
from streamflow.deployment.future import FutureConnector
from streamflow.log_handler import logger
from streamflow.recovery.failure_manager import (
    DummyFailureManager,
    RollbackFailureManager,
)

from sf_quantum.candidates.attempts import Capacity
from sf_quantum.candidates.decision import Exclusion, Obstacle
from sf_quantum.connectors.quantum.location import QuantumConnector
from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON
from sf_quantum.journal import scheduler
from sf_quantum.journal.scheduler import JournalScheduler
from sf_quantum.qpu import AuthenticationError, JobSize, QpuStatus
from sf_quantum.qpu.selection import QpuSelection
from sf_quantum.threads import in_thread

#: function that queries a QPU; it blocks, and raises the errors of
#: :meth:`sf_quantum.qpu.Qpu.status`
StatusSource: TypeAlias = Callable[[], QpuStatus]
#: the status of a QPU, or the reason why the status is unknown
StatusReply: TypeAlias = QpuStatus | Exclusion

# capacity of a target that gets no job now
FULL = Capacity(1, 0)
# largest number of threads that query a QPU; each job of a scatter may query for another size
MAX_REQUESTS = 32
# statuses of jobs that occupy a slot
OCCUPYING = (Status.FIREABLE, Status.RUNNING)


def target_name(target: Target) -> str:
    """Return a target's name for the journal and messages: deployment/service."""
    parts = (target.deployment.name, target.service)
    return "/".join(part for part in parts if part)


def status_source(
    target: Target, folder: Path, size: JobSize | None = None
) -> StatusSource | None:
    """Return the function that queries a target's QPU, if it is a quantum target.

    A deployment is quantum if its connector leases a QPU; a service is quantum if it has
    ``qpu: [names]``, a key of ``sfq.slurm``. The names are entries of the deployment's
    ``qrmiConfig`` or, without this file, QPUs of the environment. A service with only
    ``gres: qpu:N`` names no QPU to query, and is regarded as classical.

    :param folder: base of relative paths in the configuration
    :param size: size of the job for which the QPU's service is to estimate times
    :returns: ``None`` for a classical target
    """
    deployment = target.deployment
    kind = connector_classes.get(deployment.type)
    config: Mapping[str, JSON] = deployment.config
    if kind is not None and issubclass(kind, QuantumConnector):
        return partial(kind.status, deployment.name, config, folder, size)
    services = config.get("services")
    service = services.get(target.service or "") if isinstance(services, dict) else None
    names = service.get("qpu") if isinstance(service, dict) else None
    if not isinstance(names, list) or not names:
        return None
    named = [str(name) for name in names]
    return partial(_service_status, named, config, folder, size)


def _service_status(
    names: list[str],
    config: Mapping[str, JSON],
    folder: Path,
    size: JobSize | None,
) -> QpuStatus:
    """Return the status of a service's QPUs, all of which each job gets."""
    file = config.get("qrmiConfig")
    path = str(folder / Path(str(file)).expanduser()) if file else None
    qpus = QpuSelection(names, qrmi_config=path).qpus(os.environ)
    statuses = [qpu.with_job_size(size).status() for qpu in qpus]
    return together(statuses)


def together(statuses: Sequence[QpuStatus]) -> QpuStatus:
    """Return the status for a job that needs all these QPUs: worst values, total cost."""
    offline = [status for status in statuses if not status.online]
    if offline:
        return offline[0]
    costs = [s.cost_per_second for s in statuses if s.cost_per_second is not None]
    times = [
        s.maintenance_seconds for s in statuses if s.maintenance_seconds is not None
    ]
    etas = [s.eta_seconds for s in statuses if s.eta_seconds is not None]
    eta = max(etas, default=None)
    if any(s.eta_seconds is None and s.queue_length for s in statuses):
        eta = eta or None  # another ETA is unknown, so 0 would be wrong
    return replace(
        max(statuses, key=_busyness),
        # 0 qubits mean that the number is unknown
        qubits=min((s.qubits for s in statuses if s.qubits), default=0),
        queue_length=max(s.queue_length for s in statuses),
        eta_seconds=eta,
        maintenance_seconds=min(times, default=None),
        cost_per_second=sum(costs) if costs else None,
        job_qpu_seconds=_largest_known([s.job_qpu_seconds for s in statuses]),
        job_run_seconds=_largest_known([s.job_run_seconds for s in statuses]),
    )


def _largest_known(values: list[float | None]) -> float | None:
    """Return the largest value; ``None`` if a value is unknown."""
    numbers = [value for value in values if value is not None]
    return max(numbers) if len(numbers) == len(values) else None


def _busyness(status: QpuStatus) -> tuple[bool, float, int]:
    full = status.leases >= status.vqpus
    return full, status.eta_seconds or 0.0, status.queue_length


@dataclass(frozen=True)
class _Query:
    """A query of a QPU.

    :param has_thread: event that is set once a thread runs the query; from then on, only the
        QPU delays the reply
    """

    has_thread: asyncio.Event
    reply: asyncio.Future[StatusReply]


@dataclass
class _Queries:
    """The queries of one QPU.

    :param replies: number of queries that have ended
    :param silent_until: end of the QPU's cooldown after a late answer, on the monotonic clock
    """

    threads: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_REQUESTS)
    )
    replies: int = 0
    silent_until: float = 0.0
    pending: dict[JobSize | None, _Query] = field(default_factory=dict)


class StatusPoller:
    """Queries the status of QPUs, each query in its own thread.

    The number of threads per QPU is limited, and further queries wait for a thread. The
    timeout of a query starts with its thread, so a QPU with many queries does not look silent.

    :param cooldown: seconds for which a QPU that did not answer in time is not queried
        again, so that the QPU delays only one decision; its late answer ends the cooldown
    """

    def __init__(self, cooldown: float) -> None:
        self._cooldown = cooldown
        self._queries: defaultdict[str, _Queries] = defaultdict(_Queries)

    async def poll(
        self,
        sources: Mapping[str, StatusSource],
        seconds: float,
        size: JobSize | None = None,
    ) -> dict[str, StatusReply]:
        """Query all QPUs concurrently; return the replies by target name.

        :param seconds: time without a reply after which a QPU is regarded as silent
        :param size: size of the job for which QPUs are to estimate times
        """
        replies = await asyncio.gather(
            *(self._poll(name, seconds, size, sources[name]) for name in sources)
        )
        return dict(zip(sources, replies, strict=True))

    async def _poll(
        self, name: str, seconds: float, size: JobSize | None, source: StatusSource
    ) -> StatusReply:
        """Query a QPU, and wait for its reply, unless the QPU is in a cooldown."""
        queries = self._queries[name]
        if (left := queries.silent_until - time.monotonic()) > 0:
            return Exclusion(Obstacle.STILL_SILENT, left)
        query = self._query(queries, size, source)
        if await _has_thread(queries, query, seconds):
            await asyncio.wait([query.reply], timeout=seconds)
        if query.reply.done():
            return query.reply.result()
        queries.silent_until = time.monotonic() + self._cooldown
        return Exclusion(Obstacle.NO_ANSWER, limit=seconds)

    def _query(
        self, queries: _Queries, size: JobSize | None, source: StatusSource
    ) -> _Query:
        """Query a QPU, unless a query for the same size is pending."""
        if (query := queries.pending.get(size)) is None:
            has_thread = asyncio.Event()
            reply = asyncio.ensure_future(
                _query_when_free(queries, has_thread, size, source)
            )
            query = queries.pending[size] = _Query(has_thread, reply)
        return query


async def _has_thread(queries: _Queries, query: _Query, seconds: float) -> bool:
    """Wait for a query's thread while the QPU answers other queries; return whether it runs.

    :param seconds: time without any reply of the QPU that ends the wait
    """
    replies = -1
    while not query.has_thread.is_set() and replies != queries.replies:
        replies = queries.replies
        with suppress(TimeoutError):
            await asyncio.wait_for(query.has_thread.wait(), seconds)
    return query.has_thread.is_set()


async def _query_when_free(
    queries: _Queries,
    has_thread: asyncio.Event,
    size: JobSize | None,
    source: StatusSource,
) -> StatusReply:
    """Query a QPU, as soon as one of the QPU's threads is free."""
    try:
        async with queries.threads:
            has_thread.set()
            # The thread is a daemon, so a QPU that does not answer cannot keep the driver
            # from ending.
            reply = await asyncio.wrap_future(in_thread(partial(_reply, source)))
    finally:
        queries.replies += 1
        del queries.pending[size]
    if isinstance(reply, QpuStatus):
        queries.silent_until = 0.0
    return reply


def _reply(source: StatusSource) -> StatusReply:
    """Query a QPU; return its status, or the reason why it could not be queried."""
    try:
        return source()
    except AuthenticationError as error:
        return Exclusion(Obstacle.REFUSED, detail=str(error))
    except QuantumError as error:
        return Exclusion(Obstacle.UNREACHABLE, detail=str(error))
    # a vendor's package may raise any exception, or exit
    except (Exception, SystemExit) as error:  # noqa: BLE001
        detail = f"{type(error).__name__}: {error}"
        return Exclusion(Obstacle.UNREACHABLE, detail=detail)


async def capacities(
    targets: Iterable[Target], running_on: Callable[[str], list[str]], seconds: float
) -> dict[str, Capacity]:
    """Return the capacities of classical targets; one that replies too late counts as full.

    :param running_on: function that returns the jobs sent to a target, including jobs that
        wait for a slot
    """
    run = scheduler.current()
    if run is None:
        return {target_name(target): Capacity() for target in targets}
    tasks = {
        target_name(target): asyncio.create_task(_capacity(run, target, running_on))
        for target in targets
    }
    if tasks:
        _, late = await asyncio.wait(tasks.values(), timeout=seconds)
        for task in late:
            task.cancel()
    # The cancelled tasks are not done yet.
    return {name: t.result() if t.done() else FULL for name, t in tasks.items()}


def attempts_allowed() -> int | None:
    """Return the largest number of attempts of a job; ``None`` if unlimited or unknown."""
    run = scheduler.current()
    manager = run.context.failure_manager if run is not None else None
    if isinstance(manager, DummyFailureManager):
        return 1
    return manager.max_retries if isinstance(manager, RollbackFailureManager) else None


async def _capacity(
    run: JournalScheduler, target: Target, running_on: Callable[[str], list[str]]
) -> Capacity:
    """Return a target's capacity; a target whose locations cannot be listed counts as full."""
    connector = run.context.deployment_manager.get_connector(target.deployment.name)
    if connector is None:
        return Capacity()
    if isinstance(connector, FutureConnector) and not connector.deploy_event.is_set():
        return Capacity()  # a query would deploy the target
    try:
        locations = await connector.get_available_locations(service=target.service)
    except WorkflowExecutionException:
        return FULL
    except Exception as error:  # noqa: BLE001 - a site's connector may raise any error
        if logger.isEnabledFor(logging.WARNING):
            logger.warning(
                f"Target {target_name(target)} is considered full, because listing its "
                f"locations failed: {type(error).__name__}: {error}"
            )
        return FULL
    parts = [_location_capacity(run, location) for location in locations.values()] or [
        FULL
    ]
    slots, free = sum(c.slots for c in parts), sum(c.free for c in parts)
    waiting = sum(not _has_slot(run, job) for job in running_on(target_name(target)))
    return Capacity(max(1, slots), free - waiting)


def _location_capacity(run: JournalScheduler, location: AvailableLocation) -> Capacity:
    """Return a location's capacity: processors if StreamFlow knows them, otherwise slots."""
    if location.hardware is not None:
        used = run.hardware_locations.get(location.name)
        cores = int(location.hardware.cores)
        return Capacity(cores, cores - round(used.cores) if used else cores)
    slots = 1 if location.slots is None else location.slots
    allocated = run.location_allocations.get(location.deployment, {}).get(location.name)
    jobs = allocated.jobs if allocated is not None else []
    return Capacity(slots, slots - sum(_has_slot(run, job) for job in jobs))


def _has_slot(run: JournalScheduler, job: str) -> bool:
    allocation = run.job_allocations.get(job)
    return allocation is not None and allocation.status in OCCUPYING
