"""Waits for leases of QPUs, renews and releases them; reasons to leave a QPU early.

``sfq lease`` and the connectors both use this module; its calls block.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from sf_quantum import backoff
from sf_quantum.deadline import Deadline
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.protocol.tasks import OVER, LeaseJob, LeaseLost
from sf_quantum.qpu import AuthenticationError, LeaseTooLate, NoLease, Qpu
from sf_quantum.text import utc

logger = logging.getLogger(__name__)

# duration of a request to the QPU's queue for leases; a cancelled wait ends within this time
STAY_SECONDS = 2.0
# tolerated time without an answer: a restarted service is back within seconds, a moved
# service within minutes
TROUBLE_SECONDS = 120.0
# Shortest pause between two renewals, regardless of the QPU's reply.
RENEWAL_SECONDS = 1.0
# Pause between two checks whether a job must leave its QPU.
POLL_SECONDS = 0.5


class LeaseProblem(Enum):
    """The kind of reason for a job to leave its QPU."""

    REFUSED = "refused"
    OFFLINE = "offline"
    QUEUE_WAIT = "queue wait"


class WaitCancelled(QpuError):
    """The wait for a lease was cancelled."""


@dataclass(frozen=True)
class AcquireOptions:
    """The purpose of a lease, its hints, and limits of the wait for it.

    :param job: name of the job
    :param wait_seconds: the longest wait, even for a QPU that does not answer; ``None`` for
        no limit
    :param trouble_seconds: the longest wait for a QPU that does not answer, if
        ``wait_seconds`` is ``None``
    :param hints: see :meth:`~sf_quantum.qpu.Qpu.with_hints`
    :param purpose: purpose of the lease, shown to the QPU's operator; the job by default
    :param key: text with which the QPU's queue recognizes a repeated request, even from
        another process; by default a new text
    """

    job: str | None = None
    wait_seconds: float | None = None
    trouble_seconds: float = TROUBLE_SECONDS
    hints: LeaseHints = field(default_factory=LeaseHints)
    purpose: str | None = None
    key: str | None = None

    @property
    def latest_start(self) -> float | None:
        """The time by which the lease must be granted, in seconds since the epoch."""
        return self.hints.latest_start


def acquire(
    qpu: Qpu,
    request: AcquireOptions,
    stop: threading.Event | None = None,
    on_wait: Callable[[QpuError, float], None] | None = None,
) -> str:
    """Acquire a lease as soon as one is free.

    :param stop: set by another thread to cancel the wait
    :param on_wait: function that is called if no lease is free immediately, and whenever
        the reason changes; its arguments are the reason, and the seconds until the wait is
        given up (infinity without a limit)
    :returns: the acquisition token
    :raises NoLease: if no lease was free in time
    :raises LeaseTooLate: if no lease was granted by the latest start
    :raises WaitCancelled: if ``stop`` was set first
    :raises QpuError: if the QPU does not answer for too long
    :raises AuthenticationError: if the QPU rejects the user
    :raises InputError: if the QPU rejects the request for another reason
    """
    qpu, purpose = qpu.with_hints(request.hints), request.purpose or request.job
    key = request.key or uuid.uuid4().hex
    wait = _Wait(request, stop or threading.Event())
    reported = None if on_wait else ""
    latest = request.latest_start
    # A request with a key may repeat a request that was granted in time, so it is sent even
    # after the latest start.
    if latest is not None and latest <= time.time() and request.key is None:
        raise LeaseTooLate(f"{qpu.name}: not granted by {utc(latest)}")
    while True:
        began = time.monotonic()
        # the first attempt does not wait, so that on_wait is called immediately
        stay_seconds = (
            min(STAY_SECONDS, wait.deadline.left) if reported is not None else 0.0
        )
        try:
            return qpu.acquire_waiting(purpose, wait_seconds=stay_seconds, key=key)
        except LeaseTooLate:
            raise
        except QpuError as error:
            if reported is not None:
                wait.pause(error, began)
            if on_wait and reported != str(error):
                on_wait(error, wait.seconds_left(error))
                reported = str(error)


class Patience:
    """The limits on a job's wait for a QPU that has no free lease or does not answer.

    :param wait_seconds: see :class:`AcquireOptions`
    :param trouble_seconds: see :class:`AcquireOptions`
    :param hint: text for the error about a QPU that does not answer: how to set the limit
    :param latest_start: see :attr:`AcquireOptions.latest_start`
    """

    def __init__(
        self,
        wait_seconds: float | None,
        trouble_seconds: float,
        hint: str = "",
        latest_start: float | None = None,
    ) -> None:
        self._hint = hint
        limit = math.inf if wait_seconds is None else wait_seconds
        left = math.inf if latest_start is None else latest_start - time.time()
        self.deadline = Deadline(min(limit, left))
        self._latest_start = latest_start if left < limit else None
        unlimited = wait_seconds is None
        self._trouble_seconds = trouble_seconds if unlimited else math.inf
        self._trouble_since: float | None = None

    def seconds_left(self, error: QpuError) -> float:
        """Return how many more seconds the error is tolerated; infinite without a limit."""
        if isinstance(error, NoLease) or math.isinf(self._trouble_seconds):
            return self.deadline.left
        now = time.monotonic()
        left = self._trouble_seconds - (now - (self._trouble_since or now))
        return min(max(0.0, left), self.deadline.left)

    def check(self, error: QpuError, began: float) -> None:
        """Raise the error of a failed attempt if no further attempt is allowed.

        :param began: start of the attempt, on the monotonic clock
        """
        if isinstance(error, NoLease):
            self._trouble_since = None
        else:
            self._trouble_since = self._trouble_since or began
            if time.monotonic() - self._trouble_since >= self._trouble_seconds:
                text = f"{error}; given up after {self._trouble_seconds:g} s"
                raise QpuError(f"{text}{self._hint}") from error
        if self.deadline.left <= 0:
            if self._latest_start is not None and isinstance(error, NoLease):
                text = f"{error}; not granted by {utc(self._latest_start)}"
                raise LeaseTooLate(text) from error
            raise error


class _Wait:
    """The pauses between the attempts of one request."""

    def __init__(self, request: AcquireOptions, stop: threading.Event) -> None:
        self._stop = stop
        self._patience = Patience(
            request.wait_seconds,
            request.trouble_seconds,
            ", --wait or a deployment's `wait` sets how long",
            request.latest_start,
        )
        self.deadline = self._patience.deadline
        self.seconds_left = self._patience.seconds_left
        self._pauses = backoff.LEASE.pauses()

    def pause(self, error: QpuError, began: float) -> None:
        """Pause after a failed attempt, or raise its error if the wait is over."""
        if self._stop.is_set():
            raise WaitCancelled("the wait was cancelled") from error
        lasted = time.monotonic() - began
        if isinstance(error, NoLease) and lasted >= STAY_SECONDS / 2:
            # the QPU has a queue for leases, which keeps the request's position
            self._pauses = backoff.LEASE.pauses()
            return
        self._patience.check(error, began)
        if self._stop.wait(min(next(self._pauses), self.deadline.left)):
            raise WaitCancelled("the wait was cancelled") from error


class RenewedLease:
    """A lease that its own thread renews until the lease is released."""

    def __init__(self, qpu: Qpu, token: str, log: logging.Logger = logger) -> None:
        self.qpu = qpu
        self.token = token
        #: set if the QPU rejects the lease's user; renewals have then ended
        self.refusal: QpuLoss | None = None
        self._log = log
        self._released = threading.Event()
        # a daemon thread: a QPU that does not answer must not delay the process's end
        threading.Thread(target=self._renew, name="sfq-renew", daemon=True).start()

    def release(self) -> None:
        """Release the lease, which cancels its unfinished QPU jobs."""
        self._released.set()
        self.qpu.release(self.token)

    def _renew(self) -> None:
        pause: float | None = 0.0
        while pause is not None and not self._released.wait(pause):
            try:
                pause = self.qpu.renew(self.token)
                if pause is not None:
                    pause = max(pause, RENEWAL_SECONDS)
            except AuthenticationError as error:
                self.refusal = QpuLoss(LeaseProblem.REFUSED, self.qpu.name, str(error))
                return
            except (InputError, LeaseLost) as error:
                if not self._released.is_set():
                    text = "A lease of QPU %s is lost: %s"
                    self._log.warning(text, self.qpu.name, error)
                return
            except QpuError:
                pause = backoff.LEASE.longest_seconds


class LeaseSet(ExitStack[None]):
    """One lease of each of several QPUs; on exit all leases are released.

    The leases are acquired in the order of the QPUs' names, so two processes that need the
    same QPUs never wait for each other.

    :param on_wait: function that is called for each QPU without a free lease, see
        :func:`acquire`
    """

    def __init__(
        self,
        qpus: Iterable[Qpu],
        on_wait: Callable[[Qpu, QpuError, float], None] | None = None,
    ) -> None:
        super().__init__()
        self._qpus = sorted(qpus, key=lambda qpu: qpu.name)
        self._on_wait = on_wait
        self.held: list[RenewedLease] = []
        #: sum of the waits for the leases; each wait begins with the first request that failed
        #: because no lease was free or the QPU did not answer, and ends with the grant
        self.waited_seconds = 0.0
        self._waits_since: float | None = None

    def tokens(self) -> list[tuple[Qpu, str]]:
        """List each QPU that has a lease, with its token."""
        return [(lease.qpu, lease.token) for lease in self.held]

    def refusal(self) -> QpuLoss | None:
        """Return the rejection of the user, if a renewal was rejected, or ``None``."""
        return next(filter(None, (lease.refusal for lease in self.held)), None)

    def jobs(self, qpu: Qpu) -> list[LeaseJob]:
        """List the QPU jobs under the lease of one QPU; empty without a lease."""
        held = [lease for lease in self.held if lease.qpu is qpu]
        return [job for lease in held for job in qpu.jobs(lease.token) or []]

    def acquire(
        self, request: AcquireOptions, stop: threading.Event | None = None
    ) -> None:
        """Acquire every lease, see :func:`acquire`; one limit applies to the total wait."""
        deadline = Deadline(request.wait_seconds)
        for qpu in self._qpus:
            if request.wait_seconds is not None:
                request = replace(request, wait_seconds=deadline.left)
            self._waits_since = None
            token = acquire(qpu, request, stop, partial(self._waits, qpu))
            if self._waits_since is not None:
                self.waited_seconds += time.monotonic() - self._waits_since
            self.held.append(lease := RenewedLease(qpu, token))
            self.callback(_release, lease)
            if (shortfall := qpu.shortfall(token)) is not None:
                logger.warning("The lease of QPU %s has %s", qpu.name, shortfall)

    def _waits(self, qpu: Qpu, error: QpuError, left: float) -> None:
        self._waits_since = self._waits_since or time.monotonic()
        if self._on_wait is not None:
            self._on_wait(qpu, error, left)


def _release(lease: RenewedLease) -> None:
    try:
        lease.release()
    except QuantumError as error:
        # the lease will expire; the command's exit status must not change
        text = "The lease of QPU %s was not given back: %s"
        logger.warning(text, lease.qpu.name, error)


@dataclass(frozen=True)
class QpuLoss:
    """The reason for a job to leave its QPU.

    :param detail: the QPU's reason for being offline or for rejecting the user
    :param seconds: limit that a QPU job's wait in the queue has exceeded
    """

    problem: LeaseProblem
    qpu: str
    detail: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.problem is LeaseProblem.QUEUE_WAIT:
            return f"a QPU job waited in its queue for more than {self.seconds:.3g} s"
        if self.problem is LeaseProblem.REFUSED:
            return self.detail
        return f"the QPU is offline ({self.detail or 'no reason given'})"


@dataclass(eq=False)
class QpuMonitor:
    """Watches a QPU for one job.

    :param jobs: function that lists the job's QPU jobs, see :meth:`~sf_quantum.qpu.Qpu.jobs`
    :param wait_seconds: the longest wait of a QPU job in the queue, from the first poll that
        lists it as queued; no limit once one of the QPU jobs has started
    """

    qpu: Qpu
    jobs: Callable[[], Collection[LeaseJob]] = tuple
    wait_seconds: float | None = None
    _started: bool = field(default=False, init=False)
    _first_seen: dict[str, float] = field(default_factory=dict, init=False)

    def check(self) -> QpuLoss | None:
        """Return the reason to leave the QPU, if any; a missing answer is not a reason."""
        try:
            status = self.qpu.status()
            if status.online and self.wait_seconds is None:
                return None
            jobs = self.jobs()
        except QuantumError:
            return None  # the job's own client retries or gives up
        states = {job.state for job in jobs}
        # The job is waiting if its QPU jobs are pending or not submitted yet. It need not
        # leave while a QPU job runs, since a draining QPU finishes running jobs.
        waiting = states <= {"Queued", *OVER} and (not states or "Queued" in states)
        if waiting and not status.online:
            return QpuLoss(LeaseProblem.OFFLINE, self.qpu.name, status.reason)
        self._started |= not states <= {"Queued"}
        pending = [str(job.id) for job in jobs if job.state == "Queued"]
        now, limit = time.monotonic(), self.wait_seconds
        waits = [now - self._first_seen.setdefault(job, now) for job in pending]
        if limit is None or self._started or max(waits, default=0.0) <= limit:
            return None
        return QpuLoss(LeaseProblem.QUEUE_WAIT, self.qpu.name, seconds=limit)


@contextmanager
def monitoring(
    checks: Collection[Callable[[], QpuLoss | None]], leave: Callable[[QpuLoss], None]
) -> Iterator[None]:
    """Watch QPUs in a thread for as long as the block runs.

    :param checks: functions such as :meth:`QpuMonitor.check`
    :param leave: function that is called in that thread, at most once, when a QPU must be
        left
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            for loss in filter(None, (check() for check in checks)):
                if not over.is_set():
                    leave(loss)
                return

    if checks:
        # a daemon: a QPU that does not answer must not delay the end of the process
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
