"""Mistakes in the files of a folder, and what ``sfq check`` says of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.cli import parser_for

FILE = "sf.yml"
GOOD = """\
version: v1.0
workflows:
  main:
    type: cwl
    config:
      file: cwl/main.cwl
      settings: job.yml
    bindings:
      - step: /prepare
        target: {deployment: laptop}
      - step: /loop/solve
        target:
          - {deployment: cluster, service: quantum}
          - {deployment: laptop}
        filters: [mix]
      - port: /archive
        target: {deployment: cluster, workdir: /data}
deployments:
  laptop:
    type: local
    config: {}
    workdir: work
  front:
    type: ssh
    config: {nodes: [login.example.org], username: me, sshKey: key}
  cluster:
    type: slurm
    config:
      maxConcurrentJobs: 4
      services:
        quantum: {partition: qpu, gres: "qpu:1", file: job.sh}
    wraps: front
bindingFilters:
  mix: {type: shuffle, config: {}}
failureManager: {type: default, config: {max_retries: 3}}
scheduling:
  scheduler: {type: default, config: {retry_delay: 1}}
database: {type: default, config: {connection: work/sf.db}}
"""
MAIN = """\
cwlVersion: v1.2
class: Workflow
inputs:
  points: File
  archive: File
  limit: {type: int, default: 10}
  seed: int?
outputs: {}
steps:
  prepare:
    run: tool.cwl
    in: {points: points}
    out: [table]
  loop:
    run:
      class: Workflow
      inputs: {table: File}
      outputs: {}
      steps:
        - id: solve
          run: tool.cwl
          in: [{id: points, source: table}]
          out: [table]
    in: {table: prepare/table}
    out: []
"""
TOOL = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [cat, -n]
inputs: {points: File}
outputs: {table: stdout}
"""
JOB = """\
points: {class: File, path: points.csv}
archive: {class: File, path: far.csv}
"""


def write_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write everything that GOOD names into a folder, and make it the current one."""
    monkeypatch.chdir(folder)
    Path("cwl").mkdir()
    for name, text in {
        FILE: GOOD,
        "cwl/main.cwl": MAIN,
        "cwl/tool.cwl": TOOL,
        "job.yml": JOB,
        "job.sh": "{{streamflow_command}}",
        "key": "",
        "points.csv": "x\n1\n",
    }.items():
        Path(name).write_text(text)


def edited(name: str, old: str, new: str) -> None:
    """Replace a text that a file of the current folder has once."""
    text = Path(name).read_text()
    assert text.count(old) == 1
    Path(name).write_text(text.replace(old, new))


def found() -> list[str]:
    """The problems of the folder's ``sf.yml``, a line each."""
    return [str(problem) for problem in check_file(FILE, parser_for).problems]


def candidate(targets: str, config: str) -> None:
    """Make /loop/solve a candidate, whose tool has the int input n."""
    edited("cwl/tool.cwl", "inputs: {points: File}", "inputs: {points: File, n: int?}")
    edited(FILE, "{deployment: cluster, service: quantum}\n", f"{targets}\n")
    edited(FILE, "shuffle, config: {}", f"sfq.candidate, config: {config}")
    edited(
        FILE, "type: default, config: {retry_delay: 1}", "type: sfq.journal, config: {}"
    )
    edited(
        FILE,
        "bindingFilters:",
        "  q: {type: sfq.emulator, config: {}}\nbindingFilters:",
    )


def sinfo(*rows: tuple[str, int], gres: str = "(null)", limit: str = "infinite") -> str:
    """Return a script that prints partitions and numbers of nodes as ``sinfo`` does."""
    lines = [
        f"{name}|{nodes}|8|16000|{gres}|(null)|{limit}|{name.rstrip('*')}[1-{nodes}]"
        for name, nodes in rows
    ]
    return "\n".join(f"echo '{line}'" for line in lines)


def slurm_lists(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str = "exit 1"
) -> Path:
    """Have a script in place of this host's ``sinfo``, and something to submit jobs with.

    :param script: by default, as without a controller
    """
    folder.mkdir(exist_ok=True)
    for name, text in (("sinfo", script), ("sbatch", "exit 1")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "sinfo"
