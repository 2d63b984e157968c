"""The kind of a file that ``sfq check`` and ``sfq plan`` read: that of most of its keys."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from sf_quantum.errors import InputError
from sf_quantum.planning import plan
from sf_quantum.validation import Section
from sf_quantum.workflows.checks import check

FILES = {
    "workload": """\
partitions: {compute: {nodes: 4}, quantum: {nodes: 1}}
qpus: {qpu: {partition: quantum, shot_seconds: 0.1}}
applications: {loop: {phases: [{nodes: 2, seconds: 9}, {qpu: qpu, shots: 5}]}}
""",
    "QPU service": """\
listen: {port: 8080}
auth: {mode: none}
device: {type: emulated-annealer}
vqpus: 2
""",
    "workflow": """\
version: v1.0
workflows: {main: {type: cwl, config: {file: main.cwl}}}
deployments: {here: {type: local, config: {}}}
""",
}
KEYS = [
    (kind, line.partition(":")[0])
    for kind, text in FILES.items()
    for line in text.splitlines()
]


@pytest.mark.parametrize(("kind", "key"), KEYS)
def test_a_misspelt_key_is_named(kind: str, key: str, tmp_path: Path) -> None:
    wrong = key[:-3] + key[-2] + key[-3] + key[-1]
    file = tmp_path / "file.yml"
    file.write_text(FILES[kind].replace(f"{key}:", f"{wrong}:"))
    result = check(file)
    assert result.kind == kind
    (line,) = (one for one in result.lines() if wrong in one)
    assert "did you mean" in line
    assert key in line.partition("did you mean")[2]
    others = [one for one in result.lines() if f" {key}: missing" in one]
    assert not others


def test_a_cwl_document_is_checked_with_its_streamflow_file(tmp_path: Path) -> None:
    file = tmp_path / "best.cwl"
    file.write_text("cwlVersion: v1.2\nclass: CommandLineTool\n")
    (line,) = check(file).lines()
    right = "is checked with the StreamFlow file that names it: give that file"
    assert line == f"{file}: a CWL document {right}"


@pytest.mark.parametrize("key", ["version", "workflows", "deployments"])
def test_a_workload_may_have_a_key_of_streamflow(key: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yml"
    file.write_text(FILES["workload"] + f"{key}: 1\n")
    assert check(file).kind == "workload"
    with pytest.raises(InputError, match=f"unknown key '{key}'"):
        plan.load(file, [])


def test_a_file_of_no_kind_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "file.yml"
    file.write_text("name: ada\n")
    assert not check(file).ok


importlib.import_module("sf_quantum.service.config")  # it defines most sections


def sections(model: type[Section]) -> Iterator[type[Section]]:
    for one in model.__subclasses__():
        yield one
        yield from sections(one)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_every_number_of_a_section_is_finite(value: float) -> None:
    infinite = []
    for section in sections(Section):
        for name, field in section.model_fields.items():
            if "float" in str(field.annotation):
                with pytest.raises(ValidationError) as raised:
                    section.model_validate({field.alias or name: value, "extra": 1})
                errors = [one["loc"][:1] for one in raised.value.errors()]
                if (field.alias or name,) not in errors:
                    infinite.append(name)
    # an infinite time from one pass of a scheduler to the next means none
    passes = ["queue_seconds", "backfill_seconds"]
    assert infinite == (passes if value == math.inf else [])
