"""``sfq check`` and StreamFlow give one verdict on generated CWL, and on mutants of it.

``tests.benchmarks.check_differential`` compares them on many more, and on files of others.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from sf_quantum.checking import check_file
from sf_quantum.cli import parser_for
from sf_quantum.files import JSON, mapping
from tests.support import cwl_documents as documents


def write(folder: Path, content: JSON) -> Path:
    settings = documents.values(content, folder)
    (folder / "main.cwl").write_text(json.dumps(content))
    path = folder / "sf.yml"
    file = documents.streamflow_file(folder / "main.cwl", settings)
    path.write_text(json.dumps(file))
    return path


@pytest.mark.parametrize("seed", range(8))
def test_no_valid_workflow_is_refused(seed: int, tmp_path: Path) -> None:
    path = write(tmp_path, documents.workflow(random.Random(seed)))
    assert documents.rejected(path) == ""
    assert [*map(str, documents.checked(path))] == []


@pytest.mark.parametrize("seed", range(24))
def test_no_mutant_passes_that_streamflow_rejects(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = write(tmp_path, documents.mutated(documents.workflow(rng), rng))
    problems = documents.checked(path)
    if why := documents.rejected(path):
        assert problems, why


def typed(folder: Path, **inputs: JSON) -> Path:
    """Write a StreamFlow file that runs a tool with inputs of these types, or without."""
    for name, part in documents.IMPORTED.items():
        (folder / name).write_text(json.dumps(part))
    optional = {name: {"type": ["null", kind]} for name, kind in inputs.items()}
    content = {
        "cwlVersion": "v1.2",
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": optional,
        "outputs": {},
    }
    file, path = folder / "main.cwl", folder / "sf.yml"
    file.write_text(json.dumps(content, indent=1))  # problems name lines
    path.write_text(json.dumps(documents.streamflow_file(file, None)))
    return path


@pytest.mark.parametrize("seed", range(24))
def test_no_valid_type_is_blamed_for_a_wrong_one(seed: int, tmp_path: Path) -> None:
    right = documents.nested_type(random.Random(seed))
    path = typed(tmp_path, right=right)
    assert documents.rejected(path) == ""
    assert [*map(str, documents.checked(path))] == []
    wrong: JSON = {"type": "array", "itms": "int"}
    problems = documents.checked(typed(tmp_path, right=right, wrong=wrong))
    assert [p.where for p in problems] == [("inputs", "wrong", "type", 1, "itms")]


SHORT = ["?", "[]", "[]?", "?[]", "[][]", "[][]?", "[]?[]", "?[][]", "[]?[]?[]"]


@pytest.mark.parametrize("marks", SHORT)
@pytest.mark.parametrize("name", ["string", "null", "Any"])
@pytest.mark.parametrize("is_item", [False, True])
def test_the_remedy_of_a_short_form_in_items_is_valid(
    marks: str, name: str, is_item: bool, tmp_path: Path
) -> None:
    short: JSON = ["int", f"{name}{marks}"] if is_item else f"{name}{marks}"
    path = typed(tmp_path, x={"type": "array", "items": short})
    assert documents.rejected(path)
    (problem,) = documents.checked(path)
    remedy = problem.right.removeprefix("write ")
    long = yaml.safe_load(f"[int, {remedy}]" if is_item else remedy)
    path = typed(tmp_path, x={"type": "array", "items": long})
    assert documents.rejected(path) == ""
    assert [*map(str, documents.checked(path))] == []


PORTS: list[JSON] = [{}, {"type": None}, {"type": "Any"}]


@pytest.mark.parametrize("version", ["v1.0", "v1.1", "v1.2"])
@pytest.mark.parametrize("kind", ["CommandLineTool", "ExpressionTool", "Workflow"])
@pytest.mark.parametrize("section", ["inputs", "outputs"])
def test_a_port_without_a_type_gets_the_engines_verdict(
    version: str, kind: str, section: str, tmp_path: Path
) -> None:
    for port in PORTS:
        x: JSON = port if section == "inputs" else {"type": "Any"}
        out: JSON = port if section == "outputs" else {"type": "Any"}
        run: dict[str, JSON] = {
            "class": kind if kind != "Workflow" else "CommandLineTool",
            "inputs": {"x": x},
            "outputs": {"o": out},
        }
        match kind:
            case "ExpressionTool":
                run["expression"] = "$({o: 1})"
            case "CommandLineTool":
                run["baseCommand"] = "true"
            case "Workflow":
                any_: JSON = {"type": "Any"}
                tool: JSON = {
                    **run,
                    "baseCommand": "true",
                    "inputs": {"x": any_},
                    "outputs": {"o": any_},
                }
                run = {
                    "class": "Workflow",
                    "inputs": {"x": x},
                    "outputs": {"o": {**mapping(out), "outputSource": "s/o"}},
                    "steps": {"s": {"run": tool, "in": {"x": "x"}, "out": ["o"]}},
                }
        needed: JSON = {"InlineJavascriptRequirement": {}}
        content = {"cwlVersion": version, "requirements": needed, **run}
        file, settings = tmp_path / "main.cwl", tmp_path / "job.json"
        file.write_text(json.dumps(content))
        settings.write_text(json.dumps({"x": "a"}))
        path = tmp_path / "sf.yml"
        path.write_text(json.dumps(documents.streamflow_file(file, settings)))
        why, problems = documents.rejected(path), documents.checked(path)
        assert bool(why) == bool(problems), (port, why, [*map(str, problems)])


def a_step(given: JSON, kind: JSON, **fields: JSON) -> dict[str, JSON]:
    """A workflow with an input ``x`` and one step, whose tool has it too."""
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": {"x": kind},
        "outputs": {},
    }
    step: dict[str, JSON] = {"run": tool, "in": {"x": "x"}, "out": [], **fields}
    return {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {"x": given},
        "outputs": {},
        "steps": {"a": step},
    }


def given(folder: Path, content: dict[str, JSON], x: JSON) -> Path:
    """Write a StreamFlow file that runs a workflow with a value of its input."""
    file, settings = folder / "main.cwl", folder / "job.json"
    file.write_text(json.dumps(content))
    settings.write_text(json.dumps({"x": x}))
    path = folder / "sf.yml"
    path.write_text(json.dumps(documents.streamflow_file(file, settings)))
    return path


CONDITIONS = [
    *("$(inputs.x)", " $(inputs.x)\n", "x$(inputs.x)", "$(inputs.x)$(inputs.x)"),
    *("$(null)", "$(self)", "$(runtime.cores)", "$(inputs)"),
]
SCRIPTS = [
    *("$(!inputs.x)", "$(true)", "$(inputs.x +)", "$(inputs.x = )"),
    *("${ let y = [inputs.x].map(z => z); return y[0]; }", "${ return inputs.x"),
    *("${ return inputs.x; } }", "x ${ return true; }"),
]


@pytest.mark.parametrize(
    "when",
    [
        *CONDITIONS,
        *(pytest.param(script, marks=documents.needs_javascript) for script in SCRIPTS),
    ],
)
def test_a_condition_gets_the_engines_verdict(when: str, tmp_path: Path) -> None:
    content = a_step("boolean", "Any", when=when)
    if when in SCRIPTS:
        content["requirements"] = {"InlineJavascriptRequirement": {}}
    path = given(tmp_path, content, True)
    problems = documents.checked(path)
    assert bool(problems) == bool(documents.failed(path)), problems
    for problem in problems:
        assert (Path(problem.file).name, problem.line) == ("main.cwl", 1)


RECORD: JSON = {"type": {"type": "record"}}


@pytest.mark.parametrize(
    "kind", [RECORD, "record", {"type": {"type": "record", "fields": []}}]
)
@pytest.mark.parametrize("x", [{}, {"a": 1}], ids=str)
def test_a_record_without_fields_gets_the_engines_verdict(
    kind: JSON, x: JSON, tmp_path: Path
) -> None:
    path = given(tmp_path, a_step(kind, kind), x)
    problems = documents.checked(path)
    assert bool(problems) == bool(documents.failed(path)), problems
    # of a value that comes from elsewhere, nothing is known before the run
    path = given(tmp_path, a_step("Any", kind), x)
    remarks = map(str, check_file(path, parser_for).remarks)
    said = any("declares no fields" in remark for remark in remarks)
    assert said == bool(
        documents.failed(given(tmp_path, a_step("Any", kind), {"a": 1}))
    )
