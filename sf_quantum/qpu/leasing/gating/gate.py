"""Releases held jobs of a batch system once they have a lease.

::

    held, and its request names a QPU         requests a lease
    held, has a lease                         is released
    held, its request was changed             its lease ends, and it requests another
    released, has no nodes yet                its lease is renewed
    released, gets no nodes in time           is held again; its lease goes to the next job
    released, may not start yet after all     as in the line above, but immediately
    held by an administrator                  its lease ends
    ended or cancelled                        its lease ends
    has reused the id of a job Slurm lost     the lease of the lost job ends

The gate keeps nothing on disk, since the services list the leases, and the batch system lists
the jobs. The gate may be killed at any time. Only a job that is held by its own user requests
a lease; a job that is held by an administrator waits until the administrator releases it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, TypeAlias

from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.leasing import held_leases
from sf_quantum.qpu.leasing.batch_jobs import (
    BatchJob,
    ListedLease,
    differ,
    list_leases,
    without_nodes,
)
from sf_quantum.qpu.leasing.gating.job_requests import (
    NO_REQUEST,
    JobRequest,
    parse_request,
)
from sf_quantum.qpu.leasing.gating.scheduler import GatedJob, Scheduler
from sf_quantum.qpu.leasing.held_leases import AcquireOptions, WaitCancelled
from sf_quantum.qpu.leasing.qpu_limits import QpuLimits
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.text import unknown
from sf_quantum.threads import in_thread

POLL_SECONDS = 2.0
# A job counts as gone if it is missing from this many consecutive lists of the batch system.
GONE_POLLS = 2
# Longest wait for the service's answer to a request before the next job's request is sent, so
# that requests enter the service's queue in order.
ANSWER_SECONDS = 5.0
# Pause before a rejected request is repeated.
REFUSED_SECONDS = 60.0
logger = logging.getLogger("sfq-gate")
#: function that makes a job's request for a lease of a QPU, and the client that sends it
MakeRequest: TypeAlias = Callable[
    [BatchJob, str, LeaseHints], tuple[Qpu, AcquireOptions]
]


@dataclass
class _Request:
    """A request that waits for a lease."""

    client: Qpu
    options: AcquireOptions
    stop: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    reason: str = ""

    def start(self) -> Future[str]:
        """Start the wait; on return, the request has its position in the queue."""
        future = in_thread(
            lambda: held_leases.acquire(
                self.client, self.options, self.stop, self._on_wait
            )
        )
        future.add_done_callback(lambda _: self.answered.set())
        self.answered.wait(ANSWER_SECONDS)
        return future

    def _on_wait(self, error: QpuError, _: float) -> None:
        self.reason = str(error)
        self.answered.set()


class Gate:
    """The gate: one process on a host with the commands of the batch system.

    :param qpus: clients with an admin's rights
    :param limits: limits on the number of jobs that request a QPU or have its lease
    :param hold_seconds: time after which the lease of a job without nodes is released
    """

    def __init__(
        self,
        qpus: Sequence[SfqQpu],
        limits: Sequence[QpuLimits],
        make_request: MakeRequest,
        scheduler: Scheduler,
        *,
        hold_seconds: float,
    ) -> None:
        self._qpus = {qpu.name: qpu for qpu in qpus}
        self._limits = limits
        self._make_request = make_request
        self._hold_seconds = hold_seconds
        self._scheduler = scheduler
        self._requests: dict[str, tuple[_Request, Future[str]]] = {}
        # The latest request of each job, which its user may have changed since.
        self._latest: dict[str, JobRequest] = {}
        # By job: when a rejected request may be repeated, and when the job was first seen to
        # have a lease but no nodes.
        self._refused: dict[str, float] = {}
        self._without_nodes: dict[str, float] = {}
        # By job: number of consecutive lists that lack the job, and the latest explanation.
        self._missing = Counter[str]()
        self._explained: dict[str, str] = {}
        # Times of submission, to distinguish jobs with the same id.
        self._submitted: Mapping[str, str] = {}

    def run(self) -> NoReturn:
        """Poll whenever a request ends, and every few seconds."""
        while True:
            try:
                self.poll()
            # the batch system or a service is unreachable
            except QuantumError as error:
                logger.warning("%s", error)
            began = time.monotonic()
            futures = [future for _, future in self._requests.values()]
            if not wait(futures, POLL_SECONDS, FIRST_COMPLETED).done:
                time.sleep(max(0.0, began + POLL_SECONDS - time.monotonic()))

    def poll(self) -> None:
        """Compare the leases with the queue, and act on differences.

        :raises QpuError: if the batch system or a service does not answer
        """
        self._reap()
        # Leases are listed before jobs: every lease was requested for a job already in the
        # queue, so a job that is missing from the later list has ended.
        listed = {
            name: [
                (job, lease)
                for lease in list_leases(qpu)
                if (job := self._scheduler.job_of(lease.key)) is not None
            ]
            for name, qpu in self._qpus.items()
        }
        jobs = self._scheduler.jobs()
        self._forget_replaced_jobs(jobs)
        leases = {
            name: {
                id_: lease.token
                for id_, lease in found
                if self._has_lease(id_, jobs.get(id_), self._qpus[name], lease)
            }
            for name, found in listed.items()
        }
        requested = {id_: self._read_request(id_, job) for id_, job in jobs.items()}
        holders = {job for held in leases.values() for job in held}
        missing = holders - jobs.keys()
        self._missing = Counter({job: self._missing[job] + 1 for job in missing})
        self._without_nodes = {
            job: at for job, at in self._without_nodes.items() if job in holders
        }
        present = jobs.keys() | holders | self._requests.keys()
        self._latest = {
            job: request for job, request in self._latest.items() if job in present
        }
        for qpu, held in leases.items():
            for id_, token in held.items():
                state = jobs.get(id_), requested.get(id_, NO_REQUEST)
                check = partial(self._check, id_, *state, self._qpus[qpu], token)
                self._try(id_, check)
        for id_, (request, _) in self._requests.items():
            is_wanted = requested.get(id_) == self._latest[id_] and self._name(id_).has(
                request.options.key or ""
            )
            if not (is_wanted and jobs[id_].is_held and jobs[id_].may_start):
                request.stop.set()
            elif request.reason:
                self._explain(id_, request.reason)
        for limits in self._limits:
            self._send_requests(limits, jobs, requested, leases)

    def _forget_replaced_jobs(self, jobs: Mapping[str, GatedJob]) -> None:
        """Forget the data about earlier jobs whose ids have been reused."""
        before = self._submitted
        # Slurm replaces the time when it requeues a job, so ``submitted`` is then empty: keep
        # the first time.
        self._submitted = {
            id_: job.submitted or before.get(id_, "") for id_, job in jobs.items()
        }
        for id_, submitted in self._submitted.items():
            if differ(before.get(id_, ""), submitted):
                for remembered in (self._refused, self._without_nodes, self._explained):
                    remembered.pop(id_, None)

    def _reap(self) -> None:
        """Forget ended requests; leases that they were granted are in the service's list."""
        for job, (_, future) in [*self._requests.items()]:
            if not future.done():
                continue
            del self._requests[job]
            error = future.exception()
            if isinstance(error, QuantumError) and not isinstance(error, WaitCancelled):
                self._record_refusal(job, error)

    def _has_lease(
        self, id_: str, job: GatedJob | None, qpu: SfqQpu, lease: ListedLease
    ) -> bool:
        """Return whether a lease is the job's; release the lease of an earlier job."""
        if job is None:
            return True
        if not self._name(id_).has(lease.key):
            self._try(id_, partial(qpu.release, lease.token))
            logger.info("job %s: the lease of an earlier job is released", id_)
            return False
        return lease.user == job.user

    def _check(
        self,
        id_: str,
        job: GatedJob | None,
        requested: JobRequest,
        qpu: SfqQpu,
        token: str,
    ) -> None:
        """Act on a job that has a lease, according to the job's state."""
        if job is None:
            if self._missing[id_] >= GONE_POLLS:
                qpu.release(token)
                logger.info("job %s is gone: its lease is released", id_)
        elif job.is_held and (
            requested[0] != qpu.name or requested != self._latest.get(id_, requested)
        ):
            qpu.release(token)
            text = "job %s: its request was changed, so its lease of %s is released"
            logger.info(text, id_, qpu.name)
        elif job.is_held:
            # A service that was killed may have lost a lease that it had not saved yet. Then
            # the renewal fails, and the job stays held.
            qpu.renew(token)
            self._scheduler.release(id_)
            self._explain(id_, "")
            logger.info("job %s: released with its lease", id_)
        elif not job.is_pending:
            self._without_nodes.pop(id_, None)
        elif job.by_admin:
            # A hold by the gate would replace the administrator's hold.
            qpu.release(token)
            self._explain(id_, f"{qpu.name}: an administrator holds the job")
            text = "job %s: held by an administrator, so its lease is released"
            logger.info(text, id_)
        elif not job.may_start or self._has_waited_too_long(id_):
            self._scheduler.hold(id_)
            qpu.release_keeping_position(token)
            text = without_nodes(qpu.name, job.reason)
            self._explain(id_, text)
            logger.info("job %s: %s", id_, text)
        else:
            # Without renewals, the service's idle limit may end the lease before
            # ``hold_seconds`` have passed, and the job would run without a lease.
            qpu.renew(token)

    def _has_waited_too_long(self, job: str) -> bool:
        """Return whether a job has been without nodes for too long."""
        since = self._without_nodes.setdefault(job, time.monotonic())
        if time.monotonic() - since < self._hold_seconds:
            return False
        del self._without_nodes[job]
        return True

    def _send_requests(
        self,
        limits: QpuLimits,
        jobs: Mapping[str, GatedJob],
        requested: Mapping[str, JobRequest],
        leases: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Send requests of held jobs in order of submission, as far as the limits allow."""
        taken_by, waiting = Counter[str](), list[str]()
        for id_, job in jobs.items():
            # A job has one lease or request at a time, even if its request was changed.
            qpus_in_use = [qpu for qpu, held in leases.items() if id_ in held]
            if id_ in self._requests:
                qpus_in_use.append(self._latest[id_][0])
            if limits.qpu in qpus_in_use:
                taken_by[job.user] += 1
            elif (
                not qpus_in_use
                and requested[id_][0] == limits.qpu
                and self._may_request(id_, job, requested[id_])
            ):
                waiting.append(id_)
        # First fill each user's share, then the places that no other user needs.
        for share in (limits.share, limits.count):
            for id_ in [*waiting]:
                user = jobs[id_].user
                if taken_by.total() < limits.count and taken_by[user] < share:
                    waiting.remove(id_)
                    taken_by[user] += 1
                    self._try(id_, partial(self._request, id_, *requested[id_]))

    def _may_request(self, id_: str, job: GatedJob, requested: JobRequest) -> bool:
        refused = self._refused.get(id_, 0.0) > time.monotonic()
        is_same = requested == self._latest.get(id_, requested)
        return job.is_held and job.may_start and not (refused and is_same)

    def _read_request(self, id_: str, job: GatedJob) -> JobRequest:
        """Return the request of a job; without a QPU if it names none or is invalid."""
        try:
            qpu, hints = parse_request(job.request)
            if qpu and qpu not in self._qpus:
                raise InputError(unknown("QPU", qpu, [*self._qpus]))
        except InputError as error:
            self._explain(id_, str(error))
            return NO_REQUEST
        return qpu, hints

    def _name(self, id_: str) -> BatchJob:
        return self._scheduler.name(id_, self._submitted.get(id_, ""))

    def _request(self, job: str, qpu: str, hints: LeaseHints) -> None:
        self._latest[job] = qpu, hints
        request = _Request(*self._make_request(self._name(job), qpu, hints))
        self._requests[job] = request, request.start()

    def _record_refusal(self, job: str, error: QuantumError) -> None:
        self._refused[job] = time.monotonic() + REFUSED_SECONDS
        self._explain(job, str(error))
        logger.warning("job %s: %s", job, error)

    def _try(self, job: str, act: Callable[[], None]) -> None:
        """Act for one job; failures are retried in the next poll."""
        try:
            act()
        except InputError as error:
            self._record_refusal(job, error)
        except QuantumError as error:
            logger.warning("job %s: %s", job, error)

    def _explain(self, job: str, text: str) -> None:
        if self._explained.get(job, "") != text:
            self._explained[job] = text
            self._scheduler.explain(job, text)
