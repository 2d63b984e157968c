"""When a job on the device is given up, although it may still run there."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.tasks import NotAccepted
from sf_quantum.service.device.protocol import DeviceJobs

# Share of the device's `give_up_seconds`: how recent an answer to another request has
# to be, and the longest pause between attempts.
_RECENT = 0.25


@dataclass(frozen=True)
class GivenUp:
    """A job that may still run on the device, and is followed no longer.

    :param device_job: its id on the device, if that is known
    :param tag: unique id of its submission
    :param why: reason in one sentence
    """

    device_job: str | None
    tag: str
    why: str


class Hopeless(Exception):
    """A job is given up, for the reason given."""


class Hope:
    """The times after which a job on a device is given up."""

    def __init__(self, device_jobs: DeviceJobs) -> None:
        self._device_jobs = device_jobs
        # Time since when the job is to end, and since when all requests about it have
        # failed.
        self._to_end_since: float | None = None
        self._failing_since: float | None = None

    def pause(self, seconds: float) -> float:
        """Return a pause after which it is not too late to give the job up."""
        return min(seconds, self._device_jobs.give_up_seconds * _RECENT)

    def check(
        self, error: QpuError | InputError | None, state: str, *, is_to_end: bool
    ) -> None:
        """Give a job up that the device neither ends nor tells about, after a while.

        If it is to end, that is so whatever the device answers; else only if the device
        answers other requests meanwhile. One that does not answer at all is waited for.

        :param error: why the latest request about it has failed; ``None`` if it has not
        :param state: its latest state on the device
        :raises Hopeless: if it is given up
        """
        now, seconds = time.monotonic(), self._device_jobs.give_up_seconds
        if is_to_end:
            self._to_end_since = self._to_end_since or now
            if now - self._to_end_since >= seconds:
                why = error or f"the vendor says that it is {state}"
                raise Hopeless(f"{seconds:g} s after it was to end: {why}")
        if isinstance(error, NotAccepted):  # it was not asked
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
    """Let the device forget a job that is given up.

    :param job_id: its id on the device, if that is known
    :param cancel: whether it has not been cancelled yet
    """
    if job_id is not None:
        with suppress(QpuError, InputError):
            if cancel:
                device_jobs.cancel(job_id)
        device_jobs.abandon(job_id)
