"""What the client makes of answers that no QPU service sends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.qpu.sfq.service_job import ServiceJob
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from tests.support.changed_json import changed
from tests.support.scripted import scripted_server

CALIBRATION: JSON = {"id": "c1", "time": "2026-01-01T00:00:00Z", "values": {"t1": 5e-5}}
JOB: dict[str, JSON] = {
    "id": "j",
    "state": "Completed",
    "kind": "problem",
    "note": None,
    "attempt": 1,
    "position": None,
    "eta_seconds": None,
    "submitted": 9.0,
    "qpu_seconds": 1.5,
    "calibration": CALIBRATION,
    "result": {"counter": {"0": 1}, "info": {"seed": 1}},
}
DEVICE: dict[str, JSON] = {
    "name": "fresnel",
    "technology": "annealer",
    "status": "online",
    "qubits": 8,
    "payloads": ["problem"],
    "out_of_service": [3],
    "timing": {"setup_seconds": 1.0, "shot_seconds": 1e-3, "time_scale": 0.0},
    "calibration": CALIBRATION,
}
LEASE: dict[str, JSON] = {"opened": 8.0, "jobs": [JOB, {**JOB, "id": "k"}]}
REQUESTS: dict[str, tuple[Callable[[SfqQpu], object], JSON]] = {
    "device": (lambda qpu: qpu.status(), DEVICE),
    "job": (lambda qpu: qpu.poll("j"), JOB),
    "lease": (lambda qpu: qpu.jobs("l"), LEASE),
}


@settings(deadline=None, max_examples=60)
@given(what=st.sampled_from([*REQUESTS]), data=st.data())
def test_any_answer_is_read_or_refused_in_one_line(
    what: str, data: st.DataObject
) -> None:
    request, answer = REQUESTS[what]
    message = ""
    with scripted_server([(200, data.draw(changed(answer)))]) as server:
        try:
            request(SfqQpu("q", server.url, lease="l"))
        except QpuError as error:
            message = str(error)
    assert message.isprintable()


@pytest.mark.parametrize(
    ("what", "answer", "field"),
    [
        ("device", {**DEVICE, "status": 1}, "status: expected text, not 1"),
        ("device", {"detail": "not here"}, "name: missing"),
        (
            "device",
            {**DEVICE, "timing": {"setup_seconds": -1}},
            "timing: expected times of 0 or more, not an object",
        ),
        (
            "device",
            {**DEVICE, "calibration": {"id": 7}},
            "calibration.id: expected text, not 7",
        ),
        (
            "job",
            {**JOB, "state": "Gone"},
            "state: expected Queued or Running or Completed or Failed or Cancelled",
        ),
        (
            "lease",
            {"opened": 8.0, "jobs": [JOB, 1]},
            "jobs[1]: expected an object, not 1",
        ),
        ("lease", {"jobs": []}, "opened: missing"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_field(
    what: str, answer: dict[str, JSON], field: str
) -> None:
    request, _ = REQUESTS[what]
    with (
        scripted_server([(200, answer)]) as server,
        pytest.raises(QpuError, match="is it sfq serve") as error,
    ):
        request(SfqQpu("q", server.url, lease="l"))
    assert field in str(error.value)


def test_a_job_has_the_calibration_that_it_ran_under() -> None:
    job = ServiceJob.read("q", JOB, id_="j")
    expected = CalibrationData("c1", "2026-01-01T00:00:00Z", {"t1": 5e-5})
    assert job.calibration == expected
