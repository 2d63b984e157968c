"""Tests of :mod:`sf_quantum.connectors.step_files`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import cwl_utils.parser
import pytest
from cwl_utils.parser import utils
from schema_salad.exceptions import ValidationException

from sf_quantum.connectors import step_files

WORKFLOWS = Path(__file__).parents[2] / "workflows"
TOOL = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: cat
inputs: {number: int, text: string?}
outputs: {out: stdout}
"""
WORKFLOW = """\
cwlVersion: v1.2
class: Workflow
inputs: {number: int}
outputs: {number: {type: int, outputSource: first/out}}
steps:
  first: {run: tool.cwl, in: {number: number}, out: [out]}
"""


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "load_step", step_files.load_step)


def test_each_file_of_a_step_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    iteration = _loaded(WORKFLOWS / "iteration.cwl")
    reads: Counter[str] = Counter()
    load = cwl_utils.parser.load_document_by_uri

    def counted(path: str, *args: object, **options: object) -> object:
        reads[Path(path).name] += 1
        return load(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cwl_utils.parser, "load_document_by_uri", counted)
    utils.static_checker(iteration)
    assert reads == {f"{tool}.cwl": 1 for tool in "cluster qubo solve score".split()}


def test_links_of_wrong_types_are_refused_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool.cwl").write_text(TOOL)
    (tmp_path / "workflow.cwl").write_text(WORKFLOW)
    messages = []
    for load in (step_files.load_step, step_files._read):
        monkeypatch.setattr(utils, "load_step", load)
        with pytest.raises(ValidationException) as error:
            utils.static_checker(_loaded(tmp_path / "workflow.cwl"))
        messages.append(str(error.value))
    assert "incompatible" in messages[0]
    assert messages[0] == messages[1]


def test_another_process_of_a_step_is_read() -> None:
    step = _loaded(WORKFLOWS / "iteration.cwl").steps[0]
    first = step_files.load_step(step)
    assert step_files.load_step(step) is first
    step.run = step.run.replace("cluster", "plot")
    assert step_files.load_step(step).id.endswith("plot.cwl")


def _loaded(file: Path) -> cwl_utils.parser.Workflow:
    workflow = cwl_utils.parser.load_document_by_uri(file.as_uri())
    assert isinstance(workflow, cwl_utils.parser.Workflow)
    return workflow
