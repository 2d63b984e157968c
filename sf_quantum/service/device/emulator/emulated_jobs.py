"""The jobs on an emulated device, each computed in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass

from sf_quantum.errors import InputError
from sf_quantum.protocol.tasks import Outcome, Progress, State, Task, UnknownJob
from sf_quantum.service.device.interface import DeviceJobs, Recovery
from sf_quantum.threads import in_thread

# the longest wait for a change of a job's state
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class JobThread:
    """A job on the device, which a thread computes."""

    stop: threading.Event
    outcome: Future[Outcome]


class EmulatedJobs(DeviceJobs):
    """The jobs on an emulated device.

    :param run: function that runs a job with the device's present settings; blocks until
        the job ends, or is stopped
    :param threads: threads by job id; copies of a device share the mapping
    """

    def __init__(
        self,
        run: Callable[[Task, threading.Event], Outcome],
        threads: dict[str, JobThread],
    ) -> None:
        self._run = run
        self.threads = threads

    @property
    def recovery(self) -> Recovery:
        """See :attr:`DeviceJobs.recovery`: a job can run again without QPU cost."""
        return Recovery.RERUN

    def submit(self, task: Task) -> str:
        """See :meth:`DeviceJobs.submit`."""
        stop = threading.Event()
        outcome = in_thread(lambda: self._run(task, stop))
        self.threads[task.tag] = JobThread(stop, outcome)
        return task.tag

    def poll(self, job_id: str, task: Task) -> Progress:
        """See :meth:`DeviceJobs.poll`."""
        outcome = self._thread(job_id).outcome
        if not wait([outcome], timeout=POLL_SECONDS).done:
            return Progress("Running")
        if outcome.exception() is not None:
            return Progress("Failed")
        return Progress(_state(outcome.result()))

    def result(self, job_id: str, task: Task) -> Outcome:
        """See :meth:`DeviceJobs.result`."""
        thread = self._thread(job_id)
        try:
            return thread.outcome.result()
        except InputError as error:  # the job could not be computed
            return Outcome(failure=str(error))
        finally:
            del self.threads[job_id]

    def cancel(self, job_id: str) -> None:
        """See :meth:`DeviceJobs.cancel`."""
        if (thread := self.threads.get(job_id)) is not None:
            thread.stop.set()

    def stop(self) -> None:
        """Stop all jobs; after a restart, the service runs them again."""
        for thread in [*self.threads.values()]:
            thread.stop.set()

    def _thread(self, job_id: str) -> JobThread:
        if (thread := self.threads.get(job_id)) is None:
            raise UnknownJob(f"there is no job {job_id}")
        return thread


def _state(outcome: Outcome) -> State:
    if outcome.failure is not None:
        return "Failed"
    return "Cancelled" if outcome.result is None else "Completed"
