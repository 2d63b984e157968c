"""``sfq check`` of tools that call ``sfq``: the samplers that they get."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checked_files import candidate, found, write_project


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with everything that GOOD names."""
    write_project(tmp_path, monkeypatch)


SOLVE = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [sfq, solve]
inputs:
  problem: {type: File, inputBinding: {prefix: --problem}}
  sampler: {type: string, inputBinding: {prefix: --sampler}}
arguments: [--output, samples.json]
outputs: {}
"""
ALONE = """\
cwlVersion: v1.2
class: Workflow
inputs: {points: File, archive: File, sampler: string}
outputs: {}
steps:
  prepare: {run: tool.cwl, in: {points: points}, out: [table]}
  loop:
    run:
      class: Workflow
      inputs: {table: File, which: string}
      outputs: {}
      steps:
        solve: {run: solve.cwl, in: {problem: table, sampler: which}, out: []}
    in: {table: prepare/table, which: sampler}
    out: []
"""


@pytest.fixture
def solving() -> None:
    """/loop/solve is ``sfq solve``, in a loop, with a sampler of the job file's."""
    Path("cwl/solve.cwl").write_text(SOLVE)
    Path("cwl/main.cwl").write_text(ALONE)


def sampler(name: str) -> None:
    with open("job.yml", "a") as job:
        job.write(f"sampler: {name}\n")


def test_what_our_tools_would_refuse(solving: None) -> None:
    sampler("nael")
    (line,) = found()
    assert line.startswith("job.yml:3: sampler: unknown sampler 'nael', did you mean")
    assert line.endswith("; /loop/solve passes it to sfq solve --sampler")


@pytest.mark.parametrize("name", ["auto", "exact"])
def test_a_sampler_that_leaves_the_qpu_alone(solving: None, name: str) -> None:
    candidate("{deployment: q}", "{}")
    sampler(name)
    line = (
        "job.yml:3: sampler: exact never uses the QPU q, where /loop/solve runs; write "
        "auto, or bind the step to a classical location"
    )
    assert found() == ([line] if name == "exact" else [])
