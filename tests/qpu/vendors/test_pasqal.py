"""The job side of Pasqal's QPUs, with a client that says what the stock one would.

The messages are those of qrmi 0.26.4; see tests/qpu/test_contract.py for the
stock client itself.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import LeaseLost, NotAccepted, Progress, Task, UnknownJob
from sf_quantum.qpu import AuthenticationError, QpuStatus
from sf_quantum.qpu.qrmi_config import Resource
from sf_quantum.qpu.vendors import qrmi
from sf_quantum.qpu.vendors.qrmi import PasqalCloud, PasqalLocal
from tests.support.waiting import SECONDS, until

ONLINE = SimpleNamespace(
    status="ResourceStatusCode.Online",
    status_reason=None,
    busy=False,
    capacity=None,
    pending_job_count=0,
)
TASK = Task("tag", "sequence", json.dumps("a sequence"), {"num_reads": 7, "seed": 1})


class QrmiError_(RuntimeError):
    """The stock client's error for all that has no class of its own."""


class TaskNotFoundError(QrmiError_):
    """Another one of its errors."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a module in the package's place; its client has the attributes set on this."""
    made = SimpleNamespace(status=lambda: ONLINE)
    module = ModuleType("qrmi")
    vars(module)["ResourceType"] = SimpleNamespace(PasqalLocal=1, PasqalCloud=2)
    vars(module)["QuantumResource"] = SimpleNamespace(from_config=lambda *_: made)
    vars(module)["Payload"] = SimpleNamespace(PasqalCloud=lambda **given: given)
    monkeypatch.setitem(sys.modules, "qrmi", module)
    return made


@pytest.fixture
def local() -> PasqalLocal:
    return PasqalLocal(Resource("q", "pasqal-local", {}))


def raising(error: Exception) -> Callable[..., str]:
    def call(*_: str) -> str:
        raise error

    return call


def failed(status: str) -> QrmiError_:
    return QrmiError_(f'Status: {status}, Fail {{"detail": "x"}}')


def test_a_task_gets_the_sequence_and_the_shots(
    client: SimpleNamespace, local: PasqalLocal
) -> None:
    client.task_start = lambda given: f"{given['sequence']}, {given['job_runs']}"
    assert local.submit(TASK) == "a sequence, 7"
    with pytest.raises(InputError, match="sequence: expected text"):
        local.submit(Task("tag", "sequence", "{}", {}))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (failed("429 Too Many Requests"), NotAccepted),
        # perhaps a proxy's: behind it, there may be a task
        (failed("503 Service Unavailable"), QpuError),
        (failed("408 Request Timeout"), QpuError),
        (QrmiError_("munge encode failed: Socket communication error"), NotAccepted),
        (failed("403 Forbidden"), LeaseLost),
        (failed("401 Unauthorized"), AuthenticationError),
        (failed("422 Unprocessable Entity"), InputError),
        (failed("404 Not Found"), InputError),
        (failed("500 Internal Server Error"), QpuError),
        (QrmiError_("error sending request for url (http://q/jobs)"), QpuError),
        (QrmiError_("missing field `id` at line 1 column 2"), QpuError),
    ],
)
def test_after_which_errors_there_may_be_a_task(
    client: SimpleNamespace,
    local: PasqalLocal,
    error: Exception,
    expected: type[Exception],
) -> None:
    client.task_start = raising(error)
    with pytest.raises(expected) as caught:
        local.submit(TASK)
    assert type(caught.value) is expected
    assert str(caught.value).startswith("QPU 'q' (pasqal-local): ")


def test_whom_the_cloud_forbids_has_lost_no_lease(client: SimpleNamespace) -> None:
    client.task_start = raising(failed("403 Forbidden"))
    with pytest.raises(AuthenticationError):
        PasqalCloud(Resource("q", "pasqal-cloud", {})).submit(TASK)


def test_nothing_is_submitted_to_a_qpu_that_is_not_online(
    client: SimpleNamespace, local: PasqalLocal
) -> None:
    client.status = raising(QrmiError_("error sending request for url (http://q)"))
    with pytest.raises(NotAccepted, match="error sending request"):
        local.submit(TASK)
    offline = {**vars(ONLINE), "status": "ResourceStatusCode.Offline"}
    client.status = lambda: SimpleNamespace(**{**offline, "status_reason": "helium"})
    with pytest.raises(NotAccepted, match="is not online: helium"):
        local.submit(TASK)
    client.status = raising(failed("404 Not Found"))
    with pytest.raises(NotAccepted, match="404"):
        local.submit(TASK)
    client.status = raising(failed("401 Unauthorized"))
    with pytest.raises(AuthenticationError):
        local.submit(TASK)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (failed("404 Not Found"), UnknownJob),
        (TaskNotFoundError("gone"), UnknownJob),
        (failed("500 Internal Server Error"), QpuError),
        (failed("429 Too Many Requests"), QpuError),
        (QrmiError_("error sending request for url (http://q/jobs/5)"), QpuError),
        (failed("401 Unauthorized"), AuthenticationError),
    ],
)
def test_errors_of_a_task(
    client: SimpleNamespace,
    local: PasqalLocal,
    error: Exception,
    expected: type[Exception],
) -> None:
    client.task_status = client.task_stop = raising(error)
    for call in (local.poll, local.cancel, lambda task: local.result(task, TASK)):
        with pytest.raises(expected) as caught:
            call("5")
        assert type(caught.value) is expected


def test_a_task_that_is_over_is_cancelled_without_effect(
    client: SimpleNamespace, local: PasqalLocal
) -> None:
    client.task_stop = raising(failed("409 Conflict"))
    local.cancel("5")


def test_how_tasks_end(client: SimpleNamespace, local: PasqalLocal) -> None:
    states = iter(["Queued", "Running", "Cancelled", "Failed", "Failed", "Odd"])
    client.task_status = lambda _: f"TaskStatus.{next(states)}"
    assert local.poll("5") == Progress("Queued")
    with pytest.raises(QpuError, match="task 5 is Running"):
        local.result("5", TASK)
    outcome = local.result("5", TASK)
    assert (outcome.result, outcome.failure) == (None, None)
    client.task_logs = lambda _: "started\nlaser off\n"
    assert local.result("5", TASK).failure == "started laser off"
    client.task_logs = lambda _: ""
    assert local.result("5", TASK).failure == "no reason given"
    with pytest.raises(QpuError, match="unknown state 'Odd'"):
        local.poll("5")


CALIBRATION: dict[str, JSON] = {"id": "c"}
INFO: dict[str, JSON] = {"timing": {"qpu_seconds": 3.5}, "calibration": CALIBRATION}


@pytest.mark.parametrize(
    ("info", "seconds", "calibration"),
    [
        (None, None, None),
        (INFO, 3.5, CALIBRATION),
        ({"timing": 1}, None, None),
        ({"timing": {"qpu_seconds": math.nan}}, None, None),
        ({"timing": {"qpu_seconds": -1}}, None, None),
    ],
)
def test_a_result_has_counts_and_what_the_service_behind_says(
    client: SimpleNamespace,
    local: PasqalLocal,
    info: JSON,
    seconds: float | None,
    calibration: dict[str, JSON] | None,
) -> None:
    answer: dict[str, JSON] = {"counter": {"01": 7}, "info": info}
    client.task_status = lambda _: "TaskStatus.Completed"
    client.task_result = lambda _: SimpleNamespace(value=json.dumps(answer))
    outcome = local.result("5", TASK)
    assert outcome.result is not None
    assert json.loads(outcome.result.text) == {"counter": {"01": 7}}
    assert (outcome.result.info["job"], outcome.result.info["qpu"]) == ("5", "q")
    expected = CalibrationData.read(calibration)
    assert (outcome.qpu_seconds, outcome.calibration) == (seconds, expected)


@pytest.mark.parametrize(
    "answer",
    [
        *("", "<html>", "[]", "{}", '{"counter": {"2": 1}}', '{"counter": [1]}'),
        '{"counter": {"1": -1}}',
        '{"counter": {"1": Infinity}}',
    ],
)
def test_a_malformed_result(
    client: SimpleNamespace, local: PasqalLocal, answer: str
) -> None:
    client.task_status = lambda _: "TaskStatus.Completed"
    client.task_result = lambda _: SimpleNamespace(value=answer)
    with pytest.raises(QpuError, match="no counts of bit strings"):
        local.result("5", TASK)


@pytest.mark.parametrize(
    ("specs", "qubits", "shots"),
    [
        ('{"max_atom_num": 80, "max_runs": 2000}', 80, 2000),
        ('{"max_atom_num": null}', 0, None),
    ],
)
def test_the_specs_describe_the_device(
    client: SimpleNamespace,
    local: PasqalLocal,
    specs: str,
    qubits: int,
    shots: int | None,
) -> None:
    client.target = lambda: SimpleNamespace(value=json.dumps([{"specs": specs}]))
    described = local.describe()
    assert (described.qubits, described.shots) == (qubits, shots)
    assert (described.kinds, described.specs) == (("sequence",), specs)


@pytest.mark.parametrize("specs", ["", "5", "[]"])
def test_malformed_specs(
    client: SimpleNamespace, local: PasqalLocal, specs: str
) -> None:
    client.target = lambda: SimpleNamespace(value=json.dumps([{"specs": specs}]))
    with pytest.raises(QpuError, match="not those of a Pulser device"):
        local.describe()


def test_a_vendor_that_never_answers_is_not_waited_for(
    client: SimpleNamespace, local: PasqalLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qrmi, "REQUEST_SECONDS", 0.01)
    answered, ended = threading.Event(), threading.Barrier(qrmi.MOST_OVERDUE + 1)

    def hangs(_: str) -> str:
        answered.wait()
        ended.wait()
        return "TaskStatus.Running"

    client.task_status = hangs
    for _ in range(qrmi.MOST_OVERDUE):
        with pytest.raises(QpuError, match="no answer within"):
            local.poll("5")
    # these go on in threads, of which there are not more and more
    with pytest.raises(QpuError, match="leaves 16 requests unanswered"):
        local.poll("5")
    answered.set()
    ended.wait()
    client.task_status = lambda _: "TaskStatus.Running"
    monkeypatch.setattr(qrmi, "REQUEST_SECONDS", SECONDS)
    until(lambda: _polled(local), "an answer")


def test_a_lease_that_is_granted_too_late_is_given_back(
    client: SimpleNamespace, local: PasqalLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qrmi, "REQUEST_SECONDS", 0.01)
    granted, released = threading.Event(), Future[str]()

    def acquire() -> str:
        granted.wait()
        return "token"

    client.acquire, client.release = acquire, released.set_result
    with pytest.raises(QpuError, match="no answer within"):
        local.acquire()
    monkeypatch.setattr(qrmi, "REQUEST_SECONDS", SECONDS)
    granted.set()
    assert released.result(SECONDS) == "token"


def test_a_task_that_starts_too_late_is_stopped(
    client: SimpleNamespace, local: PasqalLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, stopped = threading.Event(), Future[str]()

    def start(_: JSON) -> str:
        started.wait()
        return "5"

    client.task_start, client.task_stop = start, stopped.set_result
    monkeypatch.setattr(local, "status", lambda: QpuStatus("q", "neutral-atom", True))
    monkeypatch.setattr(qrmi, "REQUEST_SECONDS", 0.01)
    with pytest.raises(QpuError, match="no answer within") as lost:
        local.submit(TASK)
    assert not isinstance(lost.value, NotAccepted)
    monkeypatch.setattr(qrmi, "REQUEST_SECONDS", SECONDS)
    started.set()
    assert stopped.result(SECONDS) == "5"


def _polled(local: PasqalLocal) -> bool:
    try:
        return local.poll("5") == Progress("Running")
    except QpuError:  # the threads have not all ended
        return False


def test_the_identity_is_where_tasks_are(tmp_path: Path) -> None:
    def identity(file: str, entry: str = "q", **environment: JSON) -> str:
        one: JSON = {"name": entry, "type": "pasqal-local", "environment": environment}
        (tmp_path / file).write_text(json.dumps({"resources": [one]}))
        config: dict[str, JSON] = {"qrmiConfig": str(tmp_path / file)}
        return PasqalLocal.from_config("q", {**config, "resource": entry}).identity

    here = identity("a.json", QRMI_WARDEN_URL="http://a", TOKEN="1")
    assert identity("b.json", QRMI_WARDEN_URL="http://a", TOKEN="2") == here
    assert identity("a.json", QRMI_WARDEN_URL="http://b", TOKEN="1") != here
    assert identity("a.json", "p", QRMI_WARDEN_URL="http://a", TOKEN="1") != here
