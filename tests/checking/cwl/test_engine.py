"""``sfq check`` of valid CWL that StreamFlow cannot run, or not in all cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.cli import parser_for
from tests.support.checked_files import edited, found

FILE = """\
version: v1.0
workflows:
  main:
    type: cwl
    config: {file: main.cwl, settings: job.yml}
    bindings: [{step: /, target: {deployment: host}}]
deployments:
  host: {type: local, config: {}}
  nodes: {type: sfq.nodes, config: {names: [a, b]}, wraps: host}
"""
MAIN = """\
cwlVersion: v1.2
class: Workflow
requirements: {ScatterFeatureRequirement: {}, MultipleInputFeatureRequirement: {}, InlineJavascriptRequirement: {}}
inputs: {numbers: "int[]", one: int?}
outputs: {sum: {type: "int[]?", outputSource: add/out}}
steps:
  each:
    run: each.cwl
    in: {n: numbers}
    scatter: n
    when: $(inputs.n > 0)
    out: [out]
  add:
    run: add.cwl
    in: {numbers: {source: [each/out], pickValue: all_non_null}, one: one}
    out: [out]
"""
EACH = """\
cwlVersion: v1.2
class: CommandLineTool
hints: {}
requirements: {ResourceRequirement: {coresMin: 1}}
baseCommand: "true"
inputs: {n: int}
outputs: {out: int}
"""
ADD = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: "true"
inputs: {numbers: "int[]", one: int?}
outputs: {out: "int[]?"}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a workflow that is right."""
    monkeypatch.chdir(tmp_path)
    files = {"sf.yml": FILE, "main.cwl": MAIN, "each.cwl": EACH, "add.cwl": ADD}
    for name, text in {**files, "job.yml": "numbers: [1]\n"}.items():
        Path(name).write_text(text)


def remarks() -> list[str]:
    return [str(remark) for remark in check_file("sf.yml", parser_for).remarks]


def test_nothing_is_said_of_what_runs() -> None:
    assert found() == []
    assert remarks() == []


def test_pick_value_of_one_source_is_refused_iff_needed() -> None:
    edited("main.cwl", "[each/out], p", "each/out, p")
    assert found() == [
        "main.cwl:15: steps.add.in.numbers.pickValue: StreamFlow ignores all_non_null of "
        "one source; write a list: source: [each/out]"
    ]
    edited("main.cwl", "    when: $(inputs.n > 0)\n", "")
    assert found() == []


@pytest.mark.parametrize("where", ["hints", "requirements"])
def test_a_container_on_several_nodes_is_refused(where: str) -> None:
    docker = "DockerRequirement: {dockerPull: debian}"
    if where == "hints":
        edited("each.cwl", "hints: {}", f"hints: {{{docker}}}")
    else:
        edited("each.cwl", "{coresMin: 1}", f"{{coresMin: 1}}, {docker}")
    assert found() == []
    edited("sf.yml", "{deployment: host}", "{deployment: nodes}")
    (line,) = found()
    assert "/each runs in a container (DockerRequirement), for which" in line
    edited("sf.yml", "[a, b]", "[a]")
    assert found() == []


@pytest.mark.parametrize("key", ["coresMin", "ramMin"])
def test_resources_that_this_host_lacks_are_refused(key: str) -> None:
    edited("each.cwl", "coresMin: 1", f"{key}: 123456789")
    (line,) = found()
    assert line.startswith(
        f"each.cwl:4: requirements.ResourceRequirement.{key}: {key} is 123456789, but "
        "this host, where /each runs, has "
    )
    # its locations have slots instead
    edited("sf.yml", "{deployment: host}", "{deployment: nodes}")
    assert found() == []


def test_a_hint_that_the_step_overrides_is_not_checked() -> None:
    edited("each.cwl", "requirements: {ResourceRequirement: {coresMin: 1}}\n", "")
    hint = "hints: {ResourceRequirement: {coresMin: 123456789}}"
    edited("each.cwl", "hints: {}", hint)
    assert len(found()) == 1
    own = "{ResourceRequirement: {coresMin: 1}}"
    edited("main.cwl", "run: each.cwl", f"run: each.cwl\n    requirements: {own}")
    assert found() == []


def test_an_input_and_an_output_of_one_name_need_one_type() -> None:
    edited("add.cwl", 'numbers: "int[]"', 'out: "int[]"')
    edited("main.cwl", "{numbers: {source", "{out: {source")
    assert found() == []
    edited("add.cwl", 'outputs: {out: "int[]?"}', "outputs: {out: File}")
    edited("main.cwl", '"int[]?", outputSource: add', "File, outputSource: add")
    assert found() == [
        "main.cwl:15: steps.add.in.out: what step add runs has an input out and an output "
        "out; give the two one type, or two names, since StreamFlow confuses them"
    ]


def test_a_value_that_no_step_takes_is_a_remark() -> None:
    edited("main.cwl", ", one: one}", "}")
    assert remarks() == []
    edited("job.yml", "numbers", "one: 1\nnumbers")
    assert found() == []
    assert remarks() == [
        "job.yml:1: remark: one: no step takes this input; pass it to a step, or remove it"
    ]


def test_a_container_without_an_image_is_refused() -> None:
    edited("each.cwl", "hints: {}", "hints: {DockerRequirement: {dockerFile: x}}")
    assert found() == [
        "each.cwl:3: hints.DockerRequirement: StreamFlow needs dockerPull or "
        "dockerImageId; name the image"
    ]
