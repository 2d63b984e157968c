"""Leases that one command holds: taken in a fixed order, renewed, and all given back."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.qpu import Qpu, waiting

logger = logging.getLogger(__name__)


class Holding:
    """A lease of each of some QPUs; left, it gives all of them back.

    They are taken in the order of the QPUs' names, whoever takes them, so that two who
    want the same QPUs never wait for each other.

    :param waits: called once for each QPU that has no lease at once, with its reason
    """

    def __init__(
        self, qpus: Iterable[Qpu], waits: Callable[[Qpu, str], None] | None = None
    ) -> None:
        self._qpus = sorted(qpus, key=lambda qpu: qpu.name)
        self._waits = waits
        self.held: list[tuple[Qpu, str]] = []
        self._given_back = threading.Event()
        self._renewals: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._given_back.set()
        while self.held:
            qpu, token = self.held.pop()
            try:
                qpu.release(token)
            except QuantumError as error:
                # it runs out by itself; the command's own end matters more
                logger.warning("lease of QPU %s not given back: %s", qpu.name, error)

    def acquire(
        self, request: waiting.Request, stop: threading.Event | None = None
    ) -> None:
        """Take every lease.

        :param request: its patience is for all of them together
        :param stop: see :func:`~sf_quantum.qpu.waiting.acquire`
        :raises QpuError: if one of them does not come
        """
        deadline = waiting.deadline(request.wait_seconds)
        for client in self._qpus:
            qpu = client.hinted(request.hints)
            wish = replace(request, key=uuid.uuid4().hex)
            try:
                token = qpu.acquire_waiting(wish.job, wait_seconds=0.0, key=wish.key)
            except QpuError as error:  # none is free, or nobody answers
                if self._waits is not None:
                    self._waits(qpu, str(error))
                left = None if deadline is None else waiting.left(deadline)
                token = waiting.acquire(qpu, replace(wish, wait_seconds=left), stop)
            self.held.append((qpu, token))
            if (shortfall := qpu.shortfall(token)) is not None:
                logger.warning("lease of QPU %s is of %s", qpu.name, shortfall)
            self._keep(qpu, token)

    def _keep(self, qpu: Qpu, token: str) -> None:
        # a daemon: a QPU that does not answer must not hold up the command's end
        thread = threading.Thread(target=self._renew, args=(qpu, token), daemon=True)
        thread.start()
        self._renewals.append(thread)

    def _renew(self, qpu: Qpu, token: str) -> None:
        pause: float | None = 0.0
        while pause is not None and not self._given_back.wait(pause):
            try:
                pause = qpu.renew(token)
            except InputError as error:
                if not self._given_back.is_set():
                    logger.warning("lease of QPU %s is lost: %s", qpu.name, error)
                return
            except QpuError:
                pause = waiting.LONGEST_PAUSE_SECONDS
