"""The vendor's reservations of the QPU; leases refer to reservations by name."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from sf_quantum.protocol.leases import LATEST_START, ReservedTime
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Lease, LeaseRequest
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.text import utc

FIELD = "reservation"


class Reservations:
    """The reservations of the device, as last reported by the vendor.

    A lease that names a reservation is granted only during the reserved time, and ends with
    this time. Another thread may replace the reservations between two reads of them.
    """

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs

    @property
    def has_any(self) -> bool:
        return bool(self._jobs.device.reservations)

    def check(self, request: LeaseRequest) -> None:
        """Refuse a request whose reservation does not exist or begins too late.

        :raises Refused: 422 if the reservation does not exist, 409 if it begins after the
            latest start, 503 if the vendor has never reported its reservations
        """
        if (name := request.reservation) is None:
            return
        reservations = self._jobs.device.reservations
        if name not in reservations:
            if problem := self._jobs.device.reservations_problem:
                raise Refused(503, f"the QPU's reservations are not known: {problem}")
            detail = "this QPU has no reservations: omit it"
            if reservations:
                alternatives = " or ".join(map(repr, reservations))
                detail = f"this QPU has no reservation {name!r}: write {alternatives}"
            raise Refused(422, detail, FIELD)
        if (reserved := reservations[name]) is None:
            detail = f"no {name} is booked: book one at the QPU's vendor, or omit it"
            raise Refused(422, detail, FIELD)
        latest = request.latest_start
        if latest is not None and latest < reserved.starts:
            begins = f"the next {name} begins at {utc(reserved.starts)}"
            detail = f"cannot be granted by {utc(latest)}: {begins}"
            raise Refused(409, detail, LATEST_START)

    @property
    def running(self) -> Mapping[str, ReservedTime]:
        """The reserved times in progress, by the names of their reservations."""
        now = time.time()
        return {
            name: reserved
            for name, reserved in self._jobs.device.reservations.items()
            if reserved is not None and reserved.starts <= now < reserved.ends
        }

    def has_ended(self, name: str | None) -> bool:
        """Return whether a lease's reservation was last reported as ended or cancelled."""
        return name in self._jobs.device.reservations and name not in self.running

    def why(self, name: str) -> str:
        """Explain why a request that names a reservation waits."""
        reserved = self._jobs.device.reservations.get(name)
        if reserved is None or reserved.ends <= time.time():
            return f"no {name} is booked, as far as is known"
        return f"the next {name} begins at {utc(reserved.starts)}"


def bounded(lease: Lease, running: Mapping[str, ReservedTime]) -> Lease:
    """Return the lease; if it names a reservation, it expires with the reserved time."""
    reserved = running.get(lease.reservation or "")
    expires = math.inf if lease.expires is None else lease.expires
    if reserved is None or expires <= reserved.ends:
        return lease
    return replace(lease, expires=reserved.ends)
