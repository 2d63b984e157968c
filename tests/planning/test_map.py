"""The map of strategies: the workload at its points, what is found there, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.errors import InputError
from sf_quantum.planning import map_picture, random_draws, strategy_map
from sf_quantum.planning.comparison import Objective
from sf_quantum.planning.simulation.application import QuantumStep
from sf_quantum.planning.strategy_map import LOADS, RATIOS
from sf_quantum.planning.workloads import reading
from sf_quantum.planning.workloads.workload import Workload
from tests.support.pictures import illegible

WORKLOAD = """
partitions: {compute: {nodes: 8}, other: {nodes: 2}}
qpus: {qpu: {setup_seconds: 10, shot_seconds: 0.1}}
applications:
  loop:
    phases:
      - {nodes: 2, tasks: 3, seconds: 100}
      - {qpu: qpu, shots: 400, jobs: 2}
strategies: [{type: co-scheduled}, {type: per-step}, {type: elastic, keep: 1}]
repetitions: 2
"""
LOADED = f"""{WORKLOAD}
background:
  jobs:
    - {{per_hour: 30, nodes: 1, most_nodes: 3, seconds: 60, spread: 0}}
    - {{per_hour: 7, partition: other, seconds: 60}}
  quantum: [{{per_hour: 20, seconds: 18}}]
  warm_up_seconds: 60
"""


def load(folder: Path, text: str) -> Workload:
    path = folder / "workload.yml"
    path.write_text(text)
    return reading.load(path)


@pytest.mark.parametrize("ratio", [0.01, 1.0, 30.0])
def test_the_ratio_is_that_of_quantum_to_classical_time(
    tmp_path: Path, ratio: float
) -> None:
    workload = load(tmp_path, WORKLOAD)
    (before,) = random_draws.applications(workload, 0)
    (after,) = random_draws.applications(strategy_map.varied(workload, ratio, 0.0), 0)
    quantum = sum(step.seconds for step in after.steps if isinstance(step, QuantumStep))
    assert quantum / (after.seconds - quantum) == pytest.approx(ratio)
    # and all phases together take as long
    assert after.seconds == pytest.approx(before.seconds) == 200


def test_the_ratio_of_phases_that_are_not_in_each_pass(tmp_path: Path) -> None:
    text = WORKLOAD.replace("phases:", "repeats: 3\n    phases:").replace(
        "- {nodes: 2, tasks: 3, seconds: 100}",
        "- {task_seconds: [40, 60]}\n      - {seconds: 30, only: last}",
    )
    workload = load(tmp_path, text.replace("nodes: 8", "nodes: 8, queue_seconds: 50"))
    varied = strategy_map.varied(workload, 3.0, 0.25)
    (after,) = random_draws.applications(varied, 0)
    quantum = sum(step.seconds for step in after.quantum_steps())
    assert after.seconds == pytest.approx(3 * 60 + 30 + 3 * 100)
    assert quantum == pytest.approx(0.75 * after.seconds)
    # others are simulated, and make requests wait
    assert varied.partitions["compute"].queue_seconds == 0


@pytest.mark.parametrize("text", [WORKLOAD, LOADED])
def test_the_load_is_the_share_that_others_keep_busy(tmp_path: Path, text: str) -> None:
    varied = strategy_map.varied(load(tmp_path, text), 1.0, 0.75)
    background = varied.background
    assert background is not None
    busy = {"compute": 0.0, "other": 0.0}
    for jobs in background.jobs:
        there = jobs.partition or "compute"
        busy[there] += jobs.per_hour * jobs.mean_nodes * jobs.seconds / 3600
    assert busy["compute"] == pytest.approx(0.75 * 8)
    # on which the application has no phase
    assert busy["other"] == (pytest.approx(7 / 60) if text == LOADED else 0)
    (quantum,) = background.quantum
    assert quantum.per_hour * quantum.seconds / 3600 == pytest.approx(0.75)
    # those of the file, or like the application's
    assert quantum.seconds == pytest.approx(18 if text == LOADED else 50)
    idle = strategy_map.varied(load(tmp_path, text), 1.0, 0.0).background
    assert idle is not None
    assert [one.partition for one in idle.jobs] == (["other"] if text == LOADED else [])
    assert not idle.quantum


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("- {qpu: qpu, shots: 400, jobs: 2}", "", "loop: no time on a QPU, so that"),
        ("- {nodes: 2, tasks: 3, seconds: 100}", "", "loop: no time on nodes, so that"),
        (
            "repetitions: 2",
            "background: {traces: [{file: a.swf}]}",
            "background: the load of a trace cannot be varied",
        ),
    ],
)
def test_what_cannot_be_varied(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    workload = load(tmp_path, WORKLOAD.replace(old, new))
    with pytest.raises(InputError, match=message):
        next(strategy_map.cells(workload, Objective(), 60))


def test_points_at_which_there_is_no_recommendation(tmp_path: Path) -> None:
    busy = "per_hour: 14\n    count: 9\n    phases:"
    workload = load(tmp_path, WORKLOAD.replace("phases:", busy))
    cells = [*strategy_map.cells(workload, Objective(), seconds=0)]
    assert {(cell.load, cell.ratio) for cell in cells} == {
        (load, ratio) for load in LOADS for ratio in RATIOS
    }
    # no time is left for any of them
    assert not any(cell.comparison or cell.why for cell in cells)
    # 14 runs per hour of 600 node-seconds are 2.33 nodes
    cell = strategy_map.cell(workload, Objective(), 1.0, 0.75)
    assert cell.comparison is None
    assert cell.why is not None
    assert "need 8.333 on average" in cell.why


def test_a_map_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = tmp_path / "costs$x$.yml", tmp_path / "map.svg"
    path.write_text(LOADED)
    command = ["plan", str(path), "--map", str(picture), "--json"]
    assert main([*command, "--minimise", "wall=1,node-seconds=2"]) == 0
    told = json.loads(capsys.readouterr().out)["map"]
    assert len(told) == len(LOADS) * len(RATIOS)
    for cell in told:
        assert cell["recommended"]["strategy"] in cell["as_good"]
    # without load, steps wait for nothing, and hold no node in vain
    alone = {cell["ratio"]: cell for cell in told if cell["load"] == 0}
    assert alone[100.0]["as_good"] == ["per-step"]
    assert alone[100.0]["lead"] > 0.5
    text = picture.read_text()
    assert text.startswith("<?xml")
    assert "<dc:date>" not in text


def test_the_same_map_is_the_same_picture(tmp_path: Path) -> None:
    workload, objective = load(tmp_path, WORKLOAD), Objective()
    cells = [strategy_map.cell(workload, objective, ratio, 0.0) for ratio in RATIOS]
    pictures = [tmp_path / "one.svg", tmp_path / "other.svg"]
    for path in pictures:
        figure = map_picture.draw(cells, workload.strategies, objective, "costs$x$")
        map_picture.write(path, figure)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


@pytest.mark.parametrize("simulated", [(), (0.0, 0.9)])
def test_a_map_is_legible(tmp_path: Path, simulated: tuple[float, ...]) -> None:
    """Also with marks of every kind."""
    workload = load(tmp_path, LOADED)
    objective = Objective({"wall": 1.0, "node-seconds": 0.5}, {"wall": 1.2})
    cells = [
        (
            strategy_map.cell(workload, objective, one.ratio, one.load)
            if one.load in simulated
            else one
        )
        for one in strategy_map.cells(workload, objective, seconds=0)
    ]
    cells[3] = strategy_map.Cell(
        cells[3].ratio, cells[3].load, why="need more per hour"
    )
    cells[4] = strategy_map.Cell(cells[4].ratio, cells[4].load)
    figure = map_picture.draw(cells, workload.strategies, objective, "workload")
    figure.draw_without_rendering()
    assert not illegible(figure)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "ratio of quantum to classical time"
    assert axes.get_ylabel() == "load of others (of nodes and QPUs)"
    (legend,) = figure.legends
    entries = [text.get_text() for text in legend.get_texts()]
    assert any(entry.startswith("?: not simulated") for entry in entries)
    assert any(entry.startswith("none: applications and others") for entry in entries)
    assert any("per-step" in entry for entry in entries) == bool(simulated)


def test_points_for_which_there_was_no_time_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = tmp_path / "workload.yml", tmp_path / "map.png"
    path.write_text(WORKLOAD)
    command = ["plan", str(path), "--map", str(picture), "--map-minutes", "1e-9"]
    assert main(command) == 0
    told = capsys.readouterr()
    assert "recommended: " in told.out
    assert "45 of 45 points were not simulated in time" in told.err
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--map-minutes", "3"], "--map-minutes: only with --map"),
        (["--map", "{}/no/map.svg"], "map.svg: cannot be written"),
        (["--map", "{}/map.pdf"], "expected a .png or .svg file"),
        (["--map", "{}/map.svg", "--map-minutes", "0"], "expected minutes, above 0"),
    ],
)
def test_bad_options(
    tmp_path: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "workload.yml"
    path.write_text(WORKLOAD)
    try:
        code = main(["plan", str(path), *(word.format(tmp_path) for word in words)])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    assert code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
