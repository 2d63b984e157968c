"""What clients and the service say to each other about leases."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sf_quantum.errors import InputError
from sf_quantum.files import JSON

#: header of a request under a lease: the lease's id
LEASE_HEADER = "X-SFQ-Lease"
#: the classes that users may ask for; the first runs first
CLASSES = ("production", "test", "development")
#: the highest priority of a lease within its class; the lowest is 0
MAX_PRIORITY = 1000
#: field of a request that is not granted since its latest start is too early
LATEST_START = "latest_start"
#: how a latest start is written
A_TIME = "a time with its zone, such as 2026-12-01T08:00:00+01:00"


@dataclass(frozen=True)
class ReservedTime:
    """A time for which a QPU is reserved for its user, in seconds since the epoch."""

    starts: float
    ends: float


def latest_start(text: JSON) -> float:
    """Read the latest start of a lease in a StreamFlow file.

    :returns: seconds since the epoch
    :raises InputError: if the text is not a time with its zone
    """
    try:
        moment = datetime.fromisoformat(str(text))
        if moment.tzinfo is not None:
            return moment.timestamp()
    except (ValueError, OverflowError):
        pass
    raise InputError(f"{text}: expected {A_TIME}")
