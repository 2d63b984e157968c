"""``examples/variational`` with StreamFlow: both forms of the loop find the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sf_quantum.reporting import report
from tests.support import forking
from tests.support.folders import ROOT
from tests.support.forking import BIN
from tests.support.journals import collect, read

pytestmark = pytest.mark.process

pytest.importorskip("qiskit", reason="qiskit is not installed")


def test_both_forms_of_the_loop_measure_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "variational"
    ignored = shutil.ignore_patterns(".streamflow", "results", "__pycache__")
    shutil.copytree(ROOT / "examples" / "variational", folder, ignore=ignored)
    file = folder / "ising.json"
    # one chosen by the optimiser, and the last: each step imports Qiskit
    file.write_text(json.dumps({**json.loads(file.read_text()), "evaluations": 1}))
    path = f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    ran = {}
    for form in ("loop", "session"):
        name = f"{form}.yml"
        command = ["streamflow", "run", name, "--outdir", form]
        forking.run(command, folder, environment)
        events = read(report.locate(folder / name))
        rows = collect(events)
        ran[form] = [(row.step, row.location) for row in rows]
        assert len([event for event in events if event["event"] == "qpu"]) == 2
    assert sorted(ran["loop"]) == [
        *[("iterate/measure", "qpu")] * 2,
        *[("iterate/next", "host")] * 2,
        ("start", "host"),
    ]
    assert ran["session"] == [("solve", "qpu")]
    state = (folder / "loop" / "state.json").read_text()
    assert state == (folder / "session" / "state.json").read_text()
    assert len(json.loads(state)["evaluations"]) == 2
    result = json.loads((folder / "loop" / "result.json").read_text())
    assert result == json.loads((folder / "session" / "result.json").read_text())
    assert result["energy"] == json.loads(state)["evaluations"][-1]["energy"]


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        ({"coupling": []}, "unknown key 'coupling' (known: couplings, "),
        ({"couplings": [["a", "b"]]}, "['a', 'b']: expected two spins and a number"),
    ],
)
def test_a_wrong_problem_is_refused(
    tmp_path: Path, problem: dict[str, list[list[str]]], why: str
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(problem))
    program = ROOT / "examples" / "variational" / "variational.py"
    command = [sys.executable, str(program), "next", "--problem", "mine.json"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert why in ran.stderr
