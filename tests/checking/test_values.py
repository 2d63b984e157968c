"""Values that no reader takes: numbers that are not finite, fields of the wrong type."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.checking.document import Document
from sf_quantum.checking.schema import Part, rules
from sf_quantum.files import JSON, KeyPath, listing, mapping
from tests.support.cwl_documents import failed

FIELDS = (
    "location path basename dirname nameroot nameext checksum size secondaryFiles format "
    "contents listing"
).split()
VALUES: tuple[JSON, ...] = (None, 5, 1.5, True, "f", [], [5], {}, [{"path": "f"}])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a file and a folder."""
    monkeypatch.chdir(tmp_path)
    Path("f").write_text("")
    Path("d").mkdir()


def write(kind: str, value: JSON) -> Path:
    """A StreamFlow file whose workflow passes an input to a tool."""
    bound: JSON = {"type": kind, "inputBinding": {}}
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": {"x": bound},
        "outputs": {},
    }
    workflow: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {"x": kind},
        "outputs": {},
        "steps": {"s": {"run": tool, "in": {"x": "x"}, "out": []}},
    }
    Path("main.cwl").write_text(json.dumps(workflow))
    Path("job.json").write_text(json.dumps({"x": value}))
    config: JSON = {"file": "main.cwl", "settings": "job.json"}
    file: JSON = {
        "version": "v1.0",
        "workflows": {"main": {"type": "cwl", "config": config}},
        "database": {"type": "default", "config": {"connection": ":memory:"}},
    }
    Path("sf.yml").write_text(json.dumps(file))
    return Path("sf.yml").absolute()


@pytest.mark.process
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", ["File", "Directory"])
def test_the_check_refuses_what_fails_in_a_run(kind: str, field: str) -> None:
    for value in VALUES:
        file: JSON = {
            "class": kind,
            "path": "f" if kind == "File" else "d",
            field: value,
        }
        path = write(kind, file)
        problems = [str(one) for one in check_file(path).problems]
        assert problems or not failed(path), file
        assert len(problems) < 2, problems
        assert all(f"x.{field}" in one or " x: f" in one for one in problems)


@pytest.mark.parametrize("kind", ["Any", "File", "File[]", "Directory"])
@pytest.mark.parametrize("inside", [(), ("secondaryFiles",), ("listing",)])
def test_a_path_that_is_no_text_is_found(kind: str, inside: KeyPath) -> None:
    wrong: JSON = {"class": "File", "path": 5}
    outer = {"class": "Directory" if "listing" in inside else "File", "path": "d"}
    value: JSON = {**outer, str(inside[0]): [wrong]} if inside else wrong
    (problem,) = check_file(write(kind, [value] if "[" in kind else value)).problems
    if kind == "Any" or problem.where[-1] != "class":
        assert (problem.where[-1], problem.what) == ("path", "5 does not fit")


def is_number(schema: JSON, part: Part) -> bool:
    types = [
        name
        for inner in rules().parts(part.sub(schema), None)
        for name in listing(inner.schema.get("type"))
    ]
    return "number" in types


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("connector", ["emulator", "rest", "slurm"])
def test_every_number_of_a_connector_is_finite(connector: str, value: float) -> None:
    named: dict[str, JSON] = {"type": f"sfq.{connector}", "config": {}}
    definition = rules().top().sub(mapping(rules().root["$defs"])["deployment"])
    configs = [
        inner
        for part in rules().parts(definition, named)
        if "config" in part.properties
        for inner in rules().parts(part.sub(part.properties["config"]), {})
    ]
    keys = {
        key
        for part in configs
        for key, schema in part.properties.items()
        if is_number(schema, part)
    }
    assert keys
    Path("sf.yml").write_text(json.dumps({"version": "v1.0", "workflows": {}}))
    document = Document.read(Path("sf.yml"), "StreamFlow file")
    for key in keys:
        content: dict[str, JSON] = {
            **document.content,
            "deployments": {"d": {**named, "config": {key: value}}},
        }
        found = rules().check(replace(document, content=content))
        right = [one.right for one in found if one.where[-1] == key]
        assert right == ["write a finite number"], key
