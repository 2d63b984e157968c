"""The expected cost of jobs at a vendor: from the vendor's timing, or from past bills."""

from __future__ import annotations

import math
import threading

from sf_quantum.protocol.descriptions import Timing
from sf_quantum.protocol.tasks import JobParameters, Outcome, shots_of
from sf_quantum.service.device.interface import Cost
from sf_quantum.service.device.vendor.job_table import VendorJob
from sf_quantum.service.domain.jobs import Size

# weight of the latest job in the mean cost of jobs
LATEST = 0.2


class Costs:
    """The costs of jobs, learned from jobs that have ended; thread-safe.

    :param expected_seconds: expected QPU time of a job, until a job was billed
    """

    def __init__(self, expected_seconds: float) -> None:
        self._expected_seconds = expected_seconds
        # mean and variance of QPU time
        self._billed: tuple[float, float] | None = None
        #: elapsed seconds per second of expected QPU time
        self.pace = 1.0
        self._lock = threading.Lock()

    def cost(
        self, timing: Timing | None, parameters: JobParameters, size: Size | None
    ) -> Cost:
        """Return the expected cost of a job.

        :param timing: timing that the vendor reports, if any
        """
        if timing is not None:
            shots = shots_of(parameters)
            shots *= 1 if size is None else size.circuits
            # A solver's parameters can lengthen the set-up and each shot.
            setup: float = parameters.get("setup_ns") or 0
            shot: float = parameters.get("shot_ns") or 0
            if size is not None:
                setup, shot = setup + size.setup_ns, shot + size.shot_ns
            return Cost(timing.job_seconds(shots) + 1e-9 * (setup + shots * shot))
        if self._billed is None:
            return Cost(self._expected_seconds, self._expected_seconds)
        mean, variance = self._billed
        return Cost(mean, math.sqrt(variance))

    def learn(self, job: VendorJob, outcome: Outcome, elapsed: float | None) -> None:
        """Learn from a job that has a result.

        :param elapsed: seconds that the job ran, if known
        """
        seconds = elapsed if outcome.qpu_seconds is None else outcome.qpu_seconds
        if outcome.result is None or seconds is None:
            return
        with self._lock:
            if elapsed is not None and job.ours and job.cost_seconds > 0:
                step = elapsed / job.cost_seconds - self.pace
                self.pace += step if self._billed is None else LATEST * step
            if self._billed is None:
                self._billed = (seconds, 0.0)
                return
            # as in West, "Updating mean and variance estimates" (CACM 22, 1979), with
            # decreasing weights for past jobs
            mean, variance = self._billed
            step = seconds - mean
            variance = (1 - LATEST) * (variance + LATEST * step * step)
            self._billed = (mean + LATEST * step, variance)
