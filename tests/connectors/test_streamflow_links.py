"""Outputs of workflows are linked to their sources as in cwltool."""

from __future__ import annotations

import ast
import inspect
import json
import random
import subprocess
import zlib
from asyncio.subprocess import STDOUT
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from streamflow.core.deployment import ExecutionLocation
from streamflow.cwl import translator
from streamflow.cwl.combinator import ListMergeCombinator
from streamflow.cwl.translator import CWLTranslator
from streamflow.deployment.connector.local import LocalConnector
from streamflow.deployment.connector.queue_manager import (
    PBSConnector,
    QueueManagerConnector,
)

from sf_quantum.connectors import streamflow_commands
from sf_quantum.files import JSON
from tests.support import waiting
from tests.support.candidate_runs import bind
from tests.support.cwl_documents import needs_javascript

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

# The outputs a and b of a job tell its inputs.
PAIR = """\
echo "{\\"a\\": \\"a $*\\", \\"b\\": \\"b $*\\"}" >cwl.output.json
"""
ENVIRONMENT = """\
import json, os
with open("cwl.output.json", "w") as file:
    json.dump({"value": os.environ["VALUE"]}, file)
"""
FEATURES: dict[str, JSON] = {
    "ScatterFeatureRequirement": {},
    "SubworkflowFeatureRequirement": {},
    "MultipleInputFeatureRequirement": {},
}


def _tool(project: Project, *inputs: str) -> dict[str, JSON]:
    script = project.folder / "pair.sh"
    script.write_text(PAIR)
    return {
        "class": "CommandLineTool",
        "baseCommand": ["sh", str(script)],
        "inputs": {name: {"type": "string", "inputBinding": {}} for name in inputs},
        "outputs": {"a": "string", "b": "string"},
    }


def _compare(project: Project) -> None:
    """Run a project's workflow, and compare its outputs with those of cwltool."""
    project.deployment("host", "local")
    bind(project, {})
    assert project.run() == 0, project.log
    done = subprocess.run(
        ["cwltool", "--quiet", "--enable-ext", "main.cwl"],
        cwd=project.folder,
        env=project.environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert project.outputs == json.loads(done.stdout)


def test_all_outputs_of_crossproducts_are_gathered(project: Project) -> None:
    inputs: dict[str, JSON] = {}
    steps: dict[str, JSON] = {}
    outputs: dict[str, JSON] = {}
    for sizes in ((2, 3), (2, 1, 2), (0, 3), (3, 0), (1, 3, 0), (2, 0, 3)):
        for method in ("nested_crossproduct", "flat_crossproduct"):
            name = f"{method}{''.join(map(str, sizes))}"
            names = [f"n{position}" for position in range(len(sizes))]
            for one, size in zip(names, sizes, strict=True):
                items: JSON = [str(number) for number in range(size)]
                inputs[name + one] = {"type": "string[]", "default": items}
            steps[name] = {
                "run": _tool(project, *names),
                "in": {one: name + one for one in names},
                "scatter": [*reversed(names)],
                "scatterMethod": method,
                "out": ["a", "b"],
            }
            for one in "ab":
                source = f"{name}/{one}"
                outputs[name + one] = {"type": "Any", "outputSource": source}
                outputs[f"{name}{one}-flat"] = {
                    "type": "Any",
                    "outputSource": [source],
                    "linkMerge": "merge_flattened",
                    "pickValue": "all_non_null",
                }
    project.document = {"inputs": inputs, "steps": steps, "outputs": outputs}
    _compare(project)


@pytest.mark.parametrize(
    ("owner", "name", "checksum"),
    [
        (ListMergeCombinator, "combine", 3353347523),
        (CWLTranslator, "_translate_workflow", 424639495),
        (translator, "_create_list_merger", 82518655),
        (translator, "_create_nested_size_tag", 2719135979),
    ],
)
def test_what_is_replaced_has_not_changed(
    owner: type | ModuleType, name: str, checksum: int
) -> None:
    """If StreamFlow has changed one, ours has to be compared with it again."""
    source = inspect.getsource(owner)
    (code,) = (
        ast.get_source_segment(source, node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
        and node.name == name
    )
    assert zlib.crc32(str(code).encode()) == checksum


@pytest.mark.parametrize("seed", range(4))
def test_outputs_may_share_their_sources(project: Project, seed: int) -> None:
    draw = random.Random(seed)
    steps: dict[str, JSON] = {}
    sources = ["text"]
    for number in range(5):
        inner, names = _inner(project, draw)
        is_scattered = draw.random() < 0.4
        step: dict[str, JSON] = {
            "run": inner,
            "in": {"text": "texts" if is_scattered else "text"},
            "out": [*names],
        }
        if is_scattered:
            step["scatter"] = "text"
        steps[f"s{number}"] = step
        sources += [f"s{number}/{name}" for name in names]
    # Nothing but the outputs reads the sources, and each is read at least once.
    outputs = {
        f"of{number}": _output(draw, sources, source)
        for number, source in enumerate([*sources, *draw.choices(sources, k=10)])
    }
    project.document = {
        "requirements": FEATURES,
        "inputs": {
            "text": {"type": "string", "default": "x"},
            "texts": {"type": "string[]", "default": ["y", "z"]},
        },
        "steps": steps,
        "outputs": _shuffled(draw, outputs),
    }
    _compare(project)


def _inner(project: Project, draw: random.Random) -> tuple[JSON, list[str]]:
    """A workflow of one or two steps, and the names of its outputs."""
    steps: dict[str, JSON] = {}
    sources = ["text"]
    for name in draw.choice(["t", "tu"]):
        steps[name] = {
            "run": _tool(project, "x"),
            "in": {"x": draw.choice(sources)},
            "out": ["a", "b"],
        }
        sources += [f"{name}/a", f"{name}/b"]
    outputs = {
        f"o{number}": _output(draw, sources, source)
        for number, source in enumerate([*sources, *draw.choices(sources, k=3)])
    }
    inner: JSON = {
        "class": "Workflow",
        "inputs": {"text": "string"},
        "steps": steps,
        "outputs": _shuffled(draw, outputs),
    }
    return inner, [*outputs]


def _output(draw: random.Random, sources: list[str], source: str) -> JSON:
    """An output of one source, or of several merged."""
    several: list[JSON] = [source]
    alone: JSON = several if draw.random() < 0.5 else source
    others = [other for other in sources if other != source]
    merge = draw.choice(["merge_nested", "merge_flattened"])
    match draw.randrange(7):
        case 0:
            return {"type": "Any", "outputSource": several}
        case 1:
            several.append(draw.choice(others))
            return {"type": "Any", "outputSource": several, "linkMerge": merge}
        case 2:
            return {"type": "Any", "outputSource": alone, "linkMerge": merge}
        case _:
            return {"type": "Any", "outputSource": source}


def _shuffled(draw: random.Random, content: dict[str, JSON]) -> JSON:
    return dict(draw.sample([*content.items()], len(content)))


@pytest.mark.parametrize("version", ["v1.0", "v1.1", "v1.2"])
def test_records_without_a_name_have_their_fields(
    project: Project, version: str
) -> None:
    def record(**fields: JSON) -> JSON:
        return {"type": "record", "fields": fields}

    def array(items: JSON) -> JSON:
        return {"type": "array", "items": items}

    script = project.folder / "make.sh"
    script.write_text(
        'echo \'{"r": {"a": 1, "b": {"c": "x"}}, "rs": [{"a": 2}]}\' >cwl.output.json'
    )
    kinds: dict[str, JSON] = {
        "r": record(a="int", b={"type": record(c="string")}),
        "rs": array(record(a="int")),
    }
    made: JSON = {name: {"type": kind} for name, kind in kinds.items()}
    bound: dict[str, JSON] = {
        "a": {"type": "int", "inputBinding": {"prefix": "-a"}},
        "c": {"type": "string", "inputBinding": {"prefix": "-c"}},
    }
    taken: JSON = {
        "x": {"type": record(a=bound["a"], b={"type": record(c=bound["c"])})},
        "xs": {"type": kinds["rs"]},
    }
    tell = project.folder / "tell.sh"
    tell.write_text('echo "{\\"out\\": \\"$*\\"}" >cwl.output.json')
    project.document = {
        "cwlVersion": version,
        "inputs": {},
        "steps": {
            "make": {
                "run": {
                    "class": "CommandLineTool",
                    "baseCommand": ["sh", str(script)],
                    "inputs": {},
                    "outputs": made,
                },
                "in": {},
                "out": ["r", "rs"],
            },
            "use": {
                "run": {
                    "class": "CommandLineTool",
                    "baseCommand": ["sh", str(tell)],
                    "inputs": taken,
                    "outputs": {"out": "string"},
                },
                "in": {"x": "make/r", "xs": "make/rs"},
                "out": ["out"],
            },
        },
        "outputs": {
            "out": {"type": "string", "outputSource": "use/out"},
            **{
                name: {"type": kind, "outputSource": f"make/{name}"}
                for name, kind in kinds.items()
            },
        },
    }
    _compare(project)


def _telling(project: Project, inputs: JSON) -> dict[str, JSON]:
    """A tool whose output ``out`` has the words of its command line."""
    tell = project.folder / "tell.sh"
    tell.write_text(
        """{ printf '{"out": "'; printf '<%s>' "$@"; printf '"}'; } >cwl.output.json"""
    )
    return {
        "class": "CommandLineTool",
        "baseCommand": ["sh", str(tell)],
        "inputs": inputs,
        "outputs": {"out": "string"},
    }


@pytest.mark.parametrize(
    "binding",
    [
        {},
        {"prefix": "-x"},
        {"prefix": "-x", "separate": False},
        {"itemSeparator": ";"},
        {"prefix": "--x=", "separate": False, "itemSeparator": ", "},
        {"valueFrom": "$(inputs.x)"},
        {"valueFrom": "$(inputs.x[0])", "prefix": "-x"},
    ],
    ids=str,
)
def test_a_tool_gets_each_item_of_a_list_as_cwl_says(
    project: Project, binding: dict[str, JSON]
) -> None:
    field: JSON = {"type": "string[]", "inputBinding": {**binding, "position": 1}}
    inputs: JSON = {
        "x": field,
        "y": {"type": "string[]?", "inputBinding": {**binding, "position": 2}},
    }
    items: JSON = ["a b", "c;d", "*", "$HOME", "'", "#e", "~"]
    project.document = {
        "inputs": {"items": {"type": "string[]", "default": items}},
        "steps": {
            "s": {
                "run": _telling(project, inputs),
                "in": {"x": "items", "y": "items"},
                "out": ["out"],
            }
        },
        "outputs": {"out": {"type": "string", "outputSource": "s/out"}},
    }
    _compare(project)


_FIELD: JSON = {"name": "f", "type": "string", "inputBinding": {"prefix": "-f"}}


@pytest.mark.parametrize(
    ("items", "value"),
    [
        ("#record", [{"f": "a b"}, {"f": "c;d"}]),
        (["null", "string", "int"], ["a b", 2]),
        ("#enum", ["a", "a"]),
    ],
    ids=["records", "union", "enum"],
)
def test_a_tool_gets_items_that_are_no_words_as_cwl_says(
    project: Project, items: JSON, value: JSON
) -> None:
    """What a binding inside has quoted is not quoted once more."""
    listed: JSON = {"type": "array", "items": items}
    types: JSON = [
        {"type": "record", "name": "record", "fields": [_FIELD]},
        {"type": "enum", "name": "enum", "symbols": ["a"]},
    ]
    tool: JSON = {
        **_telling(
            project,
            {"x": {"type": listed, "inputBinding": {"position": 1}, "default": value}},
        ),
        "cwlVersion": "v1.2",
        "requirements": {"SchemaDefRequirement": {"types": types}},
    }
    (project.folder / "tool.cwl").write_text(json.dumps(tool))
    project.document = {
        "inputs": {},
        "steps": {"s": {"run": "tool.cwl", "in": {}, "out": ["out"]}},
        "outputs": {"out": {"type": "string", "outputSource": "s/out"}},
    }
    _compare(project)


@pytest.mark.parametrize("exit_code", [0, 3])
def test_steps_without_an_output_run_to_their_end(
    project: Project, exit_code: int
) -> None:
    project.deployment("host", "local")
    project.step("first", "echo x >out", "host")
    # The run has all outputs when this one is in its folder.
    wait = f"until [ -e {project.folder}/out ]; do sleep 0.05; done; sleep 0.5"
    project.step("lonely", f"{wait}; exit {exit_code}", "host")
    output: JSON = {"type": "File?", "outputSource": "first/out"}
    project.document = {"outputs": {"out": output}}
    assert project.run() == (exit_code != 0), project.log
    events = project.events()
    assert events[-1]["status"] == ("failed" if exit_code else "completed")
    assert bool(project.jobs("lonely", "completed")) == (exit_code == 0)
    reason = str(events[-1]["reason"])
    assert not exit_code or "/lonely/0 on host failed with exit code 3" in reason


COMPUTED: JSON = {"source": "text", "valueFrom": "$(self)!"}
FIXED: JSON = {"default": "fixed"}
SEVERAL: JSON = {"default": ["one", "two"]}


@pytest.mark.parametrize(
    "repeated", ["scatter", pytest.param("loop", marks=needs_javascript)]
)
def test_a_step_with_defaults_runs_each_time(project: Project, repeated: str) -> None:
    tool = _tool(project, "x", "y")
    bound: dict[str, tuple[JSON, JSON]] = {
        "computed": (COMPUTED, FIXED),
        "scattered": (COMPUTED, SEVERAL),
        "fixed": (FIXED, FIXED),
        "made": ({"valueFrom": "made"}, FIXED),
        "linked": ("text", FIXED),
    }
    inner: dict[str, JSON] = {}
    for name, (x, y) in bound.items():
        step: dict[str, JSON] = {"run": tool, "in": {"x": x, "y": y}, "out": ["a"]}
        inner[name] = step | ({"scatter": "y"} if y is SEVERAL else {})
    inner["alone"] = {"run": _tool(project), "in": {}, "out": ["a"]}
    next_text: JSON = {"run": _tool(project, "x"), "in": {"x": "text"}, "out": ["b"]}
    outputs: dict[str, JSON] = {
        name: {"type": "Any", "outputSource": f"{name}/a"} for name in inner
    }
    outputs["next"] = {"type": "string", "outputSource": "next/b"}
    workflow: JSON = {
        "class": "Workflow",
        "requirements": {**FEATURES, "StepInputExpressionRequirement": {}},
        "inputs": {"text": "string"},
        "steps": {**inner, "next": next_text},
        "outputs": outputs,
    }
    step = {"run": workflow, "in": {"text": "texts"}, "out": [*outputs]}
    given: JSON = {"type": "string[]", "default": ["a", "b", "c"]}
    if repeated == "scatter":
        step["scatter"] = "text"
    else:
        given = {"type": "string", "default": "a"}
        loop: JSON = {
            "loopWhen": "$(inputs.text.length < 7)",
            "loop": {"text": "next"},
            "outputMethod": "all",
        }
        step["requirements"] = {"cwltool:Loop": loop}
    project.document = {
        "$namespaces": {"cwltool": "http://commonwl.org/cwltool#"},
        "requirements": {**FEATURES, "InlineJavascriptRequirement": {}},
        "inputs": {"texts": given},
        "steps": {"s": step},
        "outputs": {
            name: {"type": "Any", "outputSource": f"s/{name}"} for name in outputs
        },
    }
    _compare(project)


@needs_javascript
def test_a_tool_without_inputs_sees_no_input(project: Project) -> None:
    seen = "${return Object.keys(inputs).length + ' inputs';}"
    tool = _tool(project) | {
        "requirements": {"InlineJavascriptRequirement": {}},
        "arguments": [seen],
    }
    when = "$(Object.keys(inputs).length == 0)"
    inner: dict[str, JSON] = {"a": {"run": tool, "in": {}, "out": ["a"], "when": when}}
    _scatter_over_files(project, inner)
    _compare(project)


def test_a_tool_without_inputs_is_reused_whatever_the_file(project: Project) -> None:
    script = (
        f"cat {project.folder}/work/*/*/a.txt || echo none; echo {{}} >cwl.output.json"
    )
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", script],
        "inputs": {},
        "outputs": {"a": "Any?"},
    }
    _scatter_over_files(project, {"a": {"run": tool, "in": {}, "out": ["a"]}})
    project.deployment("host", "local")
    bind(project, {})
    assert project.run() == 0, project.log
    assert "none" in project.log  # no copy of the file
    (project.folder / "a.txt").write_text("changed")
    with project.start_checked("--resume") as resumed:
        assert resumed.wait(waiting.SECONDS) == 0
    assert len(project.jobs("s/a", "reused")) == 2


def _scatter_over_files(project: Project, steps: dict[str, JSON]) -> None:
    """Run steps with an output ``a`` for each of two files, which they do not use."""
    files: list[JSON] = []
    for name in ("a.txt", "b.txt"):
        (project.folder / name).write_text(name)
        files.append({"class": "File", "location": name})
    output: dict[str, JSON] = {"a": {"type": "Any?", "outputSource": "a/a"}}
    workflow: JSON = {
        "class": "Workflow",
        "inputs": {"file": "File"},
        "steps": {**steps},
        "outputs": {**output},
    }
    step: JSON = {
        "run": workflow,
        "in": {"file": "files"},
        "scatter": "file",
        "out": ["a"],
    }
    project.document = {
        "requirements": {**FEATURES, "InlineJavascriptRequirement": {}},
        "inputs": {"files": {"type": "File[]", "default": files}},
        "steps": {"s": step},
        "outputs": {"a": {"type": "Any", "outputSource": "s/a"}},
    }


def test_a_variable_has_its_value_as_it_is(project: Project) -> None:
    values: list[JSON] = [
        "$HOME",
        "$(echo no)",
        "`echo no`",
        '"x"',
        "\\",
        "a\\\\$",
        "'",
        "a  b\nc",
        "",
    ]
    tool: JSON = {
        "class": "CommandLineTool",
        "requirements": {"EnvVarRequirement": {"envDef": {"VALUE": "$(inputs.x)"}}},
        "baseCommand": ["python3", "-c", ENVIRONMENT],
        "inputs": {"x": "string"},
        "outputs": {"value": "string"},
    }
    project.document = {
        "inputs": {"xs": {"type": "string[]", "default": [*values]}},
        "steps": {
            "s": {"run": tool, "in": {"x": "xs"}, "scatter": "x", "out": ["value"]}
        },
        "outputs": {"values": {"type": "string[]", "outputSource": "s/value"}},
    }
    _compare(project)


@needs_javascript  # of cwltool
@pytest.mark.parametrize("has_file", [True, False])
def test_standard_error_is_not_in_the_file_of_the_output(
    project: Project, has_file: bool
) -> None:
    binding: JSON = {
        "glob": "out.txt",
        "loadContents": True,
        "outputEval": "$(self[0].contents)",
    }
    tool: dict[str, JSON] = {
        "class": "CommandLineTool",
        "requirements": {"InlineJavascriptRequirement": {}},
        "baseCommand": ["sh", "-c", "echo warning >&2; echo result"],
        "inputs": {},
        "outputs": {"out": {"type": "string", "outputBinding": binding}},
        "stdout": "out.txt",
    }
    if has_file:
        tool["stderr"] = "errors.txt"
    project.document = {
        "steps": {"s": {"run": tool, "in": {}, "out": ["out"]}},
        "outputs": {"out": {"type": "string", "outputSource": "s/out"}},
    }
    _compare(project)


def test_why_a_tool_with_a_file_of_its_output_fails(project: Project) -> None:
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", "echo result; echo why >&2; exit 3"],
        "inputs": {},
        "outputs": {},
        "stdout": "out.txt",
    }
    project.document = {
        "steps": {"s": {"run": tool, "in": {}, "out": []}},
        "outputs": {},
    }
    project.deployment("host", "local")
    bind(project, {})
    assert project.run() == 1, project.log
    reason = str(project.events()[-1]["reason"])
    assert "failed with exit code 3" in reason
    assert "why" in reason
    assert "result" not in reason


def test_a_source_that_is_listed_twice_is_refused(project: Project) -> None:
    twice: JSON = ["s/a", "s/b", "s/a"]
    project.document = {
        "requirements": FEATURES,
        "inputs": {},
        "steps": {"s": {"run": _tool(project), "in": {}, "out": ["a", "b"]}},
        "outputs": {"all": {"type": "string[]", "outputSource": twice}},
    }
    project.deployment("host", "local")
    bind(project, {})
    assert project.run() != 0
    assert "s/a is listed 2 times as a source" in project.log


async def test_errors_of_stock_batch_jobs_are_in_their_outputs_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted = list[object]()

    async def submit(_: PBSConnector, **options: object) -> str:
        submitted.append((options["stdout"], options["stderr"]))
        raise ConnectionError

    monkeypatch.setattr(PBSConnector, "_run_batch_command", submit)
    monkeypatch.setattr(QueueManagerConnector, "run", streamflow_commands.run)
    connector = PBSConnector("pbs", "/", LocalConnector("host", "/"), None)
    location = ExecutionLocation("host", "pbs", local=True)
    for stdout, stderr in (("o", STDOUT), ("o", "e"), (STDOUT, STDOUT)):
        with pytest.raises(ConnectionError):
            await connector.run(
                location, ["true"], stdout=stdout, stderr=stderr, job_name="/a/0"
            )
    assert submitted == [("o", "o"), ("o", "e"), (STDOUT, STDOUT)]
