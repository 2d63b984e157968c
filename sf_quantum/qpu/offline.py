"""When a job that can also run elsewhere leaves its QPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON
from sf_quantum.qpu import OVER, Qpu
from sf_quantum.qpu.leases import LeaseProblem

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class QpuLoss:
    """Why a job has to leave its QPU.

    :param detail: the QPU's own reason for being offline
    :param seconds: how long a QPU job has waited in its queue
    """

    problem: LeaseProblem
    qpu: str
    detail: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.problem is LeaseProblem.QUEUE_WAIT:
            return f"a QPU job waited in its queue for more than {self.seconds:.3g} s"
        return f"the QPU is offline ({self.detail or 'no reason given'})"


class QpuWatch:
    """Watches a QPU for one job.

    :param jobs: lists the job's QPU jobs, see :meth:`~sf_quantum.qpu.Qpu.jobs`
    :param wait_seconds: the longest wait of a QPU job in the queue, from when it is first
        seen there; no limit once one of them has started
    """

    def __init__(
        self,
        qpu: Qpu,
        jobs: Callable[[], Collection[Mapping[str, JSON]]] = tuple,
        wait_seconds: float | None = None,
    ) -> None:
        self._qpu = qpu
        self._jobs = jobs
        self._wait_seconds = wait_seconds
        self._started = False
        self._first_seen: dict[str, float] = {}

    def look(self) -> QpuLoss | None:
        """Check the QPU once; no answer is not a reason to leave it.

        :returns: why the job has to leave, if it has to
        """
        try:
            status = self._qpu.status()
            if status.online and self._wait_seconds is None:
                return None
            jobs = self._jobs()
        except QuantumError:
            return None  # the job's own client retries, or gives up
        if not status.online and _nothing_runs(jobs):
            return QpuLoss(LeaseProblem.OFFLINE, self._qpu.name, status.reason)
        return self._queue_wait(jobs)

    def _queue_wait(self, jobs: Collection[Mapping[str, JSON]]) -> QpuLoss | None:
        now = time.monotonic()
        self._started |= any(job.get("state") != "Queued" for job in jobs)
        waits = [
            now - self._first_seen.setdefault(str(job.get("id")), now)
            for job in jobs
            if job.get("state") == "Queued"
        ]
        limit = self._wait_seconds
        if limit is None or self._started or max(waits, default=0.0) <= limit:
            return None
        return QpuLoss(LeaseProblem.QUEUE_WAIT, self._qpu.name, seconds=limit)


def _nothing_runs(jobs: Collection[Mapping[str, JSON]]) -> bool:
    """Whether jobs are pending or still to come; one may be running on a draining QPU."""
    states = {job.get("state") for job in jobs}
    return states <= {"Queued", *OVER} and (not states or "Queued" in states)


@contextmanager
def watching(
    watches: Collection[QpuWatch], leave: Callable[[QpuLoss], None]
) -> Iterator[None]:
    """Watch QPUs in a thread for as long as the block runs.

    :param leave: called in that thread, at most once, when a QPU has to be left
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            for loss in filter(None, (one.look() for one in watches)):
                if not over.is_set():
                    leave(loss)
                return

    if watches:
        # a daemon: a QPU that does not answer must not delay the end of the process
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()
