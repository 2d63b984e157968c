"""Whether a QPU goes offline under a job that could run elsewhere."""

from __future__ import annotations

import asyncio
import time

from sf_quantum.connectors.leases import Lease, Leases, ServiceGone
from sf_quantum.qpu.leaving import has_no_hope

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
    :param wait_seconds: how long its QPU jobs may wait for their turn, from when they are
        first seen to; not after one of them has had it, since what waits then is work of
        a job that has begun
    :returns: why
    """
    begun, seen = False, dict[str, float]()
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        try:
            status = await leases.status()
            jobs = await leases.jobs(lease, job) or []
        except ServiceGone:
            continue  # the job's own client notices it, or bears it
        begun = begun or any(told.get("state") != "Queued" for told in jobs)
        if not status.online and has_no_hope(jobs):
            return f"it is offline: {status.reason}"
        waiting = [told for told in jobs if told.get("state") == "Queued"]
        now = time.monotonic()
        ages = [now - seen.setdefault(str(told.get("id")), now) for told in waiting]
        if (
            wait_seconds is not None
            and not begun
            and max(ages, default=0) > wait_seconds
        ):
            return f"a QPU job waited for more than {wait_seconds:.3g} s"
