"""Leaving a QPU that goes offline, for work that can be done elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Self

from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON
from sf_quantum.qpu import OVER, Qpu

PAUSE_SECONDS = 1.0


def has_no_hope(jobs: Collection[Mapping[str, JSON]]) -> bool:
    """Whether QPU jobs get nothing from a QPU that is offline.

    :param jobs: of one lease, as :meth:`~sf_quantum.qpu.Qpu.jobs` tells them
    :returns: False if one still runs, as on a QPU that is drained, or all are over
    """
    states = [job.get("state") for job in jobs]
    if any(state not in (*OVER, "Queued") for state in states):
        return False
    return "Queued" in states or not states


class Leaving:
    """Asks QPUs how they are, until it is left or one has to be given up.

    :param qpus: whose leases are wanted
    :param held: each that has one, with its token; read while it grows
    :param leave: called at most once, in another thread, with why a QPU is given up
    """

    def __init__(
        self,
        qpus: Iterable[Qpu],
        held: Collection[tuple[Qpu, str]],
        leave: Callable[[str], None],
    ) -> None:
        self._qpus = list(qpus)
        self._held = held
        self._leave = leave
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if self._qpus:
            # a daemon: a QPU that does not answer must not hold up the command's end
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            for qpu in self._qpus:
                why = self._lost(qpu)
                if why and not self._over.is_set():
                    self._leave(why)
                    return

    def _lost(self, qpu: Qpu) -> str:
        try:
            status = qpu.status()
            if status.online:
                return ""
            tokens = [token for other, token in self._held if other.name == qpu.name]
            jobs = [job for token in tokens for job in qpu.jobs(token) or []]
        except QuantumError:
            return ""  # who waits for it bears its silence, or not
        if not has_no_hope(jobs):
            return ""
        return f"QPU {qpu.name} is offline: {status.reason or 'no reason given'}"
