"""The filter and its targets: what is quantum, QPUs that answer late or never."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamflow.core.deployment import DeploymentConfig, Target
from streamflow.core.exception import (
    UnrecoverableWorkflowException,
    WorkflowDefinitionException,
    WorkflowExecutionException,
)
from streamflow.core.scheduling import AvailableLocation
from streamflow.core.workflow import Job, Token
from streamflow.deployment.connector.local import LocalConnector
from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.candidates.attempts import Attempt, Attempts, expected_wait
from sf_quantum.candidates.decision import (
    Decision,
    Exclusion,
    FilterRules,
    Obstacle,
    StepRules,
)
from sf_quantum.candidates.filter import CandidateFilter
from sf_quantum.candidates.history import JobTimes
from sf_quantum.candidates.remarks import Remarks
from sf_quantum.candidates.targets import (
    FULL,
    MAX_REQUESTS,
    StatusPoller,
    StatusReply,
    _has_thread,
    _Queries,
    _Query,
    capacities,
    status_source,
    together,
)
from sf_quantum.checking.schema import rules
from sf_quantum.connectors import hints
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.tracebacks import OneLineException, TracebackFilter
from sf_quantum.files import JSON
from sf_quantum.journal import Journal, scheduler
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu import JobSize, QpuStatus
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.http.tokens import Tokens, new_token, token_entry
from tests.support.service import running_service
from tests.support.waiting import SECONDS


@pytest.fixture(autouse=True)
def _plugins() -> None:
    rules()  # loads them, as StreamFlow does


def target(name: str, type_: str, service: str | None = None, **config: JSON) -> Target:
    return Target(DeploymentConfig(name, type_, config), service=service)


def job(number: int = 0, **inputs: JSON) -> Job:
    tokens = {name: Token(value) for name, value in inputs.items()}
    return Job(f"/loop/solve/0.{number}", 1, tokens, None, None, None)


@pytest.fixture
def silent() -> Iterator[list[str]]:
    """URLs of nine services that take a connection and say nothing."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(9)
        ]
        yield [f"http://127.0.0.1:{s.getsockname()[1]}" for s in servers]


def test_the_schema_has_the_keys_of_the_constructor() -> None:
    schema = json.loads(CandidateFilter.get_schema())
    parameters = dict(inspect.signature(CandidateFilter.__init__).parameters)
    given = {n: p for n, p in parameters.items() if n not in ("self", "name")}
    assert schema["properties"].keys() == given.keys()
    for name, parameter in given.items():
        told = schema["properties"][name]
        told = schema["$defs"][name] if "$ref" in told and name != "budget" else told
        assert told.get("default") == parameter.default, name
    steps = schema["$defs"]["step"]["properties"].keys()
    assert steps == given.keys() - {"costs", "cooldown", "timeout", "steps"}


def test_what_a_quantum_target_is(tmp_path: Path) -> None:
    def is_quantum(asked: Target) -> bool:
        return status_source(asked, tmp_path) is not None

    services: JSON = {
        "gpu": {"partition": "g"},
        "qc": {"qpu": ["fresnel"]},
        "gres": {"gres": "qpu:1"},
    }
    assert is_quantum(target("q", "sfq.emulator"))
    assert is_quantum(target("q", "sfq.rest", url="http://127.0.0.1:1"))
    assert not is_quantum(target("c", "local"))
    assert not is_quantum(target("c", "sfq.nodes", names=["a"]))
    assert not is_quantum(target("hpc", "sfq.slurm", services=services))
    assert not is_quantum(target("hpc", "sfq.slurm", "gpu", services=services))
    # its QPU has no name to ask it by
    assert not is_quantum(target("hpc", "sfq.slurm", "gres", services=services))
    assert is_quantum(target("hpc", "sfq.slurm", "qc", services=services))


async def test_a_service_without_a_file_uses_the_environments_qpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services: JSON = {"qc": {"qpu": ["fresnel"]}}
    source = status_source(target("hpc", "sfq.slurm", "qc", services=services), Path())
    assert source is not None
    asked = await StatusPoller(0).poll({"hpc/qc": source}, 5)
    reply = asked["hpc/qc"]
    assert isinstance(reply, Exclusion)
    assert reply.cause is Obstacle.UNREACHABLE
    assert "QPU fresnel: fresnel_SFQ_URL is not set; name the file" in reply.detail
    with running_service() as service:
        monkeypatch.setenv("fresnel_SFQ_URL", service.url)
        assert source().online


async def test_an_emulator_not_yet_started_is_checked_by_its_file() -> None:
    source = status_source(target("my-q", "sfq.emulator", qubits=7, vqpus=3), Path())
    assert source is not None
    told = source()
    assert (told.name, told.online, told.qubits, told.vqpus) == ("my_q", True, 7, 3)
    assert told.eta_seconds == 0


async def test_qpus_of_a_service_are_those_of_the_sites_file(tmp_path: Path) -> None:
    with running_service() as first, running_service() as second:
        resources: list[JSON] = [
            {"name": name, "type": "sfq", "environment": {"SFQ_URL": service.url}}
            for name, service in (("a", first), ("b", second))
        ]
        file = tmp_path / "qrmi_config.json"
        file.write_text(json.dumps({"resources": resources}))
        services: JSON = {"qc": {"qpu": ["a", "b"]}}
        both = target("hpc", "sfq.slurm", "qc", services=services, qrmiConfig=file.name)
        source = status_source(both, tmp_path)
        assert source is not None
        assert source().online
        second.ask("POST", "/v1/device/close", {"message": "helium"})
        # the job needs them both
        assert "helium" in source().reason


async def test_of_several_qpus_of_a_service_the_worst_of_each_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = EmulatedDevice(time_scale=0, qubits=9, cost_per_second=2.0)
    small = EmulatedDevice(time_scale=0, qubits=5, cost_per_second=0.5)
    with running_service(large) as first, running_service(small, vqpus=2) as second:
        monkeypatch.setenv("a_SFQ_URL", first.url)
        monkeypatch.setenv("b_SFQ_URL", second.url)
        first.acquire()  # so that it is the busier one
        second.ask("POST", "/v1/device/maintenance", {"starts": time.time() + 1000})
        services: JSON = {"qc": {"qpu": ["a", "b"]}}
        source = status_source(
            target("hpc", "sfq.slurm", "qc", services=services), Path()
        )
        assert source is not None
        told = source()
    assert (told.leases, told.qubits, told.cost_per_second) == (1, 5, 2.5)
    assert told.maintenance_seconds is not None
    assert 0 < told.maintenance_seconds <= 1000


@given(
    st.lists(
        st.builds(
            QpuStatus,
            name=st.just("q"),
            technology=st.just(""),
            online=st.just(True),
            vqpus=st.integers(1, 3),
            leases=st.integers(0, 3),
            queue_length=st.integers(0, 3),
            eta_seconds=st.sampled_from([None, 0.0, 5.0, 500.0]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_job_of_several_qpus_waits_for_each_of_them(
    statuses: list[QpuStatus],
) -> None:
    (wait, is_known), eta = _waits(together(statuses))
    for status in statuses:
        (alone, alone_is_known), alone_eta = _waits(status)
        assert eta >= alone_eta
        # with an ETA beyond 0, it is at least a bound
        assert alone_is_known or not is_known or eta > 0
        if None not in (wait, alone) and alone_is_known:
            assert wait >= alone  # type: ignore[operator]


def _waits(status: QpuStatus) -> tuple[tuple[float | None, bool], float]:
    times = JobTimes(2.0, 2.0, 1.0)
    return expected_wait(status, 0, times), status.eta_seconds or 0.0


async def test_ten_qpus_of_which_nine_do_not_answer(
    silent: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger.addHandler(caplog.handler)
    try:
        with running_service() as service:
            urls = [*silent, service.url]
            targets = [
                target(f"q{n}", "sfq.rest", url=url) for n, url in enumerate(urls)
            ]
            targets.append(target("cpu", "local"))
            # for which the one that answers has as long
            asked = CandidateFilter("f", timeout=6)
            for number in range(2):  # those that hang delay one decision only
                chosen = await asked.get_targets(job(number), targets)
                assert [t.deployment.name for t in chosen] == ["q9"]
    finally:
        logger.removeHandler(caplog.handler)
    warned = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    silence = "QPU q0 did not answer within 6 s; it is considered offline"
    assert warned.count(silence) == 1
    again = r"QPU q0 did not answer in time and is queried again in \d+ s; it is"
    assert sum(re.match(again, line) is not None for line in warned) == 1


@pytest.mark.parametrize(
    ("budget", "costs", "times"),
    [
        (None, {}, (0, 0)),
        ({"qpuSeconds": 9.0}, {}, (1, 0)),
        ({"cost": 9.0}, {}, (1, 1)),
        ({"cost": 9.0}, {"acme": 0.0}, (1, 0)),
    ],
)
def test_what_a_budget_does_not_know_of_is_said_once(
    budget: dict[str, float] | None,
    costs: dict[str, float],
    times: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts = Attempts(costs, cooldown=0)
    attempts.history.unmetered.add("acme")
    remarks = Remarks("f", attempts)
    rules = FilterRules({"budget": {**budget} if budget else None}).of("/solve")
    status = QpuStatus("acme", "annealer", True, "", 0, 1, 0, 0)
    answers: dict[str, StatusReply] = {
        "acme": status,
        "b": Exclusion(Obstacle.NO_ANSWER),
    }
    logger.addHandler(caplog.handler)
    try:
        for _ in range(2):
            remarks.warn_of_unknown_spending(rules, answers)
    finally:
        logger.removeHandler(caplog.handler)
    said = "QPU acme does not report the usage of jobs"
    costless = "the cost of a QPU second of acme is unknown"
    assert (caplog.text.count(said), caplog.text.count(costless)) == times


class _Raising(LocalConnector):
    """A connector that fails in a way of its own."""

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        raise KeyError("nodes")


async def test_a_place_of_which_a_connector_cannot_tell_counts_as_full(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = SimpleNamespace(
        context=SimpleNamespace(
            deployment_manager=SimpleNamespace(
                get_connector={"c": _Raising("c", str(tmp_path), 1)}.get
            )
        )
    )
    monkeypatch.setattr(scheduler, "current", lambda: run)
    logger.addHandler(caplog.handler)
    try:
        found = await capacities([target("c", "local")], lambda _: [], 5)
    finally:
        logger.removeHandler(caplog.handler)
    assert found == {"c": FULL}
    assert "listing its locations failed: KeyError: 'nodes'" in caplog.text


def test_a_failure_is_said_of_the_job_that_it_names() -> None:
    line = TracebackFilter()
    for job in ("/s/0.1", "/s/0.10", "/s/0.1.2"):
        line.expect(logging.WARNING, job, f"of {job}")
    for job in ("/s/0.10", "/s/0.1.2", "/s/0.1"):
        error = WorkflowExecutionException(f"FAILED Job {job} with error:\n\tno")
        record = logging.LogRecord(
            "x", logging.ERROR, "", 1, str(error), None, (type(error), error, None)
        )
        assert line.filter(record)
        assert record.getMessage() == f"of {job}"


def test_a_one_line_error_is_logged_once_without_traceback() -> None:
    line, error = TracebackFilter(), OneLineException("token revoked")
    records = [
        logging.LogRecord("x", logging.ERROR, "", 1, str(error), None, info)
        for info in 2 * [(type(error), error, None)]
    ]
    said = logging.LogRecord("x", logging.ERROR, "", 1, error, None, None)
    assert [line.filter(record) for record in (*records, said)] == [True, False, False]
    assert (records[0].getMessage(), records[0].exc_info) == ("token revoked", None)


async def test_qpus_are_asked_at_the_same_time() -> None:
    status = QpuStatus("q", "annealer", True, "", 0, 1, 0, 0)
    everybody = threading.Barrier(9)

    def answer() -> QpuStatus:
        everybody.wait(SECONDS)
        return status

    names = [f"q{number}" for number in range(9)]
    replies = await StatusPoller(0).poll(dict.fromkeys(names, answer), 60)
    assert replies == dict.fromkeys(names, status)


async def test_one_that_hangs_is_asked_once() -> None:
    poller, asked, go = StatusPoller(0), [], threading.Event()

    def hang() -> QpuStatus:
        asked.append(1)
        go.wait(SECONDS)
        return QpuStatus("q", "annealer", True, "", 0, 1, 0, 0)

    for _ in range(3):
        answer = (await poller.poll({"q": hang}, 0.01))["q"]
        assert answer == Exclusion(Obstacle.NO_ANSWER, limit=0.01)
    go.set()
    late = (await poller.poll({"q": hang}, 60))["q"]
    assert isinstance(late, QpuStatus)
    assert len(asked) == 1


async def test_a_late_answer_ends_the_time_for_which_one_is_not_asked() -> None:
    poller, go = StatusPoller(60), threading.Event()

    def late() -> QpuStatus:
        go.wait(SECONDS)
        return QpuStatus("q", "annealer", True, "", 0, 1, 0, 0)

    silent = Exclusion(Obstacle.NO_ANSWER, limit=0.01)
    assert (await poller.poll({"q": late}, 0.01))["q"] == silent
    resting = (await poller.poll({"q": late}, 60))["q"]
    assert isinstance(resting, Exclusion)
    assert resting.cause is Obstacle.STILL_SILENT
    assert 0 < resting.value <= 60
    go.set()
    await asyncio.wait([poller._queries["q"].pending[None].reply])
    assert isinstance((await poller.poll({"q": late}, 60))["q"], QpuStatus)


async def test_qpu_that_hangs_delays_no_other_qpu() -> None:
    status = QpuStatus("b", "annealer", True, "", 0, 1, 0, 0)
    poller, go = StatusPoller(0), threading.Event()

    def hang() -> QpuStatus:
        go.wait(SECONDS)
        return status

    try:
        sizes = [JobSize(number, 1) for number in range(MAX_REQUESTS + 8)]
        asked = [poller.poll({"a": hang}, 0.01, size) for size in sizes]
        # also the queries without a thread end
        for reply in await asyncio.gather(*asked):
            assert reply == {"a": Exclusion(Obstacle.NO_ANSWER, limit=0.01)}
        assert await poller.poll({"b": lambda: status}, SECONDS) == {"b": status}
    finally:
        go.set()


@pytest.mark.parametrize("answers", [0, 3])
async def test_query_awaits_its_thread_while_its_qpu_answers(answers: int) -> None:
    class Thread(asyncio.Event):
        """A thread that becomes free after some answers, each just in time."""

        async def wait(self) -> Literal[True]:
            if queries.replies < answers:
                queries.replies += 1
            elif answers:
                self.set()
            return await super().wait()

    queries, thread = _Queries(), Thread()
    query = _Query(thread, asyncio.get_running_loop().create_future())
    assert await _has_thread(queries, query, 0.01) == (answers > 0)
    assert queries.replies == answers


async def test_a_vendors_package_does_not_end_the_driver() -> None:
    def leaving() -> QpuStatus:
        raise SystemExit("no license")

    asked = await StatusPoller(0).poll({"q": leaving}, 60)
    detail = "SystemExit: no license"
    assert asked["q"] == Exclusion(Obstacle.UNREACHABLE, detail=detail)


async def test_what_a_vendors_package_happens_to_raise_is_an_answer() -> None:
    def broken() -> QpuStatus:
        raise KeyError("queue")

    poller = StatusPoller(60)
    for _ in range(2):  # and it is asked again
        replies = await poller.poll({"q": broken}, 60)
        detail = "KeyError: 'queue'"
        assert replies == {"q": Exclusion(Obstacle.UNREACHABLE, detail=detail)}


async def test_a_target_that_failed_is_not_asked_while_it_rests() -> None:
    asked = CandidateFilter("f", timeout=0.1)
    asked._attempts.record_failure("/other", "q", "helium")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        targets = [target("q", "sfq.rest", url=url), target("c", "local")]
        chosen = await asked.get_targets(job(), targets)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has come
            server.accept()
    assert [t.deployment.name for t in chosen] == ["c"]


async def test_a_qpu_that_nobody_can_reach_is_offline() -> None:
    targets = [target("q", "sfq.rest", url="http://127.0.0.1:1"), target("c", "local")]
    chosen = await CandidateFilter("f").get_targets(job(), targets)
    assert [t.deployment.name for t in chosen] == ["c"]


async def test_the_number_of_variables_comes_from_an_int_input() -> None:
    targets = [target("q", "sfq.emulator", qubits=5), target("c", "local")]
    for variables, on in ((5, "q"), (6, "c"), (None, "q")):
        asked = CandidateFilter("f", variables="n")
        chosen = await asked.get_targets(job(n=variables), targets)
        assert [t.deployment.name for t in chosen] == [on]
    with pytest.raises(WorkflowDefinitionException, match=r"has no input m; .*: n$"):
        await CandidateFilter("f", variables="m").get_targets(job(n=1, f="a"), targets)
    with pytest.raises(WorkflowDefinitionException, match=r"input n .* is not an int"):
        await CandidateFilter("f", variables="n").get_targets(job(n="5"), targets)


async def test_what_can_run_nowhere_is_not_tried_again() -> None:
    asked = CandidateFilter("f", variables="n")
    with pytest.raises(
        UnrecoverableWorkflowException, match=r"No target can run job .*: q takes"
    ):
        await asked.get_targets(job(n=9), [target("q", "sfq.emulator", qubits=5)])


async def test_a_qpu_that_refuses_its_user_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, file = tmp_path / "tokens.yml", tmp_path / "ada.token"
    tokens.touch(0o600)
    tokens.write_text(json.dumps([token_entry("bob", new_token(), admin=False)]))
    file.write_text(new_token())
    record = Journal(tmp_path)
    monkeypatch.setattr(journal, "current", lambda: record)
    with running_service(authenticate=Tokens(tokens)) as service:
        qpu = target("q", "sfq.rest", url=service.url, tokenFile=str(file))
        asked = CandidateFilter("f", timeout=SECONDS)
        chosen = await asked.get_targets(job(), [qpu, target("c", "local")])
        assert [t.deployment.name for t in chosen] == ["c"]
        said = (
            f"q refuses its user: QPU 'q' at {service.url} refuses: Authorization: "
            f"unknown bearer token (token file {file})"
        )
        *_, line = record.path.read_text().splitlines()
        assert (entry := json.loads(line))["reason"] == said
        assert entry["asked"][0]["trouble"] == said.removeprefix("q ")
        # no other target, and no attempt would end otherwise
        with pytest.raises(UnrecoverableWorkflowException, match=re.escape(said)):
            await asked.get_targets(job(1), [qpu])


@pytest.mark.parametrize("mixed", ["warn", "refuse"])
async def test_budget_holds_without_a_classical_target(
    mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = QpuStatus("q", "annealer", True, "", 0, 9, 0, 0)
    context = SimpleNamespace(
        failure_manager=None,
        deployment_manager=SimpleNamespace(get_connector=lambda _: None),
    )
    run = SimpleNamespace(context=context, observe=lambda *_: None)
    monkeypatch.setattr(scheduler, "current", lambda: run)
    monkeypatch.setattr(
        "sf_quantum.candidates.filter.status_source",
        lambda asked, *_: (lambda: status) if asked.deployment.name == "q" else None,
    )
    made = CandidateFilter("f", budget={"qpuSeconds": 1}, mixed=mixed, maxWait=0)
    attempts, running, jobs = made._attempts, [], {job(n).name: n for n in range(4)}
    attempts.history.is_read = True
    begin = attempts.record_start

    def start(attempt: Attempt, decision: Decision) -> None:
        running.append(attempts.running_on("q"))
        begin(attempt, decision)

    monkeypatch.setattr(attempts, "record_start", start)
    targets = [target("q", "sfq.emulator"), target("c", "local")]
    targets = targets if mixed == "refuse" else targets[:1]
    pending = {
        asyncio.create_task(made.get_targets(job(number), targets), name=name)
        for name, number in jobs.items()
    }
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            assert [t.deployment.name for t in task.result()] == ["q"]
            attempts.record_exit(task.get_name(), "q")
            attempts.record_completion(task.get_name())
    assert running == [[]] * 4


@pytest.mark.parametrize("status", [None, 75, 1])
@pytest.mark.parametrize("waited_out", [False, True])
def test_only_a_failed_qpu_starts_a_cooldown(
    status: int | None, waited_out: bool
) -> None:
    made, name = CandidateFilter("f"), job().name
    attempt = made._attempts.begin(name, "/loop/solve", StepRules())
    hints.put(name, JobHints(wait_seconds=5.0, waited_out=waited_out))
    try:
        made._command_ended(name, status, "no lease is free")
    finally:
        hints.discard(name)
    is_waited_out = waited_out and status != 1
    waited = Exclusion(Obstacle.WAITED, limit=5.0)
    assert (attempt.failures.get("") == waited) == is_waited_out
    failed = status != 1 and not waited_out
    assert (made._attempts.cooldown_of("") is not None) == failed


def test_a_job_that_is_too_late_for_a_qpu_starts_no_cooldown() -> None:
    made, name = CandidateFilter("f"), job().name
    attempt = made._attempts.begin(name, "/loop/solve", StepRules())
    hints.put(
        name, JobHints(LeaseHints(latest_start=9.0), wait_seconds=5.0, waited_out=True)
    )
    try:
        made._command_ended(name, 75, "not granted")
    finally:
        hints.discard(name)
    detail = "1970-01-01T00:00:09Z"
    assert attempt.failures[""] == Exclusion(Obstacle.TOO_LATE, detail=detail)
    assert made._attempts.cooldown_of("") is None


@pytest.mark.parametrize("of_step", [False, True])
def test_a_filter_refuses_a_time_that_is_none(of_step: bool) -> None:
    late: MutableMapping[str, JSON] = {"latestStart": "2026-02-30T08:00Z"}
    latest, steps = (None, {"/s": late}) if of_step else ("2026-12-01T08:00", None)
    with pytest.raises(
        WorkflowDefinitionException, match="Filter f: latestStart: 2026"
    ):
        CandidateFilter("f", latestStart=latest, steps=steps)


def test_silence_is_warned_of_once_per_cause(caplog: pytest.LogCaptureFixture) -> None:
    remarks = Remarks("f", Attempts({}, cooldown=0))
    silent = Exclusion(Obstacle.NO_ANSWER, limit=2)
    still = [Exclusion(Obstacle.STILL_SILENT, left) for left in (58, 57, 56)]
    status = QpuStatus("q", "annealer", True, "", 0, 1, 0, 0)
    replies: list[StatusReply] = [silent, *still, silent, status, silent]
    logger.addHandler(caplog.handler)
    try:
        for reply in replies:
            remarks.warn_of_silence("q", reply)
        remarks.warn_of_silence("r", still[0])
    finally:
        logger.removeHandler(caplog.handler)
    in_time = "did not answer in time and is queried again in 58 s"
    late = "did not answer within 2 s"
    expected = [("q", late), ("q", in_time), ("q", late), ("r", in_time)]
    assert [record.message for record in caplog.records] == [
        f"QPU {name} {text}; it is considered offline" for name, text in expected
    ]


async def test_a_budget_needs_the_journal() -> None:
    asked = CandidateFilter("f", budget={"qpuSeconds": 1})
    with pytest.raises(WorkflowDefinitionException, match=r"add scheduling: .*journal"):
        await asked.get_targets(job(), [target("q", "sfq.emulator")])


@pytest.mark.parametrize("on_failure", ["fallback", "fail"])
async def test_without_the_journal_it_warns_of_what_it_cannot_know(
    on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = CandidateFilter("f", onFailure=on_failure)
    logger.addHandler(caplog.handler)
    try:
        for number in range(2):
            await asked.get_targets(job(number), [target("c", "local")])
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.text.count("without the run's journal: add scheduling:") == 1
    manager = "and, if there is none, failureManager:"
    assert (manager in caplog.text) == (on_failure == "fallback")
