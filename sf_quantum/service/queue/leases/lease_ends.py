"""When a lease ends unreleased: it is idle, expired, or has spent its QPU seconds."""

from __future__ import annotations

import logging
import math
import sqlite3
import time

from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.domain.reasons import LeaseEnd, LeaseEndCause
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.leases.lease_states import LiveLease
from sf_quantum.service.store.reports.usage import lease_seconds
from sf_quantum.text import utc

logger = logging.getLogger(__name__)


class LeaseEnds:
    """Decides when leases end, from the settings and the use by the leases' jobs."""

    def __init__(self, settings: ServiceSettings, jobs: JobTable) -> None:
        self.settings = settings
        self._jobs = jobs

    def idle_seconds(self, live: LiveLease) -> float:
        """Return for how many seconds no request and no job has used a lease."""
        if self._jobs.busy(live.lease.id):
            live.touch()
        return time.monotonic() - live.last_used

    def next_end(self, live: LiveLease) -> tuple[float, LeaseEndCause]:
        """Return for how many seconds a lease is held if it is not used, and why it ends."""
        if self._is_spent(live.lease):
            return 0.0, LeaseEndCause.SPENT
        seconds, cause = math.inf, LeaseEndCause.EXPIRED
        if (vqpu_use := live.vqpu_use) is not None and vqpu_use.expires is not None:
            seconds = vqpu_use.expires - time.monotonic()
        left = self.idle_seconds_left(live)
        return (seconds, cause) if left >= seconds else (left, LeaseEndCause.IDLE)

    def idle_seconds_left(self, live: LiveLease) -> float:
        """Return for how many more seconds a lease may be idle; infinity without a limit."""
        idle = self.settings.leases.idle_seconds
        return math.inf if idle is None else idle - self.idle_seconds(live)

    def lease_end(self, lease: Lease, cause: LeaseEndCause) -> LeaseEnd:
        """Return why a lease ends, with the values that the message contains."""
        idle, job = self.settings.leases.idle_seconds, lease.slurm_job_id
        return LeaseEnd(
            cause,
            idle or 0.0,
            job or "",
            lease.max_qpu_seconds or 0.0,
            utc(lease.latest_start),
        )

    def _is_spent(self, lease: Lease) -> bool:
        """Return whether the jobs of a lease have used more than the lease's QPU seconds."""
        if (limit := lease.max_qpu_seconds) is None:
            return False
        try:
            spent, _ = lease_seconds(self._jobs.store, lease.id)
        except sqlite3.Error as error:  # checked again when the lease's next job ends
            text = "lease %.8s: its QPU seconds could not be read: %s"
            logger.error(text, lease.id, error)
            return False
        return spent > limit * (1 + 1e-9)  # floating-point sums are not exact
