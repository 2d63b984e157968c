"""slurmrestd without Slurm: tokens, and what answers of Slurm 22.05 mean."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)
from streamflow.deployment.connector.local import LocalConnector

from sf_quantum import structs
from sf_quantum.checking import check_file
from sf_quantum.connectors import guardian
from sf_quantum.connectors.slurm.connector import SlurmConnector
from sf_quantum.connectors.slurm.sbatch_options import JobOptions
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport import rest, slurmrestd
from sf_quantum.connectors.slurm.transport.controller import (
    Submission,
    SubmissionFailed,
)
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.rest import Rest
from sf_quantum.connectors.slurm.transport.rest_job import RestJob
from sf_quantum.connectors.slurm.transport.slurmrestd import (
    RestError,
    Settings,
    Slurmrestd,
    Token,
)
from sf_quantum.files import JSON, mapping
from tests.support.changed_json import changed

Answer = tuple[int, JSON]
UNSPECIFIED: Answer = (
    500,
    {"errors": [{"error_number": -1, "error": "Unspecified error"}], "jobs": []},
)
NO_JOB: Answer = (
    500,
    {"errors": [{"error_number": 2017, "error": "Invalid job id specified"}]},
)
POLICY: Answer = (
    500,
    {"errors": [{"error_code": 2050, "error": "Job violates accounting/QOS policy"}]},
)


def jwt(lasts: float, issued: float = 0.0) -> str:
    now = time.time()
    body: dict[str, JSON] = {"exp": now + lasts, "iat": now + issued, "sun": "ann"}
    return f"head.{base64.urlsafe_b64encode(json.dumps(body).encode()).decode()}.sign"


class Daemon:
    """Answers what a test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str]] = []
        self.tokens: list[tuple[str, str]] = []
        self.bodies: list[JSON] = []
        #: of the API
        self.version = "v0.0.38"
        #: instead of JSON
        self.text = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                headers = self.headers
                sent = self.rfile.read(int(headers["Content-Length"] or 0))
                if outer.version not in self.path:
                    self._send(404, b"no such path")
                    return
                outer.bodies.append(json.loads(sent or b"null"))
                path = self.path.replace(f"/{outer.version}", "")
                outer.asked.append((self.command, path))
                names = ("X-SLURM-USER-NAME", "X-SLURM-USER-TOKEN")
                outer.tokens.append((headers[names[0]], headers[names[1]]))
                status, content = outer.answers.get(path, (200, {"errors": []}))
                self._send(status, (outer.text or json.dumps(content)).encode())

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    yield made
    made.close()


@pytest.fixture
def settings(daemon: Daemon, tmp_path: Path) -> Settings:
    file = tmp_path / "token"
    file.write_text(f"SLURM_JWT={jwt(60)}\n")
    return Settings(url=daemon.url, token_file=str(file))


@pytest.fixture
def client(settings: Settings) -> Slurmrestd:
    return Slurmrestd(settings)


def failed(call: Callable[[], object]) -> RestError:
    with pytest.raises(RestError) as error:
        call()
    return error.value


@pytest.mark.process
def test_a_command_is_run_again_when_its_token_is_old(tmp_path: Path) -> None:
    file, runs = tmp_path / "token", tmp_path / "runs"
    token = Token(None, f"echo >>{runs}; cat {file}")
    file.write_text(jwt(3600))
    first = token.get()
    assert token.get() == first
    assert runs.read_text() == "\n"
    assert token.refused("another") == ""
    assert token.get() == first
    assert token.refused(first) == ""
    file.write_text(jwt(9, issued=-51))
    assert token.get() != first
    # with a sixth of its life left
    token.get()
    assert runs.read_text() == "\n" * 3


@pytest.mark.process
def test_a_short_token_is_used_for_most_of_its_life(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    token = Token(None, f"echo >>{runs}; echo {jwt(6, issued=-2)}")
    token.get()
    token.get()
    assert runs.read_text() == "\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("echo no login >&2; exit 3", "failed with exit code 3: no login"),
        ("exit 3", "failed with exit code 3: it printed no error"),
        ("true", "has no token: expected one line, the token"),
        ("echo secret secret", "has no token: expected one line, the token"),
        ("sleep 9", "took over 0.1 s"),
    ],
)
def test_a_command_without_a_token(
    command: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        slurmrestd, "COMMAND_SECONDS", 0.1 if "sleep" in command else 30
    )
    error = failed(Token(None, command).get)
    source = f"there is no token for slurmrestd: command {command!r}"
    assert str(error) == f"{source} {what}"
    assert error.temporary


def test_an_expired_token_is_told_of(client: Slurmrestd, daemon: Daemon) -> None:
    daemon.answers["/slurm/jobs"] = UNSPECIFIED
    error = failed(client.jobs)
    assert (str(error), error.temporary) == ("Unspecified error", True)
    file = Path(client.token.source.removeprefix("file "))
    file.write_text(jwt(-1))
    error = failed(client.jobs)
    text = f"the token of file {file} has expired (Unspecified error)"
    assert (str(error), error.temporary) == (text, True)
    daemon.answers["/slurm/jobs"] = 401, None
    text = f"slurmrestd refuses access: the token of file {file} has expired"
    assert str(failed(client.jobs)) == text
    # Slurm takes the name in the token
    assert {name for name, _ in daemon.tokens} == {"ann"}


def test_what_is_temporary(client: Slurmrestd, daemon: Daemon) -> None:
    def submission(status: int, content: JSON) -> tuple[str, bool]:
        daemon.answers["/slurm/job/submit"] = status, content
        error = failed(lambda: client.submit("", {}))
        return str(error), error.temporary

    def told(number: int, text: str) -> JSON:
        return {"errors": [{"error_code": number, "error": text}]}

    zero = "Zero Bytes were transmitted or received"
    assert submission(500, told(5005, zero)) == (zero, True)
    invalid = "Invalid partition name specified"
    assert submission(500, told(2000, invalid)) == (invalid, False)
    key: JSON = {"errors": [{"description": 'Unknown key "x"'}, {"error_code": -1}]}
    assert submission(400, key) == ('Unknown key "x"', False)
    daemon.text = "no JSON"
    path = "/slurm/v0.0.38/job/submit"
    for status, temporary in ((502, True), (404, False)):
        text = f"slurmrestd returned HTTP status {status} for {path}"
        assert submission(status, None) == (text, temporary)
    daemon.text = ""
    assert submission(200, {"errors": []}) == ("slurmrestd returned no job id", True)


def test_jobs_are_listed_or_asked_for_singly(
    client: Slurmrestd, daemon: Daemon
) -> None:
    jobs: list[JSON] = [{"job_id": n, "job_state": "PENDING"} for n in range(1, 16)]
    daemon.answers["/slurm/jobs"] = 200, {"jobs": jobs}
    daemon.answers["/slurm/job/1"] = 200, {"jobs": jobs[:1]}
    daemon.answers["/slurm/job/99"] = NO_JOB
    first = [structs.read(RestJob, jobs[0])]
    assert client.some(["1"]) == first
    assert client.some(["1", "99"]) == first
    # of 15 jobs, two
    assert client.some(["1", "99"]) == first
    paths = [path.removeprefix("/slurm/") for _, path in daemon.asked]
    assert [paths[0], paths[1], *sorted(paths[2:])] == [
        *("job/1", "jobs"),
        *("job/1", "job/99"),
    ]


async def test_check_and_run_read_one_token_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("no token")
    key: dict[str, JSON] = {"url": "http://127.0.0.1:1", "tokenFile": "./token"}
    file = tmp_path / "sf.yml"
    config: JSON = {"services": {"s": {"partition": "p"}}, "slurmrestd": key}
    target: JSON = {"target": {"deployment": "hpc"}, "step": "/"}
    workflow: JSON = {
        "type": "cwl",
        "config": {"file": "none.cwl"},
        "bindings": [target],
    }
    content: JSON = {
        "version": "v1.0",
        "workflows": {"main": workflow},
        "deployments": {"hpc": {"type": "sfq.slurm", "config": config}},
    }
    file.write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    found = check_file("sf.yml").silent["hpc"]
    # StreamFlow passes the file, not its folder, where `lazy` is false
    for place in (tmp_path, file):
        local = LocalConnector("local", str(tmp_path))
        run = SlurmConnector("hpc", str(place), local, None, slurmrestd=key)
        with pytest.raises(WorkflowDefinitionException) as error:
            await run.deploy(False)
        _, _, why = str(error.value).partition("slurmrestd: ")
        assert f"file {tmp_path / 'token'} has no token" in why
        assert found == f"could not be asked ({why})"


@pytest.mark.parametrize("name", [None, "t", "/f/t"])
def test_settings_have_an_absolute_token_file(name: str | None) -> None:
    config: dict[str, JSON] = {"url": "unix:/s", "tokenFile": name, "user": "u"}
    read = Settings.read({**config, "tokenCommand": "c"}, Path("/f"))
    assert read.token_file == (name and "/f/t")
    assert (read.url, read.token_command, read.user) == ("unix:/s", "c", "u")


def test_a_sweep_goes_on_until_no_job_is_left(
    settings: Settings, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurmrestd, "SWEEP_PAUSE_SECONDS", 0.01)
    jobs: list[JSON] = [
        {"job_id": 1, "comment": "sfq:run:a mine", "job_state": "PENDING"},
        {"job_id": 2, "comment": "sfq:run:b", "job_state": "COMPLETED"},
        {"job_id": 3, "comment": "sfq:other:c", "job_state": "RUNNING"},
    ]
    daemon.answers["/slurm/jobs"] = 200, {"jobs": jobs}
    slurmrestd.sweep(replace(settings, user="bob"), "sfq:run:", 0.05)
    assert {path for method, path in daemon.asked if method == "DELETE"} == {
        "/slurm/job/1"
    }
    assert daemon.tokens[0][0] == "bob"
    daemon.answers["/slurm/jobs"] = 200, {"jobs": jobs[1:]}
    daemon.asked.clear()
    slurmrestd.sweep(settings, "sfq:run:", 60)
    assert len(daemon.asked) == slurmrestd.SWEEPS


@pytest.fixture
async def controller(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Rest:
    class Guardian:
        def cancel_jobs(self, *_: object) -> None:
            pass

    monkeypatch.setattr(guardian, "current", Guardian)
    connector = LocalConnector("host", str(tmp_path))
    (found,) = (await connector.get_available_locations()).values()
    login = LoginNode(connector, found.location, str(tmp_path / "spool"), "run")
    return Rest(settings, login)


async def test_the_record_of_a_job(controller: Rest, daemon: Daemon) -> None:
    job: JSON = {
        "job_id": 7,
        "job_state": "FAILED",
        "state_reason": "NonZeroExitCode",
        "exit_code": 768,
        "start_time": 100,
        "end_time": 101,
        "restart_cnt": 1,
        "node_count": 1,
        "nodes": "c1",
        "comment": "sfq:run:key",
    }
    daemon.answers["/slurm/job/7"] = 200, {"jobs": [job]}
    found = await controller.records("7")
    assert found is not None
    (outcome,) = found
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("FAILED", 3, 0)
    assert (outcome.started, outcome.ended, outcome.restarts) == (100, 101, 1)
    assert outcome.comment == "sfq:run:key"
    daemon.answers["/slurm/job/7"] = NO_JOB
    assert await controller.records("7") == []
    assert await controller.rows({"7"}) == {"7": []}
    daemon.answers["/slurm/job/7"] = UNSPECIFIED
    assert await controller.records("7") is None


LATER = [one for one in slurmrestd.VERSIONS if one != "v0.0.38"]


@pytest.mark.parametrize("version", LATER)
async def test_the_record_of_a_job_in_later_versions(
    controller: Rest, daemon: Daemon, version: str
) -> None:
    def number(value: int | None) -> JSON:
        return {"set": value is not None, "infinite": False, "number": value or 0}

    # as slurmrestd of Slurm 24.11 says it
    job: dict[str, JSON] = {
        "job_id": 7,
        "job_state": ["FAILED"],
        "state_reason": "NonZeroExitCode",
        "exit_code": {
            "status": ["ERROR"],
            "return_code": number(3),
            "signal": {"id": number(None), "name": ""},
        },
        "start_time": number(100),
        "end_time": number(101),
        "restart_cnt": 1,
        "node_count": number(1),
        "nodes": "c1",
        "comment": "sfq:run:key",
    }
    daemon.version = version
    daemon.answers["/slurm/job/7"] = 200, {"jobs": [job], "errors": []}
    (outcome,) = await controller.records("7") or []
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("FAILED", 3, 0)
    assert (outcome.started, outcome.ended, outcome.restarts) == (100, 101, 1)
    signalled: JSON = {"return_code": number(None), "signal": {"id": number(9)}}
    job |= {"job_state": ["CANCELLED", "COMPLETING"], "exit_code": signalled}
    ((row,),) = (await controller.rows({"7"})).values()
    assert (row.state, row.status, row.nodes) == ("COMPLETING", 9, 1)
    daemon.answers["/slurm/job/7"] = 404, NO_JOB[1]
    assert await controller.records("7") == []
    ended: JSON = {
        "job_id": 7,
        "state": {"current": ["FAILED"], "reason": "None"},
        "exit_code": signalled,
        "time": {"start": 100, "end": 101},
    }
    daemon.answers["/slurmdb/job/7"] = 200, {"jobs": [ended]}
    (outcome,) = await controller.accounted("7")
    assert (outcome.state, outcome.signal, outcome.ended) == ("FAILED", 9, 101)


def _unset(number: int | None) -> JSON:
    return {"set": number is not None, "infinite": False, "number": number or 0}


_OLD_JOB: JSON = {
    "job_id": 7,
    "job_state": "CANCELLED",
    "state_reason": "None",
    "exit_code": 9,
    "start_time": 100,
    "end_time": 101,
    "restart_cnt": 1,
    "node_count": 1,
    "nodes": "c1",
    "comment": None,
    "user_name": "ann",
}
_NEW_JOB: JSON = {
    "job_id": 7,
    "job_state": ["CANCELLED", "COMPLETING"],
    "exit_code": {"return_code": _unset(None), "signal": {"id": _unset(9)}},
    "start_time": _unset(100),
    "node_count": _unset(1),
}
_OLD_PARTITION: JSON = {"name": "a", "total_nodes": 3, "nodes": "c[1-3]"}
_ACCOUNTED: JSON = {
    "job_id": 7,
    "state": {"current": ["FAILED"], "reason": "None"},
    "exit_code": {"return_code": 3, "signal": {"signal_id": 0}},
    "time": {"start": 100, "end": 101},
}
_ERROR: JSON = {"error_number": 1, "error": "Unspecified error", "description": ""}
_JOBS: JSON = {"jobs": [_OLD_JOB, _NEW_JOB], "errors": []}
_PARTITIONS: JSON = {
    "partitions": [_OLD_PARTITION, {"name": "b", "nodes": {"total": 1}}]
}
_REQUESTS: dict[str, tuple[Callable[[Slurmrestd], object], JSON]] = {
    "/slurm/jobs": (Slurmrestd.jobs, _JOBS),
    "/slurm/job/7": (lambda client: client.job("7"), _JOBS),
    "/slurm/partitions": (Slurmrestd.partitions, _PARTITIONS),
    "/slurmdb/job/7": (lambda client: client.accounted("7"), {"jobs": [_ACCOUNTED]}),
    "/slurm/job/submit": (
        lambda client: client.submit("", {}),
        {"job_id": 0, "errors": [_ERROR]},
    ),
}


@hypothesis.settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    path=st.sampled_from([*_REQUESTS]),
    status=st.sampled_from((200, 500)),
    data=st.data(),
)
def test_any_answer_is_read_or_refused_in_one_line(
    client: Slurmrestd, daemon: Daemon, path: str, status: int, data: st.DataObject
) -> None:
    request, answer = _REQUESTS[path]
    daemon.answers[path] = status, data.draw(changed(answer))
    message = ""
    try:
        request(client)
    except RestError as error:
        message = str(error)
    assert message.isprintable()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job_id": None}, "jobs[0].job_id: missing"),
        ({"job_id": "7"}, 'jobs[0].job_id: expected a job id, not "7"'),
        ({"job_state": None}, "jobs[0].job_state: missing"),
        (
            {"job_state": []},
            "jobs[0].job_state: expected a state or a list of its words, not a list",
        ),
        (
            {"end_time": {"number": 5}},
            "jobs[0].end_time.set: missing",
        ),
        (
            {"exit_code": {"return_code": "0"}},
            'jobs[0].exit_code.return_code: expected a whole number, not "0"',
        ),
    ],
)
def test_a_job_with_a_wrong_field_is_refused(
    client: Slurmrestd, daemon: Daemon, change: dict[str, JSON], message: str
) -> None:
    job = {**mapping(_OLD_JOB), **change}
    daemon.answers["/slurm/jobs"] = 200, {"jobs": [job]}
    error = failed(client.jobs)
    start = "slurmrestd's answer to /slurm/v0.0.38/jobs cannot be read: "
    assert (str(error), error.temporary) == (start + message, True)


async def test_a_completed_job_without_exit_code_is_no_success(
    controller: Rest, daemon: Daemon
) -> None:
    job: dict[str, JSON] = {"job_id": 7, "job_state": "COMPLETED"}
    daemon.answers["/slurm/job/7"] = 200, {"jobs": [job]}
    assert await controller.records("7") == []
    ended: JSON = {"job_id": 7, "state": {"current": "COMPLETED"}}
    daemon.answers["/slurmdb/job/7"] = 200, {"jobs": [ended]}
    assert await controller.accounted("7") == []


OPTIONS: dict[str, JSON] = {
    "partition": "a",
    "time": "1:00:01",
    "timeMin": "5",
    "mem": "1G",
    "nodes": "1-2",
    "ntasks": "3",
    "gres": "gpu:a100:2,gres:fast",
    "gpusPerNode": "1",
    "gpus": "4",
    "priority": "7",
    "nodelist": "c[1-2]",
    "signal": "B:USR1@30",
    "mailType": "end,fail",
    "getUserEnv": True,
}


def _set(number: int) -> JSON:
    return {"set": True, "infinite": False, "number": number}


async def test_later_versions_take_numbers_and_lists(
    controller: Rest, daemon: Daemon
) -> None:
    daemon.version = "v0.0.42"
    daemon.answers["/slurm/job/submit"] = 200, {"job_id": 7, "errors": []}
    options = JobOptions({"chdir": "/work"}, SlurmService(**OPTIONS), {})  # type: ignore[arg-type]
    submission = Submission("key", "#!/bin/sh", "sfq:run:key", "", options, None)
    assert await controller.submit(submission) == "7"
    (sent,) = daemon.bodies
    assert isinstance(sent, dict)
    assert sent["job"] == {
        "environment": ["SLURM_GET_USER_ENV=1"],
        "current_working_directory": "/work",
        "partition": "a",
        "time_limit": _set(61),
        "time_minimum": _set(5),
        "memory_per_node": "1G",
        "minimum_nodes": 1,
        "maximum_nodes": 2,
        "tasks": 3,
        "tres_per_node": "gres/gpu:a100:2,gres/fast,gres/gpu:1",
        "tres_per_job": "gres/gpu:4",
        "priority": _set(7),
        "required_nodes": ["c[1-2]"],
        "kill_warning_signal": "USR1",
        "kill_warning_delay": _set(30),
        "kill_warning_flags": ["BATCH_JOB"],
        "mail_type": ["END", "FAIL"],
        "comment": "sfq:run:key",
    }


async def test_the_oldest_version_gets_what_it_reads_as_meant(
    controller: Rest, daemon: Daemon
) -> None:
    """Slurm 22.05 ignores ``requeue: false``, and reads ``1-2`` nodes as 2."""
    daemon.answers["/slurm/job/submit"] = 200, {"job_id": 7, "errors": []}

    def submission(key: str, **options: JSON) -> Submission:
        service = SlurmService(**options)  # type: ignore[arg-type]
        of_job = JobOptions({}, service, {})
        return Submission(key, "#!/bin/sh", f"sfq:run:{key}", "", of_job, None)

    meant: dict[str, JSON] = {"noRequeue": True, "nodes": "2-2", "ntasksPerNode": 3}
    await controller.submit(submission("one", **meant))
    sent = mapping(mapping(daemon.bodies[-1])["job"])
    assert (sent["no_requeue"], sent["nodes"], sent["tasks"]) == (True, "2-2", "6")
    assert "requeue" not in sent
    with pytest.raises(SubmissionFailed, match=r"nodes: .* reads 1-2 as 2; write one"):
        await controller.submit(submission("two", nodes="1-2"))


async def test_a_job_that_lacks_an_option_is_cancelled(
    controller: Rest, daemon: Daemon
) -> None:
    daemon.version = "v0.0.42"
    error: JSON = {"description": 'Unknown flag "NEVER"', "error_number": 9207}
    daemon.answers["/slurm/job/submit"] = 500, {"job_id": 7, "errors": [error]}
    service = SlurmService(partition="a", mailType="never")
    options = JobOptions({}, service, {})
    submission = Submission("key", "#!/bin/sh", "sfq:run:key", "", options, None)
    with pytest.raises(SubmissionFailed, match='Unknown flag "NEVER"') as failed:
        await controller.submit(submission)
    assert not failed.value.temporary
    assert daemon.asked[-1] == ("DELETE", "/slurm/job/7")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"time": "soon"}, "time_limit: expected a time limit of sbatch, not 'soon'"),
        ({"ntasks": "two"}, "tasks: expected a whole number, not 'two'"),
    ],
)
async def test_what_later_versions_cannot_read_is_refused(
    controller: Rest, daemon: Daemon, option: dict[str, str], message: str
) -> None:
    daemon.version = "v0.0.42"
    options = JobOptions({}, SlurmService(**option), {})  # type: ignore[arg-type]
    submission = Submission("key", "#!/bin/sh", "sfq:run:key", "", options, None)
    with pytest.raises(SubmissionFailed, match=message) as failed:
        await controller.submit(submission)
    assert not failed.value.temporary
    assert daemon.asked == []


async def test_the_accounting_is_asked_last(controller: Rest, daemon: Daemon) -> None:
    code: JSON = {"status": "SIGNALED", "signal": {"signal_id": 10}}
    ended: JSON = {
        "job_id": 7,
        "state": {"current": "FAILED", "reason": "None"},
        "exit_code": code,
        "time": {"start": 100, "end": 101},
    }
    running: JSON = {"job_id": 7, "state": {"current": "RUNNING"}}
    daemon.answers["/slurmdb/job/7"] = 200, {"jobs": [running, ended]}
    (outcome,) = await controller.accounted("7")
    assert (outcome.state, outcome.signal, outcome.ended) == ("FAILED", 10, 101)
    daemon.answers["/slurmdb/job/7"] = 500, {"errors": [{"error_number": 1000}]}
    assert await controller.accounted("7") == []
    daemon.answers["/slurmdb/job/7"] = 401, None
    with pytest.raises(WorkflowExecutionException, match="refuses access"):
        await controller.accounted("7")


@pytest.mark.parametrize(
    "answer",
    [
        (503, {"message": "Service Unavailable"}),
        (504, []),
        (200, {"message": "try again"}),
        (200, {}),
    ],
)
async def test_the_answer_of_a_gateway_tells_nothing_of_jobs(
    controller: Rest, daemon: Daemon, answer: Answer
) -> None:
    paths = ("jobs", "job/7", "job/8")
    daemon.answers |= {f"/slurm/{path}": answer for path in paths}
    assert await controller.records("7") is None
    assert await controller.rows({"7"}) == {}
    assert await controller.rows({"7", "8"}) == {}
    assert not await controller.sweep("key")
    daemon.answers["/slurmdb/job/7"] = answer
    with pytest.raises(
        WorkflowExecutionException,
        match=r"slurmrestd('s answer to .* jobs: missing| returned)",
    ):
        await controller.accounted("7")


def test_what_cannot_be_passed_on() -> None:
    good: dict[str, JSON] = {"partition": "a", "requeue": True, "exclusive": False}
    assert [*rest.unsupported(good)] == []
    ((key, what, right),) = rest.unsupported({**good, "exclusive": True})
    assert (key, what) == ("exclusive", "slurmrestd does not accept this option")
    assert right.startswith("it accepts account, begin, comment, ")


@pytest.mark.process
async def test_a_limit_passes_only_if_the_user_has_other_jobs(
    controller: Rest, daemon: Daemon
) -> None:
    options = JobOptions({"chdir": "/work"}, SlurmService(partition="a"), {})
    submission = Submission("key", "#!/bin/sh", "sfq:run:key", "", options, None)
    daemon.answers["/slurm/job/submit"] = POLICY
    job: dict[str, JSON] = {"job_id": 8, "user_name": "ann", "job_state": "RUNNING"}
    for state, temporary in (("RUNNING", True), ("COMPLETED", False)):
        jobs: list[JSON] = [{**job, "job_state": state}]
        daemon.answers["/slurm/jobs"] = 200, {"jobs": jobs}
        with pytest.raises(SubmissionFailed, match="QOS policy") as error:
            await controller.submit(submission)
        assert error.value.temporary is temporary
    # it may have arrived, and be late in the queue
    jobs = [{"job_id": 9, "comment": "sfq:run:key mine", "job_state": "PENDING"}]
    daemon.answers["/slurm/jobs"] = 200, {"jobs": jobs}
    assert await controller.submit(submission) == "9"
