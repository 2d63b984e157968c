"""The state of a vendor's QPU, as far as it is known, and the time of the next query."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.leases import ReservedTime
from sf_quantum.protocol.tasks import NotAccepted
from sf_quantum.qpu import Qpu, QpuStatus
from sf_quantum.service.device.vendor import answer_checks
from sf_quantum.service.device.vendor.settings import QpuSettings

# Consecutive failed queries after which a QPU counts as offline; one may fail by chance.
FAILURES = 2
# A query that takes this long and fails has not failed by chance: the vendor hangs.
SILENCE_SECONDS = 3.0
# Longest Retry-After that is applied.
RETRY_AFTER_SECONDS = 3600.0
logger = logging.getLogger(__name__)


class Trouble:
    """The retry schedule of requests that have failed; thread-safe."""

    def __init__(self, pauses: Backoff) -> None:
        self._backoff = pauses
        self._pauses: Iterator[float] = pauses.pauses()
        self._until = 0.0
        # end of the pause that the vendor has requested
        self._asked = 0.0
        self._lock = threading.Lock()
        self.why = ""

    @property
    def left(self) -> float:
        """Seconds until the next attempt."""
        return max(0.0, self._until - time.monotonic())

    @property
    def asked_for(self) -> float:
        """Seconds until the end of the pause that the vendor has requested."""
        return max(0.0, self._asked - time.monotonic())

    def noted(self, error: QuantumError) -> None:
        """Record a failure, and set the pause until the next attempt."""
        with self._lock:
            # failures of concurrent requests count once
            pause, now = self.left or next(self._pauses), time.monotonic()
            if isinstance(error, NotAccepted) and error.retry_seconds is not None:
                pause = min(error.retry_seconds, RETRY_AFTER_SECONDS)
                self._asked = max(self._asked, now + pause)
            self.why = str(error)
            self._until = max(self._asked, now + pause)

    def over(self) -> None:
        """End the pause, unless the vendor has requested it."""
        with self._lock:
            self._pauses = self._backoff.pauses()
            self._until = self._asked
            if not self.left:
                self.why = ""


class VendorState:
    """The known state of a vendor's QPU.

    :param description: description of the QPU until the vendor provides one
    """

    def __init__(self, settings: QpuSettings, description: Description) -> None:
        self._name, self._settings = settings.name, settings
        self.description = description
        self.status: QpuStatus | None = None
        self.reservations: dict[str, ReservedTime | None] = {}
        self._reservations_read = -math.inf
        #: queries for reservations that fail or get malformed replies
        self.reservations_trouble = Trouble(backoff.STATUS)
        self._described = -math.inf
        self._descriptions = Trouble(backoff.STATUS)
        self._calibration: str | None = None
        #: failed requests of any kind, and replies that request a pause
        self.vendor = Trouble(backoff.STATUS)
        #: queries for the QPU's status that fail
        self._status_requests = Trouble(backoff.STATUS)
        #: rejections of the service's user
        self.access = Trouble(backoff.ACCESS)
        # Times at which the status was last read, and the vendor last replied to any request.
        self._known = self._heard = -math.inf
        # Consecutive failed queries for the status, and a message with the time of the first.
        self._failures = 0
        self._silence = ""

    @property
    def pause(self) -> float:
        """Seconds until the next query for the QPU's status.

        Failed requests about jobs do not delay this query: with many jobs, requests would
        fail all the time, and the status would become outdated.
        """
        return max(self.vendor.asked_for, self._status_requests.left, self.access.left)

    @property
    def obstacle(self) -> str | None:
        """Why the QPU cannot be used now; ``None`` if it can."""
        if self.access.why:
            return self.access.why
        unknown = self._described == -math.inf
        if self._silence and (unknown or self._failures >= FAILURES):
            return self._silence
        if self.status is None:
            return "its vendor has not been asked yet"
        if not self.status.online:
            return self.status.reason or "its vendor gives no reason"
        age = time.monotonic() - self._known
        if age > self._settings.stale_seconds:
            why = self.vendor.why or "it has not answered since"
            return f"its status is {age:.0f} s old: {why}"
        if unknown:  # a QPU without a description is not online
            return self._descriptions.why or "its vendor has not described it yet"
        return None

    def read_status(self, client: Qpu) -> QpuStatus:
        self.status = answer_checks.status(client.status())
        self._known = self._heard = time.monotonic()
        return self.status

    def describe(self, client: Qpu, status: QpuStatus) -> None:
        """Read the description again if the QPU was recalibrated or some time has passed."""
        age = time.monotonic() - self._described
        renewed = status.calibration != self._calibration
        due = renewed or age >= self._settings.describe_seconds
        if not due or self._descriptions.left:
            return
        try:
            self.description = answer_checks.description(client.describe())
        except NotAccepted as error:
            self._descriptions.noted(error)
            if error.retry_seconds is not None:  # the pause is for all requests
                raise
            return
        self._descriptions.over()
        self._described = time.monotonic()
        self._calibration = status.calibration

    def read_reservations(self, client: Qpu) -> None:
        """Read the QPU's reserved times again if one has ended or some time has passed.

        The reservations stay unchanged if the vendor does not respond. There are none if the
        vendor has never responded, or rejects the query.
        """
        age, now = time.monotonic() - self._reservations_read, time.time()
        over = any(one and one.ends <= now for one in self.reservations.values())
        trouble = self.reservations_trouble
        due = over or trouble.why or age >= self._settings.describe_seconds
        if not due or trouble.left:
            return
        # Only jobs that are submitted to the vendor's queue name their reservation.
        names = (client.kinds and client.reservations) or ()
        try:
            with answer_checks.bounded_errors():
                # Another thread may iterate over the previous mapping.
                self.reservations = {
                    name: answer_checks.reserved_time(client.reserved_time(name))
                    for name in names
                }
        except QpuError as error:
            if trouble.why != str(error):
                text = "QPU %s: its reservations are unknown: %s"
                logger.warning(text, self._name, error)
            trouble.noted(error)
            # The vendor requests a pause of all requests.
            if isinstance(error, NotAccepted) and error.retry_seconds is not None:
                raise
            return
        except InputError as error:
            if self.reservations or self._reservations_read == -math.inf:
                logger.warning("QPU %s has no reservations: %s", self._name, error)
            self.reservations = {}
        trouble.over()
        self._reservations_read = time.monotonic()

    def heard_since(self, moment: float) -> bool:
        """Return whether the vendor has replied to a request since a monotonic time."""
        return self._heard >= moment

    def answered(self) -> None:
        """Record that the vendor has replied to a request."""
        self._heard = time.monotonic()
        self.vendor.over()

    def refreshed(self) -> None:
        """Record that the status and the description were read."""
        if self._silence:
            logger.warning("QPU %s answers again", self._name)
        self._failures, self._silence = 0, ""
        self._status_requests.over()
        self._known = time.monotonic()
        self.answered()

    def postponed(self, error: QpuError) -> None:
        """Record that the next query for the status must wait."""
        self.vendor.noted(error)
        self._status_requests.noted(error)

    def unanswered(self, error: QpuError, seconds: float) -> None:
        """Record that a query for the status got no reply.

        :param seconds: time that the query took
        """
        self.postponed(error)
        self._failures += 1 if seconds < SILENCE_SECONDS else FAILURES
        if not self._silence:
            since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            self._silence = f"does not answer since {since}: {error}"
            logger.warning("QPU %s %s", self._name, self._silence)

    def refused(self, error: InputError) -> None:
        """Record that the vendor rejects the service's user."""
        if not self.access.why:
            logger.warning("QPU %s refuses the service: %s", self._name, error)
        self.access.noted(error)
