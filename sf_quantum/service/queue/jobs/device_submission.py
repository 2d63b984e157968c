"""Submits a job to the device; not twice, if the device can find jobs by their tags."""

from __future__ import annotations

import logging
from itertools import islice

from sf_quantum import backoff
from sf_quantum.deadline import Deadline
from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.tasks import NotAccepted, Task
from sf_quantum.qpu import AuthenticationError
from sf_quantum.service.device.interface import Device
from sf_quantum.service.domain.jobs import Job, Recovery
from sf_quantum.service.domain.reasons import NOT_FOUND_AGAIN
from sf_quantum.service.queue.jobs.attempt_control import Control, Detached, Interrupt
from sf_quantum.service.queue.jobs.giving_up import Hope
from sf_quantum.service.queue.writing import written
from sf_quantum.service.store.store import Store

logger = logging.getLogger(__name__)
# number of attempts to find and cancel duplicates of a finished job on the device
SURPLUS_TRIES = 4
# longest pause before a submission is tried again, even if the device requests a longer
# pause
SUBMISSION_SECONDS = 60.0


class DeviceSubmission:
    """The submission of a job, or of a slice of a job; blocks.

    :param job: job as stored on disk
    :param unsure: whether a previous service process may have submitted the job
    :param perhaps_twice: whether a previous service process may have submitted the job twice
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        job: Job,
        task: Task,
        control: Control,
        hope: Hope,
        *,
        unsure: bool,
        perhaps_twice: bool,
    ) -> None:
        self._store = store
        self._identity = device.identity
        self._device_jobs = device.jobs
        self._job = job
        self._task = task
        self._control = control
        self._hope = hope
        self._unsure = unsure
        self._perhaps_twice = perhaps_twice

    def run(self) -> str | None:
        """Submit the job, and return its id on the device.

        :returns: ``None`` if the job was interrupted before it was submitted
        :raises InputError: if the device rejects the job, or if the job may have run, cannot
            be found and must not run twice
        :raises Hopeless: if the job is given up
        :raises Detached: if the job was left to the next service process
        """
        control, unsure = self._control, self._unsure
        for pause in backoff.VENDOR.pauses():
            try:
                if unsure and (job_id := self._find_arrived()) is not None:
                    return self._write_id(job_id)
                self._perhaps_twice = self._perhaps_twice or unsure
                unsure = False
                if control.interrupt is not None or not self._note_sent():
                    return None
                return self._write_id(self._device_jobs.submit(self._task))
            except NotAccepted as error:
                request_error: QpuError | AuthenticationError = error
                self._log(error)
                self._note_not_sent(unsure)
                pause = max(pause, min(error.retry_seconds or 0.0, SUBMISSION_SECONDS))
            except AuthenticationError as error:
                # the site's credentials are wrong; the job is not to blame
                request_error = error
                self._log(error)
                self._note_not_sent(unsure)
            except QpuError as error:
                unsure = self._may_have_run(error)
                text = "job %s: it is not known whether it was submitted: %s"
                logger.warning(text, self._job.id, error)
                request_error = error
            if unsure:
                is_to_end = control.interrupt is Interrupt.CANCEL
                self._hope.check(request_error, "Queued", is_to_end=is_to_end)
                pause = self._hope.pause(pause)
            control.pause(pause)
            if control.leaves and unsure:
                raise Detached
        return None

    def cancel_surplus(self, job_id: str) -> str:
        """Cancel duplicates of the job, from submissions that arrived late.

        :param job_id: id of the job on the device that is not a duplicate
        :returns: message to users about the duplicates; empty if there are none
        """
        device_jobs, remark = self._device_jobs, ""
        if not self._perhaps_twice or device_jobs.recovery is not Recovery.BY_TAG:
            return remark
        for pause in islice(backoff.VENDOR.pauses(), SURPLUS_TRIES):
            try:
                if not (others := device_jobs.duplicates(self._task.tag, job_id)):
                    return remark
                late = (
                    f"a submission arrived late, as {', '.join(others)} on the device"
                )
                remark = f"{late}, and could not be cancelled"
                for other in others:
                    device_jobs.cancel(other)
                return f"{late}, and was cancelled: it may have been billed"
            except (QpuError, AuthenticationError) as error:
                self._log(error)
            self._control.pause(pause)
        return remark

    def _note_sent(self) -> bool:
        """Note that the device may have the job from now on.

        :returns: whether the job may run; ``False`` if it has ended, for example because it
            was cancelled
        """
        if self._device_jobs.recovery is Recovery.RERUN:
            return True
        number, identity = self._job.number, self._identity
        return not written(lambda: self._store.progress.send(number, identity)).final

    def _note_not_sent(self, unsure: bool) -> None:
        """Note that the device does not have the job, unless this is uncertain."""
        if self._device_jobs.recovery is not Recovery.RERUN and not unsure:
            written(lambda: self._store.progress.not_sent(self._job.number))

    def _find_arrived(self) -> str | None:
        """Search for the job of an unanswered submission as long as it may still arrive."""
        deadline = Deadline(self._device_jobs.late_seconds)
        for pause in backoff.VENDOR.pauses():
            job_id = self._device_jobs.find(self._task.tag)
            if job_id is not None or not deadline.left:
                return job_id
            self._control.pause(min(pause, deadline.left))
            if self._control.leaves:
                raise Detached
        return None

    def _may_have_run(self, error: QpuError) -> bool:
        """Return whether to search the device for the job after an unanswered submission.

        :raises InputError: if the device cannot find jobs, and the job must not run twice
        """
        recovery = self._device_jobs.recovery
        if recovery is Recovery.BY_TAG:
            return True
        if recovery is Recovery.RERUN or self._job.repeatable:
            return False
        raise InputError(f"{error}; {NOT_FOUND_AGAIN}")

    def _write_id(self, job_id: str) -> str:
        if self._device_jobs.recovery is Recovery.RERUN:
            return job_id
        # the vendor's id is on disk before the service uses it
        written(lambda: self._store.progress.submitted(self._job.number, job_id))
        return job_id

    def _log(self, error: Exception) -> None:
        logger.warning("job %s: %s", self._job.id, error)
