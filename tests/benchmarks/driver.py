"""The CPU time of StreamFlow's driver with our scheduler and locations.

    python -m tests.benchmarks.driver [--steps 1000] [--runs 3]

A scattered ``echo`` of ``--steps`` jobs runs on StreamFlow's own local deployment, which
is the opponent, then under the scheduler ``sfq.journal``, and then on ``sfq.nodes`` with
four nodes. Each is run ``--runs`` times, in turns; a figure is the median of the user and
system time of the driver and of the processes that it starts, and its ratio to the
opponent's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median

import yaml

from sf_quantum.files import JSON

WORKFLOW: JSON = {
    "cwlVersion": "v1.2",
    "class": "Workflow",
    "requirements": {"ScatterFeatureRequirement": {}},
    "inputs": {"numbers": "int[]"},
    "outputs": {"files": {"type": "File[]", "outputSource": "step/file"}},
    "steps": {
        "step": {
            "scatter": "number",
            "in": {"number": "numbers"},
            "out": ["file"],
            "run": {
                "class": "CommandLineTool",
                "baseCommand": "echo",
                "inputs": {"number": {"type": "int", "inputBinding": {}}},
                "outputs": {"file": {"type": "stdout"}},
            },
        }
    },
}
JOURNAL: JSON = {"scheduler": {"type": "sfq.journal", "config": {}}}
NODES: JSON = {
    "machine": {"type": "local", "config": {}},
    "nodes": {
        "type": "sfq.nodes",
        "config": {"names": ["n1", "n2", "n3", "n4"]},
        "wraps": "machine",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    names = ("local", "sfq.journal", "sfq.nodes")
    turns = [
        {name: _seconds(name, args.steps) for name in names} for _ in range(args.runs)
    ]
    seconds = {name: median(turn[name] for turn in turns) for name in names}
    for name, value in seconds.items():
        ratio = value / seconds["local"]
        print(f"{name:12} {value:7.2f} s of CPU {ratio:6.2f} times local")


def _write(place: Path, steps: int) -> None:
    (place / "workflow.cwl").write_text(json.dumps(WORKFLOW))
    (place / "job.json").write_text(json.dumps({"numbers": list(range(steps))}))
    unbound: dict[str, JSON] = {
        "type": "cwl",
        "config": {"file": "workflow.cwl", "settings": "job.json"},
    }
    bound: JSON = {
        **unbound,
        "bindings": [{"step": "/step", "target": {"deployment": "nodes"}}],
    }
    files: dict[str, dict[str, JSON]] = {
        "local": {"workflows": {"main": unbound}},
        "sfq.journal": {"workflows": {"main": unbound}, "scheduling": JOURNAL},
        "sfq.nodes": {
            "workflows": {"main": bound},
            "scheduling": JOURNAL,
            "deployments": NODES,
        },
    }
    for name, content in files.items():
        text = yaml.safe_dump({"version": "v1.0", **content})
        (place / f"{name}.yml").write_text(text)


def _seconds(name: str, steps: int) -> float:
    """The CPU time of one run, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _write(place, steps)
        words = ["streamflow", "run", "--quiet", "--outdir", "out", f"{name}.yml"]
        with (place / "log").open("w") as log:
            running = subprocess.Popen(words, cwd=place, stdout=log, stderr=log)
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = status
        if status != 0:
            raise SystemExit((place / "log").read_text())
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
