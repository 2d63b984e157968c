"""A QPU as a remote backend of Pulser."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import TypeAlias

from pulser import Sequence as PulserSequence
from pulser.backend.qpu import QPUBackend
from pulser.backend.remote import (
    BatchStatus,
    JobParams,
    JobStatus,
    RemoteConnection,
    RemoteResults,
    RemoteResultsError,
)
from pulser.backend.results import Results
from pulser.devices import Device
from pulser.devices._device_datacls import BaseDevice
from pulser.exceptions.base import PulserError
from pulser.json.abstract_repr.deserializer import deserialize_device

from sf_quantum.errors import InputError
from sf_quantum.protocol.tasks import Outcome, Task
from sf_quantum.qpu.running import JobSide, not_taken
from sf_quantum.text import described
from sf_quantum.threads import in_thread

Pulses: TypeAlias = PulserSequence[BaseDevice]
Backend: TypeAlias = QPUBackend


def backend(qpu: JobSide, sequence: Pulses) -> QPUBackend:
    """Make Pulser's backend for one sequence.

    :param qpu: job's side of a QPU that accepts pulse sequences
    :raises InputError: if the QPU accepts no sequences, or the sequence is for another device
    :raises QpuError: if the QPU does not answer
    """
    try:
        return QPUBackend(sequence, Connection(qpu))
    except (TypeError, ValueError) as error:
        raise InputError(f"sequence: {error}") from error


@dataclass(frozen=True)
class _Job:
    sequence: Pulses
    outcome: Future[Outcome]

    def results(self) -> Results:
        """Wait for the counts.

        :raises QuantumError: if the QPU rejects the job, fails or does not answer
        :raises RemoteResultsError: if the job failed or was cancelled
        """
        outcome = self.outcome.result()
        if outcome.result is None:
            raise RemoteResultsError(outcome.failure)
        return Results.from_final_bitstrings(
            tuple(map(str, self.sequence.register.qubit_ids)),
            int(self.sequence.get_duration()),
            json.loads(outcome.result.text)["counter"],
        )

    @property
    def status(self) -> JobStatus:
        if not self.outcome.done():
            return JobStatus.RUNNING
        if self.outcome.exception() is not None:
            return JobStatus.ERROR
        done = self.outcome.result().result is not None
        return JobStatus.DONE if done else JobStatus.ERROR


class Connection(RemoteConnection):
    """Runs each job of a batch as a job of the QPU, all jobs concurrently."""

    def __init__(self, qpu: JobSide) -> None:
        self._qpu = qpu
        described = qpu.describe()
        if "sequence" not in described.kinds or described.specs is None:
            raise not_taken(qpu, described, "sequences")
        device = deserialize_device(described.specs)
        if not isinstance(device, Device):
            raise InputError(f"QPU {qpu.name!r}: its device is virtual")
        self._device = device
        self._batches: dict[str, dict[str, _Job]] = {}

    def fetch_available_devices(self) -> dict[str, Device]:
        return {self._device.name: self._device}

    def submit(
        self,
        sequence: Pulses,
        wait: bool = False,
        open: bool = False,
        batch_id: str | None = None,
        **given: list[JobParams] | None,
    ) -> RemoteResults:
        """Submit a job for each entry of ``job_params``, as Pulser's interface requires.

        All sequences are built first, so either all jobs are submitted or none.

        :raises InputError: if Pulser cannot serialize a sequence, or ``runs`` is wrong
        """
        if open or batch_id is not None:
            raise NotImplementedError("open batches are not supported")
        measured = self._add_measurement_to_sequence(sequence)
        batch = f"sfq-{secrets.token_hex(8)}"
        tasks = [
            _task(f"{batch}-{number}", measured, job)
            for number, job in enumerate(given.get("job_params") or [{}])
        ]
        self._batches[batch] = {
            task.tag: _Job(built, in_thread(partial(self._qpu.run_job, task)))
            for built, task in tasks
        }
        results = RemoteResults(batch, self)
        if wait:
            self._fetch_result(batch, None)
        return results

    def _fetch_result(
        self, batch_id: str, job_ids: list[str] | None
    ) -> Sequence[Results]:
        jobs = self._batches[batch_id]
        return [jobs[job_id].results() for job_id in job_ids or jobs]

    def _query_job_progress(
        self, batch_id: str
    ) -> Mapping[str, tuple[JobStatus, Results | None]]:
        progress: dict[str, tuple[JobStatus, Results | None]] = {}
        for job_id, job in self._batches[batch_id].items():
            status = job.status
            done = status is JobStatus.DONE
            progress[job_id] = status, job.results() if done else None
        return progress

    def _get_batch_status(self, batch_id: str) -> BatchStatus:
        states = {job.status for job in self._batches[batch_id].values()}
        for status in (JobStatus.RUNNING, JobStatus.ERROR):
            if status in states:
                return BatchStatus[status.name]
        return BatchStatus.DONE

    def _get_job_ids(self, batch_id: str) -> list[str]:
        return [*self._batches[batch_id]]

    def supports_open_batch(self) -> bool:
        return False


def _task(tag: str, sequence: Pulses, given: JobParams) -> tuple[Pulses, Task]:
    """Build the sequence and the task of a job.

    :raises InputError: see :meth:`Connection.submit`
    """
    if sequence.is_parametrized() or sequence.is_register_mappable():
        sequence = sequence.build(**given.get("variables", {}))
    try:
        # NumPy's integers are also accepted
        runs = index(given.get("runs", 1))
    except TypeError as error:
        raise InputError(f"runs: expected an integer, not {given['runs']!r}") from error
    try:
        payload = json.dumps(sequence.to_abstract_repr())
    except (PulserError, TypeError, ValueError) as error:
        # Pulser 1.9 cannot serialize a sequence whose target was a variable
        detail = f"sequence: Pulser cannot serialize it: {described(error)}"
        raise InputError(detail) from error
    return sequence, Task(tag, "sequence", payload, {"num_reads": runs})
