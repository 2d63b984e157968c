"""``sfq check`` against QPUs that are there: what cannot run on them now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.files import JSON
from sf_quantum.samplers.problem import document
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.http.tokens import Tokens
from tests.support.checked_projects import (
    FILE,
    FILTERS,
    LAPTOP,
    QPU,
    inputs,
    write_files,
)
from tests.support.service import RunningService, emulated, running_service


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(qubits=5, time_scale=0)) as running:
        yield running


def checked(
    url: str, output: pytest.CaptureFixture[str], *targets: str, filters: str = ""
) -> tuple[int, str]:
    """Check a workflow bound to some targets."""
    section = FILTERS if filters else ""
    Path("sf.yml").write_text(FILE % (", ".join(targets), filters, url, section))
    return main(["check", "sf.yml"]), output.readouterr().out


def test_what_can_run_is_fine(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = "sf.yml: OK (1 workflow, 2 deployments)\n"
    assert checked(service.url, capsys, QPU) == (0, fine)


def test_a_problem_that_is_too_large_is_told_in_one_line(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    larger = document([*range(6)], [1.0] * 6, [], [], "BINARY")
    Path("problem.json").write_text(json.dumps({"bqm": larger}))
    line = (
        "sf.yml:8: workflows.main.bindings[0].target: /solve cannot run now: qpu: 6 "
        "variables do not fit on 5 qubits; bind it elsewhere, or wait for the QPU\n"
    )
    assert checked(service.url, capsys, QPU) == (2, line)


def test_a_candidates_size_is_the_inputs_that_says_it(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs(size=7)
    both = (QPU, "{deployment: qpu, service: other}")
    code, out = checked(service.url, capsys, *both, filters="choose")
    assert code == 2
    assert "qpu: 7 variables do not fit on 5 qubits" in out
    # the laptop takes it
    assert checked(service.url, capsys, QPU, LAPTOP, filters="choose")[0] == 0


def test_a_qpu_that_is_closed_runs_nothing_now(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.ask("POST", "/v1/device/close", {"message": "the laser is out"})
    code, out = checked(service.url, capsys, QPU)
    assert code == 2
    assert "/solve cannot run now: qpu: the QPU is closed: the laser is out;" in out
    assert len(out.splitlines()) == 1


def test_one_that_runs_no_such_jobs_is_told(
    service: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    runners = emulated(service.queue).runners
    service.queue.jobs.device = EmulatedDevice(
        runners={"sequence": runners["sequence"]}
    )
    code, out = checked(service.url, capsys, QPU)
    assert (code, "qpu: the QPU only runs sequence jobs" in out) == (2, True)


def test_one_that_does_not_answer_is_no_reason_and_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"unix:{tmp_path}/nobody"
    code, out = checked(url, capsys, QPU)
    remark, ok = out.splitlines()
    where = "sf.yml:8: remark: workflows.main.bindings[0].target[0]"
    assert code == 0
    assert remark.startswith(f"{where}: qpu could not be queried: ")
    right = "whether it can run /solve is not checked"
    assert remark.endswith(f"; {right}, and the run needs it to answer")
    assert ok == "sf.yml: OK (1 workflow, 2 deployments)"
    remark, _ = checked(url, capsys, QPU, LAPTOP, filters="choose")[1].splitlines()
    assert remark.endswith(f"; {right}")


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("close", {"message": "the laser is out"}, "is closed: the laser is out"),
        ("drain", {}, "is being drained"),
        ("maintenance", {"starts": 1.0}, "is in maintenance"),
    ],
)
def test_one_that_takes_no_jobs_now_is_a_remark(
    service: RunningService,
    capsys: pytest.CaptureFixture[str],
    path: str,
    content: dict[str, JSON],
    why: str,
) -> None:
    service.ask("POST", f"/v1/device/{path}", content)
    code, out = checked(service.url, capsys, QPU, LAPTOP, filters="choose")
    remark, ok = out.splitlines()
    assert (code, ok) == (0, "sf.yml: OK (1 workflow, 2 deployments)")
    where = "sf.yml:8: remark: workflows.main.bindings[0].target[0]"
    assert remark.startswith(f"{where}: qpu: the QPU {why}")
    assert remark.endswith("; /solve runs elsewhere until it is open")
    # StreamFlow, which chooses without a filter, does not know
    code, out = checked(service.url, capsys, QPU, LAPTOP)
    assert (code, "targets, but no filter: " in out) == (0, True)
    right = "a job of /solve that StreamFlow starts there waits until it is open"
    assert f"; {right}\n" in out
    # no job of the step runs before
    code, out = checked(service.url, capsys, QPU)
    assert (code, f"/solve cannot run now: qpu: the QPU {why}" in out) == (2, True)


def test_one_that_refuses_its_user_is_a_finding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["token", "ann", "--tokens", str(tmp_path / "tokens")]) == 0
    capsys.readouterr()
    with running_service(authenticate=Tokens(tmp_path / "tokens")) as running:
        # also where a classical target could run the step
        code, out = checked(running.url, capsys, QPU, LAPTOP, filters="choose")
    (line,) = out.splitlines()
    assert code == 2
    assert line.startswith("sf.yml:11: deployments.qpu.config: qpu refuses its user: ")
    assert "needs a bearer token" in line
