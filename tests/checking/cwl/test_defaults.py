"""``sfq check`` of files that are defaults: they have to be there, also if they are not used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.files import JSON
from tests.support.cwl_documents import failed

pytestmark = pytest.mark.process

FORMS = ("location", "path", "uri", "list", "record", "secondary", "listing")
PLACES = ("tool", "step", "workflow")


def file(form: str, name: str) -> tuple[JSON, JSON]:
    """A type, and a value of it that names a file."""
    one: dict[str, JSON] = {"class": "File", "location": name}
    match form:
        case "list":
            return "File[]", [one]
        case "record":
            type_: JSON = {"type": "record", "fields": {"inner": "File"}}
            return type_, {"inner": one}
        case "secondary":
            return "File", {
                "class": "File",
                "path": "there",
                "secondaryFiles": [one],
            }
        case "listing":
            return "Directory", {
                "class": "Directory",
                "basename": "d",
                "listing": [one],
            }
        case "path":
            return "File", {"class": "File", "path": name}
        case "uri":
            return "File", {"class": "File", "location": Path(name).absolute().as_uri()}
    return "File", one


def write(place: str, form: str, name: str, settings: JSON = None) -> Path:
    """A StreamFlow file whose only step takes a default, in the folder of this test."""
    type_, default = file(form, name)
    entry: JSON = {"type": type_, "default": default}
    tool: dict[str, JSON] = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": {"x": entry if place == "tool" else {"type": type_}},
        "outputs": {"out": "stdout"},
    }
    inputs: JSON = {"x": entry if place == "workflow" else ["null", type_]}
    link: JSON = {"source": "x", "default": default} if place == "step" else "x"
    content: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": inputs,
        "outputs": {"out": {"type": "File", "outputSource": "s/out"}},
        "steps": {"s": {"run": tool, "in": {"x": link}, "out": ["out"]}},
    }
    Path("main.cwl").write_text(json.dumps(content))
    config: dict[str, JSON] = {"file": "main.cwl"}
    if settings is not None:
        Path("job.json").write_text(json.dumps({"x": settings}))
        config["settings"] = "job.json"
    workflows: JSON = {"main": {"type": "cwl", "config": config}}
    database: JSON = {"type": "default", "config": {"connection": ":memory:"}}
    path = Path("sf.yml")
    path.write_text(
        json.dumps({"version": "v1.0", "workflows": workflows, "database": database})
    )
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with one file."""
    monkeypatch.chdir(tmp_path)
    Path("there").write_text("")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_a_default_that_is_not_there_is_refused(place: str, form: str) -> None:
    assert check_file(write(place, form, "there")).problems == []
    (problem,) = check_file(write(place, form, "theer")).problems
    assert "theer: no such file" in problem.what
    assert problem.right == "did you mean there?"
    assert "default" in problem.where


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["there", "absent"])
@pytest.mark.parametrize("settings", [False, True])
def test_the_engine_fails_where_a_default_is_refused(
    place: str, name: str, settings: bool
) -> None:
    value = file("location", "there")[1] if settings else None
    path = write(place, "location", name, value)
    assert bool(check_file(path).problems) == bool(failed(path.absolute()))
