"""A real QPU, of any registered kind, as a device.

Its jobs go through the client of its vendor, as those of a workflow's steps do, under a
lease of the vendor's. A kind whose vendor's API has no jobs runs its sampler in a process
of its own; such a job cannot be found again after a restart of the service.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import (
    JobParameters,
    Kind,
    NotAccepted,
    Outcome,
    Progress,
    Task,
    UnknownJob,
    WrongAnswer,
)
from sf_quantum.qpu import NoLease, Qpu
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device import problems, processes
from sf_quantum.service.device.protocol import Cost, Device, DeviceStatus, Recovery
from sf_quantum.service.device.vendor import answers, sizes
from sf_quantum.service.device.vendor.answers import (
    Passed,
    VendorAnswers,
    bounded_errors,
)
from sf_quantum.service.device.vendor.costs import Costs
from sf_quantum.service.device.vendor.job_table import JobTable, VendorJob
from sf_quantum.service.device.vendor.lease import Held, VendorLease
from sf_quantum.service.device.vendor.requests import LeasedRequests
from sf_quantum.service.device.vendor.sampling import Samplings
from sf_quantum.service.device.vendor.settings import QpuSettings
from sf_quantum.service.device.vendor.state import VendorState
from sf_quantum.service.domain.jobs import Size
from sf_quantum.validation import dotted, validated

T = TypeVar("T")


class QpuDevice(Device):
    """Any registered kind of QPU; see :class:`QpuSettings`.

    :raises InputError: if the kind cannot be used, or ``config`` is wrong
    """

    def __init__(self, settings: QpuSettings) -> None:
        self.name = settings.name
        self._settings = settings
        digest = hashlib.sha256(
            json.dumps(
                [socket.gethostname(), self._identity(settings.client())]
            ).encode()
        ).hexdigest()
        self._lease = VendorLease(
            settings.client,
            f"sfq-serve-{digest[:32]}",
            wait_seconds=settings.poll_seconds,
            idle_seconds=settings.idle_seconds,
        )
        self._kind = type(self._lease.driver)
        self._answers = VendorAnswers(self.name, fewer_reads=self._kind.fewer_reads)
        self._jobs = JobTable()
        self._samplings = None if self._kind.kinds else Samplings(self._jobs.wake)
        kinds: tuple[Kind, ...] = self._kind.kinds or ("problem",)
        self._state = VendorState(settings, Description("unknown", 0, kinds))
        self._costs = Costs(settings.expected_seconds)
        self._requests = LeasedRequests(self._lease, self._state)

    @classmethod
    def from_config(cls, config: Mapping[str, JSON]) -> Self:
        def name(key: tuple[int | str, ...], value: JSON) -> str:
            shown = f" {value}" if isinstance(value, str | int | float) else ""
            return f"{dotted(key)}{shown}"

        return cls(validated(QpuSettings, {**config}, name))

    def keep_in(self, folder: Path) -> None:
        # a token is of use at this vendor only
        self._lease.keep_in(folder / f"vendor-lease-{self.identity[:16]}.json")
        self._answers.keep_in(folder, self.identity)

    # how it is

    @property
    def description(self) -> Description:
        return self._state.description

    @property
    def refresh_seconds(self) -> float:
        return self._settings.refresh_seconds

    @property
    def price(self) -> float | None:
        status = self._state.status
        quoted = status.cost_per_second if status else None
        configured = self._settings.cost_per_second
        return quoted if configured is None else configured

    @property
    def status(self) -> DeviceStatus:
        status, length, eta = self._state.status, 0, 0.0
        if status is not None:
            ours = [job.left for job in self._jobs.wanted]
            length = max(0, status.queue_length - len(ours))
            eta = max(0.0, (status.eta_seconds or 0.0) - sum(ours))
        reason, vendor = self._state.obstacle, self._state.vendor
        trouble = ""
        if reason is None and (left := vendor.left):
            trouble = f"asked again in {left:.0f} s: {vendor.why}"
        return DeviceStatus(reason is None, reason or "", length, eta, trouble)

    def refresh(self) -> None:
        """See :meth:`Device.refresh`; also keeps the vendor's lease, or gives it back."""
        state = self._state
        if state.vendor.left or state.access.left:
            return
        began = time.monotonic()
        try:
            with bounded_errors():
                self._refresh()
        except NotAccepted as error:
            state.vendor.noted(error)  # too many requests
        except NoLease:
            state.access.why = ""
        except QpuError as error:
            state.unanswered(error, time.monotonic() - began)
        except InputError as error:
            state.refused(error)

    def _refresh(self) -> None:
        state, lease = self._state, self._lease
        if state.access.why:
            lease.read_credentials()
        state.describe(lease.driver, state.read_status(lease.driver))
        state.refreshed()
        lease.maintain(self._jobs.busy)
        if state.access.why:  # is it accepted again?
            lease.take()
            lease.done()
            state.access.why = ""

    # what a job costs

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        """See :meth:`Device.check`; the vendor checks what its client does not."""
        size = super().check(kind, content, parameters)
        if kind == "problem":
            solver = problems.solver(self.description)
            problems.check_solver_parameters(content, solver)
            return size
        size = sizes.checked(kind, content, self.description)
        self._kind.check(kind, content)
        return size

    def check_size(self, size: Size, parameters: JobParameters) -> None:
        most = self.description.qubits
        # The BQMs of a list have been checked one by one; their variables add up in
        # `values`.
        if 0 < most < size.values and not size.problems:
            detail = f"{size.values} variables do not fit on {most} qubits"
            raise FieldError("problem.variable_labels", detail)

    def cost(self, parameters: JobParameters, size: Size | None = None) -> Cost:
        """See :meth:`Device.cost`; as the vendor tells, or else as past jobs were billed."""
        return self._costs.cost(self.description.timing, parameters, size)

    # jobs

    @property
    def recovery(self) -> Recovery:
        if self._samplings is not None:
            return Recovery.LOST
        return Recovery.BY_TAG if self._kind.finds else Recovery.BY_ID

    @property
    def identity(self) -> str:
        """See :meth:`Device.identity`; that of the vendor's client."""
        return self._identity(self._lease.driver)

    def _identity(self, client: Qpu) -> str:
        text = json.dumps([self._settings.qpu, self.name, client.identity])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def depth(self) -> int:
        return 1 if self._samplings is not None else 1 + self._settings.ahead

    @property
    def longest_seconds(self) -> float | None:
        return self._settings.longest_seconds

    @property
    def give_up_seconds(self) -> float:
        return self._settings.give_up_seconds

    def answered_since(self, moment: float) -> bool:
        """See :meth:`Device.answered_since`, but for the pause between two requests."""
        return self._state.heard_since(moment - self._settings.refresh_seconds)

    def abandon(self, job_id: str) -> None:
        self._jobs.forget(job_id)

    @property
    def late_seconds(self) -> float:
        return self._settings.late_seconds

    def submit(self, task: Task) -> str:
        """See :meth:`Device.submit`; refused credentials are no fault of a job."""
        for trouble in (self._state.access, self._state.vendor):
            if left := trouble.left:
                raise NotAccepted(trouble.why, left)
        job = self._new_job(self.cost(task.parameters).qpu_seconds)
        samplings = self._samplings
        self._answers.jobs.begin(task.tag)

        def submitted(held: Held) -> str:
            job.lease, job.ours = held.token, True
            if samplings is not None:
                return samplings.submit(task, held.variables)
            return held.jobs.submit(task)

        job_id = self._answers.job_id(self._requests.ask(submitted), task.tag)
        self._jobs.add(job_id, job)
        processes.start()  # the result is checked in one of them
        return job_id

    def find(self, tag: str) -> str | None:
        if not self._kind.finds:
            return None
        job_id = self._look_up(lambda jobs: jobs.find(tag))
        return None if job_id is None else self._answers.job_id(job_id, tag)

    def others(self, tag: str, job_id: str) -> Sequence[str]:
        if not self._kind.finds:
            return ()
        job_ids = self._look_up(lambda jobs: jobs.others(tag, job_id))
        # what belongs to another submission must not be cancelled
        return [one for one in job_ids if not self._answers.jobs.is_other(one, tag)]

    def _look_up(self, call: Callable[[Qpu], T]) -> T:
        try:
            return self._requests.ask(lambda held: call(held.jobs))
        except InputError as error:
            raise QpuError(str(error)) from error

    def poll(self, job_id: str, task: Task) -> Progress:
        job = self._job(job_id)
        pause = self._settings.poll_seconds
        vendor = self._state.vendor if self._samplings is None else None
        wait = job.due - time.monotonic()
        if vendor is not None:
            wait = max(wait, min(pause, vendor.left))
        job.seen += max(0.0, wait)  # it is asked about after that
        woken = wait > 0 and job.woken.wait(wait)
        job.woken.clear()
        if vendor is not None and vendor.left and not woken:
            raise NotAccepted(vendor.why)  # it was not asked
        job.due = time.monotonic() + pause
        polled = self._about(job_id, lambda jobs: self._priced(jobs).poll(job_id))
        progress = answers.progress(polled)
        if progress.state == "Running" and job.running_since is None:
            job.running_since = time.monotonic()
        if progress.state == "Queued":
            job.waited_until = time.monotonic()
        job.due = time.monotonic() + self._pause(job, progress)
        return progress

    def _pause(self, job: VendorJob, progress: Progress) -> float:
        """Until the vendor is asked again: at the end of a job that is to end soon.

        The next job is submitted then, and the QPU waits for it.
        """
        ends_in = job.ends_in
        if progress.state == "Queued":
            eta = progress.eta_seconds
            ends_in += self._jobs.ahead_seconds(job) if eta is None else eta
        # more and more rarely for one that takes longer than it should
        pause = ends_in if ends_in > 0 else -ends_in / 4
        longest = self._settings.poll_seconds
        return min(max(pause, longest / 10), longest)

    def result(self, job_id: str, task: Task) -> Outcome:
        job = self._job(job_id)
        try:
            outcome = self._about(
                job_id, lambda jobs: self._priced(jobs).result(job_id, task)
            )
        except WrongAnswer as error:
            self._answers.unread(error, job_id, task)
            raise
        # read now: the check of a large result takes a while
        ran, at_vendor = job.ran, self._answers.jobs.seconds_since(task.tag)
        passed = Passed(at_vendor, ran if job.ours else at_vendor or 0.0)
        outcome = self._answers.outcome(outcome, job_id, task, passed)
        if self._samplings is not None and outcome.result is None:
            # its client was killed or has failed, and may have left a job there
            self._lease.abandon()
        stopped = outcome.result is None and outcome.failure is None
        if stopped and not job.cancelled:
            outcome = self._cancelled_there(job, outcome)
        self._jobs.forget(job_id)
        elapsed, seen = outcome.seconds, job.running_since is not None
        if elapsed is None and job.ours and (seen or outcome.result is not None):
            outcome = replace(outcome, seconds=ran)
            elapsed = ran if seen else None
        self._costs.learn(job, outcome, elapsed)
        return outcome

    def _cancelled_there(self, job: VendorJob, outcome: Outcome) -> Outcome:
        note = f": {outcome.note}" if outcome.note else ""
        if self._lease_lost(job):
            return replace(outcome, lost=f"its lease has ended at the vendor{note}")
        failure = f"the vendor cancelled it{note}"
        if self._kind.sessions:  # the next submission will tell
            return replace(outcome, lost=f"{failure}, perhaps with its lease")
        return replace(outcome, failure=failure)

    def _lease_lost(self, job: VendorJob) -> bool:
        """Whether the vendor has ended the lease of a job, as far as its kind tells.

        :raises AuthenticationError: if the vendor refuses the user
        :raises QpuError: if it does not answer
        """
        if self._samplings is not None:
            return False
        ends = self._kind.sessions or self._kind.renew is not Qpu.renew
        return ends and self._lease.is_lost(job.lease)

    def cancel(self, job_id: str) -> None:
        job = self._job(job_id)
        job.cancelled = True
        try:
            with suppress(UnknownJob):
                self._about(job_id, lambda jobs: jobs.cancel(job_id))
        finally:
            job.woken.set()

    def close(self) -> None:
        """Kill samplings, and give the lease back, unless jobs go on at the vendor."""
        self._jobs.wake_all()
        if self._samplings is not None:
            self._samplings.close()
        self._lease.close(self._samplings is None and self._jobs.busy)

    def _job(self, job_id: str) -> VendorJob:
        def earlier() -> VendorJob:
            job = self._new_job(self._settings.expected_seconds)
            job.lease = self._lease.token
            return job

        return self._jobs.get(job_id, earlier)

    def _new_job(self, cost_seconds: float) -> VendorJob:
        return VendorJob(cost_seconds, cost_seconds * self._costs.pace)

    # requests

    def _about(self, job_id: str, call: Callable[[Qpu | Samplings], T]) -> T:
        """Make a request about a job, to which a refusal is no answer."""
        try:
            if self._samplings is not None:
                return call(self._samplings)
            return self._requests.ask(lambda held: call(held.jobs))
        except UnknownJob as error:
            lost = self._lease_lost(self._job(job_id))
            self._jobs.forget(job_id)
            raise UnknownJob(str(error), lease_lost=lost) from error
        except InputError as error:
            raise QpuError(str(error)) from error

    def _priced(self, jobs: T) -> T:
        """Have the vendor's price, by which a job that is over is booked.

        A job of an earlier service may be over before the first status is known.
        """
        if self._state.status is None and self._settings.cost_per_second is None:
            self._state.read_status(self._lease.driver)
        return jobs
