"""A workflow with one quantum candidate in a loop, and what its journal says of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from sf_quantum.files import JSON
from sf_quantum.reporting import report
from tests.support.journals import Event, collect

if TYPE_CHECKING:
    from tests.support.projects import Project

MANAGER: dict[str, JSON] = {"type": "default", "config": {"max_retries": 3}}
# the next round begins when the test opens its gate, if it has any
COUNT = """\
while [ -d $3 ] && [ ! -e $3/$1 ]; do sleep 0.02; done
echo "{\\"next\\": $(($1 + 1)), \\"again\\": $([ $(($1 + 1)) -lt $2 ] && echo true || echo false)}" \
  > cwl.output.json
"""


def candidate(
    project: Project,
    rounds: int = 2,
    reads: int = 5,
    script: str = 'exec sfq solve "$@"',
    **config: JSON,
) -> None:
    """Make ``/loop/solve`` a candidate, on the targets qpu and cpu, in several rounds.

    :param script: of the step, which gets the arguments of ``sfq solve``
    :param config: of the filter
    """
    (project.folder / "solve.sh").write_text(script)
    (project.folder / "count.sh").write_text(COUNT)
    project.deployment("cpu", "sfq.nodes", names=["n1"], wraps="host")
    project.deployment("host", "local")
    project.document = _document(project.folder, rounds, reads)
    targets: list[JSON] = [{"deployment": name} for name in ("qpu", "cpu")]
    bind(project, {"/loop/solve": targets}, **config)


def bind(
    project: Project,
    bound: dict[str, list[JSON]],
    filters: Sequence[str] = ("candidate",),
    /,
    **config: JSON,
) -> None:
    """Bind candidates to their targets, all other steps to the host.

    :param bound: the candidates' targets, by step
    :param filters: names of the filters, which the candidates use in turn
    :param config: of each filter
    """
    bindings: list[JSON] = [{"step": "/", "target": {"deployment": "host"}}]
    for (step, targets), name in zip(bound.items(), cycle(filters), strict=False):
        bindings.append({"step": step, "target": targets, "filters": [name]})
    workflow: JSON = {
        "type": "cwl",
        "config": {"file": "main.cwl"},
        "bindings": bindings,
    }
    project.extra |= {
        "workflows": {"test": workflow},
        "bindingFilters": {
            name: {"type": "sfq.candidate", "config": config} for name in filters
        },
        "failureManager": MANAGER,
    }


def scatter(project: Project, jobs: int, script: str, **config: JSON) -> None:
    """Make ``/solve`` a candidate that is scattered, on the targets qpu and cpu.

    :param script: of each job, which gets its number and makes ``out``
    :param config: of the filter
    """
    project.step("solve", script, "qpu", scatter=jobs)
    # each job of the classical target has a place at once
    names: list[JSON] = [f"n{number}" for number in range(jobs)]
    project.deployment("cpu", "sfq.nodes", names=names, wraps="host")
    project.deployment("host", "local")
    ns: JSON = {"type": "int[]", "default": list(range(jobs))}
    project.document = {"inputs": {"ns": ns}}
    targets: list[JSON] = [{"deployment": name} for name in ("qpu", "cpu")]
    bind(project, {"/solve": targets}, **config)


def summaries(project: Project) -> list[str]:
    """What the last run's end says of its candidates."""
    return report.candidates(collect(project.events()))


def decisions(project: Project) -> list[Event]:
    """The last run's decisions."""
    return [event for event in project.events() if event["event"] == "decision"]


def where(project: Project) -> list[str]:
    """The deployments on which the candidate completed, in order."""
    return [str(e["deployment"]) for e in project.jobs("loop/solve", "completed")]


def reasons(project: Project) -> list[str]:
    """Why the candidate went where it did, in order."""
    return [str(event["reason"]) for event in decisions(project)]


def outcome(project: Project) -> JSON:
    """How the last run ended."""
    return project.events()[-1].get("status")


def _document(folder: Path, rounds: int, reads: int) -> dict[str, JSON]:
    solve: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-e", str(folder / "solve.sh")],
        "inputs": {
            "problem": {"type": "string", "inputBinding": {"prefix": "--problem"}},
            "reads": {"type": "int", "inputBinding": {"prefix": "--reads"}},
            "seed": {"type": "int", "inputBinding": {"prefix": "--seed"}},
            "variables": "int?",
        },
        "arguments": ["--output", "samples.json"],
        "outputs": {
            "samples": {"type": "File", "outputBinding": {"glob": "samples.json"}}
        },
    }
    count: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-e", str(folder / "count.sh")],
        "inputs": {
            "n": {"type": "int", "inputBinding": {"position": 1}},
            "rounds": {"type": "int", "inputBinding": {"position": 2}},
            "samples": "File",
            "gates": {"type": "string", "inputBinding": {"position": 3}},
        },
        "outputs": {"next": "int", "again": "boolean"},
    }
    inputs = {"n": "int", "rounds": "int", "reads": "int", "problem": "string"}
    loop: JSON = {
        "class": "Workflow",
        "inputs": {**inputs, "go": "boolean", "last": "File?"},
        "outputs": {
            "next": {"type": "int", "outputSource": "count/next"},
            "again": {"type": "boolean", "outputSource": "count/again"},
            "samples": {"type": "File", "outputSource": "solve/samples"},
        },
        "steps": {
            "solve": {
                "run": solve,
                "in": {
                    **{"problem": "problem", "reads": "reads", "seed": "n"},
                    "variables": {"default": 2},
                },
                "out": ["samples"],
            },
            "count": {
                "run": count,
                "in": {
                    **{"n": "n", "rounds": "rounds", "samples": "solve/samples"},
                    "gates": {"default": str(folder / "gates")},
                },
                "out": ["next", "again"],
            },
        },
    }
    iterate: JSON = {
        "loopWhen": "$(inputs.go)",
        "loop": {"n": "next", "go": "again", "last": "samples"},
        "outputMethod": "last",
    }
    return {
        "$namespaces": {"cwltool": "http://commonwl.org/cwltool#"},
        "requirements": {"SubworkflowFeatureRequirement": {}},
        "inputs": {
            "n": {"type": "int", "default": 0},
            "rounds": {"type": "int", "default": rounds},
            "reads": {"type": "int", "default": reads},
            "problem": {"type": "string", "default": str(folder / "problem.json")},
        },
        # without the loop's last value StreamFlow may end before the loop, as if it failed
        "outputs": {
            "samples": {"type": "File", "outputSource": "loop/samples"},
            "next": {"type": "int", "outputSource": "loop/next"},
        },
        "steps": {
            "loop": {
                "run": loop,
                "in": {
                    **{name: name for name in inputs},
                    "go": {"default": True},
                    "last": {"default": None},
                },
                "requirements": {"cwltool:Loop": iterate},
                "out": ["samples", "next"],
            }
        },
    }


def samples(project: Project) -> dict[str, JSON]:
    """The run's result."""
    content: dict[str, JSON] = json.loads((project.folder / "samples.json").read_text())
    return content
