"""Leases of QPUs: waiting for them, renewing them and giving them back.

``sfq lease`` and the connectors both use this module; its calls block.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from sf_quantum import backoff
from sf_quantum.backoff import Deadline
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.qpu import AuthenticationError, NoLease, Qpu

logger = logging.getLogger(__name__)

# one request to the QPU's queue for leases; a cancelled wait lasts no longer
STAY_SECONDS = 2.0
# a service that is restarted is back within seconds, one that is moved within minutes
TROUBLE_SECONDS = 120.0


class LeaseProblem(Enum):
    """Why a job got no lease, or lost it."""

    NONE_FREE = "none free"
    NO_ANSWER = "no answer"
    REFUSED = "refused"
    CREDENTIALS_REFUSED = "credentials refused"
    OFFLINE = "offline"
    QUEUE_WAIT = "queue wait"

    @classmethod
    def of(cls, error: QuantumError) -> LeaseProblem:
        """Classify an error of a QPU's client."""
        if isinstance(error, AuthenticationError):
            return cls.CREDENTIALS_REFUSED
        if isinstance(error, NoLease):
            return cls.NONE_FREE
        return cls.NO_ANSWER if isinstance(error, QpuError) else cls.REFUSED


class WaitCancelled(QpuError):
    """The wait for a lease was cancelled."""


@dataclass(frozen=True)
class AcquireOptions:
    """What a lease is acquired for, and how long to wait for it.

    :param job: the job, in error messages
    :param wait_seconds: the longest wait, also for a QPU that does not answer; ``None``
        for as long as it takes
    :param trouble_seconds: the longest wait for a QPU that does not answer, if
        ``wait_seconds`` is ``None``
    :param hints: see :meth:`~sf_quantum.qpu.Qpu.hinted`
    :param purpose: what the lease is for, shown to the QPU's operator; the job by default
    """

    job: str | None = None
    wait_seconds: float | None = None
    trouble_seconds: float = TROUBLE_SECONDS
    hints: Mapping[str, JSON] = field(default_factory=dict)
    purpose: str | None = None


def acquire(
    qpu: Qpu,
    request: AcquireOptions,
    stop: threading.Event | None = None,
    on_wait: Callable[[QpuError], None] | None = None,
) -> str:
    """Acquire a lease as soon as one is free.

    :param stop: set by another thread to cancel the wait
    :param on_wait: called once, with the reason, if no lease is free at once
    :returns: the acquisition token
    :raises NoLease: if none was free in time
    :raises WaitCancelled: if ``stop`` was set first
    :raises QpuError: if the QPU does not answer for too long
    :raises InputError: if the QPU refuses the request
    """
    qpu = qpu.hinted(request.hints)
    # by the key, the QPU's queue recognizes the request when it is repeated
    key = uuid.uuid4().hex
    wait = _Wait(request, stop or threading.Event())
    # the first attempt does not wait, so that on_wait is called at once
    stay_seconds = 0.0 if on_wait else wait.stay_seconds
    while True:
        began = time.monotonic()
        try:
            return qpu.acquire_waiting(
                request.purpose or request.job, wait_seconds=stay_seconds, key=key
            )
        except QpuError as error:
            if on_wait is None:
                wait.pause(error, began)
            else:
                on_wait(error)
                on_wait = None
        stay_seconds = wait.stay_seconds


class _Wait:
    """The deadline and the pauses of one request."""

    def __init__(self, request: AcquireOptions, stop: threading.Event) -> None:
        self._request = request
        self._stop = stop
        self._deadline = Deadline(request.wait_seconds)
        self._pauses = backoff.LEASE.pauses()
        self._trouble_since: float | None = None

    @property
    def stay_seconds(self) -> float:
        return min(STAY_SECONDS, self._deadline.left)

    def pause(self, error: QpuError, began: float) -> None:
        """Pause before the next attempt, or raise the error if there is none.

        :param error: why the last attempt failed
        :param began: when it began
        """
        if self._stop.is_set():
            raise WaitCancelled("the wait was cancelled") from error
        now = time.monotonic()
        if not isinstance(error, NoLease):
            self._trouble_since = self._trouble_since or began
            limit = self._request.trouble_seconds
            if (
                self._request.wait_seconds is None
                and now - self._trouble_since >= limit
            ):
                raise QpuError(
                    f"{error}; given up after {limit:g} s, --wait or a deployment's `wait` "
                    "sets how long"
                ) from error
        else:
            self._trouble_since = None
            if now - began >= STAY_SECONDS / 2:
                # the QPU has a queue for leases, which keeps the request's position
                self._pauses = backoff.LEASE.pauses()
                return
        if self._deadline.left <= 0:
            raise error
        if self._stop.wait(min(next(self._pauses), self._deadline.left)):
            raise WaitCancelled("the wait was cancelled") from error


class HeldLease:
    """A lease, renewed by a thread of its own until it is released."""

    def __init__(self, qpu: Qpu, token: str, log: logging.Logger = logger) -> None:
        self.qpu = qpu
        self.token = token
        self._log = log
        self._released = threading.Event()
        # a daemon: a QPU that does not answer must not delay the end of the process
        threading.Thread(target=self._renew, name="sfq-renew", daemon=True).start()

    def release(self) -> None:
        """Give the lease back, which cancels the QPU jobs it still has.

        :raises QpuError: if the QPU does not answer
        """
        self._released.set()
        self.qpu.release(self.token)

    def _renew(self) -> None:
        pause: float | None = 0.0
        while pause is not None and not self._released.wait(pause):
            try:
                pause = self.qpu.renew(self.token)
            except InputError as error:
                if not self._released.is_set():
                    refused = isinstance(error, AuthenticationError)
                    trouble = "cannot be renewed" if refused else "is lost"
                    self._log.warning(
                        "A lease of QPU %s %s: %s", self.qpu.name, trouble, error
                    )
                return
            except QpuError:
                pause = backoff.LEASE.longest_seconds


class LeaseSet(ExitStack[None]):
    """One lease of each of several QPUs; on exit all are given back.

    They are acquired in the order of the QPUs' names, so that two processes that need the
    same QPUs never wait for each other.

    :param on_wait: called once for each QPU without a free lease, with the reason
    """

    def __init__(
        self,
        qpus: Iterable[Qpu],
        on_wait: Callable[[Qpu, QpuError], None] | None = None,
    ) -> None:
        super().__init__()
        self._qpus = sorted(qpus, key=lambda qpu: qpu.name)
        self._on_wait = on_wait
        self.held: list[HeldLease] = []

    def tokens(self) -> list[tuple[Qpu, str]]:
        """List each QPU that has a lease, with its token."""
        return [(lease.qpu, lease.token) for lease in self.held]

    def jobs(self, qpu: Qpu) -> list[dict[str, JSON]]:
        """List the QPU jobs of one QPU's lease, none while it has no lease.

        :raises QpuError: if the QPU does not answer
        """
        held = [lease for lease in self.held if lease.qpu is qpu]
        return [job for lease in held for job in qpu.jobs(lease.token) or []]

    def acquire(
        self, request: AcquireOptions, stop: threading.Event | None = None
    ) -> None:
        """Acquire every lease.

        :param request: its wait is for all of them together
        :param stop: see :func:`acquire`
        :raises QpuError: if one of them is not granted
        """
        deadline = Deadline(request.wait_seconds)
        for qpu in self._qpus:
            if request.wait_seconds is not None:
                request = replace(request, wait_seconds=deadline.left)
            on_wait = partial(self._on_wait, qpu) if self._on_wait else None
            token = acquire(qpu, request, stop, on_wait)
            self.held.append(lease := HeldLease(qpu, token))
            self.callback(_release, lease)
            if (shortfall := qpu.shortfall(token)) is not None:
                logger.warning("The lease of QPU %s has %s", qpu.name, shortfall)


def _release(lease: HeldLease) -> None:
    try:
        lease.release()
    except QuantumError as error:
        # it will expire; the command's exit status must not change
        logger.warning(
            "The lease of QPU %s was not given back: %s", lease.qpu.name, error
        )
