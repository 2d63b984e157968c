"""What ``sfq plan`` prints for generated workflows: the site can grant it, and it passes the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sf_quantum.cli import main
from sf_quantum.files import JSON
from sf_quantum.journal import DIRECTORY
from sf_quantum.planning import allocation_lines, site_nodes
from sf_quantum.planning import plan as plans
from sf_quantum.planning.simulation.strategies import Reserved
from sf_quantum.planning.workloads import reading
from sf_quantum.slurm.components import Component
from tests.support.checked_files import sinfo, slurm_lists
from tests.support.journals import write
from tests.support.planned_journals import Writer, planned

# of each job of the journals below
NODES = 2
TOOL: dict[str, JSON] = {
    "class": "CommandLineTool",
    "baseCommand": "true",
    "inputs": {"n": "int"},
    "outputs": {},
}


class Workload(NamedTuple):
    """A workflow with a scattered step, a step of one job, and perhaps one on a QPU.

    :param tasks: seconds of the jobs of the scattered step
    :param quantum: seconds of the step on a QPU, after which another one is on nodes
    :param at_once: jobs that StreamFlow runs at once
    :param nodes: of the partition
    :param current: the allocation that the file has
    """

    tasks: list[float]
    quantum: float | None
    at_once: int
    nodes: int
    current: JSON


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    at_once = draw(st.integers(1, 6))
    keep = draw(st.integers(0, at_once))
    current: list[JSON] = ["per-step", {"strategy": "elastic", "keep": keep}]
    current.append({"strategy": "reserved", "reserve": {"compute": 1}})
    return Workload(
        draw(st.lists(st.floats(1, 500), min_size=1, max_size=6)),
        draw(st.none() | st.floats(1, 500)),
        at_once,
        draw(st.integers(NODES, 14)),
        draw(st.sampled_from(current)),
    )


def a_project(folder: Path, given: Workload) -> Path:
    """Write the workflow, and the journal of a run of it."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = ["sweep", *(["solve"] if given.quantum is not None else []), "last"]
    document: dict[str, JSON] = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"ns": "int[]", "n": "int"},
        "outputs": {},
        "steps": {
            step: {
                "run": TOOL,
                **({"scatter": "n"} if step == "sweep" else {}),
                "in": {"n": "ns" if step == "sweep" else "n"},
                "out": [],
            }
            for step in steps
        },
    }
    (folder / "main.cwl").write_text(json.dumps(document))
    numbers: list[JSON] = [*range(len(given.tasks))]
    (folder / "job.yml").write_text(json.dumps({"ns": numbers, "n": 1}))
    bindings: list[JSON] = [
        {"step": f"/{one}", "target": {"deployment": "hpc", "service": service(one)}}
        for one in steps
    ]
    services: dict[str, JSON] = {"compute": {"partition": "batch", "nodes": str(NODES)}}
    if given.quantum is not None:
        services["quantum"] = {"partition": "qnodes", "qpu": ["pasqal"]}
    config: dict[str, JSON] = {
        "allocation": given.current,
        "maxConcurrentJobs": given.at_once,
        "services": services,
    }
    file = folder / "streamflow.yml"
    cwl: dict[str, JSON] = {"file": "main.cwl", "settings": "job.yml"}
    workflow: JSON = {"type": "cwl", "config": cwl, "bindings": bindings}
    hpc: JSON = {"type": "sfq.slurm", "config": config, "workdir": "work"}
    content: dict[str, JSON] = {
        "version": "v1.0",
        "workflows": {"hybrid": workflow},
        "deployments": {"hpc": hpc},
        "scheduling": {"scheduler": {"type": "sfq.journal", "config": {}}},
    }
    file.write_text(json.dumps(content))
    run = Writer(file)
    run.slurm({f"/sweep/0.{n}": seconds for n, seconds in enumerate(given.tasks)})
    if given.quantum is not None:
        run.slurm({"/solve/0": given.quantum}, service="quantum")
    run.slurm({"/last/0": 5.0})
    run.add("end", run.now, {"status": "completed"})
    write(folder / DIRECTORY / "1.jsonl", run.events)
    return file


def service(step: str) -> str:
    return "quantum" if step == "solve" else "compute"


def reserved_nodes(allocation: Any) -> int:
    """The nodes of the partition that an allocation holds at once."""
    if isinstance(allocation, dict) and allocation["strategy"] == "reserved":
        return NODES * int(allocation["reserve"]["compute"])
    return 0


@pytest.mark.process
@settings(
    max_examples=20,
    deadline=None,
    # each example takes a second, and a failing one is small as it is
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(given=workloads(), number=st.uuids())
def test_each_strategy_can_be_granted_and_passes_the_check(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: Workload,
    number: object,
) -> None:
    lines = sinfo(("batch", given.nodes), ("qnodes", NODES))
    slurm_lists(tmp_path / "bin", monkeypatch, lines)
    file = a_project(tmp_path / str(number), given)
    options = ("--nodes", f"batch={given.nodes}", "--repetitions", "2")
    content = yaml.safe_load(file.read_text())
    for objective in ((), ("--minimise", "wall"), ("--minimise", "node-seconds")):
        told = planned(capsys, str(file), *options, *objective)
        ((deployment, keys),) = told["streamflow"].items()
        assert reserved_nodes(keys["allocation"]) <= given.nodes
        config = content["deployments"][deployment]["config"]
        config["allocation"] = keys["allocation"]
        file.write_text(json.dumps(content))
        assert main(["check", str(file)]) == 0, capsys.readouterr()
        capsys.readouterr()
        config["allocation"] = given.current
        file.write_text(json.dumps(content))
        if not objective:
            walls = {
                one["strategy"]: one["measures"]["wall"]["mean"]
                for one in told["strategies"]
            }
            best = walls[told["recommended"]["strategy"]]
            assert best <= 1.1 * min(walls.values())


def test_a_file_with_several_allocations_is_told_all_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One strategy is recommended for all services, which some of them may have already."""
    file = a_project(tmp_path / "p", Workload([60.0] * 4, None, 4, 8, "per-step"))
    content = yaml.safe_load(file.read_text())
    services = content["deployments"]["hpc"]["config"]["services"]
    services["last"] = {**services["compute"], "allocation": "per-step"}
    content["workflows"]["hybrid"]["bindings"][-1]["target"]["service"] = "last"
    for current in ("per-step", {"strategy": "elastic", "keep": 1}):
        content["deployments"]["hpc"]["config"]["allocation"] = current
        file.write_text(json.dumps(content))
        assert main(["plan", str(file), "--minimise", "node-seconds"]) == 0
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        if current == "per-step":
            assert "# deployment hpc has it already" in lines
        else:
            assert "allocation: per-step" in lines
            assert "# and no allocation in its services last" in lines


@pytest.mark.process
def test_a_reservation_keeps_to_the_nodes_of_its_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four = Workload([60.0] * 4, 30.0, 4, 6, "per-step")
    file = a_project(tmp_path / "p", four)
    for nodes, expected in ((8, 4), (6, 3), (3, 1)):
        told = planned(
            capsys, str(file), "--nodes", f"batch={nodes}", "--minimise", "wall"
        )
        names = [one["strategy"] for one in told["strategies"]]
        assert "reserved" in names
        made = plans.load(file, [], {"batch": nodes})
        (keys,) = made.config(Reserved()).values()
        assert isinstance(keys, dict)
        assert keys["allocation"] == {
            "strategy": "reserved",
            "reserve": {"compute": expected, "quantum": 1},
            "release": {"after": "/solve", "times": 1},
        }
    assert main(["plan", str(file), "--nodes", "batch=1"]) != 0
    assert "partition batch has 1" in capsys.readouterr().err


@pytest.mark.process
def test_the_recommendation_names_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = a_project(tmp_path / "p", Workload([60.0, 2.0], None, 2, 4, "per-step"))
    assert main(["plan", str(file), "--nodes", "batch=4"]) == 0
    text = capsys.readouterr().out
    assert "of the strategies with at most 1.1 times the least wall time" in text
    assert "\nit takes " in text
    assert " node-seconds" in text.partition("\nit takes ")[2].partition("\n")[0]
    assert "nodes of the site's partitions: batch 4" in text
    assert main(["plan", str(file)]) == 0
    assert "--nodes batch=N" in capsys.readouterr().out
    assert main(["plan", str(file), "--nodes", "bacth=4"]) == 2
    assert "unknown partition 'bacth', did you mean 'batch'?" in capsys.readouterr().err


components = st.builds(
    lambda least, more, quantum: Component(least, least + more, quantum),
    st.integers(1, 4),
    st.integers(0, 2),
    st.booleans(),
)


@given(
    counts=st.dictionaries(st.sampled_from("abc"), st.integers(1, 6)),
    each=st.fixed_dictionaries(dict.fromkeys("abc", components)),
    most=st.integers(1, 30),
)
def test_components_fit_into_a_partition(
    counts: dict[str, int], each: dict[str, Component], most: int
) -> None:
    fitted = site_nodes.fitting(counts, each, most)
    if fitted is None:
        assert not is_granted(dict.fromkeys(counts, 1), each, most)
        return
    assert fitted.keys() == counts.keys()
    assert all(1 <= fitted[name] <= counts[name] for name in counts)
    assert is_granted(fitted, each, most)
    if fitted != counts:  # no more was taken away than is needed
        largest = max(each[name].max_nodes for name in counts)
        used = sum(number * each[name].max_nodes for name, number in fitted.items())
        assert used + largest > most


def is_granted(counts: dict[str, int], each: dict[str, Component], nodes: int) -> bool:
    """Whether Slurm finds nodes for each component when all are idle, as it looks for them."""
    wanted = [each[name] for name, count in counts.items() for _ in range(count)]
    for one in sorted(wanted, key=lambda component: component.place):
        if one.min_nodes > nodes:
            return False
        nodes -= min(one.max_nodes, nodes)
    return True


SIZES = """
partitions: {{c: {{nodes: {nodes}}}}}
applications:
  a:
    phases:
      - {{step: /wide, nodes: 3, seconds: 5}}
      - {{step: /many, nodes: 1, tasks: 3, seconds: 5}}
repetitions: 2
"""


@pytest.mark.parametrize(
    ("nodes", "reserve"),
    [(9, {"c-3": 1, "c-1": 3}), (5, {"c-3": 1, "c-1": 2}), (4, {"c-3": 1, "c-1": 1})],
)
def test_services_of_one_partition_share_its_nodes(
    tmp_path: Path, nodes: int, reserve: dict[str, int]
) -> None:
    path = tmp_path / "workload.yml"
    path.write_text(SIZES.format(nodes=nodes))
    keys = allocation_lines.config(reading.load(path), Reserved(), "a")
    assert keys["allocation"] == {"strategy": "reserved", "reserve": reserve}


def test_a_reservation_that_cannot_be_granted_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "workload.yml"
    path.write_text(SIZES.format(nodes=3))
    told = planned(capsys, str(path), "--minimise", "wall")
    assert told["left_out"] == {
        "reserved": "holds 4 nodes of c at the same time, but c has 3"
    }
    assert main(["plan", str(path), "--nodes", "c=4"]) == 2
    assert "has the nodes of its partitions itself" in capsys.readouterr().err
