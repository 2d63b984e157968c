"""What a workflow gets of a job that is retried since its outputs could not be collected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON
from tests.support.candidate_runs import bind
from tests.support.cwl_documents import needs_javascript

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

# Makes outputs out0, out1 ..., which are wrong on the first attempt; one is also faulty.
MAKE = """\
name=$1 count=$2 bad=$3 fault=$4
if mkdir "$(dirname "$0")/tried-$name" 2>/dev/null; then text=wrong; else text=right fault=; fi
for i in $(seq 0 $((count - 1))); do
  echo $text >out$i
  value="{\\"class\\": \\"File\\", \\"path\\": \\"out$i\\"}"
  if [ $i = $bad ]; then
    case $fault in
      type) value=5 ;;
      path) value="{\\"class\\": \\"File\\", \\"path\\": \\"none\\"}" ;;
      key) continue ;;
      glob) rm out$i ;;
    esac
  fi
  values="$values${values:+, }\\"out$i\\": $value"
done
[ "$4" = glob ] || echo "{$values}" >cwl.output.json
"""
SHAPES = [
    (count, bad, fault)
    for count in (2, 3)
    for bad in range(count)
    for fault in ("type", "path", "key", "glob")
]


def _document(project: Project) -> dict[str, JSON]:
    """For each shape, a step that makes outputs and one that joins them in a file."""
    (project.folder / "make.sh").write_text(MAKE)
    steps: dict[str, JSON] = {}
    for number, (count, bad, fault) in enumerate(SHAPES):
        names = [f"out{i}" for i in range(count)]
        words = ["sh", "-e", f"{project.folder}/make.sh", f"make{number}"]
        steps[f"make{number}"] = {
            "run": {
                "class": "CommandLineTool",
                "baseCommand": [*words, str(count), str(bad), fault],
                "inputs": {},
                "outputs": {
                    name: {"type": "File", "outputBinding": {"glob": name}}
                    for name in names
                },
            },
            "in": {},
            "out": [*names],
        }
        steps[f"join{number}"] = {
            "run": {
                "class": "CommandLineTool",
                "baseCommand": "cat",
                "stdout": f"joined{number}",
                "inputs": {
                    name: {"type": "File", "inputBinding": {}} for name in names
                },
                "outputs": {"out": "stdout"},
            },
            "in": {name: f"make{number}/{name}" for name in names},
            "out": ["out"],
        }
    outputs: dict[str, JSON] = {
        f"out{number}": {"type": "File", "outputSource": f"join{number}/out"}
        for number in range(len(SHAPES))
    }
    return {"inputs": {}, "steps": steps, "outputs": outputs}


@pytest.mark.parametrize("filtered", [False, True])
def test_no_output_of_a_failed_attempt_is_used(
    project: Project, filtered: bool
) -> None:
    project.document = _document(project)
    project.deployment("host", "local")
    project.deployment("one", "sfq.nodes", names=["n1", "n2"], wraps="host")
    project.deployment("other", "sfq.nodes", names=["n3", "n4"], wraps="host")
    targets: list[JSON] = [{"deployment": name} for name in ("one", "other")]
    steps = [f"/make{number}" for number in range(len(SHAPES))] if filtered else []
    bind(project, dict.fromkeys(steps, targets), prefer="classical")
    assert project.run() == 0, project.log[-4000:]
    for number, shape in enumerate(SHAPES):
        joined = (project.folder / f"joined{number}").read_text()
        assert joined == "right\n" * shape[0], shape
        (done,) = project.jobs(f"make{number}", "completed")
        assert done["attempt"] == 2, shape


@pytest.mark.parametrize(
    ("reuse", "runs"),
    [(True, 1), (False, 2), pytest.param("$(false)", 2, marks=needs_javascript)],
)
def test_an_output_that_may_not_be_reused_is_made_again(
    project: Project, reuse: JSON, runs: int
) -> None:
    """As CWL's WorkReuse asks, if the step that takes it fails once."""
    (project.folder / "make.sh").write_text(
        f"echo run | tee -a {project.folder}/runs\n"
    )
    take = f"mkdir {project.folder}/tried || exit 0; exit 3\n"
    (project.folder / "take.sh").write_text(take)
    made: JSON = {"type": "File", "outputBinding": {"glob": "made"}}
    make: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-e", f"{project.folder}/make.sh"],
        "requirements": {
            "InlineJavascriptRequirement": {},
            "WorkReuse": {"enableReuse": reuse},
        },
        "stdout": "made",
        "inputs": {},
        "outputs": {"made": made},
    }
    taking: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", f"{project.folder}/take.sh"],
        "inputs": {"made": {"type": "File", "inputBinding": {}}},
        "stdout": "taken",
        "outputs": {"taken": "stdout"},
    }
    project.document = {
        "inputs": {},
        "steps": {
            "make": {"run": make, "in": {}, "out": ["made"]},
            "take": {"run": taking, "in": {"made": "make/made"}, "out": ["taken"]},
        },
        "outputs": {"taken": {"type": "File", "outputSource": "take/taken"}},
    }
    project.deployment("host", "local")
    bind(project, {}, prefer="classical")
    assert project.run() == 0, project.log[-4000:]
    assert (project.folder / "runs").read_text() == "run\n" * runs
