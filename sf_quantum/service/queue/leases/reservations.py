"""The times for which a vendor has reserved the QPU, as leases name them."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from sf_quantum.protocol.leases import LATEST_START
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Lease, LeaseRequest
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.text import utc

FIELD = "reservation"


class Reservations:
    """The reservations of the device, as it last reported them.

    A lease that names one is granted while its time runs, and ends with it.
    """

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs

    @property
    def has_any(self) -> bool:
        return bool(self._jobs.device.reservations)

    def check(self, request: LeaseRequest) -> None:
        """Refuse a request for what is not reserved, or does not begin in time.

        :raises Refused: 422 if nothing is reserved, 409 if it begins after the latest start
        """
        if (name := request.reservation) is None:
            return
        reservations = self._jobs.device.reservations
        if name not in reservations:
            detail = "this QPU has no reservations: omit it"
            if reservations:
                right = " or ".join(map(repr, reservations))
                detail = f"this QPU has no reservation {name!r}: write {right}"
            raise Refused(422, detail, FIELD)
        if (reserved := reservations[name]) is None:
            detail = f"no {name} is booked: book one at the QPU's vendor, or omit it"
            raise Refused(422, detail, FIELD)
        latest = request.latest_start
        if latest is not None and latest < reserved.starts:
            begins = f"the next {name} begins at {utc(reserved.starts)}"
            detail = f"cannot be granted by {utc(latest)}: {begins}"
            raise Refused(409, detail, LATEST_START)

    def runs(self, name: str | None) -> bool:
        """Whether a lease that names the reservation, if any, may be held now."""
        if name is None:
            return True
        reserved = self._jobs.device.reservations.get(name)
        return reserved is not None and reserved.starts <= time.time() < reserved.ends

    def bounded(self, lease: Lease) -> Lease:
        """Let a lease that names a reservation end with it at the latest."""
        reserved = self._jobs.device.reservations.get(lease.reservation or "")
        expires = math.inf if lease.expires is None else lease.expires
        if reserved is None or expires <= reserved.ends:
            return lease
        return replace(lease, expires=reserved.ends)

    def why(self, name: str) -> str:
        """Explain why a request that names a reservation waits."""
        reserved = self._jobs.device.reservations.get(name)
        if reserved is None or reserved.ends <= time.time():
            return f"no {name} is booked, as far as is known"
        return f"the next {name} begins at {utc(reserved.starts)}"
