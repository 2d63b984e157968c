"""How much room classical targets have, and how many attempts a job has, as the run tells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, MutableMapping

from streamflow.core.deployment import Connector, Target
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.core.workflow import Status
from streamflow.deployment.future import FutureConnector
from streamflow.log_handler import logger
from streamflow.recovery.failure_manager import (
    DummyFailureManager,
    RollbackFailureManager,
)

from sf_quantum.candidates.asking import name
from sf_quantum.candidates.ledger import Room
from sf_quantum.journal import scheduler
from sf_quantum.journal.scheduler import JournalScheduler

PLACED = (Status.FIREABLE, Status.RUNNING)
FULL = Room(1, 0)


async def rooms(
    targets: Iterable[Target], sent_to: Callable[[str], list[str]], seconds: float
) -> dict[str, Room]:
    """How much room targets have; one that does not say so in time has none.

    :param sent_to: the jobs on their way to a target, which may have no place yet
    """
    run = scheduler.current()
    if run is None:
        return {name(target): Room() for target in targets}
    tasks = {name(t): asyncio.create_task(_room(run, t, sent_to)) for t in targets}
    if tasks:
        _, late = await asyncio.wait(tasks.values(), timeout=seconds)
        for task in late:
            task.cancel()
    # a task that is only being cancelled is not done yet
    return {name: t.result() if t.done() else FULL for name, t in tasks.items()}


def attempts_allowed() -> int | None:
    """How often a job is tried at most.

    :returns: None if there is no limit, or nobody knows it
    """
    run = scheduler.current()
    manager = run.context.failure_manager if run is not None else None
    if isinstance(manager, DummyFailureManager):
        return 1
    return manager.max_retries if isinstance(manager, RollbackFailureManager) else None


async def _room(
    run: JournalScheduler, target: Target, sent_to: Callable[[str], list[str]]
) -> Room:
    connector = run.context.deployment_manager.get_connector(target.deployment.name)
    if connector is None or not _is_deployed(connector):
        return Room()
    try:
        locations = await connector.get_available_locations(service=target.service)
    except WorkflowExecutionException:
        return FULL
    except Exception as error:  # noqa: BLE001 - of any connector, who knows which
        if logger.isEnabledFor(logging.WARNING):
            logger.warning(
                f"Target {name(target)} counts as full, its places cannot be told: "
                f"{type(error).__name__}: {error}"
            )
        return FULL
    waiting = [job for job in sent_to(name(target)) if not _is_placed(run, job)]
    return _sum(run, locations, len(waiting))


def _sum(
    run: JournalScheduler, found: MutableMapping[str, AvailableLocation], waiting: int
) -> Room:
    each = [_of(run, location) for location in found.values()] or [FULL]
    places, free = sum(r.places for r in each), sum(r.free for r in each)
    return Room(max(1, places), free - waiting)


def _of(run: JournalScheduler, location: AvailableLocation) -> Room:
    """As StreamFlow counts: processors where it knows them, else slots."""
    if location.hardware is not None:
        used = run.hardware_locations.get(location.name)
        cores = int(location.hardware.cores)
        return Room(cores, cores - round(used.cores) if used else cores)
    slots = 1 if location.slots is None else location.slots
    allocated = run.location_allocations.get(location.deployment, {}).get(location.name)
    jobs = allocated.jobs if allocated is not None else []
    return Room(slots, slots - sum(_is_placed(run, job) for job in jobs))


def _is_placed(run: JournalScheduler, job: str) -> bool:
    allocation = run.job_allocations.get(job)
    return allocation is not None and allocation.status in PLACED


def _is_deployed(connector: Connector) -> bool:
    # one that is not must not be asked: that would deploy it
    return not (
        isinstance(connector, FutureConnector) and not connector.deploy_event.is_set()
    )
