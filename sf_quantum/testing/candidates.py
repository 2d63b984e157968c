"""The contract of a quantum candidate: the same kind of answer on every target.

In a workflow's own tests::

    from sf_quantum.testing.candidates import assert_candidate

    def test_solve_is_a_candidate():
        assert_candidate("streamflow.yml", "/solve", {"problem": ...}, tolerance=0.01)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import TypeAlias

from sf_quantum.checking.cwl.processes import load
from sf_quantum.checking.document import Document
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping

#: a step's outputs in CWL's form: files are ``{"class": "File", "path": ...}``
Outputs: TypeAlias = dict[str, JSON]
Energy: TypeAlias = Callable[[Outputs], float]
SECONDS = 600.0
SAMPLES = "SampleSet"


@dataclass(frozen=True)
class Answer:
    """The outputs of one target.

    :param form: names, types and structure of the outputs
    :param energy: the lowest energy
    """

    target: str
    form: JSON
    energy: float


def lowest_energy(outputs: Outputs) -> float:
    """Return the lowest energy in the outputs that are serialized dimod sample sets.

    :raises InputError: if no output is a sample set
    """
    energies: list[float] = []
    for content in map(_content, outputs.values()):
        if content is not None and content.get("type") == SAMPLES:
            vector = mapping(mapping(content.get("vectors")).get("energy"))
            energies += [float(str(value)) for value in listing(vector.get("data"))]
    if not energies:
        raise InputError(
            "no output is a sample set: pass energy=, a function that finds the energy"
        )
    return min(energies)


def assert_candidate(
    file: str | Path,
    step: str,
    inputs: Mapping[str, JSON],
    *,
    tolerance: float,
    energy: Energy = lowest_energy,
) -> list[Answer]:
    """Run a step's tool on every target of its binding, and compare the answers.

    :param file: a StreamFlow file with one workflow
    :param step: path of a step with a binding
    :param inputs: the tool's inputs, as in a CWL job file, with absolute paths
    :param tolerance: maximum deviation from the lowest energy, relative to it
    :param energy: computes the energy to compare from a target's outputs
    :returns: the answers, in the order of the targets
    :raises AssertionError: if a target fails, or gives a different kind of answer
    :raises InputError: if the file has no such step
    """
    document = Document.read(Path(file).resolve(), "StreamFlow file", dates=True)
    name, workflow = next(iter(mapping(document.content.get("workflows")).items()))
    targets = _targets(document, mapping(workflow), step)
    tool = _tool(document, mapping(workflow), step)
    answers = [
        _answer(document, name, tool, target, inputs, energy) for target in targets
    ]
    first, best = answers[0], min(answer.energy for answer in answers)
    for answer in answers:
        assert answer.form == first.form, (
            f"{step}: the outputs on {answer.target} are {answer.form}, "
            f"those on {first.target} {first.form}"
        )
        assert answer.energy - best <= tolerance * abs(best), (
            f"{step}: the energy on {answer.target} is {answer.energy:g}, more than the "
            f"tolerance of {tolerance:g} above the lowest, {best:g}"
        )
    return answers


def _targets(document: Document, workflow: dict[str, JSON], step: str) -> list[JSON]:
    for binding in listing(workflow.get("bindings")):
        if mapping(binding).get("step") == step:
            return listing(mapping(binding).get("target"))
    raise InputError(f"{document.name}: no binding for the step {step}")


def _tool(document: Document, workflow: dict[str, JSON], step: str) -> Path:
    file = str(mapping(workflow.get("config")).get("file"))
    for tool in load(file, document.folder).tools:
        if tool.step == step and tool.document.content.get("class") != "Workflow":
            return Path(tool.document.name).resolve()
    raise InputError(
        f"{document.folder / file}: step {step} has no tool in a file of its own"
    )


def _answer(
    document: Document,
    name: str,
    tool: Path,
    target: JSON,
    inputs: Mapping[str, JSON],
    energy: Energy,
) -> Answer:
    """Run only the tool, on one target."""
    keys = mapping(target)
    where = "/".join(str(keys[k]) for k in ("deployment", "service") if k in keys)
    with (
        TemporaryDirectory(prefix="sfq-candidate-") as folder,
        # The copy is next to the original, so relative paths stay valid.
        NamedTemporaryFile(
            "w", dir=document.folder, prefix=".candidate-", suffix=".yml"
        ) as file,
    ):
        job = Path(folder, "job.json")
        job.write_text(json.dumps(dict(inputs)))
        workflow: JSON = {
            "type": "cwl",
            "config": {"file": str(tool), "settings": str(job)},
            "bindings": [{"step": "/", "target": target}],
        }
        journal: JSON = {"type": "sfq.journal", "config": {"directory": folder}}
        alone: dict[str, JSON] = {
            "version": "v1.0",
            "workflows": {name: workflow},
            "deployments": document.content.get("deployments"),
            "scheduling": {"scheduler": journal},
            "database": {"type": "default", "config": {"connection": f"{folder}/db"}},
        }
        json.dump(alone, file)
        file.flush()
        outputs = _run(Path(file.name), Path(folder), where)
        form = {key: _form(value) for key, value in outputs.items()}
        return Answer(where, form, energy(outputs))


def _run(file: Path, folder: Path, where: str) -> Outputs:
    bin_ = Path(sys.executable).parent
    done = subprocess.run(
        [bin_ / "streamflow", "run", file, "--quiet", "--outdir", folder / "out"],
        cwd=folder,
        env={**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ.get('PATH')}"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"no answer on {where}: {_errors(done.stderr)}"
    outputs: Outputs = json.loads(done.stdout[done.stdout.index("{") :])
    return outputs


def _errors(log: str) -> str:
    """Extract the errors from a log, each once and without its traceback."""
    entries = re.split(r"^[\d-]+ [\d:.]+ (?=[A-Z]+ )", log, flags=re.MULTILINE)
    errors = [
        entry.partition("Traceback")[0].strip()
        for entry in entries
        if entry.startswith("ERROR")
    ]
    return "\n".join(dict.fromkeys(errors)) or log[-1000:]


def _form(value: JSON) -> JSON:
    """Reduce an output to what all targets must agree on: types, keys, variables."""
    if not isinstance(value, dict):
        return type(value).__name__
    if value.get("class") != "File":
        return {key: _form(item) for key, item in value.items()}
    if (content := _content(value)) is None:
        return str(value.get("nameext"))
    if content.get("type") == SAMPLES:
        return {key: content.get(key) for key in ("variable_type", "variable_labels")}
    return list[JSON](sorted(content))


def _content(output: JSON) -> dict[str, JSON] | None:
    """Read an output that is a file with a JSON object."""
    if mapping(output).get("class") != "File":
        return None
    try:
        content: JSON = json.loads(Path(str(mapping(output)["path"])).read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
