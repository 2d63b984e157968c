"""QPUs of the package ``qrmi``.

What is real here: the package from PyPI, and our own service where the type is
``pasqal-local`` (see also tests/service/dialects/warden/test_qrmi_client.py). IQM and IBM's cloud
are played by a small HTTP server whose answers were written from their public APIs; the
other vendors are only asked for what their client does without a machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from sf_quantum import qpu
from sf_quantum.cli import main
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Task
from sf_quantum.qpu import AuthenticationError, NoLease, Qpu
from sf_quantum.qpu.environment import from_environment, job_environment
from sf_quantum.qpu.vendors.qrmi import NO_TIMEOUT, QrmiQpu
from sf_quantum.samplers.neutral_atom import NeutralAtomSampler
from tests.support.folders import DATA

CONFIG = str(DATA / "qrmi_config.json")
NAMES = {
    "alice-bob-felis": "ab_emu_40q",
    "ibm-quantum-compute-service": "ibm_torino",
    "ibm-quantum-system": "test_heron",
    "iqm-server": "garnet",
    "oqtopus": "qulacs",
    "pasqal-cloud": "FRESNEL",
    "pasqal-local": "local_qpu",
}
every_type = pytest.mark.parametrize("type_", NAMES)


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("QRMI_JOB_ID", "QRMI_JOB_UID", "SLURM_JOB_ID"):
        monkeypatch.delenv(key, raising=False)


def configured(type_: str, **config: JSON) -> Qpu:
    return qpu.load(type_).from_config(
        NAMES[type_], {"qrmiConfig": CONFIG, "resource": NAMES[type_], **config}
    )


def written(folder: Path, content: JSON) -> str:
    path = folder / "qrmi_config.json"
    path.write_text(json.dumps(content))
    return str(path)


@every_type
def test_every_type_of_a_sites_file_is_a_qpu(type_: str) -> None:
    made = configured(type_)
    assert isinstance(made, QrmiQpu)
    assert (made.type, made.name) == (type_, NAMES[type_])


def test_the_job_is_told_what_the_spank_plugin_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    made = configured("pasqal-cloud", timeoutSeconds=600)
    assert job_environment([(made, "token")]) == {
        "QRMI_JOB_QPU_RESOURCES": "FRESNEL",
        "QRMI_JOB_QPU_TYPES": "pasqal-cloud",
        "QRMI_JOB_UID": str(os.getuid()),
        "QRMI_JOB_ID": "42",
        "FRESNEL_QRMI_JOB_ACQUISITION_TOKEN": "token",
        "FRESNEL_QRMI_JOB_TIMEOUT_SECONDS": "600",
        "FRESNEL_QRMI_PASQAL_CLOUD_PROJECT_ID": "project",
        "FRESNEL_QRMI_PASQAL_CLOUD_AUTH_TOKEN": "secret",
    }


@every_type
def test_the_job_finds_what_the_driver_told(type_: str) -> None:
    variables = job_environment([(configured(type_), "token")])
    found = from_environment(variables)
    assert isinstance(found, QrmiQpu)
    assert job_environment([(found, "token")]) == variables


@pytest.mark.parametrize("type_", ["alice-bob-felis", "oqtopus"])
def test_those_that_take_no_qubo_say_so(type_: str) -> None:
    with pytest.raises(InputError, match=r"takes circuits, not QUBOs"):
        configured(type_).sampler()


@pytest.mark.parametrize("type_", ["pasqal-local", "pasqal-cloud"])
def test_a_qubo_on_neutral_atoms_becomes_a_sequence(type_: str) -> None:
    assert isinstance(configured(type_).sampler(), NeutralAtomSampler)


LACKING = {
    "ibm-quantum-system": ("qiskit_ibm_runtime", "ibm"),
    "ibm-quantum-compute-service": ("qiskit_ibm_runtime", "ibm"),
    "iqm-server": ("qiskit", "iqm"),
    "pasqal-local": ("pulser", "pulser"),
}


@pytest.mark.parametrize("type_", LACKING)
def test_what_a_qubo_needs_on_its_way_is_told(
    type_: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, extra = LACKING[type_]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name != missing and found(name)
    )
    words = (
        f"the package {missing} is not installed (pip install 'sf-quantum[{extra}]')"
    )
    assert qpu.load(type_).sampler_problem() == words
    # who only leases it can do without
    assert qpu.load(type_).problem() is None
    assert main(["qpus"]) == 0
    (row,) = (
        row
        for row in capsys.readouterr().out.splitlines()
        if row.startswith(f"{type_} ")
    )
    assert row.split(maxsplit=1)[1] == f"no: for leases only, {words}"
    if missing != "pulser":
        with pytest.raises(InputError, match=re.escape(words)):
            configured(type_).sampler()


def test_oqtopus_is_not_usable_without_its_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    kind = qpu.load("oqtopus")
    monkeypatch.delenv("PY_BRIDGE_PATH", raising=False)
    assert "QRMI's liboqtopus_py_bridge.so cannot be loaded" in str(kind.problem())
    # any library that is there
    monkeypatch.setenv("PY_BRIDGE_PATH", "libc.so.6")
    assert kind.problem() is None


def test_no_time_limit_is_slurms_word_for_it() -> None:
    told = configured("iqm-server").environment("token")
    assert told["garnet_QRMI_JOB_TIMEOUT_SECONDS"] == str(NO_TIMEOUT) == "4294967295"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "garnet_QRMI_JOB_ACQUISITION_TOKEN is not set"),
        (
            {
                "garnet_QRMI_JOB_ACQUISITION_TOKEN": "t",
                "garnet_QRMI_JOB_TIMEOUT_SECONDS": "long",
            },
            "garnet_QRMI_JOB_TIMEOUT_SECONDS: expected whole seconds",
        ),
    ],
)
def test_a_lost_variable_is_named(variables: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        qpu.load("iqm-server").from_environment("garnet", variables)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "qrmiConfig: missing"),
        ({"qrmiConfig": 1}, "qrmiConfig: expected text"),
        ({"qrmiConfg": CONFIG}, "did you mean 'qrmiConfig'"),
        ({"qrmiConfig": "/nowhere"}, "/nowhere: cannot be read"),
        ({"qrmiConfig": CONFIG, "resource": "garnt"}, "did you mean 'garnet'"),
        ({"qrmiConfig": CONFIG, "resource": "FRESNEL"}, "of type 'pasqal-cloud', not"),
        ({"qrmiConfig": CONFIG, "timeoutSeconds": 0}, "timeoutSeconds: expected 1"),
        (
            {"qrmiConfig": CONFIG, "resource": "of a machine to come"},
            "use letters, digits and underscores only",
        ),
    ],
)
def test_a_wrong_configuration_is_one_line(config: dict[str, JSON], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        qpu.load("iqm-server").from_config("garnet", config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "resources: expected a list"),
        ({"resources": [1]}, r"resources\[0\]: expected an object"),
        ({"resources": [{"type": "iqm-server"}]}, r"resources\[0\]\.name"),
        ({"resources": [{"name": "garnet"}]}, r"resources\[0\]\.type"),
        (
            {"resources": [{"name": "garnet", "type": "x", "environment": []}]},
            r"resources\[0\]\.environment: expected an object",
        ),
        (
            {"resources": [{"name": "garnet", "type": "x", "environment": {"K": 7}}]},
            r"environment\.K: expected text$",
        ),
        (
            {
                "resources": [
                    {"name": "garnet", "type": "x", "environment": {"a b": ""}}
                ]
            },
            "'a b': use letters",
        ),
    ],
)
def test_a_wrong_file_names_the_place(
    tmp_path: Path, content: JSON, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        qpu.load("iqm-server").from_config(
            "garnet", {"qrmiConfig": written(tmp_path, content)}
        )


def test_credentials_are_not_shown() -> None:
    made = configured("pasqal-cloud")
    assert "secret" not in repr(vars(made))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qrmi", None)
    with pytest.raises(InputError, match=r"not installed .*sf-quantum\[qrmi\]"):
        configured("iqm-server").acquire()


class Recorded:
    """Answers of a vendor's API, and what it was asked."""

    def __init__(self, answers: dict[str, JSON]) -> None:
        self.asked: list[str] = []
        recorded = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                question = f"{self.command} {self.path.partition('?')[0]}"
                recorded.asked.append(question)
                known = question in answers
                told = answers.get(question, {"detail": "Not Found"})
                content = b"" if told is None else json.dumps(told).encode()
                self.send_response((200 if content else 204) if known else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def log_message(self, *_: str) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[str], tuple[Recorded, Qpu]]]:
    """Starts a server with a vendor's answers, and makes the QPU that asks it."""
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    answers = json.loads((DATA / "qrmi_answers.json").read_text())
    servers = []

    def start(type_: str) -> tuple[Recorded, Qpu]:
        made = Recorded(answers.get(type_, {}))
        thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((made.server, thread))
        text = Path(CONFIG).read_text().replace("http://127.0.0.1:9", made.url)
        path = written(tmp_path, json.loads(text))
        config: dict[str, JSON] = {"qrmiConfig": path}
        return made, qpu.load(type_).from_config(NAMES[type_], config)

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


Start = Callable[[str], tuple[Recorded, Qpu]]


def test_iqm_as_recorded(recorded: Start) -> None:
    server, garnet = recorded("iqm-server")
    status = garnet.status()
    assert (status.online, status.reason, status.queue_length) == (True, "", 3)
    assert server.asked == ["GET /api/v1/quantum-computers/garnet"]
    garnet.release(garnet.acquire("job"))


def test_ibms_cloud_as_recorded(recorded: Start) -> None:
    server, torino = recorded("ibm-quantum-compute-service")
    status = torino.status()
    assert (status.online, status.technology) == (True, "superconducting")
    token = torino.acquire("job")
    assert token == "cz0session"
    torino.release(token)
    assert server.asked[-1] == "PATCH /sessions/cz0session"
    # gone already, which is as good
    torino.release("another")


def test_alice_and_bobs_without_a_machine(recorded: Start) -> None:
    _, felis = recorded("alice-bob-felis")
    felis.release(felis.acquire("job"))


def test_what_is_not_there_cannot_be_cured(recorded: Start) -> None:
    _, heron = recorded("ibm-quantum-system")
    with pytest.raises(InputError, match="authentication failed") as caught:
        heron.status()
    assert "\n" not in str(caught.value)


def test_a_qpu_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    with pytest.raises(QpuError, match=r"QPU 'garnet' \(iqm-server\): "):
        configured("iqm-server").status()


def test_oqtopus_says_what_it_lacks() -> None:
    pytest.importorskip("qrmi", reason="the package qrmi is not installed")
    with pytest.raises(QpuError, match=r"liboqtopus_py_bridge\.so|libpython"):
        configured("oqtopus").status()


class _Error(RuntimeError):
    """The base of the package's errors."""


class AuthenticationFailedError(_Error):
    """One of the package's errors, by its name."""


class TaskNotFoundError(_Error):
    """Another one."""


def fake(monkeypatch: pytest.MonkeyPatch, **methods: object) -> list[dict[str, str]]:
    """Put a module in the package's place; returns the settings it is given."""
    given: list[dict[str, str]] = []

    def from_config(_: str, kind: str, settings: dict[str, str]) -> SimpleNamespace:
        assert kind == "the type"
        given.append(settings)
        return SimpleNamespace(**methods)

    module = ModuleType("qrmi")
    types = dict.fromkeys(("IQMServer", "PasqalCloud"), "the type")
    vars(module)["ResourceType"] = SimpleNamespace(**types)
    vars(module)["QuantumResource"] = SimpleNamespace(from_config=from_config)
    monkeypatch.setitem(sys.modules, "qrmi", module)
    return given


def raising(error: Exception) -> Callable[[str], str]:
    def method(_: str = "") -> str:
        raise error

    return method


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_Error("Status: 409 Conflict, Fail {}"), NoLease),
        (_Error("Status: 403 Forbidden, Fail {}"), InputError),
        (_Error("Status: 429 Too Many Requests"), QpuError),
        (_Error("Status: 503 Service Unavailable"), QpuError),
        (_Error("connection\nrefused"), QpuError),
        (AuthenticationFailedError("authentication failed: x"), AuthenticationError),
    ],
)
def test_errors_say_whether_trying_again_helps(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    fake(monkeypatch, acquire=raising(error))
    with pytest.raises(expected) as caught:
        configured("iqm-server").acquire()
    assert type(caught.value) is expected
    assert str(caught.value).startswith("QPU 'garnet' (iqm-server): ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error", [TaskNotFoundError("gone"), _Error("response body: 404 Not Found {}")]
)
def test_what_is_gone_is_released(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fake(monkeypatch, release=raising(error))
    configured("iqm-server").release("token")


def test_a_result_is_read_up_to_the_largest_of_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = json.dumps({"counter": {"00": 3}})
    done = SimpleNamespace(value=text + " " * 2**26)
    fake(monkeypatch, task_status=lambda _: "Completed", task_result=lambda _: done)
    task = Task("0", "sequence", "{}", {"num_reads": 3})
    with pytest.raises(QpuError, match=r"the result has more than [\d,]+ bytes$"):
        configured("pasqal-cloud").result("1", task)
    done.value = text
    result = configured("pasqal-cloud").result("1", task).result
    assert result is not None
    assert json.loads(result.text) == json.loads(text)


def test_a_full_status(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(
        status="ResourceStatusCode.Paused",
        status_reason="calibration",
        busy=None,
        capacity=SimpleNamespace(max_slots=4, available_slots=1),
        pending_job_count=5,
    )
    given = fake(monkeypatch, status=lambda: told)
    status = configured("iqm-server").status()
    assert (status.online, status.reason) == (False, "calibration")
    assert (status.vqpus, status.leases, status.queue_length) == (4, 3, 5)
    (settings,) = given
    assert settings["QRMI_IQM_ISA_TOKEN"] == "secret"
    assert "QRMI_JOB_ACQUISITION_TOKEN" not in settings
    # the variables of the process are everybody's
    assert "garnet_QRMI_IQM_ISA_TOKEN" not in os.environ
