"""The queue's jobs in the form of IQM's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Literal, TypeAlias
from uuid import UUID

from sf_quantum.files import JSON
from sf_quantum.service.dialects.iqm import (
    architecture,
    calibrations,
    circuits,
    measurements,
)
from sf_quantum.service.dialects.iqm.circuits import Metadata
from sf_quantum.service.dialects.iqm.refusals import Coded
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Forecast, Identity, Job, State
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.store import retention
from sf_quantum.service.store.audit import AuditEntry

Status: TypeAlias = Literal["waiting", "processing", "completed", "failed", "cancelled"]
STATUSES: Mapping[State, Status] = {
    "Queued": "waiting",
    "Running": "processing",
    "Completed": "completed",
    "Failed": "failed",
    "Cancelled": "cancelled",
}
# IQM's names of the sources of messages about a job
SERVER, STATION = "iqm-server", "iqm-station-control"


class Jobs:
    """The jobs of one queue that were submitted through IQM's API.

    :meth:`payload`, :meth:`counted`, :meth:`counts` and :meth:`reads` may read much data;
    call them in a thread.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def find(self, who: Identity, job_id: str) -> Job:
        """Find a job by its UUID; refuse jobs of other dialects with 404."""
        not_found = Coded(404, "job_not_found", f"job {job_id[:40]} not found")
        try:
            job = self._queue.find(who, UUID(job_id).hex)
        except (ValueError, Refused) as error:
            raise not_found from error
        if job.dialect != "iqm":
            raise not_found
        return job

    def show(self, job: Job) -> dict[str, JSON]:
        """Describe a job without its result."""
        device = self._queue.device
        forecast = self._queue.forecasts.of(job)
        is_waiting = job.state == "Queued" and forecast is not None
        calibration = job.calibration or device.description.calibration
        completed = job.state == "Completed"
        return {
            "id": uuid(job),
            "type": "circuit",
            "qc": {"id": architecture.identity(device), "alias": device.name},
            "status": STATUSES[job.state],
            "tag": Metadata.of(job).tag,
            "execution": {
                "progress": {
                    "shots": {
                        "value": job.shots if completed else job.shots_done,
                        "max_value": job.shots,
                    }
                }
            },
            "compilation": {
                "calibration_set_id": calibrations.calibration_set(device, calibration)
            },
            "queue_position": forecast.position if is_waiting and forecast else None,
            "runtime_ms": round(job.qpu_seconds * 1000) if job.final else None,
            "messages": _messages(job, forecast),
            "errors": _errors(job),
            "timeline": _timeline(job),
            "artifacts": [{"type": name} for name in ARTIFACTS] if completed else [],
        }

    async def delete(self, who: Identity, job: Job) -> None:
        """Cancel a job, and delete it; its usage remains in the accounting."""
        ended = await self._queue.cancel(who, job.id)
        if not ended.final:
            detail = f"job {uuid(job)} could not be cancelled yet"
            raise Coded(403, "illegal_job_status", detail)
        entry = None
        if job.user != who.user:
            about: dict[str, JSON] = {"job": job.id, "of": job.user}
            entry = AuditEntry(who.user, "delete", about, {"state": ended.state}, {})
        deleted = retention.delete(self._queue.store, job.number, entry)
        await asyncio.wrap_future(deleted)

    def payload(self, job: Job) -> dict[str, JSON]:
        """Return the job as it was submitted."""
        metadata = Metadata.of(job)
        names = metadata.mapping
        sent: list[JSON] = [circuits.circuit(one, names) for one in self._texts(job)]
        pairs: list[JSON] = [
            {"logical_name": logical, "physical_name": physical}
            for logical, physical in (names or {}).items()
        ]
        options = {k: v for k, v in metadata.options.items() if k != "qubit_mapping"}
        mapping = None if names is None else pairs
        return {"circuits": sent, **options, "qubit_mapping": mapping}

    def counts(self, job: Job) -> str:
        """Return the counts of each circuit, as JSON text."""
        return json.dumps(self.counted(job))

    def counted(self, job: Job) -> list[JSON]:
        """Return the counts of each circuit."""
        pairs = zip(self._texts(job), self._counters(job), strict=True)
        return [
            measurements.counts(circuits.keys(text), counter) for text, counter in pairs
        ]

    def reads(self, job: Job) -> str:
        """Return the bits that each shot of each circuit measured, as JSON text."""
        pairs = zip(self._texts(job), self._counters(job), strict=True)
        parts = [
            measurements.reads(circuits.keys(text), counter, f"{job.id}/{index}")
            for index, (text, counter) in enumerate(pairs)
        ]
        return f"[{', '.join(parts)}]"

    def _texts(self, job: Job) -> list[str]:
        content = json.loads(self._queue.store.jobs.payload(job.number))
        return [content] if isinstance(content, str) else content

    def _counters(self, job: Job) -> list[dict[str, int]]:
        result = self._queue.store.jobs.result(job.number)
        if result is None:
            why = f": {job.note}" if job.note else ""
            detail = f"the job is {STATUSES[job.state]} and has no result{why}"
            raise Coded(404, "job_artifact_not_found", detail)
        return measurements.counters(result)


#: methods that make the artifacts of a completed job, by the artifacts' names
ARTIFACTS = {"measurements": Jobs.reads, "measurement_counts": Jobs.counts}


def uuid(job: Job) -> str:
    """Return the id of a job in IQM's form."""
    return str(UUID(job.id))


def _messages(job: Job, forecast: Forecast | None) -> list[JSON]:
    listed = [*Metadata.of(job).messages]
    if job.note and job.state != "Failed":
        listed.append(job.note)
    if forecast is not None:
        listed.append(forecast.words)
    return [{"source": SERVER, "message": message} for message in listed]


def _errors(job: Job) -> list[JSON]:
    if job.state != "Failed":
        return []
    message = job.note or "no reason given"
    return [{"source": STATION, "error_code": "job_failed", "message": message}]


def _timeline(job: Job) -> list[JSON]:
    ended = {"Completed": "ready"}.get(job.state, STATUSES[job.state])
    events = (
        (SERVER, "created", job.submitted),
        (STATION, "execution_started", job.started),
        (STATION, "execution_ended", job.ended if job.started else None),
        (SERVER, ended, job.ended),
    )
    return [
        {"source": source, "status": status, "timestamp": architecture.time(at)}
        for source, status, at in events
        if at is not None
    ]
