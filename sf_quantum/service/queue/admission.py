"""Checks of new jobs against the device, the limits of users and the limits of leases."""

from __future__ import annotations

import asyncio
import json

from sf_quantum.protocol.tasks import shots_of
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.drift import DriftWatch
from sf_quantum.service.device.interface import Cost
from sf_quantum.service.device.processes.process_pool import Busy
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Lease, Size, Submission
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue import job_limits
from sf_quantum.service.queue.jobs.job_table import JobTable
from sf_quantum.service.queue.long_work import BUSY_SECONDS, LongWork
from sf_quantum.service.store.file import disk
from sf_quantum.service.store.reports.usage import lease_seconds
from sf_quantum.threads import in_thread


class Admission:
    """Checks submissions against the device, the limits of users and the limits of leases.

    :param bodies: users' turns in which payloads are checked
    """

    def __init__(
        self,
        jobs: JobTable,
        bodies: LongWork,
        drift: DriftWatch,
        settings: ServiceSettings,
    ) -> None:
        self.settings = settings
        self._jobs = jobs
        self._bodies = bodies
        self._drift = drift

    async def cost(self, lease: Lease, submission: Submission) -> Cost:
        """Check a new job's content and size, and return its cost."""
        size = await self.check_size(lease, submission)
        device = self._jobs.device
        cost = device.cost(submission.parameters, size)
        if size.problems and not device.takes_lists:
            return cost.times(size.problems)
        return cost

    async def check_size(self, lease: Lease, submission: Submission) -> Size:
        """Return a job's size; refuse a job that cannot run or exceeds its lease's limits."""
        try:
            if (seconds := submission.calibrated_within) is not None:
                self._check_calibration(seconds)
            size = await self._check_content(lease.user, submission)
        except FieldError as error:
            raise Refused(422, error.detail, error.field) from error
        except Busy as error:
            retry = {"Retry-After": f"{BUSY_SECONDS}"}
            raise Refused(503, str(error), headers=retry) from error
        shots = shots_of(submission.parameters)
        job_limits.check_sizes(lease, submission.kind, shots, size)
        return size

    def check_limits(self, lease: Lease, submission: Submission, cost: Cost) -> None:
        """Refuse a new job that exceeds its lease's budget, its user's limits or the disk.

        The last free disk space is reserved for the results of accepted jobs.
        """
        if (disk_problem := disk.problem(self._jobs.store.path)) is not None:
            raise Refused(503, disk_problem, headers={"Retry-After": f"{BUSY_SECONDS}"})
        if (max_seconds := self.settings.limits.run_seconds) is not None:
            modelled = self._jobs.device.elapsed_seconds(cost)
            expected = self._jobs.estimator.seconds(submission.kind, modelled)
            job_limits.check_run_seconds(max_seconds, expected)
        self.check_budget(lease, cost.qpu_seconds)
        shots = shots_of(submission.parameters)
        payload_bytes = len(submission.payload)
        self._jobs.counts.check(lease, shots, cost.qpu_seconds, payload_bytes)

    def check_budget(self, lease: Lease, seconds: float) -> None:
        """Refuse a job for which its lease has too few QPU seconds left."""
        if lease.max_qpu_seconds is not None:
            used_seconds = sum(lease_seconds(self._jobs.store, lease.id))
            job_limits.check_budget(lease.max_qpu_seconds, used_seconds, seconds)

    async def _check_content(self, user: str, submission: Submission) -> Size:
        kind, parameters = submission.kind, submission.parameters
        device, written = self._jobs.device, submission.written
        if kind == "problem" and written is None:
            return device.check(kind, submission.content, parameters)
        if written is not None:
            device.check_parameters(kind, parameters)
        if kind == "problem" and written is not None:
            device.check_size(written.size, parameters)
            return written.size

        def check() -> Size:
            content = submission.content
            if written is not None:
                content = json.loads(written.payload)
            return device.check(kind, content, parameters)

        async with self._bodies.turn(user):
            # in a separate thread: many checks must not occupy all threads of the loop's
            # pool, which also checks credentials
            return await asyncio.wrap_future(in_thread(check))

    def _check_calibration(self, seconds: float) -> None:
        device = self._jobs.device
        age = device.calibrations.age_seconds
        if age is None:
            detail = "the device does not tell when it was calibrated"
            raise FieldError("calibrated_within", detail)
        if age > seconds:
            detail = f"the device was calibrated {age:,.0f} s ago"
            raise FieldError("calibrated_within", detail)
        self._drift.add_readings(device)
        if self._drift.alarms:
            drifting = " and ".join(self._drift.alarms)
            raise FieldError("calibrated_within", f"the device drifts: {drifting}")
