"""A project whose QPUs the check asks."""

from __future__ import annotations

import json
from pathlib import Path

from sf_quantum.files import JSON
from tests.support.service import example_bqm

FILE = """\
version: v1.0
workflows:
  main:
    type: cwl
    config: {file: main.cwl, settings: job.yml}
    bindings:
      - step: /solve
        target: [%s]
        filters: [%s]
deployments:
  qpu: {type: sfq.rest, config: {url: "%s"}}
  laptop: {type: local, config: {}}
%sscheduling: {scheduler: {type: sfq.journal, config: {}}}
failureManager: {type: default, config: {max_retries: 3}}
"""


FILTERS = """\
bindingFilters:
  choose: {type: sfq.candidate, config: {steps: {/solve: {variables: size}}}}
"""


MAIN = """\
cwlVersion: v1.2
class: Workflow
inputs: {problem: File, size: int}
outputs: {}
steps:
  solve: {run: tool.cwl, in: {problem: problem, size: size}, out: []}
"""


TOOL = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [sfq, solve]
inputs: {problem: {type: File, inputBinding: {prefix: --problem}}, size: int}
arguments: [--output, samples.json]
outputs: {}
"""


QPU = "{deployment: qpu}"


LAPTOP = "{deployment: laptop}"


def write_files() -> None:
    """Write all that the StreamFlow file names into the current folder."""
    Path("main.cwl").write_text(MAIN)
    Path("tool.cwl").write_text(TOOL)
    Path("problem.json").write_text(json.dumps({"bqm": example_bqm()}))
    inputs(size=3)


def inputs(size: int) -> None:
    """Write the workflow's inputs."""
    problem: JSON = {"class": "File", "path": "problem.json"}
    Path("job.yml").write_text(json.dumps({"problem": problem, "size": size}))
