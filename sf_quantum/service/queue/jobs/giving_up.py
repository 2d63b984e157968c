"""When a job on the device is given up, although it may still run there."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.tasks import NotAccepted
from sf_quantum.service.device.interface import DeviceJobs

# fraction of the device's `give_up_seconds`: maximum age of a response to another request
# that shows that the device responds, and longest pause between requests
_RECENT = 0.25


@dataclass(frozen=True)
class GivenUp:
    """A job that may still run on the device, but is no longer followed.

    :param device_job: id of the job on the device, if known
    :param tag: unique id of its submission
    :param why: reason in one sentence
    """

    device_job: str | None
    tag: str
    why: str


class Hopeless(Exception):
    """A job is given up; the message has the reason."""


class Hope:
    """Decides when a job on a device is given up."""

    def __init__(self, device_jobs: DeviceJobs) -> None:
        self._device_jobs = device_jobs
        # when the job became due to end, and when requests about it began to fail
        self._to_end_since: float | None = None
        self._failing_since: float | None = None

    def pause(self, seconds: float) -> float:
        """Shorten a pause so that the job can be given up in time."""
        return min(seconds, self._device_jobs.give_up_seconds * _RECENT)

    def check(
        self, error: QpuError | InputError | None, state: str, *, is_to_end: bool
    ) -> None:
        """Give the job up if it does not end, or all requests about it fail, for too long.

        The limit is the device's ``give_up_seconds``. A job that is to end is given up even
        if the device responds. Any other job is given up only if requests about it fail while
        the device responds to other requests: if the device does not respond at all, the
        service waits for the device.

        :param error: error of the latest request about the job; ``None`` if it succeeded
        :param state: latest state of the job on the device
        :param is_to_end: whether the job was cancelled, or has run for too long
        :raises Hopeless: if the job is given up
        """
        now, seconds = time.monotonic(), self._device_jobs.give_up_seconds
        if is_to_end:
            self._to_end_since = self._to_end_since or now
            if now - self._to_end_since >= seconds:
                why = error or f"the vendor says that it is {state}"
                raise Hopeless(f"{seconds:g} s after it was to end: {why}")
        if isinstance(error, NotAccepted):  # the device was not queried about the job
            return
        if error is None:
            self._failing_since = None
            return
        if not self._device_jobs.answered_since(now - seconds * _RECENT):
            self._failing_since = now
        self._failing_since = self._failing_since or now
        if now - self._failing_since >= seconds:
            raise Hopeless(f"for {seconds:g} s, only requests about it fail: {error}")


def abandon(device_jobs: DeviceJobs, job_id: str | None, *, cancel: bool) -> None:
    """Tell the device's client that a job is given up.

    :param job_id: id of the job on the device, if known
    :param cancel: whether the job must be cancelled first
    """
    if job_id is not None:
        with suppress(QpuError, InputError):
            if cancel:
                device_jobs.cancel(job_id)
        device_jobs.abandon(job_id)
