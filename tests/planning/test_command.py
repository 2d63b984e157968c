"""``sfq plan``: figures, recommendation, lines for the StreamFlow file, and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from docs.generate import (
    PLAN_LISTS,
    STRATEGIES,
    plan_keys,
    read_schema,
    workload_schema,
)
from sf_quantum.cli import main
from sf_quantum.errors import InputError
from sf_quantum.planning import allocation_lines, experiment
from sf_quantum.planning.experiment import Result
from sf_quantum.planning.recommendation import recommend, weigh
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    PerStep,
    Reserved,
    Strategy,
)
from sf_quantum.planning.workloads import reading
from tests.support.folders import ROOT

PAPER = ROOT / "examples/planning/paper.yml"
REFERENCE = (ROOT / "docs/reference/plan.md").read_text()


def test_the_workload_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    assert main(["plan", str(PAPER)]) == 0
    assert time.process_time() - began < 5
    text = capsys.readouterr().out
    assert "recommended: per-step has the least node-seconds (" in text
    assert "\ndefaults, not measured on this site: step_seconds 0.2" in text
    below = text.split("deployment\n")[1].split("\n\n")[0]
    assert yaml.safe_load(below)["allocation"] == "per-step"


def test_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(PAPER), "--json", "--repetitions", "3"]
    assert main([*command, "--minimise", "node-seconds", "--at-most", "wall=1.5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["repetitions"] == 3
    keys = [*found, *found["sources"], *found["strategies"][0], *found["recommended"]]
    for key in (*keys, *experiment.MEASURES):
        assert f"`{key}`" in REFERENCE, "not documented"
    assert [one["strategy"] for one in found["strategies"]][:3] == [
        "co-scheduled",
        "reserved",
        "per-step",
    ]
    wall = found["strategies"][2]["measures"]["wall"]
    assert 0 < wall["ci95"] < 0.01 * wall["mean"]
    assert found["recommended"]["strategy"] == "per-step"
    assert found["recommended"]["at_most"] == {"wall": 1.5}
    assert found["default_overheads"] == [
        "step_seconds",
        "job_seconds",
        "resume_seconds",
        "job_held_seconds",
        "allocation_held_seconds",
    ]


def test_two_runs_are_close_to_the_paper() -> None:
    """Its table I, predicted from one run of its table II: within 2 %."""
    workload = reading.load(PAPER)
    measured: dict[Strategy, tuple[float, float]] = {
        CoScheduled(): (2038.43, 6115.30),
        PerStep(): (1226.00, 2324.00),
    }
    for strategy, (wall, node_seconds) in measured.items():
        result = experiment.run(workload, strategy, [])
        assert isinstance(result, Result)
        assert result.mean("makespan") == pytest.approx(wall, rel=0.02)
        assert result.mean("node-seconds") * 2 == pytest.approx(node_seconds, rel=0.02)


def of(strategy: Strategy, **measures: tuple[float, ...]) -> Result:
    names = {name: name.replace("_", "-") for name in measures}
    repetitions = [
        {names[name]: value for name, value in zip(measures, values, strict=True)}
        for values in zip(*measures.values(), strict=True)
    ]
    return Result(strategy, repetitions)


FAST = of(CoScheduled(), wall=(100, 102), node_seconds=(400, 400))
FRUGAL = of(PerStep(), wall=(150, 152), node_seconds=(100, 100))
BETWEEN = of(Elastic(), wall=(110, 112), node_seconds=(150, 150))


@pytest.mark.parametrize(
    ("objective", "bounds", "best", "why"),
    [
        (
            "wall",
            {},
            FAST,
            "co-scheduled has the least wall time (101 s); the next is elastic, with 9.9 % "
            "more. The node-seconds of co-scheduled are 4.00 times those of per-step, which "
            "has the least.",
        ),
        (
            "node-seconds",
            {},
            FRUGAL,
            "per-step has the least node-seconds (100); the next is elastic, with 50.0 % "
            "more. The wall time of per-step is 1.50 times that of co-scheduled, which has "
            "the least.",
        ),
        (
            "node-seconds",
            {"wall": 1.2},
            BETWEEN,
            "elastic has the least node-seconds (150) of the strategies with at most 1.2 "
            "times the least wall time; the next is co-scheduled, with 166.7 % more. "
            "The wall time of elastic is 1.10 times that of co-scheduled, which has the "
            "least.",
        ),
    ],
)
def test_recommendations(
    objective: str, bounds: Mapping[str, float], best: Result, why: str
) -> None:
    found = recommend([FAST, FRUGAL, BETWEEN], objective, bounds)
    assert found.best is best
    assert found.sentence() == why


def test_small_differences_are_below_half_a_percent() -> None:
    near = of(PerStep(), wall=(100.1, 102.1), node_seconds=(400, 400))
    found = recommend([FAST, near], "wall", {"wall": 2, "node-seconds": 3})
    assert found.sentence() == (
        "co-scheduled has the least wall time (101 s) of the strategies with at most 2 times "
        "the least wall time and at most 3 times the least node-seconds; the next is per-step, "
        "with less than 0.5 % more. The node-seconds of co-scheduled are also the least."
    )


def test_what_may_be_chance_is_said() -> None:
    other = of(PerStep(), wall=(90, 120), node_seconds=(100, 100))
    found = recommend([FAST, other], "wall", {})
    assert found.best is FAST
    assert found.unsure == [other]
    assert "More repetitions may show that it is per-step." in found.sentence()
    # pairs tell what means do not: each time, it takes 1 s longer
    longer = of(Elastic(), wall=(101, 103), node_seconds=(1, 1))
    assert recommend([FAST, longer], "wall", {}).unsure == []


def test_several_measures_are_weighed_relative_to_their_least() -> None:
    results = weigh([FAST, FRUGAL, BETWEEN], {"wall": 3, "node-seconds": 1})
    # relative to 101 s and 100 node-seconds
    assert [one.mean("weighted-sum") for one in results] == pytest.approx(
        [0.75 + 0.25 * 4, 0.75 * 151 / 101 + 0.25, 0.75 * 111 / 101 + 0.25 * 1.5]
    )
    found = recommend(results, "weighted-sum", {})
    assert found.best.strategy is BETWEEN.strategy
    assert found.sentence() == (
        "elastic has the least weighted sum (1.2); the next is per-step, with 14.3 % more. "
        "The wall time of elastic is 1.10 times that of co-scheduled, which has the least."
    )
    # any multiple of the weights is the same
    again = weigh([FAST, FRUGAL, BETWEEN], {"wall": 30, "node-seconds": 10})
    assert [one.mean("weighted-sum") for one in again] == pytest.approx(
        [one.mean("weighted-sum") for one in results]
    )
    with pytest.raises(InputError, match="node-seconds: the least is 0"):
        weigh([of(PerStep(), node_seconds=(0, 0))], {"node-seconds": 1})


def test_weights_and_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "workload.yml"
    text = PAPER.read_text().replace(
        "{nodes: 3", "{watts: 400, idle_watts: 150, nodes: 3"
    )
    path.write_text(text)
    command = ["plan", str(path), "--repetitions", "2", "--json", "--minimise"]
    told = {}
    for minimise in ("wall=3,node-seconds=1,energy=0.5", "energy"):
        assert main([*command, minimise]) == 0
        told[minimise] = json.loads(capsys.readouterr().out)
    weighted, energy = told.values()
    assert weighted["weights"] == {"wall": 3, "node-seconds": 1, "energy": 0.5}
    assert weighted["recommended"]["minimise"] == "weighted-sum"
    sums = [one["measures"]["weighted-sum"]["mean"] for one in weighted["strategies"]]
    least = min(range(len(sums)), key=sums.__getitem__)
    assert sums[least] >= 1
    best = weighted["strategies"][least]["strategy"]
    assert weighted["recommended"]["strategy"] == best
    joules = {
        one["strategy"]: one["measures"]["energy"]["mean"]
        for one in energy["strategies"]
    }
    assert energy["recommended"]["strategy"] == min(joules, key=joules.__getitem__)


def test_bounds_that_exclude_all() -> None:
    with pytest.raises(InputError, match=r"wall=1\.01 and node-seconds=1\.01"):
        recommend([FAST, FRUGAL], "wall", {"wall": 1.01, "node-seconds": 1.01})


@pytest.mark.parametrize(
    ("strategy", "allocation"),
    [
        (PerStep(), "per-step"),
        (
            Elastic(keep=1, ahead=True),
            {"strategy": "elastic", "keep": 1, "ahead": True},
        ),
        (
            CoScheduled(),
            {"strategy": "reserved", "reserve": {"compute": 3, "neutral-atoms": 1}},
        ),
        (
            Reserved(vqpus=2),
            {
                "strategy": "reserved",
                "reserve": {"compute": 3, "neutral-atoms": 1},
                "release": {"after": "/iterate/solve", "times": 4},
            },
        ),
    ],
)
def test_lines_for_the_streamflow_file(strategy: Strategy, allocation: object) -> None:
    workload = reading.load(PAPER)
    lines = allocation_lines.lines(workload, strategy)
    content = yaml.safe_load("\n".join(lines))
    assert content.pop("vqpus", None) == strategy.vqpus
    assert content == allocation_lines.config(
        workload, strategy, "clustering-aggregation"
    )
    assert content["allocation"] == allocation
    assert content["maxConcurrentJobs"] == 3
    # as simulated, quantum steps are jobs of their own, whose node is not kept
    quantum = content["services"]["neutral-atoms"].get("allocation")
    assert quantum == ("per-step" if isinstance(strategy, Elastic) else None)
    schema = read_schema("connectors/slurm/schema.json")
    properties = schema["properties"]
    assert isinstance(properties, dict)
    rule = {"$defs": schema["$defs"], "allOf": [properties["allocation"]]}
    assert not [*Draft202012Validator(rule).iter_errors(content["allocation"])]


def test_services_of_several_sizes(tmp_path: Path) -> None:
    path = tmp_path / "workload.yml"
    text = PAPER.read_text().replace("tasks: 3", "nodes: 3, least: 2")
    path.write_text(text)
    keys = allocation_lines.config(
        reading.load(path), PerStep(), "clustering-aggregation"
    )
    services = keys["services"]
    assert isinstance(services, dict)
    assert services["compute-2-3"] == {"partition": "compute", "nodes": "2-3"}
    assert services["compute-1"] == {"partition": "compute", "nodes": "1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--minimise", "cost"],
            "no price: give partitions or qpus one to compare cost",
        ),
        (
            ["--at-most", "cost=2"],
            "no price: give partitions or qpus one to compare cost",
        ),
        (["--minimise", "wall,energy=2"], "no watts: give partitions some to compare"),
        (["--minimise", "speed"], "'speed': expected one of wall, node-seconds, cost"),
        (
            ["--minimise", "wall=1,wall=2"],
            "or several with weights above 0, as in wall=1",
        ),
        (["--minimise", "wall=0"], "'wall=0': expected one of"),
        (["--minimise", "wall=-1"], "'wall=-1': expected one of"),
        (["--minimise", "wall=inf"], "'wall=inf': expected one of"),
        (["--minimise", "wall=much"], "'wall=much': expected one of"),
        (["--minimise", "wall,"], "'wall,': expected one of"),
        (["--at-most", "wall=0.9"], "'wall=0.9': expected one of wall, node-seconds"),
        (["--at-most", "speed=2"], "'speed=2': expected one of wall, node-seconds"),
        (
            ["--at-most", "wall=1", "--at-most", "wall=2"],
            "each measure one factor only",
        ),
        (["--save", str(PAPER)], "is the file that is planned; name another one"),
        (["--repetitions", "1"], "expected a whole number from 2 to 10000"),
        (["--repetitions", "10001"], "expected a whole number from 2 to 10000"),
    ],
)
def test_bad_options(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["plan", str(PAPER), *arguments])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    assert code == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "workload.yml"
    path.write_text(PAPER.read_text().replace("seconds: 120", "seconds: -120"))
    for command in ("plan", "check"):
        assert main([command, str(path)]) == 2
        told = "".join(capsys.readouterr())
        assert "phases[1].seconds -120: expected 1e-09 or more" in told
    path.write_text(f"{PAPER.read_text()}background: {{traces: [{{file: no.swf}}]}}\n")
    assert main(["check", str(path)]) == 2
    assert "no.swf" in capsys.readouterr().out


def test_jobs_of_a_trace_that_are_left_out_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = "1 0 0 100 1 -1 -1 1 100 -1 1 1 1 -1 1 -1 -1 -1\n"
    (tmp_path / "jobs.swf").write_text(f"{job}2 5 0 1")
    path = tmp_path / "workload.yml"
    text = PAPER.read_text()
    path.write_text(
        f"{text}background: {{warm_up_seconds: 9, traces: [{{file: jobs.swf}}]}}\n"
    )
    assert main(["check", str(path)]) == 0
    assert main(["plan", str(path), "--repetitions", "2"]) == 0
    told = capsys.readouterr().out
    assert "OK (workload)" in told
    assert "jobs.swf: jobs left out: 1 without 18 columns" in told


def test_waits_of_others_in_few_repetitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one strategy, a job of others starts in one repetition; with the other, none."""
    path = tmp_path / "workload.yml"
    path.write_text(
        "partitions: {compute: {nodes: 8}}\n"
        "applications: {loop: {repeats: 12, phases: [{nodes: 2, seconds: 5}]}}\n"
        "overheads: {job_seconds: 30}\n"
        "background: {jobs: [{per_hour: 9, seconds: 5}], warm_up_seconds: 0}\n"
        "strategies: [{type: per-step}, {type: co-scheduled}]\n"
        "repetitions: 2\n"
    )
    assert main(["plan", str(path)]) == 0
    _, per_step, held, *_ = capsys.readouterr().out.splitlines()
    assert per_step.endswith("± ?")
    assert held.endswith("-")
    assert main(["plan", str(path), "--json"]) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text
    told, other = (one["measures"] for one in json.loads(text)["strategies"])
    assert told["others-slowdown"]["ci95"] is None
    assert "others-slowdown" not in other


def test_a_name_stays_in_its_comment(tmp_path: Path) -> None:
    path = tmp_path / "workload.yml"
    text = PAPER.read_text().replace("clustering-aggregation:", '"a\\nb: [":')
    path.write_text(text)
    lines = allocation_lines.lines(reading.load(path), PerStep())
    assert yaml.safe_load("\n".join(lines))["allocation"] == "per-step"


def test_a_strategy_that_cannot_run_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "workload.yml"
    path.write_text(PAPER.read_text().replace("tasks: 3", "tasks: 4"))
    assert main(["plan", str(path), "--repetitions", "2"]) == 0
    told = capsys.readouterr().out
    assert (
        "reserved holds 4 nodes of compute at the same time, but compute has 3" in told
    )
    few = "strategies: [{type: reserved}, {type: reserved, vqpus: 2}]"
    path.write_text(f"{path.read_text()}{few}\n")
    assert main(["plan", str(path)]) == 2
    for line, name in zip(
        capsys.readouterr().err.splitlines(),
        ("reserved", "reserved, 2 vQPUs"),
        strict=True,
    ):
        why = f"no strategy can run: {name} holds 4 nodes of compute"
        assert line.startswith(f"sfq plan: {path}: {why}")


def test_each_error_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "workload.yml"
    path.write_text("partitoins: {}\napplications: {}\nqpus: 1\n")
    assert main(["plan", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert main(["check", str(path)]) == 2
    found = capsys.readouterr().out.splitlines()
    assert lines == [f"sfq plan: {line}" for line in found]
    assert len(found) > 2


def test_the_schema_is_that_of_the_model() -> None:
    """``sf_quantum/planning/schemas/workload.json`` is written by ``workload_schema``."""
    schema = read_schema("planning/schemas/workload.json")
    assert schema == workload_schema()
    validator = Draft202012Validator(schema)
    content = yaml.safe_load(PAPER.read_text())
    assert not [*validator.iter_errors(content)]
    content["applications"]["clustering-aggregation"]["phases"][0]["second"] = 3
    assert [*validator.iter_errors(content)]


def test_every_key_is_described() -> None:
    rows = [line.split(" | ") for line in plan_keys() if line.startswith("| `")]
    assert len(rows) > 60 + len(PLAN_LISTS) + len(STRATEGIES)
    assert not [row[0] for row in rows if row[3] == " |"]
