"""``sfq init`` writes workflows that run at once, on each of their locations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from sf_quantum.cli import main
from sf_quantum.cli.workflow.init import TEMPLATES
from sf_quantum.reporting import attempts, report
from tests.lab import Lab
from tests.support import forking
from tests.support.forking import BIN
from tests.support.journals import collect, read
from tests.support.service_process import QpuService

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, file: str, **variables: str) -> list[attempts.JobAttempt]:
    tools = f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}"
    command = ["streamflow", "run", file, "--outdir", "results"]
    forking.run(command, folder, {**os.environ, "PATH": tools, **variables})
    (output,) = (folder / "results").glob("*.json")
    answer = json.loads(output.read_text())
    assert answer["conflicts"] == []
    assert len(answer["chosen"]) == 4
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        assert main(["check", str(folder / file)]) == 0
    return collect(read(report.locate(folder / file)))


# the tutorial in docs/ runs the loop
@pytest.mark.parametrize("template", sorted(TEMPLATES.keys() - {"loop"}))
def test_each_template_runs_on_an_emulated_qpu(folder: Path, template: str) -> None:
    assert main(["init", "mine", "--template", template]) == 0
    rows = run(folder / "mine", "streamflow.yml")
    solved = [row for row in rows if f"/{row.step}" == TEMPLATES[template].solve]
    assert "qpu" in {row.location for row in solved}
    assert {row.location for row in rows} <= {"qpu", "host"}


def test_a_loop_is_resumed_without_a_decision_on_its_candidate(folder: Path) -> None:
    assert main(["init", "mine"]) == 0
    first = run(folder / "mine", "streamflow.yml")
    again = run(folder / "mine", "streamflow.yml", SFQ_RESUME="1")
    assert {row.status for row in again} == {"reused"}
    assert [row.job for row in again] == [row.job for row in first]
    assert [row.location for row in again] == [row.location for row in first]
    assert not any(row.why for row in again)


def test_the_loop_runs_on_slurm_with_a_service(folder: Path, lab: Lab) -> None:
    assert main(["init", "mine"]) == 0
    # where the template's qrmi_config.json looks for it
    socket = str(folder / "mine" / "qpu.sock")
    service = QpuService(folder / "service", "--time-scale", "0", "--socket", socket)
    service.start()
    try:
        rows = run(folder / "mine", "slurm.yml", **lab.environment)
    finally:
        service.end()
    services = {(row.step, row.location.split("/")[1]) for row in rows}
    assert ("search/generate", "compute") in services
    assert ("search/solve", "quantum") in services


def test_the_files_name_the_workflow(folder: Path) -> None:
    for template in TEMPLATES:
        assert main(["init", f"my-{template}", "--template", template]) == 0
        for file in ("streamflow.yml", "service.yml", "slurm.yml"):
            text = (folder / f"my-{template}" / file).read_text()
            assert "$" not in text
            assert list(yaml.safe_load(text)["workflows"]) == [f"my-{template}"]
    assert {path.name for path in folder.iterdir()} == {f"my-{t}" for t in TEMPLATES}


@pytest.mark.parametrize("name", ["a b", "../a", "", "a/b", "é"])
def test_names_that_would_not_do(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["init", name])
    assert refused.value.code == 2
    assert "expected a name of letters, digits" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_nothing_is_written_over_or_half(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine").mkdir()
    assert main(["init", "mine"]) == 2
    assert "exists already; choose another name" in capsys.readouterr().err
    (folder / "in a folder").mkdir()
    monkeypatch.chdir(folder / "in a folder")
    assert main(["init", "mine"]) == 2
    assert "StreamFlow cannot run in a path with a space" in capsys.readouterr().err
    assert not list((folder / "in a folder").iterdir())
