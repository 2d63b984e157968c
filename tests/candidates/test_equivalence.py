"""What makes a step a candidate: the same answer wherever it runs; ours, and a user's own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON
from sf_quantum.testing.candidates import Outputs, assert_candidate
from tests.support import forking
from tests.support.folders import ROOT
from tests.support.forking import BIN

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process


def test_our_solve_is_a_candidate(project: Project) -> None:
    """The problem has two optima, so which one is found first may differ."""
    inputs: dict[str, JSON] = {
        "problem": {"class": "File", "path": str(project.folder / "problem.json")},
        **{"reads": 50, "seed": 1},
    }
    file = ROOT / "deployments" / "candidates.yml"
    answers = assert_candidate(file, "/iterate/solve", inputs, tolerance=1e-9)
    assert [answer.target for answer in answers] == ["qpu", "nodes"]
    assert {answer.energy for answer in answers} == {-1.0}
    assert answers[0].form == {
        "samples": {"variable_type": "BINARY", "variable_labels": ["a", "b"]}
    }


def test_a_step_that_answers_otherwise_elsewhere_is_no_candidate(
    project: Project,
) -> None:
    energy = iter([-1.0, -0.9]).__next__
    inputs: dict[str, JSON] = {
        "problem": {"class": "File", "path": str(project.folder / "problem.json")},
        **{"reads": 5, "seed": 1},
    }
    file = ROOT / "deployments" / "candidates.yml"
    with pytest.raises(
        AssertionError,
        match=r"on nodes is -0.9, more than .* above the lowest energy, -1",
    ):
        assert_candidate(
            file, "/iterate/solve", inputs, tolerance=0.01, energy=lambda _: energy()
        )


def test_a_step_without_an_answer_says_why(project: Project) -> None:
    inputs: dict[str, JSON] = {
        "problem": {"class": "File", "path": str(project.folder / "problem.json")},
        **{"reads": 0, "seed": 1},
    }
    file = ROOT / "deployments" / "candidates.yml"
    with pytest.raises(AssertionError, match=r"the run on qpu failed: ERROR ") as told:
        assert_candidate(file, "/iterate/solve", inputs, tolerance=0.01)
    assert "--reads: '0': expected a whole number" in str(told.value)
    assert "Traceback" not in str(told.value)


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are those beside this Python."""
    monkeypatch.setattr(sys, "executable", forking.python())


@pytest.fixture
def max_cut(tmp_path: Path) -> Path:
    """A copy of the example, which has its maximum (of 2^14 cuts) at 17 edges."""
    folder = tmp_path / "max-cut"
    shutil.copytree(
        ROOT / "examples" / "max-cut",
        folder,
        ignore=shutil.ignore_patterns(".streamflow"),
    )
    return folder


def _cut(folder: Path, file: str) -> dict[str, JSON]:
    path = f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}"
    command = ["streamflow", "run", file, "--outdir", "out"]
    forking.run(command, folder, {**os.environ, "PATH": path})
    content: dict[str, JSON] = json.loads((folder / "out" / "cut.json").read_text())
    return content


def test_the_examples_maximum_cut_runs_on_the_qpu(max_cut: Path) -> None:
    cut = _cut(max_cut, "streamflow.yml")
    assert (cut["cut"], cut["edges"], cut["qpu"]) == (17, 20, "qpu")


def test_the_examples_maximum_cut_is_a_candidate(max_cut: Path) -> None:
    inputs: dict[str, JSON] = {
        "program": {"class": "File", "path": str(max_cut / "maxcut.py")},
        "edges": {"class": "File", "path": str(max_cut / "florentine.csv")},
    }

    def energy(outputs: Outputs) -> float:
        cut = outputs["cut"]
        assert isinstance(cut, dict)
        return -float(json.loads(Path(str(cut["path"])).read_text())["cut"])

    file = max_cut / "streamflow.yml"
    answers = assert_candidate(file, "/solve", inputs, tolerance=0, energy=energy)
    assert [answer.energy for answer in answers] == [-17.0, -17.0]


def test_the_qiskit_example_simulates_without_a_qpu(
    max_cut: Path,
) -> None:
    pytest.importorskip("qiskit", reason="qiskit is not installed")
    cut = _cut(max_cut, "qiskit.yml")
    assert (cut["cut"], cut["edges"], cut["qpu"]) == (17, 20, None)
