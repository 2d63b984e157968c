"""A StreamFlow file as a workload: what is read of it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.planning.workloads import reading
from sf_quantum.planning.workloads.streamflow_workload import StreamFlowFile
from tests.support.changed_json import changed

FILE = Path("streamflow.yml")
_SERVICES: dict[str, JSON] = {
    "cpu": {"partition": "compute", "nodes": "2", "allocation": "per-step"},
    "gpu": {"gres": "gpu:1"},
    "quantum": {"partition": "quantum", "qpu": ["q1"]},
}
_ELASTIC: dict[str, JSON] = {"strategy": "elastic", "keep": 1, "ahead": "dependent"}
_BINDINGS: list[JSON] = [
    {"step": "/a", "target": {"deployment": "hpc", "service": "cpu"}},
    {"step": "/b", "target": [{"deployment": "qpu"}, {"deployment": "here"}]},
    {"step": "/c", "target": {"deployment": "hpc", "service": "quantum"}},
    {"port": "/d", "target": {"deployment": "here", "workdir": "/data"}},
]


def _content(
    bindings: list[JSON] = _BINDINGS,
    services: dict[str, JSON] = _SERVICES,
    allocation: JSON = _ELASTIC,
) -> dict[str, JSON]:
    return {
        "version": "v1.0",
        "workflows": {"main": {"type": "cwl", "bindings": bindings}},
        "deployments": {
            "here": {"type": "local", "config": {"services": []}},
            "hpc": {
                "type": "sfq.slurm",
                "wraps": "here",
                "config": {
                    "services": services,
                    "allocation": allocation,
                    "maxConcurrentJobs": 3,
                },
            },
            "qpu": {
                "type": "sfq.rest",
                "wraps": {"deployment": "hpc", "service": "gpu"},
                "config": {"type": "sfq"},
            },
        },
    }


def test_steps_on_slurm_and_on_qpus_are_phases() -> None:
    file = StreamFlowFile(FILE, _content())
    plan = file.plan(None, {})
    workload = reading.checked(plan.workload, FILE)
    phases = workload.applications["main"].phases
    assert [(one.step, one.partition, one.qpu, one.nodes) for one in phases] == [
        ("/a", "compute", None, 2),
        ("/b", None, "qpu", 1),
        ("/c", None, "q1", 1),
    ]
    assert workload.partitions["compute"].most_jobs == 3
    assert file.is_here
    assert plan.current.name == "per-step"
    assert plan.is_mixed


@pytest.mark.parametrize("kind", ["sfq.emulator", "sfq.rest"])
def test_a_qpu_that_wraps_slurm_holds_nodes_of_its_service(kind: str) -> None:
    steps = [("/a", "hpc", "cpu"), ("/b", "qpu", None), ("/c", "qpu", None)]
    bindings: list[JSON] = [
        (
            {"step": step, "target": {"deployment": name, "service": service}}
            if service
            else {"step": step, "target": {"deployment": name}}
        )
        for step, name, service in steps
    ]
    services: dict[str, JSON] = {"cpu": {"nodes": "2"}, "gpu": {"nodes": "1"}}
    content = _content(bindings, services, "reserved")
    deployments = content["deployments"]
    assert isinstance(deployments, dict)
    deployments["qpu"] = {
        "type": kind,
        "wraps": {"deployment": "hpc", "service": "gpu"},
        "config": {},
    }
    plan = StreamFlowFile(FILE, content).plan(None, {})
    assert (plan.deployment, plan.current.name) == ("hpc", "reserved")
    assert plan.reserved == {"cpu": 1, "gpu": 1}
    assert not plan.is_mixed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"workflows": 1}, "workflows: expected an object, not 1"),
        ({"workflows": {}}, "workflows: expected one to plan, there are 0"),
        (
            _content([{"step": "/a", "target": []}]),
            "main.bindings[0].target: expected a",
        ),
        (
            _content([{"step": "/a", "target": {"service": "cpu"}}]),
            "workflows.main.bindings[0].target.deployment: missing",
        ),
        (
            _content(services={"cpu": {"nodes": True}}),
            "deployments.hpc.config.services.cpu.nodes: expected text, not true",
        ),
        (
            _content(allocation="greedy"),
            'hpc.config.allocation: expected per-step, reserved or elastic, not "greedy"',
        ),
        (
            _content(allocation={"strategy": "elastic", "keep": "all"}),
            "deployments.hpc.config.allocation: keep: expected a whole number",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_key(
    content: dict[str, JSON], message: str
) -> None:
    with pytest.raises(InputError) as error:
        StreamFlowFile(FILE, content).plan(None, {})
    assert str(error.value).startswith("streamflow.yml: ")
    assert message in str(error.value)


def test_deployments_that_wrap_each_other_are_not_slurm() -> None:
    content: dict[str, JSON] = {
        "workflows": {"main": {"bindings": _BINDINGS[1:2]}},
        "deployments": {"qpu": {"type": "sfq.rest", "wraps": "qpu"}},
    }
    with pytest.raises(InputError, match="no step is bound to a deployment"):
        StreamFlowFile(FILE, content)


@settings(deadline=None)
@given(changed(_content()))
def test_any_file_is_planned_or_refused_in_one_line(content: JSON) -> None:
    if not isinstance(content, dict):
        return
    message = ""
    try:
        plan = StreamFlowFile(FILE, content).plan(None, {"compute": 4})
        reading.checked(plan.workload, FILE)
    except InputError as error:
        message = str(error)
    assert message.isprintable()
