"""Which targets are quantum; QPUs that answer, late or never."""

from __future__ import annotations

import inspect
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from streamflow.core.deployment import DeploymentConfig, Target
from streamflow.core.exception import (
    UnrecoverableWorkflowException,
    WorkflowDefinitionException,
)
from streamflow.core.workflow import Job, Token
from streamflow.log_handler import logger

from sf_quantum.candidates import asking
from sf_quantum.candidates.asking import Asker
from sf_quantum.candidates.filter import CandidateFilter
from sf_quantum.candidates.ledger import Ledger
from sf_quantum.check.schema import rules
from sf_quantum.files import JSON
from sf_quantum.qpu import QpuStatus
from sf_quantum.service.testing import running_service


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
        return asking.source(asked, tmp_path) is not None

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


async def test_qpus_of_a_service_without_a_file_are_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services: JSON = {"qc": {"qpu": ["fresnel"]}}
    source = asking.source(target("hpc", "sfq.slurm", "qc", services=services), Path())
    assert source is not None
    asked = await Asker().ask({"hpc/qc": source}, 5)
    assert asked == {
        "hpc/qc": "cannot be asked: --qpu fresnel: fresnel_SFQ_URL is not set; name the "
        "file that describes the QPU (--qrmi-config, or qrmiConfig of a deployment), or "
        "set it"
    }
    with running_service() as service:
        monkeypatch.setenv("fresnel_SFQ_URL", service.url)
        assert source().online


async def test_an_emulator_that_is_not_there_yet_is_asked_of_its_configuration() -> (
    None
):
    source = asking.source(target("my-q", "sfq.emulator", qubits=7, vqpus=3), Path())
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
        source = asking.source(both, tmp_path)
        assert source is not None
        assert source().online
        second.ask("POST", "/v1/device/close", {"message": "helium"})
        # the job needs them both
        assert "helium" in source().reason


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
            asked = CandidateFilter("f")
            for number in range(
                2
            ):  # those that hang are not asked a second time meanwhile
                began = time.monotonic()
                chosen = await asked.get_targets(job(number), targets)
                # one after the other they would take 18 s
                assert time.monotonic() - began < 6
                assert [t.deployment.name for t in chosen] == ["q9"]
    finally:
        logger.removeHandler(caplog.handler)
    warned = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    silence = "QPU q0 does not answer within 2 s; it counts as offline"
    assert warned.count(silence) == 2


@pytest.mark.parametrize(
    ("options", "times"), [({}, 0), ({"budget": {"qpuSeconds": 9.0}}, 1)]
)
def test_what_a_budget_does_not_know_of_is_said_once(
    options: dict[str, dict[str, float]],
    times: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "silent", {"acme"})
    made = CandidateFilter("f", budget=options.get("budget"))
    logger.addHandler(caplog.handler)
    try:
        for _ in range(2):
            made._warn_of_spending(made._policies.of("/solve"))
    finally:
        logger.removeHandler(caplog.handler)
    said = "QPU acme does not tell what jobs spend on it"
    assert caplog.text.count(said) == times


async def test_one_that_hangs_is_asked_once() -> None:
    asker, asked = Asker(), []

    def hang() -> QpuStatus:
        asked.append(1)
        time.sleep(0.3)
        return QpuStatus("q", "annealer", True, "", 0, 1, 0, 0)

    for _ in range(3):
        answer = (await asker.ask({"q": hang}, 0.01))["q"]
        assert answer == "does not answer within 0.01 s"
    late = (await asker.ask({"q": hang}, 5))["q"]
    assert isinstance(late, QpuStatus)
    assert len(asked) == 1


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
    with pytest.raises(WorkflowDefinitionException, match=r"has no input m; .*: n"):
        await CandidateFilter("f", variables="m").get_targets(job(n=1), targets)
    with pytest.raises(WorkflowDefinitionException, match=r"input n .* is no int"):
        await CandidateFilter("f", variables="n").get_targets(job(n="5"), targets)


async def test_what_can_run_nowhere_is_not_tried_again() -> None:
    asked = CandidateFilter("f", variables="n")
    with pytest.raises(
        UnrecoverableWorkflowException, match="can run nowhere: q takes"
    ):
        await asked.get_targets(job(n=9), [target("q", "sfq.emulator", qubits=5)])


async def test_a_budget_needs_the_journal() -> None:
    asked = CandidateFilter("f", budget={"qpuSeconds": 1})
    with pytest.raises(WorkflowDefinitionException, match=r"add scheduling: .*journal"):
        await asked.get_targets(job(), [target("q", "sfq.emulator")])
