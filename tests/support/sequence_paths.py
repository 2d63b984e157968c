"""The ways of a sequence to a service, and its counts when it comes back."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import TypeAlias

from pulser.backend.remote import JobParams

from sf_quantum.files import JSON
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from tests.support.pulse_sequences import Built, Pulses
from tests.support.service import RunningService
from tests.support.waiting import until

Counts: TypeAlias = Mapping[str, int]


def by_text(
    service: RunningService, lease: str, sequence: Pulses, shots: int
) -> Counts:
    """Submit the text of a sequence to ``/v1``."""
    text = sequence.to_abstract_repr()
    body: dict[str, JSON] = {
        "sequence": text,
        "parameters": {"num_reads": shots, "seed": 11},
        "idempotency_key": secrets.token_hex(8),
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status == 201, answer.body
    path = f"/v1/jobs/{answer.json()['id']}"

    def ended() -> bool:
        job = service.ask("GET", f"{path}?wait=5", lease=lease).json()
        assert job["state"] not in ("Failed", "Cancelled"), job
        return bool(job["state"] == "Completed")

    until(ended, path)
    return _counts(service.ask("GET", f"{path}/result", lease=lease).json())


def by_warden(
    service: RunningService, lease: str, sequence: Pulses, shots: int
) -> Counts:
    """Submit it in warden's dialect, in which a session is a lease."""
    body: dict[str, JSON] = {"sequence": sequence.to_abstract_repr(), "shots": shots}
    headers = {"X-Warden-Session": lease}
    answer = service.ask("POST", "/jobs", body, headers=headers)
    assert answer.status == 200, answer.body
    number = answer.json()["id"]

    def result() -> str | None:
        job = service.ask("GET", f"/jobs/{number}").json()
        assert job["status"] != "ERROR", job
        return str(job["results"]) if job["results"] else None

    return _counts(json.loads(until(result, f"job {number} is done")))


def by_backend(
    service: RunningService, lease: str, made: Built, shots: int
) -> list[Counts]:
    """Run it on Pulser's backend, in a batch of two jobs, with variables if it has any."""
    qpu = SfqQpu("q", service.url, lease=lease)
    job = JobParams(runs=shots, variables=dict(made.values))
    backend = qpu.pulser_backend(made.template or made.sequence)
    results = backend.run([job, job], wait=True).results
    order = tuple(made.sequence.register.qubit_ids)
    assert all(result.atom_order == order for result in results)
    return [result.final_bitstrings for result in results]


def _counts(result: object) -> Counts:
    assert isinstance(result, dict)
    counter: Counts = result["counter"]
    return counter
