"""The jobs at a vendor, with the times of their queries and runs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from sf_quantum.protocol.tasks import Progress

# Seconds after which a job that the service no longer queries ceases to keep the lease.
FORGOTTEN_SECONDS = 600.0


@dataclass(eq=False)
class VendorJob:
    """A job at the vendor; times are by the monotonic clock.

    :param cost_seconds: expected QPU time
    :param expected_seconds: expected elapsed time of the run
    :param lease: lease under which the job was submitted; empty if unknown
    :param ours: whether this process has submitted the job, and so can observe its start
    :param due: time of the next query to the vendor about the job
    :param seen: time of the queue's last call about the job; during a pause, the end of
        the pause
    :param waited_until: last time at which the job was known not to have started
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
        """Seconds until the expected end; negative if the job should have ended."""
        began = self.running_since
        ran = 0.0 if began is None else time.monotonic() - began
        return self.expected_seconds - ran

    @property
    def ran(self) -> float:
        """Seconds since the job was first seen running or, if never, last seen waiting."""
        began = self.running_since
        return time.monotonic() - (self.waited_until if began is None else began)

    @property
    def left(self) -> float:
        """Seconds until the expected end, at least 0."""
        return max(0.0, self.ends_in)


class JobTable:
    """The jobs at a vendor by their ids there, in order of submission; thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[str, VendorJob] = {}
        self._lock = threading.Lock()

    def add(self, job_id: str, job: VendorJob) -> None:
        with self._lock:
            self._jobs[job_id] = job

    def get(self, job_id: str, unknown: Callable[[], VendorJob]) -> VendorJob:
        """Return a job, and record that the service queries it now.

        :param unknown: function that creates the entry of a job from before a restart
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

        If a job should end soon, the query is at the expected end: the next job is submitted
        only after this query, and the QPU is idle until then.

        :param longest: longest pause
        """
        ends_in = job.ends_in
        if progress.state == "Queued":
            eta = progress.eta_seconds
            ends_in += self._ahead_seconds(job) if eta is None else eta
        # pauses grow if the job takes longer than expected
        pause = ends_in if ends_in > 0 else -ends_in / 4
        return min(max(pause, longest / 10), longest)

    def _ahead_seconds(self, job: VendorJob) -> float:
        """Return the seconds until the jobs submitted before a job should have ended."""
        with self._lock:
            earlier = takewhile(lambda one: one is not job, self._jobs.values())
            return sum(one.left for one in earlier if not one.cancelled)

    @property
    def busy(self) -> bool:
        """Whether uncancelled jobs are at the vendor; forgets jobs that are not queried."""
        now = time.monotonic()
        with self._lock:
            self._jobs = {
                job_id: job
                for job_id, job in self._jobs.items()
                if now - job.seen < FORGOTTEN_SECONDS
            }
        return bool(self.wanted)
