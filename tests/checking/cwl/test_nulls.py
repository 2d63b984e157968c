"""``sfq check`` of inputs without a value: refused where StreamFlow fails in the run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.files import JSON, mapping
from tests.support.cwl_documents import failed, needs_javascript

TYPES: tuple[JSON, ...] = ("int", "string", "File", "int[]", "Any", ["int", "string"])
REQUIREMENTS = ("InlineJavascript", "StepInputExpression", "SubworkflowFeature")


def write(content: JSON, settings: JSON) -> Path:
    """A StreamFlow file that runs a workflow on this host."""
    Path("main.cwl").write_text(json.dumps(content, indent=1))
    config: dict[str, JSON] = {"file": "main.cwl"}
    if settings:
        Path("job.json").write_text(json.dumps(settings))
        config["settings"] = "job.json"
    workflows: JSON = {"main": {"type": "cwl", "config": config}}
    database: JSON = {"type": "default", "config": {"connection": ":memory:"}}
    file: JSON = {"version": "v1.0", "workflows": workflows, "database": database}
    path = Path("sf.yml").absolute()
    path.write_text(json.dumps(file))
    return path


def optional(kind: JSON) -> JSON:
    return ["null", *(kind if isinstance(kind, list) else [kind])]


def chain(rng: random.Random) -> JSON:
    """A workflow whose input goes through workflows inside to a tool, or an expression."""
    kind = rng.choice(TYPES[:2])
    tool: dict[str, JSON] = {"class": "CommandLineTool", "baseCommand": "true"}
    out: JSON = {"out": {"type": "Any?"}}
    if rng.random() < 0.3:
        text = "${return {'out': 1};}"
        tool = {"class": "ExpressionTool", "expression": text}
    run: JSON = {**tool, "inputs": {"x": kind_of(kind, rng)}, "outputs": out}
    for depth in reversed(range(rng.randint(1, 3))):
        link: dict[str, JSON] = {"source": "x"}
        step: dict[str, JSON] = {"run": run, "in": {"x": link}, "out": ["out"]}
        match rng.randrange(8):
            case 0:
                link["default"] = 1 if kind == "int" else "a"
            case 1:
                link["valueFrom"] = "$(1)" if kind == "int" else "a"
            case 2:
                step["when"] = "$(inputs.x != null)"
        run = {
            "class": "Workflow",
            "inputs": {"x": kind_of(kind, rng) if depth else optional(kind)},
            "outputs": {"out": {"type": "Any?", "outputSource": "s/out"}},
            "steps": {"s": step},
        }
    needed: JSON = {f"{name}Requirement": {} for name in REQUIREMENTS}
    return {**mapping(run), "cwlVersion": "v1.2", "requirements": needed}


def kind_of(kind: JSON, rng: random.Random) -> JSON:
    """A type, sometimes one that takes null, or has a default."""
    match rng.randrange(5):
        case 0:
            return optional(kind)
        case 1:
            return {"type": kind, "default": 2 if kind == "int" else "b"}
    return kind


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.process
@needs_javascript
@pytest.mark.parametrize("seed", range(24))
def test_the_check_refuses_what_the_engine_fails_on(seed: int) -> None:
    rng = random.Random(seed)
    content = chain(rng)
    settings: JSON = {"x": None} if rng.random() < 0.3 else None
    path = write(content, settings)
    problems = [str(problem) for problem in check_file(path).problems]
    assert bool(problems) == bool(failed(path)), (problems, content)
    assert all("x has no value" in problem for problem in problems)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_each_type_is_refused_in_one_line_without_a_value(kind: JSON) -> None:
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": {"x": {"type": kind}},
        "outputs": {},
    }
    content: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {"x": optional(kind)},
        "outputs": {"x": {"type": kind, "outputSource": "x"}},
        "steps": {"s": {"run": tool, "in": {"x": "x"}, "out": []}},
    }
    lines = [str(problem) for problem in check_file(write(content, None)).problems]
    assert [line.partition("; ")[2] for line in lines] == [
        "add x to the file of inputs, or a default",
        "add x to the file of inputs, or a default here",
    ]


def test_the_output_of_a_step_that_may_be_skipped_is_a_remark() -> None:
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": {"x": "Any"},
        "outputs": {"out": "stdout"},
    }
    content: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {"x": "boolean"},
        "outputs": {"o": {"type": "File", "outputSource": "b/out"}},
        "steps": {
            "a": {"run": tool, "in": {"x": "x"}, "out": ["out"], "when": "$(inputs.x)"},
            "b": {"run": tool, "in": {"x": "a/out"}, "out": ["out"]},
        },
    }
    findings = check_file(write(content, {"x": True}))
    assert findings.problems == []
    (remark,) = findings.remarks
    assert "a/out may be null if step a is skipped, and the run fails then" in str(
        remark
    )


@pytest.mark.parametrize(
    ("link", "remarked"),
    [
        ("a/out", True),
        ({"source": ["a/out"]}, True),
        ({"source": ["a/out"], "linkMerge": "merge_flattened"}, True),
        ({"source": ["a/out"], "pickValue": "all_non_null"}, False),
        (
            {
                "source": ["a/out"],
                "linkMerge": "merge_flattened",
                "pickValue": "all_non_null",
            },
            False,
        ),
    ],
)
def test_a_null_of_a_skipped_job_of_a_scatter_is_a_remark(
    link: JSON, remarked: bool
) -> None:
    make: JSON = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": {"x": "boolean"},
        "outputs": {"out": "stdout"},
    }
    gather: JSON = {**mapping(make), "inputs": {"x": "File[]"}}
    scatter: JSON = {"when": "$(inputs.x)", "scatter": "x"}
    content: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {
            "ScatterFeatureRequirement": {},
            "MultipleInputFeatureRequirement": {},
        },
        "inputs": {"x": "boolean[]"},
        "outputs": {"o": {"type": "File", "outputSource": "b/out"}},
        "steps": {
            "a": {"run": make, "in": {"x": "x"}, "out": ["out"], **mapping(scatter)},
            "b": {"run": gather, "in": {"x": link}, "out": ["out"]},
        },
    }
    findings = check_file(write(content, {"x": [True, False]}))
    assert findings.problems == []
    told = [str(remark) for remark in findings.remarks]
    assert len(told) == remarked
    if remarked:
        assert "may have a null in it if a job of step a is skipped" in told[0]
        right = "linkMerge: merge_flattened, pickValue: all_non_null"
        assert right in told[0]


@pytest.mark.parametrize(
    ("kind", "scattered", "right"),
    [
        ("int", False, False),
        ("string[]", True, False),
        ("boolean[]", False, False),
        ("boolean", False, True),
        ("boolean[]", True, True),
        (["int", "boolean"], False, True),
        ("Any", False, True),
    ],
)
def test_a_condition_that_is_no_boolean_is_refused(
    kind: JSON, scattered: bool, right: bool
) -> None:
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": {},
        "outputs": {"out": "stdout"},
    }
    step: dict[str, JSON] = {"run": tool, "in": {"go": "x"}, "out": ["out"]}
    step |= {"scatter": "go"} if scattered else {}
    content: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"x": {"type": kind}},
        "outputs": {},
        "steps": {"a": {**step, "when": "$(inputs.go)"}},
    }
    values: dict[str, JSON] = {"int": 1, "string[]": ["a"], "boolean[]": [True]}
    given = values.get(str(kind), True)
    problems = [str(one) for one in check_file(write(content, {"x": given})).problems]
    found = [one for one in problems if "true or false is expected" in one]
    assert len(found) == (not right), problems
    if found:
        lines = Path("main.cwl").read_text().splitlines()
        number = next(i for i, line in enumerate(lines, 1) if '"when"' in line)
        assert f"/main.cwl:{number}: steps.a.when: the input go is " in found[0]
