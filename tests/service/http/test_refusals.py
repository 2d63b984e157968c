"""A refusal is short, whatever was sent: it quotes no more of a body than people can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.dialects.large_bodies import PROCESS_BYTES
from sf_quantum.service.http.guard import SMALL_BYTES
from tests.support.adversarial import HEAD, SEQUENCE, TAIL
from tests.support.service import example_bqm, running_service

#: bytes of a refusal's body, with the name of a field and what a dialect adds
MAX_BYTES = 8000
LONG = {
    "plain": "x" * 9000,
    # each is written with six characters in JSON
    "control characters": "\x01" * 9000,
    "lines": "a\n" * 4500,
}
_IQM: dict[str, JSON] = {
    "circuits": [
        {
            "name": "c",
            "instructions": [
                {
                    "name": "prx",
                    "locus": ["QB1"],
                    "args": {"angle": 1.0, "phase": 0.0},
                    "implementation": "drag_gaussian",
                },
                {"name": "measure", "locus": ["QB1"], "args": {"key": "m"}},
            ],
            "metadata": {"a": "b"},
        }
    ],
    "shots": 1,
    "calibration_set_id": "c",
    "qubit_mapping": {"QB1": "QB1"},
    "max_circuit_duration_over_t2": 1.0,
    "heralding_mode": "none",
    "move_gate_validation": "strict",
}
_SAPI: dict[str, JSON] = {
    "solver": {"name": "emulator", "version": {"graph_id": "g"}},
    "type": "ising",
    "data": {"format": "qp", "lin": "AAAAAAAA8D8=", "quad": "", "offset": 0.0},
    "params": {"num_reads": 5, "answer_mode": "raw", "anneal_schedule": [[0, 0]]},
    "label": "a",
}
_LEASE: dict[str, JSON] = {
    "job": "a",
    "key": "k",
    "user": "u",
    "class": "test",
    "partition": "p",
    "pattern": "QC_HEAVY",
    "project": "p",
    "slurm_job_id": "1",
    "tenths": 1,
}
_SESSION: dict[str, JSON] = {"user_id": "u", "scheduler_job_id": "1", "qpu_slots": 2}


def _job(**payload: JSON) -> dict[str, JSON]:
    return {
        "idempotency_key": "k",
        "purpose": "a",
        "parameters": {"num_reads": 2, "seed": 1},
        **payload,
    }


#: by technology, the paths and bodies that are sound but for a value
BODIES: list[tuple[str, str, dict[str, JSON]]] = [
    ("annealer", "/v1/jobs", _job(problem=example_bqm())),
    ("annealer", "/v1/leases", _LEASE),
    ("annealer", "/sapi/v2/problems", _SAPI),
    ("annealer", "/v1/device/maintenance", {"start": "2100-01-01", "message": "a"}),
    ("annealer", "/v1/device/drain", {"message": "a"}),
    ("annealer", "/v1/admin/operations/calibrate", {"parameters": {"a": 1}}),
    ("annealer", "/accessible", {"is_accessible": True, "message": "a"}),
    ("superconducting", "/v1/jobs", _job(circuit=HEAD + "x q[0];" + TAIL)),
    ("superconducting", "/v1/jobs", _job(circuit={"program": HEAD, "values": [{}]})),
    ("superconducting", "/api/v1/jobs/emulator/circuit", _IQM),
    ("superconducting", "/circuits", _IQM),
    ("neutral-atom", "/jobs", {"sequence": json.dumps(SEQUENCE), "shots": 1}),
    ("neutral-atom", "/sessions", _SESSION),
    ("photonic", "/v1/jobs", _job(photonic={"circuit": "c", "input_state": "|1>"})),
]


def _texts(text: str) -> Iterator[str]:
    """Put a long text in the place of one, and within it: of a program, at a few places."""
    for long in LONG.values():
        yield long
        if len(text) > 20:
            for part in range(0, len(text), len(text) // 6):
                yield text[:part] + long[:3000] + text[part:]


def changed(content: JSON) -> Iterator[JSON]:
    """Yield a body with a long text in the place of each key, text and number in turn."""
    if isinstance(content, dict):
        for key, value in content.items():
            rest = {name: one for name, one in content.items() if name != key}
            yield from ({**content, key: one} for one in changed(value))
            yield from ({**rest, long: value} for long in LONG.values())
    elif isinstance(content, list):
        for place, value in enumerate(content[:3]):
            for one in changed(value):
                yield [*content[:place], one, *content[place + 1 :]]
    elif isinstance(content, str):
        yield from _texts(content)
    else:
        yield from LONG.values()


@pytest.mark.parametrize(
    ("technology", "path", "body"), BODIES, ids=[f"{t} {p}" for t, p, _ in BODIES]
)
def test_refusals_are_short(technology: str, path: str, body: dict[str, JSON]) -> None:
    device = EmulatedDevice(technology=technology, qubits=5, time_scale=0)
    with running_service(device, vqpus=100) as service:
        lease, refusals = service.acquire(), 0
        headers = {"X-SFQ-Lease": lease, "X-Warden-Session": lease}
        for content in changed(body):
            assert isinstance(content, dict)
            answer = service.ask("POST", path, content, headers=headers)
            assert answer.status < 500, answer.body[:500]
            if answer.status >= 400:
                refusals += 1
                assert len(answer.body) <= MAX_BYTES, answer.body[:300]
        assert refusals


def doubled(content: JSON) -> Iterator[str]:
    """Yield the JSON of a body, with one key of it twice."""
    if isinstance(content, dict):
        for name in content:
            members = {key: json.dumps(value) for key, value in content.items()}
            yield _object([*members.items(), (name, "null")])
            # other parsers read what is nested more deeply than ours reads
            deep = ("deep", "[" * DEPTH + "]" * DEPTH)
            yield _object([*members.items(), (name, "null"), deep])
            for text in doubled(content[name]):
                yield _object({**members, name: text}.items())
    elif isinstance(content, list):
        for place, value in enumerate(content[:3]):
            items = [json.dumps(item) for item in content]
            for text in doubled(value):
                yield f"[{', '.join([*items[:place], text, *items[place + 1 :]])}]"


def _object(members: Iterable[tuple[str, str]]) -> str:
    return f"{{{', '.join(f'{json.dumps(key)}: {value}' for key, value in members)}}}"


#: deeper than the project's reader of JSON reads, and not too deep for pydantic's
DEPTH = 230
# a large body is read in a thread, one of more than a megabyte in a process
LARGE = (SMALL_BYTES, PROCESS_BYTES)


@pytest.mark.parametrize(
    ("technology", "path", "body"), BODIES, ids=[f"{t} {p}" for t, p, _ in BODIES]
)
def test_a_key_that_stands_twice_is_refused(
    technology: str, path: str, body: dict[str, JSON]
) -> None:
    device = EmulatedDevice(technology=technology, qubits=5, time_scale=0)
    with running_service(device, vqpus=100) as service:
        lease = service.acquire()
        headers = {"X-SFQ-Lease": lease, "X-Warden-Session": lease}
        headers["Content-Type"] = "application/json"
        texts = list(doubled(body))
        large = [texts[-1].ljust(size + 1) for size in LARGE]
        submits = "jobs" in path or path == "/circuits"
        for text in [*texts, *(large if submits else [])]:
            answer = service.ask("POST", path, text.encode(), headers=headers)
            assert answer.status in (400, 422), answer.body[:300]
            assert b"stands twice" in answer.body or b"deep" in answer.body
        assert not service.queue.store.jobs.latest()
