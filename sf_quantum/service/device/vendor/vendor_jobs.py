"""The jobs at a vendor: their submission, recovery, polling, results and cancellation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.tasks import (
    NotAccepted,
    Outcome,
    Progress,
    Task,
    UnknownJob,
    WrongAnswer,
)
from sf_quantum.qpu import Qpu
from sf_quantum.service.device.interface import DeviceJobs, Recovery
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.device.vendor import answer_checks
from sf_quantum.service.device.vendor.answer_checks import Passed, VendorAnswers
from sf_quantum.service.device.vendor.costs import Costs
from sf_quantum.service.device.vendor.job_table import JobTable, VendorJob
from sf_quantum.service.device.vendor.lease import Held, VendorLease
from sf_quantum.service.device.vendor.requests import LeasedRequests
from sf_quantum.service.device.vendor.sampling import Samplings
from sf_quantum.service.device.vendor.settings import QpuSettings
from sf_quantum.service.device.vendor.state import VendorState

T = TypeVar("T")


class VendorJobs(DeviceJobs):
    """The jobs at a vendor under its lease, or samplings if the vendor's API has no jobs.

    :ivar table: the jobs that have not ended
    :ivar samplings: the samplings; ``None`` if the vendor's API has jobs
    """

    def __init__(
        self,
        settings: QpuSettings,
        lease: VendorLease,
        state: VendorState,
        costs: Costs,
    ) -> None:
        self._settings = settings
        self._lease = lease
        self._state = state
        self._costs = costs
        self._kind = type(lease.driver)
        self._answers = VendorAnswers(settings.name, fewer_reads=self._kind.fewer_reads)
        self._requests = LeasedRequests(lease, state)
        self.table = JobTable()
        self.samplings = None if self._kind.kinds else Samplings(self.table.wake)

    def keep_in(self, folder: Path, identity: str) -> None:
        """Keep job ids in a folder, for a restart of the service."""
        self._answers.keep_in(folder, identity)

    def close(self) -> None:
        """Kill samplings, and release the lease, unless jobs continue at the vendor."""
        self.table.wake_all()
        if self.samplings is not None:
            self.samplings.close()
        self._lease.close(self.samplings is None and self.table.busy)

    @property
    def recovery(self) -> Recovery:
        if self.samplings is not None:
            return Recovery.LOST
        return Recovery.BY_TAG if self._kind.finds_by_tag else Recovery.BY_ID

    @property
    def depth(self) -> int:
        return 1 if self.samplings is not None else 1 + self._settings.ahead

    @property
    def longest_seconds(self) -> float | None:
        return self._settings.longest_seconds

    @property
    def give_up_seconds(self) -> float:
        return self._settings.give_up_seconds

    @property
    def late_seconds(self) -> float:
        return self._settings.late_seconds

    def answered_since(self, moment: float) -> bool:
        """See :meth:`DeviceJobs.answered_since`; allows for the pause between requests."""
        return self._state.heard_since(moment - self._settings.refresh_seconds)

    def abandon(self, job_id: str) -> None:
        self.table.forget(job_id)

    def submit(self, task: Task) -> str:
        """See :meth:`DeviceJobs.submit`; rejected credentials do not fail a job."""
        for trouble in (self._state.access, self._state.vendor):
            if left := trouble.left:
                raise NotAccepted(trouble.why, left)
        timing = self._state.description.timing
        expected = self._costs.cost(timing, task.parameters, None)
        job = self._new_job(expected.qpu_seconds)
        samplings = self.samplings
        self._answers.jobs.begin(task.tag)

        def submitted(held: Held) -> str:
            job.lease, job.ours = held.token, True
            if samplings is not None:
                return samplings.submit(task, held.variables)
            return held.jobs.submit(task)

        job_id = self._answers.job_id(self._requests.ask(submitted), task.tag)
        self.table.add(job_id, job)
        process_pool.start()  # a process will check the result
        return job_id

    def find(self, tag: str) -> str | None:
        """See :meth:`DeviceJobs.find`."""
        if not self._kind.finds_by_tag:
            return None
        job_id = self._look_up(lambda jobs: jobs.find(tag))
        return None if job_id is None else self._answers.job_id(job_id, tag)

    def duplicates(self, tag: str, job_id: str) -> Sequence[str]:
        """See :meth:`DeviceJobs.duplicates`."""
        if not self._kind.finds_by_tag:
            return ()
        job_ids = self._look_up(lambda jobs: jobs.duplicates(tag, job_id))
        # jobs of another submission must not be cancelled
        return [one for one in job_ids if not self._answers.jobs.is_other(one, tag)]

    def _look_up(self, call: Callable[[Qpu], T]) -> T:
        try:
            return self._requests.ask(lambda held: call(held.jobs))
        except InputError as error:
            raise QpuError(str(error)) from error

    def poll(self, job_id: str, task: Task) -> Progress:
        """See :meth:`DeviceJobs.poll`."""
        job = self._job(job_id)
        pause = self._settings.poll_seconds
        vendor = self._state.vendor if self.samplings is None else None
        wait = job.due - time.monotonic()
        if vendor is not None:
            wait = max(wait, min(pause, vendor.left))
        job.seen += max(0.0, wait)  # the next query is after the wait
        woken = wait > 0 and job.woken.wait(wait)
        job.woken.clear()
        if vendor is not None and vendor.left and not woken:
            raise NotAccepted(vendor.why)  # the vendor was not queried
        job.due = time.monotonic() + pause
        polled = self._request_about(
            job_id, lambda jobs: self._with_price(jobs).poll(job_id)
        )
        progress = answer_checks.progress(polled)
        if progress.state == "Running" and job.running_since is None:
            job.running_since = time.monotonic()
        if progress.state == "Queued":
            job.waited_until = time.monotonic()
        job.due = time.monotonic() + self.table.pause(job, progress, pause)
        return progress

    def result(self, job_id: str, task: Task) -> Outcome:
        """See :meth:`DeviceJobs.result`."""
        job = self._job(job_id)
        try:
            outcome = self._request_about(
                job_id, lambda jobs: self._with_price(jobs).result(job_id, task)
            )
        except WrongAnswer as error:
            self._answers.unread(error, job_id, task)
            raise
        # the times are read now: the check of a large result takes a while
        ran, at_vendor = job.ran, self._answers.jobs.seconds_since(task.tag)
        passed = Passed(at_vendor, ran if job.ours else at_vendor or 0.0)
        outcome = self._answers.outcome(outcome, job_id, task, passed)
        if self.samplings is not None and outcome.result is None:
            # the client was killed or has failed, and may have left a job at the vendor
            self._lease.abandon()
        stopped = outcome.result is None and outcome.failure is None
        if stopped and not job.cancelled:
            outcome = self._cancelled_at_vendor(job, outcome)
        self.table.forget(job_id)
        elapsed, seen = outcome.seconds, job.running_since is not None
        if elapsed is None and job.ours and (seen or outcome.result is not None):
            outcome = replace(outcome, seconds=ran)
            elapsed = ran if seen else None
        self._costs.learn(job, outcome, elapsed)
        return outcome

    def _cancelled_at_vendor(self, job: VendorJob, outcome: Outcome) -> Outcome:
        note = f": {outcome.note}" if outcome.note else ""
        if self._lease_lost(job):
            return replace(outcome, lost=f"its lease has ended at the vendor{note}")
        failure = f"the vendor cancelled it{note}"
        if self._kind.jobs_end_with_lease:  # the next submission will show it
            return replace(outcome, lost=f"{failure}, perhaps with its lease")
        return replace(outcome, failure=failure)

    def _lease_lost(self, job: VendorJob) -> bool:
        """Return whether the vendor has ended a job's lease; false if the API cannot show it.

        :raises AuthenticationError: if the vendor rejects the user
        :raises QpuError: if the vendor does not respond
        """
        if self.samplings is not None:
            return False
        ends = self._kind.jobs_end_with_lease or self._kind.renew is not Qpu.renew
        return ends and self._lease.is_lost(job.lease)

    def cancel(self, job_id: str) -> None:
        """See :meth:`DeviceJobs.cancel`."""
        job = self._job(job_id)
        job.cancelled = True
        try:
            with suppress(UnknownJob):
                self._request_about(job_id, lambda jobs: jobs.cancel(job_id))
        finally:
            job.woken.set()

    def _job(self, job_id: str) -> VendorJob:
        def earlier() -> VendorJob:
            job = self._new_job(self._settings.expected_seconds)
            job.lease = self._lease.token
            return job

        return self.table.get(job_id, earlier)

    def _new_job(self, cost_seconds: float) -> VendorJob:
        return VendorJob(cost_seconds, cost_seconds * self._costs.pace)

    def _request_about(self, job_id: str, call: Callable[[Qpu | Samplings], T]) -> T:
        """Make a request about a job; a rejection is raised as a ``QpuError``."""
        try:
            if self.samplings is not None:
                return call(self.samplings)
            return self._requests.ask(lambda held: call(held.jobs))
        except UnknownJob as error:
            lost = self._lease_lost(self._job(job_id))
            self.table.forget(job_id)
            raise UnknownJob(str(error), lease_lost=lost) from error
        except InputError as error:
            raise QpuError(str(error)) from error

    def _with_price(self, jobs: T) -> T:
        """Read the vendor's price if it is unknown: an ended job is booked at this price.

        After a restart, an earlier job may have ended before the first status is known.
        """
        if self._state.status is None and self._settings.cost_per_second is None:
            self._state.read_status(self._lease.driver)
        return jobs
