"""A job against the device as it is now, and the calibration that its answer tells."""

from __future__ import annotations

import json

import pytest

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import JobSize
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.dialects.large_bodies import LARGE_BYTES
from tests.support.service import RunningService, emulated, example_bqm, running_service


def submitted(service: RunningService, **changed: JSON) -> tuple[int, dict[str, JSON]]:
    body: dict[str, JSON] = {
        "problem": example_bqm(),
        "parameters": {"num_reads": 10},
        "idempotency_key": "k",
        **changed,
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=service.acquire())
    return answer.status, answer.json()


def test_more_shots_than_the_device_has() -> None:
    with running_service(EmulatedDevice(time_scale=0, shots=9)) as service:
        status, answer = submitted(service)
        assert json.loads(service.ask("GET", "/v1/device").body)["shots"] == 9
    assert (status, answer["field"]) == (422, "parameters.num_reads")
    assert answer["detail"] == "10 shots; at most 9 per job"


@pytest.mark.parametrize("large", [False, True])
def test_qubits_that_are_out_of_service_make_it_smaller(large: bool) -> None:
    device = EmulatedDevice(
        technology="superconducting",
        time_scale=0,
        qubits=4,
        out_of_service=frozenset({0, 3}),
    )
    problem = example_bqm() | {"info": {"of": "x" * LARGE_BYTES * large}}
    with running_service(device) as service:
        told = json.loads(service.ask("GET", "/v1/device").body)
        status, answer = submitted(service, problem=problem)
    assert (told["qubits"], told["out_of_service"]) == (2, [0, 3])
    assert (status, answer["field"]) == (422, "problem.variable_labels")
    assert answer["detail"] == "3 variables do not fit on 2 qubits"


@pytest.mark.parametrize("technology", ["annealer", "neutral-atom", "superconducting"])
@pytest.mark.parametrize("reads", [1, 10, 400])
@pytest.mark.parametrize("time_scale", [1.0, 5.0])
def test_the_device_says_what_a_job_costs(
    technology: str, reads: int, time_scale: float
) -> None:
    device = EmulatedDevice(technology=technology, time_scale=time_scale)
    problem = example_bqm()
    with running_service(device) as service:
        asked = f"/v1/device?reads={reads}&variables={problem['num_variables']}"
        told = json.loads(service.ask("GET", asked).body)
        lease = service.acquire()
        job: dict[str, JSON] = {
            "problem": problem,
            "parameters": {"num_reads": reads},
            "idempotency_key": "k",
        }
        submitted = service.ask("POST", "/v1/jobs", job, lease=lease).json()
        expected = submitted["expected_seconds"]
        assert told["job_qpu_seconds"] == pytest.approx(expected)
        expected = submitted["expected_run_seconds"]
        assert told["job_run_seconds"] == pytest.approx(expected, rel=0.01)
        sized = SfqQpu("q", service.url).with_job_size(JobSize(3, reads)).status()
        bare = SfqQpu("q", service.url).status()
    assert sized.job_qpu_seconds == pytest.approx(told["job_qpu_seconds"])
    assert (bare.job_qpu_seconds, bare.job_run_seconds) == (None, None)


@pytest.mark.parametrize("asked", ["reads=0", "reads=x", "variables=-1", "reads=1e99"])
def test_a_size_that_is_none_is_refused(asked: str) -> None:
    with running_service(EmulatedDevice(time_scale=0)) as service:
        assert service.ask("GET", f"/v1/device?{asked}").status == 422


def test_an_annealers_graph_has_only_what_is_in_service() -> None:
    whole = EmulatedDevice(qubits=40).description.graph
    assert whole is not None
    dead = whole.qubits[5]
    graph = EmulatedDevice(
        qubits=40, out_of_service=frozenset({dead})
    ).description.graph
    assert graph is not None
    assert {*whole.qubits} - {*graph.qubits} == {dead}
    assert all(dead not in pair for pair in graph.couplers)
    assert graph.id != whole.id


@pytest.mark.parametrize(
    ("out", "words"),
    [({7}, "there is no qubit 7"), ({0, 1, 2, 3}, "no qubit is left")],
)
def test_what_cannot_be_out_of_service(out: set[int], words: str) -> None:
    with pytest.raises(InputError, match=f"out_of_service: {words}"):
        EmulatedDevice(
            technology="neutral-atom", qubits=4, out_of_service=frozenset(out)
        )


def test_a_calibration_that_is_too_old_for_a_job() -> None:
    now = [5000.0]
    device = EmulatedDevice(time_scale=0, clock=lambda: now[0], started=now[0])
    now[0] += 600
    with running_service(device, vqpus=2) as service:
        status, answer = submitted(service, calibrated_within=599)
        assert (status, answer["field"]) == (422, "calibrated_within")
        assert answer["detail"] == "the device was calibrated 600 s ago"
        assert submitted(service, calibrated_within=601)[0] == 201


def test_a_device_that_drifts_is_none_for_a_job_that_minds() -> None:
    device = EmulatedDevice(time_scale=0, noise=1, seed=1, faults=Faults(calibration=1))
    with running_service(device, vqpus=2) as service:
        status, answer = submitted(service, calibrated_within=1e6)
        assert (status, answer["detail"]) == (
            422,
            "the device drifts: control_error",
        )
        assert submitted(service)[0] == 201


def test_the_answer_and_the_samples_tell_the_calibration() -> None:
    device = EmulatedDevice(technology="neutral-atom", time_scale=0, noise=1, seed=1)
    with running_service(device) as service:
        job = submitted(service)[1]
        assert job["calibration"] is None
        path = f"/v1/jobs/{job['id']}"
        told = json.loads(service.ask("GET", f"{path}?wait=60").body)["calibration"]
        info = json.loads(service.ask("GET", f"{path}/result").body)["info"]
        present = emulated(service.queue).calibrations.reading
    assert info["calibration"] == told
    assert told["id"] == present.calibration.id
    assert [*told["values"]] == ["readout_false_one", "readout_false_zero"]
    assert told["values"]["readout_false_zero"] == pytest.approx(0.05, rel=0.3)
