"""Requests to a vendor under its lease; each reply also updates the vendor's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.tasks import LeaseLost, NotAccepted, UnknownJob
from sf_quantum.qpu import AuthenticationError, NoLease
from sf_quantum.service.device.vendor.answer_checks import bounded_errors
from sf_quantum.service.device.vendor.lease import Held, VendorLease
from sf_quantum.service.device.vendor.state import VendorState

T = TypeVar("T")


class LeasedRequests:
    """Sends requests to a vendor under its lease; thread-safe."""

    def __init__(self, lease: VendorLease, state: VendorState) -> None:
        self._lease, self._state = lease, state

    def ask(self, call: Callable[[Held], T]) -> T:
        """Make a request under the lease, or under another lease if the first is lost.

        :raises NotAccepted: if the request certainly had no effect, or the vendor requires
            a pause
        :raises InputError: if the vendor rejects the request
        :raises UnknownJob: if the vendor does not know the job
        :raises QpuError: if the vendor does not respond
        """
        with self._leased() as held, suppress(LeaseLost):
            return self._answer(call, held)
        with self._leased() as held:
            return self._answer(call, held)

    @contextmanager
    def _leased(self) -> Iterator[Held]:
        """Use the lease; without a lease, raise :class:`NotAccepted`."""
        try:
            with bounded_errors():
                held = self._lease.take()
        except NoLease as error:
            raise NotAccepted(str(error)) from error
        except InputError as error:
            self._state.refused(error)
            raise NotAccepted(str(error)) from error
        except QpuError as error:
            self._state.vendor.noted(error)
            raise NotAccepted(str(error)) from error
        try:
            yield held
        finally:
            self._lease.done()

    def _answer(self, call: Callable[[Held], T], held: Held) -> T:
        """Make a request; its reply or error updates the vendor's state and the lease."""
        try:
            with bounded_errors():
                answer = call(held)
        except AuthenticationError as error:
            self._state.refused(error)
            raise NotAccepted(str(error)) from error
        except InputError as error:
            # The error may concern the request, or a lease that has ended.
            if self._lease.has_ended(held):
                raise LeaseLost(str(error)) from error
            raise
        except LeaseLost as error:
            self._lease.lost(held, error)
            raise
        except (NotAccepted, UnknownJob) as error:
            if isinstance(error, NotAccepted) and error.retry_seconds is not None:
                self._state.vendor.noted(error)
            raise
        except QpuError as error:
            self._lease.doubt()
            self._state.vendor.noted(error)
            raise
        self._state.access.over()
        self._state.answered()
        return answer
