"""What clients and the service say to each other about leases."""

from __future__ import annotations

#: header of a request under a lease: the lease's id
LEASE_HEADER = "X-SFQ-Lease"
#: the classes that users may ask for; the first runs first
CLASSES = ("production", "test", "development")
