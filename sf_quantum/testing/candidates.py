"""The contract of a quantum candidate: outputs of the same form on every target.

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

#: outputs of a step in the form of CWL; a file is ``{"class": "File", "path": ...}``
Outputs: TypeAlias = dict[str, JSON]
Energy: TypeAlias = Callable[[Outputs], float]
RUN_TIMEOUT_SECONDS = 600.0
#: value of ``type`` in a serialized sample set of dimod
SAMPLE_SET_TYPE = "SampleSet"


@dataclass(frozen=True)
class Answer:
    """The outputs of a step on one target.

    :param target: deployment and service of the target
    :param form: names, types and structure of the outputs
    :param energy: energy of the outputs, by default the lowest in their sample sets
    """

    target: str
    form: JSON
    energy: float


def lowest_energy(outputs: Outputs) -> float:
    """Return the lowest energy in all outputs that are serialized sample sets of dimod.

    :param outputs: outputs of a step

    :raises InputError: if no output is a sample set
    """
    energies: list[float] = []
    for content in map(_read_object, outputs.values()):
        if content is not None and content.get("type") == SAMPLE_SET_TYPE:
            vector = mapping(mapping(content.get("vectors")).get("energy"))
            energies += [float(str(value)) for value in listing(vector.get("data"))]
    if not energies:
        raise InputError(
            "no output is a sample set: pass energy=, a function that returns the energy"
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
    """Run the tool of a step on every target of its binding, and compare the outputs.

    :param file: path of a StreamFlow file with one workflow
    :param step: path of a step with a binding
    :param inputs: inputs of the tool, as in a CWL job file, with absolute paths
    :param tolerance: maximum deviation of a target's energy from the lowest energy of all
        targets, as a fraction of the lowest energy
    :param energy: function that computes the energy to compare from a target's outputs
    :returns: the answers, in the order of the targets
    :raises AssertionError: if the tool fails on a target, if the outputs of two targets
        differ in form, or if the energy of a target is above the tolerance
    :raises InputError: if the file has no binding for the step, if the step has no tool in
        a separate file, or if no output has an energy
    """
    document = Document.read(Path(file).resolve(), "StreamFlow file", dates=True)
    name, workflow = next(iter(mapping(document.content.get("workflows")).items()))
    targets = _targets(document, mapping(workflow), step)
    tool = _tool(document, mapping(workflow), step)
    answers = [
        _run_on_target(document, name, tool, target, inputs, energy)
        for target in targets
    ]
    first, best = answers[0], min(answer.energy for answer in answers)
    for answer in answers:
        assert answer.form == first.form, (
            f"{step}: the outputs on {answer.target} are {answer.form}, "
            f"but the outputs on {first.target} are {first.form}"
        )
        assert answer.energy - best <= tolerance * abs(best), (
            f"{step}: the energy on {answer.target} is {answer.energy:g}, more than the "
            f"tolerance of {tolerance:g} above the lowest energy, {best:g}"
        )
    return answers


def _targets(document: Document, workflow: dict[str, JSON], step: str) -> list[JSON]:
    """Return the targets of the step's binding."""
    for binding in listing(workflow.get("bindings")):
        if mapping(binding).get("step") == step:
            return listing(mapping(binding).get("target"))
    raise InputError(f"{document.name}: no binding for the step {step}")


def _tool(document: Document, workflow: dict[str, JSON], step: str) -> Path:
    """Return the path of the step's tool."""
    file = str(mapping(workflow.get("config")).get("file"))
    for tool in load(file, document.folder).host_commands:
        if tool.step == step and tool.document.content.get("class") != "Workflow":
            return Path(tool.document.name).resolve()
    raise InputError(
        f"{document.folder / file}: step {step} has no tool in a separate file"
    )


def _run_on_target(
    document: Document,
    name: str,
    tool: Path,
    target: JSON,
    inputs: Mapping[str, JSON],
    energy: Energy,
) -> Answer:
    """Run the tool alone, as a workflow, on one target."""
    keys = mapping(target)
    target_name = "/".join(str(keys[k]) for k in ("deployment", "service") if k in keys)
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
        streamflow_file: dict[str, JSON] = {
            "version": "v1.0",
            "workflows": {name: workflow},
            "deployments": document.content.get("deployments"),
            "scheduling": {"scheduler": journal},
            "database": {"type": "default", "config": {"connection": f"{folder}/db"}},
        }
        json.dump(streamflow_file, file)
        file.flush()
        outputs = _run_streamflow(Path(file.name), Path(folder), target_name)
        form = {key: _form_of(value) for key, value in outputs.items()}
        return Answer(target_name, form, energy(outputs))


def _run_streamflow(file: Path, folder: Path, target: str) -> Outputs:
    """Run a StreamFlow file in a folder.

    :param target: name of the target in messages
    """
    bin_ = Path(sys.executable).parent
    run = subprocess.run(
        [bin_ / "streamflow", "run", file, "--quiet", "--outdir", folder / "out"],
        cwd=folder,
        env={**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ.get('PATH')}"},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
    )
    assert run.returncode == 0, f"the run on {target} failed: {_errors(run.stderr)}"
    outputs: Outputs = json.loads(run.stdout[run.stdout.index("{") :])
    return outputs


def _errors(log: str) -> str:
    """Return the distinct errors in a log without tracebacks, or the end of the log."""
    entries = re.split(r"^[\d-]+ [\d:.]+ (?=[A-Z]+ )", log, flags=re.MULTILINE)
    errors = [
        entry.partition("Traceback")[0].strip()
        for entry in entries
        if entry.startswith("ERROR")
    ]
    return "\n".join(dict.fromkeys(errors)) or log[-1000:]


def _form_of(value: JSON) -> JSON:
    """Return the part of an output that must be equal on all targets.

    This is the type of a value, the keys of a JSON object, the variables of a sample set,
    or the extension of any other file.
    """
    if not isinstance(value, dict):
        return type(value).__name__
    if value.get("class") != "File":
        return {key: _form_of(item) for key, item in value.items()}
    if (content := _read_object(value)) is None:
        return str(value.get("nameext"))
    if content.get("type") == SAMPLE_SET_TYPE:
        return {key: content.get(key) for key in ("variable_type", "variable_labels")}
    return list[JSON](sorted(content))


def _read_object(output: JSON) -> dict[str, JSON] | None:
    """Read the JSON object in a file; return None if the output is anything else."""
    if mapping(output).get("class") != "File":
        return None
    try:
        content: JSON = json.loads(Path(str(mapping(output)["path"])).read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
