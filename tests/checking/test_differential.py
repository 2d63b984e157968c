"""``sfq check`` and StreamFlow give one verdict on generated CWL, and on mutants of it.

``tests.benchmarks.check_differential`` compares them on many more, and on files of others.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

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
