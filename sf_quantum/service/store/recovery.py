"""Cancels, fails or requeues jobs that the end of the previous service process interrupted."""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future

from sf_quantum.service.domain.jobs import Job, Recovery
from sf_quantum.service.domain.reasons import (
    NOT_FOUND_AGAIN,
    RELEASED,
    Cause,
    Interruption,
)
from sf_quantum.service.store.file.clock import wall_clock
from sf_quantum.service.store.rows import LIVE, REQUEUED, select_job
from sf_quantum.service.store.store import Store


def recover(
    store: Store,
    deaths: int,
    device: str = "",
    recovery: Recovery = Recovery.RERUN,
) -> Future[list[Job]]:
    """Cancel, fail or requeue jobs that the end of the previous service process interrupted.

    Jobs that are still on the device are not changed. For each other job, the first of these
    rules that applies decides:

    - a job is cancelled if its lease is closed, or if it was being cancelled;
    - a job fails if it may have run on a device and must not run twice;
    - a running job fails if the service has died ``deaths`` times while it ran;
    - any other job is requeued.

    :param deaths: number of deaths of the service after which a job fails
    :param device: identity of the current device
    :param recovery: what happened to jobs on the device when the service ended
    :returns: the jobs that were changed
    """
    on_device = {
        Recovery.BY_TAG: "coalesce(device = :device, 0)",
        Recovery.BY_ID: "coalesce(device = :device AND device_job IS NOT NULL, 0)",
    }.get(recovery, "0")
    closed = "lease IN (SELECT id FROM leases WHERE closed IS NOT NULL)"
    interrupted = f"{LIVE} AND NOT {on_device} AND "
    ended = "ended = :ended, ended_steady = :steady"
    affected = (
        f"(state = 'Running' OR device IS NOT NULL OR cancelling IS NOT NULL "
        f"OR {closed})"
    )

    def change(db: sqlite3.Connection) -> list[Job]:
        values = {
            "device": device,
            "ended": wall_clock(),
            "steady": store.clock(),
            "released": RELEASED.note,
            "lost": f"interrupted: the service ended; {NOT_FOUND_AGAIN}",
            "deaths": deaths,
        }
        query = f"SELECT number FROM jobs WHERE {interrupted} {affected}"
        numbers = [number for (number,) in db.execute(query, values)]
        cancel = f"UPDATE jobs SET state = 'Cancelled', device = NULL, {ended}, "
        fail = f"UPDATE jobs SET state = 'Failed', device = NULL, {ended}, "
        running = f"{interrupted} state = 'Running'"
        for statement in (
            f"{cancel} note = cancelling "
            f"WHERE {interrupted} cancelling IS NOT NULL",
            f"{cancel} note = :released WHERE {interrupted} {closed}",
            f"{fail} note = :lost "
            f"WHERE {interrupted} device IS NOT NULL AND NOT repeatable",
            f"UPDATE jobs SET deaths = deaths + 1 WHERE {running}",
            f"{fail} note = 'the service died ' || deaths || ' times during the job' "
            f"WHERE {running} AND deaths >= :deaths",
        ):
            db.execute(statement, values)
        query = (
            f"SELECT number, attempt FROM jobs WHERE {interrupted} "
            "(state = 'Running' OR device IS NOT NULL)"
        )
        for number, attempt in db.execute(query, values).fetchall():
            db.execute(
                f"UPDATE jobs SET {REQUEUED} WHERE number = ?",
                (Interruption(Cause.RESTART).note(attempt), number),
            )
        return [select_job(db, "WHERE number = ?", number) for number in numbers]

    return store.change(change)
