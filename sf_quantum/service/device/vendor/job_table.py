"""The jobs that are at a vendor."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from sf_quantum.protocol.tasks import Progress

# A job that is not queried for this long no longer keeps the lease.
FORGOTTEN_SECONDS = 600.0


@dataclass(eq=False)
class VendorJob:
    """A job at the vendor; times are by the monotonic clock.

    :param cost_seconds: QPU time that was expected
    :param expected_seconds: elapsed time that it is expected to run
    :param lease: lease under which it was submitted; empty if unknown
    :param ours: whether this service has submitted it, and has seen when it started
    :param due: time of the next query to the vendor about it
    :param seen: time of the service's last query for it, or of the next one after a
        pause
    :param waited_until: time at which it was last known not to have run yet
    """

    cost_seconds: float
    expected_seconds: float
    lease: str = ""
    ours: bool = False
    due: float = -math.inf
    seen: float = field(default_factory=time.monotonic)
    waited_until: float = field(default_factory=time.monotonic)
    running_since: float | None = None
    cancelled: bool = False
    woken: threading.Event = field(default_factory=threading.Event)

    @property
    def ends_in(self) -> float:
        """Seconds until it should end; less than 0 if it should have ended."""
        began = self.running_since
        ran = 0.0 if began is None else time.monotonic() - began
        return self.expected_seconds - ran

    @property
    def ran(self) -> float:
        """Seconds since it was first seen running or, if it never was, last seen waiting."""
        began = self.running_since
        return time.monotonic() - (self.waited_until if began is None else began)

    @property
    def left(self) -> float:
        """The seconds that it should still need."""
        return max(0.0, self.ends_in)


class JobTable:
    """The jobs at a vendor by their ids there, in the order they came; safe in threads."""

    def __init__(self) -> None:
        self._jobs: dict[str, VendorJob] = {}
        self._lock = threading.Lock()

    def add(self, job_id: str, job: VendorJob) -> None:
        with self._lock:
            self._jobs[job_id] = job

    def get(self, job_id: str, unknown: Callable[[], VendorJob]) -> VendorJob:
        """Return a job that is queried now.

        :param unknown: function that makes the entry of an earlier service's job
        """
        with self._lock:
            if (job := self._jobs.get(job_id)) is None:
                job = self._jobs[job_id] = unknown()
        job.seen = time.monotonic()
        return job

    def forget(self, job_id: str) -> None:
        with self._lock:
            self._jobs.pop(job_id, None)

    def wake(self, job_id: str) -> None:
        """End the pause before the next query about a job."""
        with self._lock:
            if (job := self._jobs.get(job_id)) is not None:
                job.woken.set()

    def wake_all(self) -> None:
        with self._lock:
            for job in self._jobs.values():
                job.woken.set()

    @property
    def wanted(self) -> list[VendorJob]:
        """The jobs that are not cancelled."""
        with self._lock:
            return [job for job in self._jobs.values() if not job.cancelled]

    def pause(self, job: VendorJob, progress: Progress, longest: float) -> float:
        """Return the seconds until the next query to the vendor about a job.

        If a job is to end soon, the query is at its expected end: the next job is submitted
        then, and the QPU waits for that.

        :param longest: longest pause
        """
        ends_in = job.ends_in
        if progress.state == "Queued":
            eta = progress.eta_seconds
            ends_in += self._ahead_seconds(job) if eta is None else eta
        # pauses grow if the job takes longer than it should
        pause = ends_in if ends_in > 0 else -ends_in / 4
        return min(max(pause, longest / 10), longest)

    def _ahead_seconds(self, job: VendorJob) -> float:
        """Seconds until the jobs that were submitted before a job should have ended."""
        with self._lock:
            earlier = takewhile(lambda one: one is not job, self._jobs.values())
            return sum(one.left for one in earlier if not one.cancelled)

    @property
    def busy(self) -> bool:
        """Whether jobs at the vendor are still wanted; forgets jobs that are not queried."""
        now = time.monotonic()
        with self._lock:
            self._jobs = {
                job_id: job
                for job_id, job in self._jobs.items()
                if now - job.seen < FORGOTTEN_SECONDS
            }
        return bool(self.wanted)
