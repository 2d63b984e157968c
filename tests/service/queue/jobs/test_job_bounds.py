"""What a job may cost: larger ones are refused, and the estimate counts the same."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError, document
from sf_quantum.service.device.emulator.computation import compute_seconds
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.domain.jobs import (
    Identity,
    Kind,
    LeaseRequest,
    Size,
    Submission,
)
from sf_quantum.service.queue.jobs.worker import Worker
from tests.support.service import example_bqm, running_queue, running_service


def bqm(variables: int, pairs: list[tuple[int, int]]) -> dict[str, JSON]:
    labels: list[JSON] = [*range(variables)]
    return document(labels, [1.0] * variables, pairs, [1.0] * len(pairs), "SPIN")


def dense(variables: int) -> dict[str, JSON]:
    return bqm(variables, [*combinations(range(variables), 2)])


def refusal(kind: Kind, content: JSON, **parameters: int) -> str:
    device = EmulatedDevice(technology="superconducting", qubits=5000)
    with pytest.raises(FieldError) as caught:
        device.check(kind, content, parameters)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_million_sweeps_over_800_dense_variables() -> None:
    assert refusal("problem", dense(800), num_reads=1, num_sweeps=1_000_000) == (
        "parameters.num_sweeps: reads times sweeps of this problem are 359,600,000,000 "
        "updates; at most 300,000,000,000 per job"
    )


def test_a_register_of_a_million_bits() -> None:
    text = "OPENQASM 3.0;bit[999999] c;qubit q;h q;c[0]=measure q;"
    reason = refusal("circuit", text, num_reads=2000)
    assert reason == "circuit: 999,999 bits; at most 10,000 per circuit"


def test_a_hundred_thousand_shots_of_2000_bits() -> None:
    text = 'OPENQASM 3.0;include "stdgates.inc";bit[2000] c;qubit q;h q;c[0]=measure q;'
    assert refusal("circuit", text, num_reads=100_000) == (
        "parameters.num_reads: 100,000 shots of 2,000 variables or bits are "
        "200,000,000 values; at most 100,000,000 per job"
    )


def test_a_hundred_thousand_reads_of_5000_variables() -> None:
    reason = refusal("problem", bqm(5000, []), num_reads=100_000, num_sweeps=1)
    assert "500,000,000 values; at most 100,000,000" in reason


def test_a_mebibyte_of_semicolons() -> None:
    reason = refusal("circuit", ";" * 2**20, num_reads=1)
    assert reason == "circuit: more than 100,000 statements per job"


def test_what_the_dialects_allow_elsewhere_is_not_refused() -> None:
    """All of SAPI's reads of a full chip, and many reads of a dense problem."""
    device, sapi = EmulatedDevice(), {"num_reads": 10_000, "num_sweeps": None}
    chip = Size(5000, 50 * 5000 + 40_000)
    device.compute.check(chip, sapi)
    device.check("problem", dense(400), {"num_reads": 1000, "num_sweeps": None})


def test_bounds_are_told_and_hold_for_large_bodies_too() -> None:
    with running_service(
        EmulatedDevice(time_scale=0, compute=ComputeLimits(updates=10**9))
    ) as (service):
        bounds = service.ask("GET", "/v1/device").json()["bounds"]
        assert bounds == {
            "values": 10**8,
            "updates": 10**9,
            "evolution": 2 * 10**9,
            "characters": 2**22,
            "statements": 100_000,
            "bits": 10_000,
            "gates": 100_000,
            "circuits": 1000,
            "gate_shots": 10**9,
            "bond_dimension": 64,
            "cpu_seconds": 300,
            "memory_gib": 4.0,
        }
        lease = service.acquire()
        for content in (example_bqm(), dense(120)):
            job: dict[str, JSON] = {"problem": content, "idempotency_key": "k"}
            job["parameters"] = {"num_reads": 10_000, "num_sweeps": 10_000}
            answer = service.ask("POST", "/v1/jobs", job, lease=lease)
            assert (answer.status, answer.json()["field"]) == (
                422,
                "parameters.num_sweeps",
            )
        assert len(json.dumps(content)) > 2**16


async def test_the_estimate_counts_what_the_computation_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "may_start", False)
    who = Identity("ann", admin=False)
    parameters = {"num_reads": 1, "seed": 1, "num_sweeps": 1_000_000}
    async with running_queue(tmp_path, EmulatedDevice()) as queue:
        lease = await queue.leases.acquire(who, LeaseRequest())
        asked = Submission("problem", dense(100), parameters, "a")
        job, _ = await queue.submit(who, lease.id, asked)
        forecast = queue.forecasts.of(job)
    seconds = compute_seconds(Size(100, 50 * 100 + 4950), parameters)
    assert seconds == pytest.approx(2.985)
    # 20 ms of it are the annealing that the device models
    assert forecast is not None
    assert forecast.expected_run_seconds > seconds
    assert forecast.expected_seconds == job.model_seconds
    assert job.compute_seconds == seconds
    async with running_queue(tmp_path, EmulatedDevice()) as again:
        entry = again.jobs.pending.get(job.number)
        assert entry is not None
        assert entry.seconds == seconds
