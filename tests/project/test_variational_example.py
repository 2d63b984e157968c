"""The program of ``examples/variational``: the same optimum with the loop outside and inside."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.folders import EXAMPLES

pytest.importorskip("qiskit", reason="qiskit is not installed")

from examples.variational.variational import (
    Evaluation,
    Problem,
    State,
    main,
    optimise,
)
from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.service import RunningService, running_service

EXAMPLE = EXAMPLES / "variational"
# of the open chain of four spins with J = h = 1
EXACT = -4.75877


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    device = EmulatedDevice(
        technology="superconducting", qubits=9, topology="square", time_scale=0.0
    )
    with running_service(device) as running:
        yield running


@pytest.fixture
def lease(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    """A lease in the environment, and a folder for the program's files."""
    lease = service.acquire()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "q")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "sfq")
    monkeypatch.setenv("q_SFQ_URL", service.url)
    monkeypatch.setenv("q_QRMI_JOB_ACQUISITION_TOKEN", lease)
    yield lease
    service.ask("DELETE", f"/v1/leases/{lease}")


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, JSON]:
    """Run a command of the program, and read what it tells the engine."""
    monkeypatch.setattr("sys.argv", ["variational.py", *words])
    main()
    content: dict[str, JSON] = json.loads(Path("cwl.output.json").read_text())
    return content


def problem(name: str, **changes: int) -> Problem:
    return Problem(**json.loads((EXAMPLE / name).read_text()) | changes)


@pytest.mark.parametrize("name", ["ising.json", "families.json"])
def test_both_forms_measure_the_same(
    name: str, lease: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = json.loads((EXAMPLE / name).read_text())
    Path("problem.json").write_text(json.dumps({**given, "evaluations": 2, "seed": 7}))
    told = run(monkeypatch, "session", "--problem", "problem.json")
    assert told["go_on"] is False
    session, found = Path("state.json").read_text(), Path("result.json").read_text()
    Path("result.json").unlink()
    told = run(monkeypatch, "next", "--problem", "problem.json")
    assert "result" not in told
    iterations = 0
    while told["go_on"]:
        run(monkeypatch, "measure", "--previous", "state.json")
        told = run(monkeypatch, "next", "--previous", "state.json")
        iterations += 1
    assert iterations == 3
    assert Path("state.json").read_text() == session
    assert Path("result.json").read_text() == found


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No QPU, and a folder for the program's files."""
    pytest.importorskip("qiskit_aer", reason="qiskit-aer is not installed")
    monkeypatch.chdir(tmp_path)


def test_the_vqe_finds_the_energy_of_the_ground_state(
    simulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, "session", "--problem", str(EXAMPLE / "ising.json"))
    found = json.loads(Path("result.json").read_text())
    assert found["evaluations"] <= 41
    # with four seeds, the optimiser ended 0.04 to 0.13 above it
    assert found["energy"] == pytest.approx(EXACT, abs=0.13)


def test_the_qaoa_finds_the_maximum_cut(
    simulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, "session", "--problem", str(EXAMPLE / "families.json"))
    found = json.loads(Path("result.json").read_text())
    # six of the seven edges, since three of them are a triangle
    assert found["lowest"] == -5.0
    read = problem("families.json")
    spins = [1 if name in found["up"] else -1 for name in read.names]
    assert read.diagonal(spins) == -5.0
    first = State.read(Path("state.json")).evaluations[0]
    assert found["energy"] < first.energy


def test_without_a_qpu_it_is_simulated(
    simulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = optimise(State(problem("ising.json")))
    state.write("before.json")
    monkeypatch.setattr("sys.argv", "x measure --previous before.json".split())
    main()
    (one,) = State.read(Path("state.json")).evaluations
    assert one.angles == state.angles
    assert one.qpu == "aer_simulator"


def bowl(angles: list[float], number: int) -> Evaluation:
    """An energy with its minimum at 0.3 everywhere."""
    return Evaluation(angles, sum((angle - 0.3) ** 2 for angle in angles), "none")


def test_the_optimiser_goes_on_where_it_was() -> None:
    whole = optimise(State(problem("families.json")), bowl)
    assert whole.angles is None
    last = whole.evaluations[-1]
    assert last == min(whole.evaluations, key=lambda one: one.energy)
    assert last.energy < 1e-3
    for known in (0, 1, 7, len(whole.evaluations) - 1):
        state = optimise(replace(whole, evaluations=whole.evaluations[:known]))
        assert state.angles == whole.evaluations[known].angles
        assert state.evaluations == whole.evaluations[:known]
    assert optimise(whole) == whole


def test_what_does_not_fit_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = optimise(State(problem("families.json", evaluations=2)), bowl)
    ended.write("ended.json")
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "measure", "--previous", "ended.json")
    assert "ended.json: nothing to measure, the optimiser" in capsys.readouterr().err
    other = replace(ended, problem=problem("families.json", layers=1))
    with pytest.raises(SystemExit, match="evaluation 1 is of another optimiser"):
        optimise(other)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"coupling": []}, "unknown key 'coupling' (known: couplings,"),
        ({"couplings": []}, "couplings: none"),
        ({"couplings": [["a", "b"]]}, "expected two spins and a number"),
        ({"couplings": [["a", "a", 1.0]]}, "expected two spins and a number"),
        ({"couplings": [["a", "b", "1"]]}, "expected two spins and a number"),
        ({"layers": 0}, "layers: 0: expected a whole number"),
        ({"shots": "9"}, "shots: '9': expected a whole number"),
        ({"evaluations": 0}, "evaluations: 0: expected a whole number"),
        ({"transverse": math.nan}, "transverse: nan: expected a number"),
    ],
)
def test_a_wrong_problem_is_refused_before_anything_is_measured(
    changes: dict[str, JSON],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = json.loads((EXAMPLE / "ising.json").read_text())
    Path("wrong.json").write_text(json.dumps(given | changes))
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "next", "--problem", "wrong.json")
    (line,) = (x for x in capsys.readouterr().err.splitlines() if "error: " in x)
    assert "wrong.json: " in line
    assert why in line
