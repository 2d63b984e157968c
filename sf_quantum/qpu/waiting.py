"""Waiting for a lease: the one loop that does it, for the connectors and ``sfq lease``."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import NoLease, Qpu

# One stay in the QPU's own queue: what a driver that is stopped waits for at most.
STAY_SECONDS = 2.0
# Between two tries where the QPU has no queue, or is in trouble.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
GROWTH = 1.6
# A service that is restarted is back within seconds, one that is moved within minutes.
TROUBLE_SECONDS = 120.0


class Stopped(QpuError):
    """Whoever waited does not want the lease any more."""


@dataclass(frozen=True)
class Request:
    """What a lease is asked for.

    :param job: who asks, in errors
    :param purpose: what it is for, in words for the QPU's operator; the job, if not given
    :param key: see :meth:`~sf_quantum.qpu.Qpu.acquire_waiting`
    :param wait_seconds: how long to wait for one, also where the QPU does not answer;
        ``None`` as long as it takes
    :param trouble_seconds: how long to bear a QPU that does not answer, in that case
    :param hints: see :meth:`~sf_quantum.qpu.Qpu.hinted`
    """

    job: str | None = None
    key: str | None = None
    wait_seconds: float | None = None
    trouble_seconds: float = TROUBLE_SECONDS
    hints: Mapping[str, JSON] = field(default_factory=dict)
    purpose: str | None = None


def acquire(qpu: Qpu, request: Request, stop: threading.Event | None = None) -> str:
    """Take a lease as soon as there is one.

    :param stop: set by who does not want it any more
    :returns: the acquisition token
    :raises NoLease: if none came in time
    :raises Stopped: if ``stop`` was set before one came
    :raises QpuError: if the QPU stays in trouble
    """
    qpu = qpu.hinted(request.hints)
    watch = _Watch(request, stop or threading.Event())
    while True:
        watch.begin()
        try:
            return qpu.acquire_waiting(
                request.purpose or request.job,
                wait_seconds=watch.stay,
                key=request.key,
            )
        except QpuError as error:
            watch.bear(error)


def deadline(seconds: float | None) -> float | None:
    """When, on the monotonic clock, a patience of so long ends."""
    return None if seconds is None else time.monotonic() + seconds


def left(moment: float) -> float:
    """How many seconds there are until then."""
    return max(0.0, moment - time.monotonic())


@dataclass
class _Watch:
    """The clocks of one wait."""

    request: Request
    stop: threading.Event
    _pause: float = field(init=False)
    _deadline: float | None = field(init=False)
    _trouble_since: float | None = None
    _began: float = 0.0

    def __post_init__(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS
        self._deadline = deadline(self.request.wait_seconds)

    @property
    def _left(self) -> float:
        return LONGEST_PAUSE_SECONDS if self._deadline is None else left(self._deadline)

    @property
    def stay(self) -> float:
        """How long to stay in the QPU's queue this time."""
        return min(STAY_SECONDS, self._left)

    def begin(self) -> None:
        """Note the time before a try."""
        self._began = time.monotonic()

    def bear(self, error: QpuError) -> None:
        """Pause after a try in vain, or raise if another one is no use."""
        lasted = time.monotonic() - self._began
        if self.stop.is_set():
            raise Stopped("not wanted any more") from error
        if not isinstance(error, NoLease):
            self._trouble_since = self._trouble_since or self._began
            self._give_up(error, self._began + lasted - self._trouble_since)
        else:
            self._trouble_since = None
            if lasted >= STAY_SECONDS / 2:
                # the QPU has a queue, and keeps the place in it
                self._pause = FIRST_PAUSE_SECONDS
                return
        if self._left <= 0:
            raise error
        pause = min(self._pause, self._left)
        self._pause = min(self._pause * GROWTH, LONGEST_PAUSE_SECONDS)
        if self.stop.wait(pause):
            raise Stopped("not wanted any more") from error

    def _give_up(self, error: QpuError, trouble_seconds: float) -> None:
        """Raise if the QPU has been in trouble for too long, and nobody said how long."""
        most = self.request.trouble_seconds
        if self.request.wait_seconds is None and trouble_seconds >= most:
            raise QpuError(
                f"{error}; given up after {most:g} s, --wait or a deployment's `wait` "
                "sets how long"
            ) from error
