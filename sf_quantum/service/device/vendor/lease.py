"""The lease under which a device's jobs run at its vendor.

The lease is acquired when there is work, renewed, and released when there is no more work. If
the vendor has ended a lease, the next request acquires another. A lease is written to disk
before its first use: after a crash, the restarted service uses it again, or releases it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum import backoff, structs
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import parse_json, replacing
from sf_quantum.net.transport import Unsendable
from sf_quantum.protocol.tasks import LeaseLost
from sf_quantum.qpu import AuthenticationError, Qpu
from sf_quantum.qpu.environment import from_environment, job_environment
from sf_quantum.text import described

logger = logging.getLogger(__name__)
# Shortest and longest pause between two renewals, regardless of the vendor's reply.
RENEWAL_SECONDS, MAX_RENEWAL_SECONDS = 1.0, 3600.0
# maximum characters of a lease's token, which may be signed
MAX_TOKEN = 8192
# After a restart, time to query the earlier jobs before the earlier lease counts as idle.
FORMER_SECONDS = 10.0


@dataclass(frozen=True)
class Held:
    """A lease that is held, and the client for the jobs under it."""

    token: str
    variables: dict[str, str]
    jobs: Qpu


@dataclass(frozen=True)
class _Saved:
    """The content of the file that keeps leases: the token of each.

    :param unwanted: those to release as soon as the vendor answers
    """

    held: str | None = None
    unwanted: list[str] = field(default_factory=list)


class VendorLease:
    """The lease of a device at its vendor, at most one at a time; thread-safe.

    :param make: function that creates the driver's side of the client, with the present
        credentials
    :param key: text that identifies this service's requests for a lease; with the same
        text, a service that was killed gets its lease back
    :param wait_seconds: longest wait of a request in the vendor's queue for leases
    :param idle_seconds: time without work after which the lease is released
    """

    def __init__(
        self,
        make: Callable[[], Qpu],
        key: str,
        *,
        wait_seconds: float,
        idle_seconds: float,
    ) -> None:
        self._make = make
        self.driver = make()
        self._key = key
        self._wait_seconds = wait_seconds
        self._idle_seconds = idle_seconds
        # Guards the fields below; never held during a request.
        self._lock = threading.Lock()
        # Held while a lease is acquired or released: all requests have the same key, so the
        # vendor could reply to a new request with the lease that is being released.
        self._exchange = threading.Lock()
        self._held: Held | None = None
        # tokens of leases to release as soon as the vendor responds
        self._unwanted: list[str] = []
        self._closed = False
        self._requests = 0
        self._used = 0.0
        self._renewal = math.inf
        # The file that lists the leases at the vendor, and its content.
        self._file: Path | None = None
        self._saved: _Saved | None = None

    def keep_in(self, file: Path) -> None:
        """Keep leases in a file, and read the leases from before a restart from it."""
        self._file = file
        if self._held is not None or not file.exists():
            return
        try:
            self._saved = saved = structs.read(_Saved, parse_json(file.read_bytes()))
            self._unwanted = [*saved.unwanted]
            if saved.held is None:
                return
            self._held = _held(self.driver, saved.held)
        except (OSError, ValueError, InputError) as error:
            logger.warning("%s: no lease can be read: %s", file, described(error))
            return
        self._used = time.monotonic() + FORMER_SECONDS
        self._renewal = 0.0
        logger.info("go on with the former lease of QPU %s", self.driver.name)

    def _save(self) -> None:
        with self._lock:
            held = None if self._held is None else self._held.token
            state = _Saved(held, [*self._unwanted])
        if self._file is None or state == self._saved:
            return
        try:
            with replacing(self._file, private=True) as file:
                file.write(json.dumps(vars(state)).encode())
                file.flush()
                os.fsync(file.fileno())
            self._saved = state
        except QuantumError as error:
            # after a crash, the lease would last until the vendor ends it
            text = "the lease of QPU %s is not on disk: %s"
            logger.warning(text, self.driver.name, error)

    def read_credentials(self) -> None:
        """Read the credentials again; a held lease is kept.

        :raises InputError: if the credentials cannot be read
        """
        driver = self._make()
        with self._lock:
            self.driver = driver
            if self._held is not None:
                self._held = _held(driver, self._held.token)

    @property
    def token(self) -> str:
        """The token of the held lease; empty without a lease."""
        with self._lock:
            return self._held.token if self._held else ""

    def take(self) -> Held:
        """Use the lease for a request until :meth:`done`; acquire a lease if necessary.

        :raises NoLease: if no lease is free now
        :raises AuthenticationError: if the vendor rejects the user
        :raises InputError: if the vendor rejects the request for a lease
        :raises QpuError: if the vendor does not respond
        """
        if (held := self._present()) is not None:
            return held
        with self._exchange:
            if (held := self._present()) is not None:  # another thread acquired a lease
                return held
            if self._closed:
                raise QpuError("the service is stopping")
            self._give_back_unwanted()
            driver = self.driver
            token = driver.acquire_waiting(
                f"{driver.name} of a QPU service",
                wait_seconds=self._wait_seconds,
                key=self._key,
            )
            held = _held(driver, _checked(token))
            with self._lock:
                self._held = held
                self._renewal = 0.0
                self._requests += 1
            self._save()
            logger.info("acquired a lease of QPU %s", driver.name)
            return held

    def done(self) -> None:
        """End the use of the lease for a request."""
        with self._lock:
            self._requests -= 1
            self._used = time.monotonic()

    def _present(self) -> Held | None:
        with self._lock:
            if self._held is not None:
                self._requests += 1
            return self._held

    def lost(
        self, held: Held, error: QuantumError, *, given_back: bool = False
    ) -> None:
        """Forget a lease that the vendor has ended.

        :param given_back: whether to release the lease soon, as its end is not certain
        """
        with self._lock:
            if self._held is None or self._held.token != held.token:
                return
            self._held = None
            if given_back:
                self._unwanted.append(held.token)
        text = "the lease of QPU %s is lost, the next request acquires another: %s"
        logger.warning(text, self.driver.name, error)

    def abandon(self) -> None:
        """Stop using the lease, and release it soon, which ends any job that still runs."""
        with self._lock:
            if self._held is not None:
                self._unwanted.append(self._held.token)
                self._held = None

    def doubt(self) -> None:
        """Have the lease renewed soon, since a request under it has failed."""
        with self._lock:
            self._renewal = 0.0

    def is_lost(self, token: str) -> bool:
        """Query whether the vendor has ended a lease; forget the lease if so.

        :raises AuthenticationError: if the vendor rejects the user
        :raises QpuError: if the vendor does not answer
        """
        with self._lock:
            held = self._held
        if held is None or held.token != token:
            return True
        try:
            self._renew(held)
        except AuthenticationError:
            raise
        except Unsendable as error:  # no request has reached the vendor
            raise QpuError(str(error)) from error
        except LeaseLost as error:
            self.lost(held, error)
            return True
        except InputError as error:  # the lease may still be held
            self.lost(held, error, given_back=True)
            return True
        return False

    def has_ended(self, held: Held) -> bool:
        """Like :meth:`is_lost`, but return false if the vendor does not respond."""
        with suppress(AuthenticationError, QpuError):
            return self.is_lost(held.token)
        return False

    def maintain(self, busy: bool) -> None:
        """Renew the lease if a renewal is due, or release it if it has been idle for long.

        :param busy: whether jobs at the vendor depend on the lease
        :raises AuthenticationError: if the vendor rejects the user
        :raises QpuError: if the vendor does not respond; the lease is then released later
        """
        with self._exchange:
            with self._lock:
                held, now = self._held, time.monotonic()
                unused = not busy and self._requests == 0
                if held and unused and now - self._used >= self._idle_seconds:
                    self._held = None
                    self._unwanted.append(held.token)
                    held = None
            self._give_back_unwanted()
            self._save()
        if held is not None and now >= self._renewal:
            self.is_lost(held.token)

    def close(self, busy: bool) -> None:
        """Release the lease, unless jobs at the vendor depend on it."""
        with self._exchange:
            self._closed = True
            held = self._held
            with self._lock:
                if self._held is not None and not busy:
                    self._unwanted.append(self._held.token)
                    self._held = None
            try:
                self._give_back_unwanted()
            except QuantumError as error:
                text = "the lease of QPU %s was not given back: %s"
                logger.warning(text, self.driver.name, error)
            self._save()
            with self._lock:
                self._held = None
            self.driver.close()
            if held is not None:
                held.jobs.close()

    def _give_back_unwanted(self) -> None:
        while self._unwanted:
            try:
                self.driver.release(self._unwanted[-1])
                logger.info("gave back the lease of QPU %s", self.driver.name)
            except (AuthenticationError, Unsendable):
                raise
            except (InputError, LeaseLost) as error:  # the lease has ended
                logger.info("a lease of QPU %s: %s", self.driver.name, error)
            self._unwanted.pop()

    def _renew(self, held: Held) -> None:
        pause: float | None = backoff.LEASE.longest_seconds
        try:
            pause = self.driver.renew(held.token)
        finally:
            with self._lock:
                self._renewal = time.monotonic() + _pause(pause)


def _pause(seconds_left: float | None) -> float:
    """Return the seconds until a lease is renewed, within limits for any reply of a vendor."""
    if seconds_left is None:
        return math.inf
    if not seconds_left >= RENEWAL_SECONDS:  # also if it is NaN
        return RENEWAL_SECONDS
    return min(seconds_left, MAX_RENEWAL_SECONDS)


def _checked(token: str) -> str:
    """Check the token of a lease, which becomes a variable of the environment.

    :raises QpuError: if the token has characters that are not printable, or is too long
    """
    if not isinstance(token, str) or not token.isprintable():
        raise QpuError("the vendor's lease has a token that is not a printable text")
    if not 1 <= len(token) <= MAX_TOKEN:
        raise QpuError(f"the vendor's lease has a token of {len(token)} characters")
    return token


def _held(driver: Qpu, token: str) -> Held:
    variables = job_environment([(driver, token)])
    jobs = from_environment(variables)
    if jobs is None:
        raise InputError(f"QPU type {driver.type!r} names no QPU in its environment")
    return Held(token, variables, jobs)
