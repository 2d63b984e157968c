"""Jobs of a QPU whose vendor's API has no jobs: sampler calls in separate processes.

Such a job ends with the service, and cannot be recovered after a restart.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import Outcome, Progress, Task, UnknownJob
from sf_quantum.protocol.values import number
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.threads import in_thread

# Limits of the process: far more than the vendor's client, which may embed problems, needs.
LIMITS = ComputeLimits(memory_gib=32.0, cpu_seconds=3600)


@dataclass(eq=False)
class _Sampling:
    stop: threading.Event = field(default_factory=threading.Event)
    ended: Future[Outcome] = field(default_factory=Future)


class Samplings:
    """Runs samplings, with the methods of a client's job side.

    :param on_end: function that is called with the id of a sampling that has ended
    """

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        self._samplings: dict[str, _Sampling] = {}

    def submit(self, task: Task, variables: Mapping[str, str]) -> str:
        """Start a sampling; see :meth:`~sf_quantum.qpu.Qpu.submit`.

        :param variables: the environment of the job
        """
        job_id, sampling = uuid.uuid4().hex, _Sampling()
        self._samplings[job_id] = sampling
        sampling.ended = in_thread(lambda: _outcome(task, variables, sampling.stop))
        sampling.ended.add_done_callback(lambda _: self._on_end(job_id))
        return job_id

    def poll(self, job_id: str) -> Progress:
        """See :meth:`~sf_quantum.qpu.Qpu.poll`."""
        sampling = self._find(job_id)
        if not sampling.ended.done():
            return Progress("Running")
        outcome = sampling.ended.result()
        if outcome.result is not None:
            return Progress("Completed")
        return Progress("Cancelled" if outcome.failure is None else "Failed")

    def result(self, job_id: str, task: Task) -> Outcome:
        """See :meth:`~sf_quantum.qpu.Qpu.result`; the sampling is forgotten."""
        outcome = self._find(job_id).ended.result()
        self._samplings.pop(job_id, None)
        return outcome

    def cancel(self, job_id: str) -> None:
        """Kill the process; any job that it left at the vendor ends with the lease."""
        if (sampling := self._samplings.get(job_id)) is not None:
            sampling.stop.set()

    def close(self) -> None:
        """Kill all processes, and wait for their ends."""
        samplings = [*self._samplings.values()]
        for one in samplings:
            one.stop.set()
        for one in samplings:
            one.ended.exception()

    def _find(self, job_id: str) -> _Sampling:
        if (sampling := self._samplings.get(job_id)) is None:
            detail = "its client ended with the service, and the vendor knows no jobs"
            raise UnknownJob(f"job {job_id} cannot be found again: {detail}")
        return sampling


def _outcome(
    task: Task, variables: Mapping[str, str], stop: threading.Event
) -> Outcome:
    """Run a sampling in a process, until it ends or ``stop`` is set."""
    begin = time.monotonic()
    parameters: dict[str, JSON] = {**task.parameters}
    arguments: dict[str, JSON] = {
        "environment": {**variables},
        "parameters": parameters,
    }
    failure, result = None, None
    try:
        result = process_pool.ask("solve", arguments, task.payload, stop.is_set, LIMITS)
    except (InputError, OSError) as error:
        failure = str(error)
    outcome = Outcome(result, failure, seconds=time.monotonic() - begin)
    if result is None:
        return outcome
    billed = mapping(result.info.get("timing")).get("qpu_seconds")
    return replace(
        outcome,
        qpu_seconds=number(billed),
        calibration=CalibrationData.read(result.info.get("calibration")),
    )
