"""IQM's API on the wire, and circuits as OpenQASM 3.

What ``iqm-client`` itself sends and reads is in ``tests/service/dialects/iqm/test_iqm_client.py``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection as Http
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description, Topology
from sf_quantum.qpu.vendors import iqm
from sf_quantum.service.device.emulator.circuits.templates import template_of
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.readings import Calibrations
from sf_quantum.service.device.vendor.sizes import checked
from sf_quantum.service.dialects import large_bodies
from sf_quantum.service.dialects.iqm import (
    architecture,
    calibrations,
    circuits,
    measurements,
)
from sf_quantum.service.dialects.iqm.architecture import Architecture
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import FixedIdentity, Unauthorized
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS, until

# a star of five qubits, as Adonis
STAR = Architecture(5, (0, 1, 2, 3, 4), ((0, 2), (1, 2), (2, 3), (2, 4)))
PI = math.pi
pytestmark = pytest.mark.devices("sfq")


def prx(qubit: str, angle: JSON = PI, phase: JSON = 0.0) -> dict[str, JSON]:
    return {"name": "prx", "locus": [qubit], "args": {"angle": angle, "phase": phase}}


def cz(*qubits: str) -> dict[str, JSON]:
    return {"name": "cz", "locus": [*qubits], "args": {}}


def measure(key: str, *qubits: str) -> dict[str, JSON]:
    return {"name": "measure", "locus": [*qubits], "args": {"key": key}}


def batch(*instructions: JSON, **options: JSON) -> dict[str, Any]:
    """A job with one circuit."""
    circuit: JSON = {"name": "one", "instructions": [*instructions]}
    return {"circuits": [circuit], "shots": 20, **options}


FLIPPED = batch(prx("QB1"), measure("a", "QB1"), measure("b", "QB3", "QB2"))


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    device = EmulatedDevice(technology="superconducting", qubits=5, time_scale=0)
    with running_service(device, tcp=True) as running:
        yield running


@dataclass(frozen=True)
class Answer:
    """An answer, any part of whose JSON is compared."""

    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    service: RunningService,
    method: str,
    path: str,
    body: JSON = None,
    *,
    at: str = "/api/v1",
) -> Answer:
    connection = Http(service.url.removeprefix("http://"), timeout=SECONDS)
    with closing(connection):
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        connection.request(method, f"{at}/{path}", content, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def submit(
    service: RunningService, body: JSON, path: str = "jobs/emulator/circuit"
) -> dict[str, Any]:
    answer = ask(service, "POST", path, body)
    assert answer.status == 201, answer.body
    told: dict[str, Any] = answer.json()
    return told


def ended(service: RunningService, job: dict[str, Any]) -> dict[str, Any]:
    path = f"jobs/{job['id']}?wait_until_terminal=true&timeout_seconds=30"
    told: dict[str, Any] = until(
        lambda: (
            shown
            if (shown := ask(service, "GET", path).json())["status"]
            not in ("waiting", "processing")
            else None
        ),
        "the job is over",
    )
    return told


def read(text: JSON, known: Architecture = STAR) -> str:
    """The OpenQASM of a job's only circuit."""
    submission = circuits.read(text, known, None)
    assert isinstance(submission.content, str)
    return submission.content


def test_a_job_from_its_submission_to_its_results(service: RunningService) -> None:
    job = submit(service, FLIPPED, "jobs/emulator/circuit?tag=mine")
    assert (job["type"], job["tag"]) == ("circuit", "mine")
    assert str(UUID(str(job["id"]))) == job["id"]
    told = ended(service, job)
    assert told["status"] == "completed"
    assert told["artifacts"] == [
        {"type": "measurements"},
        {"type": "measurement_counts"},
    ]
    steps = [entry["status"] for entry in told["timeline"]]
    assert steps == ["created", "execution_started", "execution_ended", "ready"]
    assert told["execution"]["progress"]["shots"] == {"value": 20, "max_value": 20}
    path = f"jobs/{job['id']}"
    counts = ask(service, "GET", f"{path}/artifacts/measurement_counts").json()
    assert counts == [{"measurement_keys": ["a", "b"], "counts": {"100": 20}}]
    reads = ask(service, "GET", f"{path}/artifacts/measurements").json()
    assert reads == [{"a": [[1]] * 20, "b": [[0, 0]] * 20}]
    sent = ask(service, "GET", f"{path}/payload").json()
    assert sent["circuits"][0]["instructions"] == [
        {**one, "implementation": None}
        for one in FLIPPED["circuits"][0]["instructions"]
    ]
    assert sent["shots"] == 20


def test_a_batch_has_results_of_each_circuit(service: RunningService) -> None:
    other = batch(measure("c", "QB1", "QB5"))["circuits"]
    job = ended(
        service,
        submit(service, {**FLIPPED, "circuits": [*FLIPPED["circuits"], *other]}),
    )
    path = f"jobs/{job['id']}"
    counts = ask(service, "GET", f"{path}/artifacts/measurement_counts").json()
    assert counts == [
        {"measurement_keys": ["a", "b"], "counts": {"100": 20}},
        {"measurement_keys": ["c"], "counts": {"00": 20}},
    ]
    reads = ask(service, "GET", f"{path}/artifacts/measurements").json()
    assert [{*one} for one in reads] == [{"a", "b"}, {"c"}]
    sent = ask(service, "GET", f"{path}/payload").json()
    assert len(sent["circuits"]) == 2


def test_a_job_waits_while_others_hold_the_qpu(service: RunningService) -> None:
    until(lambda: not service.queue.leases.held, "the lease is given back")
    lease = service.acquire()
    job = submit(service, FLIPPED)
    assert job["status"] == "waiting"
    service.ask("DELETE", f"/v1/leases/{lease}")
    assert ended(service, job)["status"] == "completed"


def test_a_circuit_at_a_vendor_has_the_qubits_that_it_uses() -> None:
    text = read(batch(prx("QB1"), cz("QB1", "QB3"), measure("a", "QB3")))
    described = Description("x", 5, ("circuit",), native_gates=("prx", "cz"))
    assert checked("circuit", text, described).qubits == 2


def test_a_mapping_of_qubits_and_what_is_sent_back(service: RunningService) -> None:
    names: JSON = [
        {"logical_name": "alice", "physical_name": "QB4"},
        {"logical_name": "bob", "physical_name": "QB3"},
    ]
    delay: JSON = {"name": "barrier", "locus": ["alice", "bob"], "args": {}}
    given = batch(
        prx("alice"), delay, measure("k", "bob", "alice"), qubit_mapping=names
    )
    given["circuits"][0]["metadata"] = {"of": "\u2028\nme"}
    text = read(given)
    assert "prx(3.141592653589793, 0.0) q[3];" in text
    assert "m[0] = measure q[2];\nm[1] = measure q[3];" in text
    job = ended(service, submit(service, given))
    counts = ask(
        service, "GET", f"jobs/{job['id']}/artifacts/measurement_counts"
    ).json()
    assert counts == [{"measurement_keys": ["k"], "counts": {"01": 20}}]
    sent = ask(service, "GET", f"jobs/{job['id']}/payload").json()
    assert sent["qubit_mapping"] == names
    assert sent["circuits"][0]["metadata"] == {"of": "\u2028\nme"}
    assert [one["locus"] for one in sent["circuits"][0]["instructions"]] == [
        ["alice"],
        ["alice", "bob"],
        ["bob", "alice"],
    ]


def test_reads_keep_the_counts_and_are_the_same_each_time() -> None:
    keys = [("a", 1), ("b", 2)]
    counter = {"000": 3, "110": 4, "011": 5}
    text = measurements.reads(keys, counter, "seed")
    assert text == measurements.reads(keys, counter, "seed")
    told = json.loads(text)
    shots = [
        "".join(map(str, [*a, *b])) for a, b in zip(told["a"], told["b"], strict=True)
    ]
    # the first bit comes last in the device's counts
    assert Counter(shots) == {"000": 3, "011": 4, "110": 5}
    assert shots != sorted(shots)
    assert (
        measurements.counters(json.dumps({"counters": [counter] * 2})) == [counter] * 2
    )


REFUSED: list[tuple[dict[str, JSON], str]] = [
    (
        batch(cz("QB1", "QB2")),
        "circuits.0.instructions.0: ('QB1', 'QB2') is not allowed",
    ),
    (batch(cz("QB1")), "('QB1',) is not allowed as locus for 'cz'"),
    (batch(cz("QB1", "QB1")), "has a qubit twice"),
    (batch(prx("QB9")), "'QB9' is not allowed as locus for 'prx'"),
    (batch({"name": "h", "locus": ["QB1"]}), "Unknown quantum operation 'h'."),
    (
        batch({"name": "reset", "locus": ["QB1"]}),
        "Operation 'reset' is not supported by the dynamic quantum architecture.",
    ),
    (batch({**prx("QB1"), "implementation": "other"}), "implementation 'other' is not"),
    (batch(prx("QB1", math.nan)), "instructions.0: 'angle' is not finite"),
    (batch(prx("QB1", 10**400)), "'angle' is not finite"),
    (batch(prx("QB1", "pi")), "'prx' needs the argument 'angle', a number"),
    (
        batch({"name": "measure", "locus": ["QB1"]}),
        "'measure' needs the argument 'key'",
    ),
    (
        batch(measure("a", "QB1"), measure("a", "QB2")),
        "instructions.1: non-unique measurement key 'a'",
    ),
    (
        batch({"name": "delay", "locus": ["QB1"], "args": {"duration": -1}}),
        "'duration' is negative",
    ),
    (batch(prx("QB1")), "circuits.0: the circuit measures nothing"),
    (
        batch(measure("a", "x"), qubit_mapping={"y": "QB1"}),
        "The qubit 'x' is not found",
    ),
    (batch(), "circuits.0.instructions: List should have at least 1 item"),
    ({"circuits": ["define void @main()"]}, "QIR is not supported"),
    ({"circuits": []}, "circuits: List should have at least 1 item"),
    ({**FLIPPED, "shots": 0}, "shots: Input should be greater than or equal to 1"),
    (
        {"circuits": FLIPPED["circuits"] * 100, "shots": 100_000},
        "shots: circuits times shots exceed 1000000",
    ),
    ({**FLIPPED, "heralding_mode": "zeros"}, "heralding_mode: "),
    ({**FLIPPED, "active_reset_cycles": 1}, "active_reset_cycles: "),
    ({**FLIPPED, "qubit_mapping": [1]}, "qubit_mapping: "),
    ({**FLIPPED, "dd_strategy": {"x": "y" * 70_000}}, "the options exceed 16384 bytes"),
]


@pytest.mark.parametrize(("body", "expected"), REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(
    body: dict[str, JSON], expected: str
) -> None:
    with pytest.raises(Refused) as caught:
        read(body)
    error = caught.value
    said = f"{error.field}: {error.detail}" if error.field else error.detail
    assert expected in said
    assert error.status == 400
    assert "\n" not in said


def test_earlier_clients_names_are_read() -> None:
    old = batch({"name": "measurement", "qubits": ["QB2"], "args": {"key": "k"}})
    assert "m[0] = measure q[1];" in read(old)
    delay: JSON = {"name": "delay", "locus": ["QB1"], "args": {"duration": 8e-8}}
    assert "delay[80.0ns] q[0];" in read(batch(delay, measure("k", "QB1")))


@pytest.mark.parametrize(
    ("path", "method"), [("result", "result_part"), ("counters", "result")]
)
def test_a_result_that_is_deleted_before_it_is_read_is_unknown(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, path: str, method: str
) -> None:
    job = submit(service, FLIPPED)
    ended(service, job)
    jobs = service.queue.store.jobs
    read_part: Callable[..., bytes | str | None] = getattr(jobs, method)

    def deleted_before(*given: int) -> bytes | str | None:
        assert ask(service, "DELETE", f"jobs/{job['id']}").status == 204
        return read_part(*given)

    monkeypatch.setattr(jobs, method, deleted_before)
    path = f"jobs/{str(job['id']).replace('-', '')}/{path}"
    answer = ask(service, "GET", path, at="/v1")
    assert (answer.status, answer.json()["detail"]) == (404, "no such job")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_what_is_said_twice_is_refused(data: st.DataObject) -> None:
    """Two spellings of an angle or of qubits, and two qubits of one name."""
    angle, phase = (data.draw(st.floats(-2, 2)) for _ in range(2))
    turns: dict[str, JSON] = {"angle_t": angle, "phase_t": phase}
    both = data.draw(st.sampled_from(["", "angle", "phase", "locus", "pairs"]))
    flip: dict[str, JSON] = {"name": "prx", "qubits": ["a"], "args": turns}
    pairs: list[JSON] = [{"logical_name": "a", "physical_name": "QB2"}]
    if both in ("angle", "phase"):
        turns[both] = data.draw(st.floats(-2, 2))
    elif both == "locus":
        flip["locus"] = ["a"]
    elif both == "pairs":
        name = data.draw(st.sampled_from(["QB1", "QB2"]))
        pairs.append({"logical_name": "a", "physical_name": name})
    body = batch(flip, measure("k", "a"), qubit_mapping=pairs)
    if both:
        with pytest.raises(Refused, match=r"not both|twice"):
            read(body)
    else:
        told = f"prx({angle * math.tau!r}, {phase * math.tau!r}) q[1];"
        assert told in read(body)


@pytest.mark.parametrize("wrong", [True, "1", None, [1]])
def test_turns_are_numbers(wrong: JSON) -> None:
    args: JSON = {"angle_t": wrong, "phase_t": 0.0}
    with pytest.raises(Refused, match="'angle', a number"):
        read(batch({"name": "prx", "locus": ["QB1"], "args": args}))
    pairs: JSON = [{"logical_name": wrong, "physical_name": "QB1"}]
    if not isinstance(wrong, str):
        with pytest.raises(Refused, match="expected logical_name"):
            read(batch(measure("k", "QB1"), qubit_mapping=pairs))


def test_circuits_that_differ_in_angles_have_a_template() -> None:
    def text(angle: float, name: str) -> str:
        job = batch(prx("QB1", angle), measure("a", "QB1"))
        job["circuits"][0]["name"] = name
        sent = circuits.read(job, STAR, None)
        return str(sent.content)

    (one, angles), (other, _) = map(template_of, (text(0.5, "a"), text(1.5, "b")))
    assert (one, angles) == (other, (0.5, 0.0))


def test_the_architecture_of_a_device() -> None:
    whole = Topology("square", (2, 2), 4, ((0, 1), (0, 2), (1, 3), (2, 3)))
    told = Description(
        "superconducting", 3, ("circuit",), frozenset({3}), topology=whole
    )
    assert architecture.of(told) == Architecture(4, (0, 1, 2), ((0, 1), (0, 2)))
    free = Description("superconducting", 3, ("circuit",), frozenset({0}))
    known = architecture.of(free)
    assert known == Architecture(3, (0, 1, 2), ((0, 1), (0, 2), (1, 2)))
    assert known.numbers == {"QB1": 0, "QB2": 1, "QB3": 2}
    # too many to be all coupled, and none that takes circuits
    assert architecture.of(Description("superconducting", 65, ("circuit",))) is None
    assert architecture.of(Description("annealer", 3, ("problem",))) is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "jobs/emulator/circuit", {"circuits": 3}, 400, "invalid_job_payload"),
        ("POST", "jobs/emulator/run", FLIPPED, 400, "unsupported_job_type"),
        ("POST", "jobs/another/circuit", FLIPPED, 404, "qc_not_found"),
        (
            "POST",
            "jobs/emulator/circuit?use_timeslot=true",
            FLIPPED,
            403,
            "no_booked_timeslots",
        ),
        (
            "POST",
            "jobs/emulator/circuit?use_timeslot=maybe",
            FLIPPED,
            400,
            "invalid_input",
        ),
        (
            "POST",
            "jobs/emulator/circuit",
            {**FLIPPED, "calibration_set_id": str(UUID(int=7))},
            404,
            "calibration_set_not_found",
        ),
        ("GET", "jobs/7", None, 404, "job_not_found"),
        ("GET", f"jobs/{UUID(int=7)}", None, 404, "job_not_found"),
        ("GET", "quantum-computers/another", None, 404, "qc_not_found"),
        (
            "GET",
            "quantum-computers/emulator/artifacts/settings",
            None,
            404,
            "qc_artifact_not_found",
        ),
        (
            "GET",
            f"calibration-sets/emulator/{UUID(int=7)}/metrics",
            None,
            404,
            "calibration_set_not_found",
        ),
    ],
)
def test_refusals_have_iqms_codes(
    service: RunningService, method: str, path: str, body: JSON, status: int, code: str
) -> None:
    answer = ask(service, method, path, body)
    told = answer.json()
    assert (answer.status, told["error_code"]) == (status, code)
    assert told["message"]
    assert told["request_id"] == answer.headers["X-Request-ID"]


def test_what_is_refused_before_it_reaches_the_api_has_its_form() -> None:
    device = EmulatedDevice(technology="superconducting", qubits=5, time_scale=0)

    async def nobody(_: HTTPConnection) -> Identity:
        raise Unauthorized("no credential", "Authorization", "Bearer")

    with running_service(device, authenticate=nobody, tcp=True) as service:
        refused = ask(service, "GET", "quantum-computers")
        assert (refused.status, refused.json()["error_code"]) == (401, "unauthorized")
        large = ask(service, "POST", "jobs/emulator/circuit", {"a": "b" * 100_000})
        assert (large.status, large.json()["error_code"]) == (401, "unauthorized")


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["QB1", "cz", "prx", "measure", "delay"])
)
_ANY = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["name", "locus", "args", "key", "angle", "x"]),
        inner,
        max_size=3,
    ),
    max_leaves=8,
)


def changed(value: JSON, draw: Callable[[st.SearchStrategy[JSON]], JSON]) -> JSON:
    """Replace parts of a job by anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(_ANY)
    if isinstance(value, dict):
        return {key: changed(one, draw) for key, one in value.items()}
    if isinstance(value, list):
        return [changed(one, draw) for one in value]
    return value


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_anything_else_is_read_or_refused(data: st.DataObject) -> None:
    sound: JSON = batch(
        prx("QB1"),
        cz("QB1", "QB3"),
        {"name": "delay", "locus": ["QB2"], "args": {"duration": 1e-7}},
        measure("a", "QB1", "QB2"),
        calibration_set_id=str(UUID(int=7)),
        qubit_mapping=[{"logical_name": "QB1", "physical_name": "QB1"}],
        dd_mode="enabled",
    )
    body = changed(sound, data.draw)
    submission, refused = None, None
    try:
        submission = circuits.read(body, STAR, None)
    except Refused as error:
        refused = error
    if refused is not None:
        assert refused.status == 400
        assert len(refused.detail) < 1000
        assert refused.detail.isprintable()
        return
    assert submission is not None
    content = submission.content
    for text in content if isinstance(content, list) else [content]:
        # what was read can be written as it was sent
        assert circuits.circuit(str(text), {})["instructions"]


def test_messages_are_short() -> None:
    many: JSON = ["QB1"] * 10_000
    bodies = [
        batch({"name": "cz", "locus": many}),
        batch(prx("Q" * 1000)),
        batch(measure("k" * 100_000, "QB1"), measure("k" * 100_000, "QB2")),
    ]
    for body in bodies:
        with pytest.raises(Refused) as caught:
            read(body)
        assert len(caught.value.detail) < 300


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"{", b"not JSON"), (b"[" * 60_000, b"200 deep"), (b"[" * 100_000, b"200 deep")],
)
def test_a_body_that_is_no_json(
    service: RunningService, body: bytes, words: bytes
) -> None:
    answer = service.ask("POST", "/api/v1/jobs/emulator/circuit", body)
    assert answer.status == 400
    assert words in answer.body


def test_another_users_job_is_not_known() -> None:
    device = EmulatedDevice(technology="superconducting", qubits=5, time_scale=0)
    other = Identity("other", admin=False)
    with (
        running_service(device, tcp=True) as first,
        running_service(device, authenticate=FixedIdentity(other), tcp=True) as service,
    ):
        job = submit(first, FLIPPED)
        assert ask(service, "GET", f"jobs/{job['id']}").status == 404


def test_the_jobs_of_other_dialects_are_not_iqms(service: RunningService) -> None:
    until(lambda: not service.queue.leases.held, "the lease is given back")
    lease = service.acquire()
    text = read(FLIPPED)
    body: dict[str, JSON] = {"circuit": text, "idempotency_key": "v1"}
    job = service.ask("POST", "/v1/jobs", body, lease=lease).json()["id"]
    assert (
        ask(service, "GET", f"jobs/{UUID(str(job))}").json()["error_code"]
        == "job_not_found"
    )
    service.ask("DELETE", f"/v1/leases/{lease}")


def test_the_earlier_api_as_cudaq_uses_it(service: RunningService) -> None:
    dynamic = "calibration-sets/default/dynamic-quantum-architecture"
    told = ask(service, "GET", dynamic, at="")
    assert {*told.json()["gates"]} == {"prx", "cz", "measure"}
    # angles in turns, qubits by names of its own
    flip: JSON = {
        "name": "prx",
        "qubits": ["QB2"],
        "args": {"angle_t": 0.5, "phase_t": 0.25},
    }
    reads: list[JSON] = [
        {"name": "measure", "qubits": [qubit], "args": {"key": f"m_{qubit}"}}
        for qubit in ("QB2", "QB1")
    ]
    body: JSON = {
        "circuits": [{"name": "flip", "instructions": [flip, *reads]}],
        "shots": 20,
        "qubit_mapping": [
            {"logical_name": logical, "physical_name": physical}
            for logical, physical in (("QB1", "QB3"), ("QB2", "QB5"))
        ],
    }
    sent = ask(service, "POST", "circuits", body, at="")
    assert sent.status == 201
    path = f"circuits/{sent.json()['id']}/counts"

    def over() -> Any:
        told = ask(service, "GET", path, at="").json()
        return None if told["status"] == "pending execution" else told

    shown = until(over, "the job is over")
    assert shown["status"] == "ready"
    (counts,) = shown["counts_batch"]
    assert counts == {"measurement_keys": ["m_QB2", "m_QB1"], "counts": {"10": 20}}
    (circuit,) = shown["metadata"]["request"]["circuits"]
    assert [one["qubits"] for one in circuit["instructions"]] == [
        ["QB2"],
        ["QB2"],
        ["QB1"],
    ]


def test_the_earlier_api_refuses_and_fails() -> None:
    device = EmulatedDevice(
        technology="superconducting", qubits=5, time_scale=0, faults=Faults(fail=1.0)
    )
    with running_service(device, tcp=True) as service:
        wrong = {
            **FLIPPED["circuits"][0]["instructions"][0],
            "args": {"angle_t": 1e301},
        }
        refused = ask(service, "POST", "circuits", batch(wrong), at="")
        assert (refused.status, "not finite" in str(refused.body)) == (400, True)
        job = ask(service, "POST", "circuits", FLIPPED, at="").json()
        path = f"circuits/{job['id']}/counts"
        told = until(
            lambda: (
                shown
                if (shown := ask(service, "GET", path, at="").json())["status"]
                != "pending execution"
                else None
            ),
            "the job is over",
        )
        assert (told["status"], told["counts_batch"]) == ("failed", None)
        assert told["message"]
        assert (
            ask(service, "GET", f"circuits/{UUID(int=7)}/counts", at="").status == 404
        )


def test_cancelling_and_deleting() -> None:
    device = EmulatedDevice(technology="superconducting", qubits=5)
    with running_service(device, tcp=True) as service:
        first, second = (submit(service, FLIPPED) for _ in range(2))
        path = f"jobs/{second['id']}"
        told = ask(service, "GET", f"{path}?wait_until_terminal=true&timeout_seconds=0")
        assert told.headers["IQM-Long-Poll-Timed-Out"] == "true"
        assert (told.json()["status"], told.json()["queue_position"]) == ("waiting", 1)
        missing = ask(service, "GET", f"{path}/artifacts/measurements")
        assert missing.json()["error_code"] == "job_artifact_not_found"
        assert ask(service, "POST", f"{path}/cancel").json()["status"] == "cancelled"
        again = ask(service, "POST", f"{path}/cancel")
        assert (again.status, again.json()["error_code"]) == (403, "illegal_job_status")
        # one that runs is cancelled before it is deleted
        assert ask(service, "DELETE", f"jobs/{first['id']}").status == 204
        assert ask(service, "GET", f"jobs/{first['id']}").status == 404
        until(lambda: not service.queue.leases.held, "the lease is given back")


@pytest.mark.devices  # renewed by an operation of the emulated one
def test_a_set_of_calibrations_that_was_replaced(service: RunningService) -> None:
    path = "calibration-sets/emulator/default/dynamic-quantum-architecture"
    known = ask(service, "GET", path).json()["calibration_set_id"]
    now = submit(service, {**FLIPPED, "calibration_set_id": known})
    assert all("expected to run" in one["message"] for one in now["messages"])
    assert now["compilation"]["calibration_set_id"] == known
    service.ask("POST", "/v1/admin/operations/recalibrate", {"parameters": {}})
    renewed = ask(service, "GET", path).json()["calibration_set_id"]
    assert renewed != known
    later = submit(service, {**FLIPPED, "calibration_set_id": known})
    assert "has been replaced" in later["messages"][0]["message"]
    assert ended(service, later)["compilation"]["calibration_set_id"] == renewed
    metrics = f"calibration-sets/emulator/{known}/metrics"
    assert ask(service, "GET", metrics).status == 404


def test_the_quality_of_the_operations() -> None:
    device = EmulatedDevice(
        technology="superconducting", qubits=2, time_scale=0, noise=1.0, name="two"
    )
    with running_service(device, tcp=True) as service:
        path = "calibration-sets/two/default"
        told = ask(service, "GET", f"{path}/metrics").json()
        values = {one["dut_field"]: one["value"] for one in told["observations"]}
        base = "metrics.ssro.measure.constant.QB2"
        errors = [values[f"{base}.error_0_to_1"], values[f"{base}.error_1_to_0"]]
        assert values[f"{base}.fidelity"] == pytest.approx(1 - sum(errors) / 2)
        assert 0 < min(errors) <= max(errors) < 0.5
        assert ask(service, "GET", path).json()["observations"] == []


class Measured:
    """What a device has measured, of which its technology has no model."""

    name = "two"
    identity = "two"
    description = Description("superconducting", 2, ("circuit",))
    calibrations = Calibrations(
        CalibrationData(
            values={
                "gate_error_one_qubit": 0.002,
                "gate_error_two_qubits": 0.04,
                "t1_seconds": 5e-5,
                "t2_seconds": 1e-5,
            }
        )
    )


def test_gates_and_times_as_iqms_clients_find_them() -> None:
    device = cast("Device", Measured())
    known = architecture.of(device.description)
    assert known is not None
    told = calibrations.observations(device, known, metrics=True)
    listed = told["observations"]
    assert isinstance(listed, list)
    found = {
        one["dut_field"]: (one["value"], one["unit"]) for one in map(mapping, listed)
    }
    assert found["metrics.rb.prx.drag_crf.QB1.fidelity"] == (0.999, "")
    assert found["metrics.irb.cz.tgss_crf.QB1__QB2.fidelity"] == (0.97, "")
    assert found["characterization.model.QB2.t1_time"] == (5e-5, "s")
    assert found["characterization.model.QB2.t2_time"] == (1e-5, "s")
    assert not [name for name in found if "ssro" in str(name)]
    # and read again
    back = iqm._calibration("7", iqm._Metrics.model_validate(told)).values
    assert back == pytest.approx(Measured.calibrations.data.values)


def test_the_qpu_and_how_it_is(service: RunningService) -> None:
    (told,) = ask(service, "GET", "quantum-computers").json()["quantum_computers"]
    assert (told["alias"], told["number_of_qubits"]) == ("emulator", 5)
    assert told["operational_status"] == "online"
    assert ask(service, "GET", f"quantum-computers/{told['id']}").json()["health"][
        "healthy"
    ]
    service.ask("POST", "/v1/device/drain", {"message": "filling helium"})
    closed = ask(service, "GET", "quantum-computers/emulator").json()
    assert closed["operational_status"] == "maintenance"
    assert "filling helium" in closed["description"]
    assert not ask(service, "GET", "quantum-computers/emulator/health").json()[
        "healthy"
    ]
    assert ask(service, "POST", "jobs/emulator/circuit", FLIPPED).status == 503
    service.ask("POST", "/v1/device/open")


def test_an_annealer_has_no_circuits() -> None:
    with running_service(EmulatedDevice(time_scale=0, qubits=40), tcp=True) as service:
        listed = ask(service, "GET", "quantum-computers").json()
        assert listed == {"quantum_computers": []}
        assert ask(service, "POST", "jobs/emulator/circuit", FLIPPED).status == 404


@pytest.mark.process
@pytest.mark.parametrize("own_thread", [False, True])
def test_large_circuits_are_read_elsewhere(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, own_thread: bool
) -> None:
    size = large_bodies.LARGE_BYTES
    if own_thread:  # as a body of a megabyte
        monkeypatch.setattr(large_bodies, "PROCESS_BYTES", size)
    flips: list[JSON] = [prx("QB1", PI / 10)] * 10
    body = batch(*flips, measure("a", "QB1"))
    # gates would take their time in the parser
    body["circuits"][0]["metadata"] = {"note": "x" * size}
    job = ended(service, submit(service, body, "jobs/emulator/circuit?tag=large"))
    assert job["tag"] == "large"
    counts = ask(
        service, "GET", f"jobs/{job['id']}/artifacts/measurement_counts"
    ).json()
    assert counts[0]["counts"] == {"1": 20}
    wrong = batch(*flips, cz("QB1", "QB9"), measure("a", "QB1"))
    wrong["circuits"][0]["metadata"] = {"note": "x" * size}
    refused = ask(service, "POST", "jobs/emulator/circuit", wrong)
    assert refused.status == 400
    assert "circuits.0.instructions.10: 'QB9'" in refused.json()["message"]
