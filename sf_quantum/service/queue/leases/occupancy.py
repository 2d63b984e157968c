"""Reports to the scheduling policy and the estimator which leases occupy a vQPU."""

from __future__ import annotations

import time
from dataclasses import replace

from sf_quantum.service.domain.jobs import Lease
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.leases.lease_states import Position, VQpuUse


class Occupancy:
    """Reports to the policy and the estimator when leases get and free vQPUs."""

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs

    def begin(
        self, lease: Lease, age: float = 0.0, position: Position | None = None
    ) -> VQpuUse:
        """Note that a lease occupies a vQPU.

        :param age: seconds for which the lease has already occupied the vQPU
        :param position: position of the lease's request; ``None`` after a restart
        """
        since, expires = time.monotonic() - age, None
        if lease.expires is not None:
            seconds = lease.expires - lease.opened
            expires = since + seconds
            # the policy compares expiries by the store's clock, not by the monotonic clock
            clock = self._jobs.store.clock
            lease = replace(lease, expires=clock() - age + seconds)
        self._jobs.policy.leased(lease)
        self._jobs.estimator.held.add(lease)
        return VQpuUse(since, expires, position)

    def end(self, lease: Lease) -> None:
        """Note that the lease's vQPU is free."""
        self._jobs.policy.released(lease)
        self._jobs.estimator.held.remove(lease.id)
