"""Characters in folders, names and texts: refused iff StreamFlow or a shell misreads them."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.files import JSON, mapping
from tests.support.cwl_documents import failed

CHARACTERS = [*string.punctuation.replace("/", ""), " ", "a", "Z", "0"]
BOUND: JSON = {}
ITEMS: dict[str, JSON] = {
    "whole": {"type": "array", "items": "string"},
    "each": {"type": "array", "items": "string", "inputBinding": BOUND},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder."""
    monkeypatch.chdir(tmp_path)


def is_right(
    command: list[str],
    bound: JSON,
    kind: JSON,
    value: JSON,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    workdir: str = "",
) -> bool:
    """Run a command on an input, and check that it is refused iff it prints another text."""
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": [*command],
        "inputs": {"x": {"type": bound, "inputBinding": {}}},
        "outputs": {"o": {"type": "stdout"}},
        "stdout": "printed",
    }
    document: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {"x": kind},
        "outputs": {"o": {"type": "File", "outputSource": "s/o"}},
        "steps": {"s": {"run": tool, "in": {"x": "x"}, "out": ["o"]}},
    }
    Path("main.cwl").write_text(json.dumps(document))
    Path("job.json").write_text(json.dumps({"x": value}))
    target: JSON = {
        "deployment": "here",
        "workdir": workdir or str(Path("w").absolute()),
    }
    workflow: JSON = {
        "type": "cwl",
        "config": {"file": "main.cwl", "settings": "job.json"},
        "bindings": [{"step": "/", "target": target}],
    }
    file: JSON = {
        "version": "v1.0",
        "workflows": {"main": workflow},
        "deployments": {"here": {"type": "local", "config": {}}},
        "database": {"type": "default", "config": {"connection": ":memory:"}},
    }
    Path("sf.yml").write_text(json.dumps(file))
    problems = check_file("sf.yml").problems
    capsys.readouterr()
    works = False
    if not failed(Path("sf.yml").absolute()):
        output = mapping(json.loads(capsys.readouterr().out)).get("o")
        works = Path(str(mapping(output)["path"])).read_text() == expected
    assert works is not bool(problems), (value, workdir, [*map(str, problems)])
    return works


@pytest.mark.parametrize(
    ("name", "shown", "character"),
    [("Läufe#1", "Läufe#1", "#"), (os.fsdecode(b"L\xe4ufe"), r"L\xe4ufe", r"\xe4")],
)
def test_a_misread_path_is_one_line_as_written(
    name: str, shown: str, character: str
) -> None:
    Path(name).mkdir()
    Path(name, "tool.cwl").write_text(
        "{cwlVersion: v1.2, class: CommandLineTool, baseCommand: echo, inputs: {}, outputs: {}}"
    )
    Path(name, "main.cwl").write_text(
        "{cwlVersion: v1.2, class: Workflow, inputs: {}, outputs: {},"
        " steps: {s: {run: tool.cwl, in: {}, out: []}}}"
    )
    Path(name, "job.yml").write_text("{}")
    Path(name, "sf.yml").write_text(
        "{version: v1.0, workflows: {w: {type: cwl, config: {file: main.cwl, settings: job.yml},"
        " bindings: [{step: /s, target: {deployment: h}}]}},"
        " deployments: {h: {type: local, workdir: /work, config: {}}}}"
    )
    problems = check_file(f"{name}/sf.yml").problems
    assert [one.what for one in problems] == [
        f"'{Path.cwd()}/{shown}/main.cwl' cannot be read, since CWL's parser misreads "
        f"'{character}'"
    ]


@pytest.mark.process
@pytest.mark.parametrize("bound", ["File", "File[]"])
def test_a_file_is_refused_iff_its_tool_does_not_get_it(
    bound: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = ""
    for character in CHARACTERS:
        name = f"a{character}b"
        Path(name).write_text("content")
        file: JSON = {"class": "File", "path": name}
        value = [file] if bound == "File[]" else file
        if not is_right(["cat"], bound, bound, value, "content", capsys):
            refused += character
    assert refused == ":"


@pytest.mark.process
@pytest.mark.parametrize("name", ["./a:b", ":b", "1:b", "a:b", "a.b:c", "file:b"])
def test_a_name_that_begins_as_a_url_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text("content")
    file: JSON = {"class": "File", "path": name}
    works = is_right(["cat"], "File", "File", file, "content", capsys)
    assert works is not name[0].isalpha()


@pytest.mark.process
@pytest.mark.parametrize("items", ITEMS)
def test_a_tool_gets_the_items_of_a_list(
    items: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"a{character}b" for character in CHARACTERS]
    texts += ["~", "#x", "$HOME", "*", "", "a  b"]
    command, expected = ["printf", "%s|"], "".join(f"{text}|" for text in texts)
    assert is_right(command, ITEMS[items], "string[]", [*texts], expected, capsys)


@pytest.mark.process
def test_a_work_directory_is_refused_iff_its_steps_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("f").write_text("content")
    file: JSON = {"class": "File", "path": "f"}
    refused = []
    names = [f"w{character}x" for character in CHARACTERS]
    for name in [*names, "w[bc]x", "w[]x", "w[!a]x", "w%41x", "w%2Fx", "w%zzx"]:
        workdir = str(tmp_path / name)
        if not is_right(["cat"], "File", "File", file, "content", capsys, workdir):
            refused.append(name)
    assert refused[-4:] == ["w[bc]x", "w[!a]x", "w%41x", "w%2Fx"]
