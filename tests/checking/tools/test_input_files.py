"""Files among the inputs of ``sfq`` tools: refused by the check iff the tool refuses them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sf_quantum.checking import check_file
from sf_quantum.checking.tools import input_files
from sf_quantum.cli import main, parser_for
from sf_quantum.files import JSON
from sf_quantum.samplers.problem import document

STREAMFLOW = """\
version: v1.0
workflows:
  main: {type: cwl, config: {file: main.cwl, settings: job.yml}}
"""
# by the tool's option, its other words
TOOLS: dict[str, list[str]] = {
    "--points": ["cluster", "--method", "kmeans"],
    "--problem": ["solve", "--reads", "2"],
    "--previous": ["solve", "--reads", "2", "--problem", "right.json"],
}
# columns of the points that are there, and that are not
LABELS = ("kind", "colour")
PROBLEM: JSON = {"bqm": document([0, 1], [1.0, 1.0], [(0, 1)], [2.0], "BINARY")}
CSV = "x,y,kind\n" + "".join(f"{n},{n % 7},{n % 3}\n" for n in range(40))
FILES: dict[str, str] = {
    "points.csv": CSV,
    "points.tsv": CSV.replace(",", "\t"),
    "tabs.csv": CSV.replace(",", "\t"),
    "ragged.csv": f"{CSV}1,2\n",
    "words.csv": f"{CSV}one,2,3\n",
    "one.csv": "x,y,kind\n1,2,0\n",
    "header.csv": "x,y,kind\n",
    "empty.csv": "",
    "problem.json": json.dumps(PROBLEM),
    "biased.json": json.dumps(PROBLEM).replace("2.0", '"2"'),
    "bare.json": json.dumps({"linear": {}}),
    "samples.json": json.dumps({"type": "SampleSet", "info": {"sampler": "neal"}}),
    "list.json": "[]",
    "cut.json": '{"bqm": ',
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    np.save("points.npy", np.arange(80.0).reshape(40, 2))
    np.save("flat.npy", np.arange(4.0))
    Path("noise.npy").write_bytes(bytes(range(256)))
    Path("right.json").write_text(json.dumps(PROBLEM))
    Path("sf.yml").write_text(STREAMFLOW)


def workflow(option: str, file: str, label: str | None, **more: JSON) -> None:
    """Write a workflow in which two steps pass a file to the option of a tool."""
    words = ["sfq", *TOOLS[option], *(["--label", label] if label else [])]
    if "right.json" in words:
        words[words.index("right.json")] = str(Path("right.json").absolute())
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": [*words, "--output", "out.json"],
        "inputs": {"file": {"type": "File", "inputBinding": {"prefix": option}}},
        "outputs": {},
    }
    step: JSON = {"run": tool, "in": {"file": "file"}, "out": []}
    content = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {"file": "File"},
        "outputs": {},
        "steps": {"first": step, "second": step},
    }
    Path("main.cwl").write_text(json.dumps(content))
    value = {"class": "File", "path": file, **more}
    Path("job.yml").write_text(json.dumps({"file": value}))


@pytest.mark.parametrize("file", [*FILES, "points.npy", "flat.npy", "noise.npy"])
@pytest.mark.parametrize(
    ("option", "label"),
    [*((option, None) for option in TOOLS), *(("--points", x) for x in LABELS)],
)
def test_a_file_is_refused_iff_its_tool_refuses_it(
    option: str, file: str, label: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TOOLS[option], *(["--label", label] if label else [])]
    code = main([*words, option, file, "--output", "out.json"])
    told = capsys.readouterr().err.strip()
    workflow(option, file, label)
    problems = check_file("sf.yml", parser_for).problems
    assert [problem.file for problem in problems] == ["job.yml"] * (code != 0)
    for problem in problems:
        # the tool's own line, once for both steps
        assert told == f"sfq {words[0]}: {problem.what}"
        assert problem.right == f"/first passes it to sfq {words[0]} {option}"


def test_the_location_of_a_file_is_read_not_its_path() -> None:
    """As StreamFlow does with a file that has both."""
    for file, path, problems in (
        ("ragged.csv", "points.csv", 1),
        ("points.csv", "ragged.csv", 0),
    ):
        workflow("--points", path, None, location=file)
        assert len(check_file("sf.yml", parser_for).problems) == problems


def test_a_file_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow("--points", "ragged.csv", None)
    size = Path("ragged.csv").stat().st_size
    monkeypatch.setattr(input_files, "MAX_BYTES", size)
    assert len(check_file("sf.yml", parser_for).problems) == 1
    monkeypatch.setattr(input_files, "MAX_BYTES", size - 1)
    findings = check_file("sf.yml", parser_for)
    (remark,) = (one for one in findings.remarks if one.file == "job.yml")
    assert findings.problems == []
    assert "ragged.csv is not checked, since it has more than" in remark.what


def test_a_file_with_another_name_is_left_to_its_tool() -> None:
    workflow("--points", "points.tsv", None, basename="points.csv")
    assert check_file("sf.yml", parser_for).problems == []
