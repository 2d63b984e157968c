"""Whether a QPU goes offline under a job that could run elsewhere."""

from __future__ import annotations

import asyncio
import time

from sf_quantum.connectors.leases import Lease, Leases, ServiceGone
from sf_quantum.files import JSON
from sf_quantum.qpu import OVER

PAUSE_SECONDS = 0.5


async def until_offline(leases: Leases) -> str:
    """Wait until the QPU says that it is not online.

    One that does not answer is not the same: whoever waits for it bears that, or not.

    :returns: why, in its own words
    """
    while True:
        try:
            status = await leases.status()
        except ServiceGone:
            pass
        else:
            if not status.online:
                return f"it is offline: {status.reason}"
        await asyncio.sleep(PAUSE_SECONDS)


async def until_lost(
    leases: Leases, lease: Lease, job: str, wait_seconds: float | None
) -> str:
    """Wait until a job under a lease has nothing to hope for from the QPU.

    :param job: whose lease it is
    :param wait_seconds: how long its QPU jobs may wait for their turn
    :returns: why
    """
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        try:
            status = await leases.status()
            jobs = await leases.jobs(lease, job) or []
        except ServiceGone:
            continue  # the job's own client notices it, or bears it
        if any(told.get("state") not in (*OVER, "Queued") for told in jobs):
            continue
        waiting = [told for told in jobs if told.get("state") == "Queued"]
        if not status.online and (waiting or not jobs):
            return f"it is offline: {status.reason}"
        if wait_seconds is not None and any(_age(t) > wait_seconds for t in waiting):
            return f"a QPU job waited for more than {wait_seconds:g} s"


def _age(told: dict[str, JSON]) -> float:
    submitted = told.get("submitted")
    return time.time() - submitted if isinstance(submitted, float) else 0.0
