"""Short jobs on Slurm, with StreamFlow's connector and with ours, here and over SSH.

    python -m tests.benchmarks.slurm_short [--pairs 3] [--at-once 1 3] [--seconds 0.1]
        [--over ssh]

A cell is a number of jobs at once, the seconds that each of them sleeps, and how the login node
is reached: it is this machine, or SSH leads there, or SSH with sessions that take 0.2 s to begin
(``slow``), as profiles and PAM modules cause on a real one. Its workflow is a chain of scattered steps,
each with the files of the previous one as its inputs. All cells run on one lab, in pairs with
StreamFlow's connector ``slurm``, which is the opponent, and with ``sfq.slurm`` and its
journal, both with a ``pollingInterval`` of 1 s; the first of a pair alternates.

A row has the medians of the driver's wall time, of its CPU time, and of the seconds from the
end of the last job's command to the end of the driver, and the ratio of the wall times: the
median, the least and the greatest of the pairs.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import product, starmap
from pathlib import Path
from statistics import median

from sf_quantum.files import JSON
from tests.benchmarks.driver import JOURNAL
from tests.benchmarks.slurm_runs import BIN, heed_sigterm, used
from tests.lab import Lab, running
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing
from tests.support.sshd import sshd

_NODES = 3
_CPUS = 16
_CONNECTORS = ("slurm", "sfq.slurm")
_SLOW_SECONDS = 0.2
#: the length of the chain by the number of jobs at once
_ROUNDS = {1: 8, 3: 4, 16: 2, 48: 1}
#: that of jobs of so many seconds or more
_LONG_SECONDS, _LONG_ROUNDS = 10.0, 1


@dataclass(frozen=True)
class Cell:
    at_once: int
    seconds: float
    over: str
    nodes: int

    @property
    def rounds(self) -> int:
        """The length of the chain."""
        long = self.seconds >= _LONG_SECONDS
        return _LONG_ROUNDS if long else _ROUNDS.get(self.at_once, 1)


@dataclass(frozen=True)
class Run:
    """Seconds of a driver: wall time, CPU time, and wall time after the last job."""

    wall: float
    cpu: float
    after: float


def chain(cell: Cell) -> dict[str, JSON]:
    """Return a CWL workflow with a chain of scattered steps."""
    srun = "srun --quiet " if cell.nodes > 1 else ""
    command = f"{srun}sleep {cell.seconds:g}; date +%s.%N"
    tool: dict[str, JSON] = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", command],
        "inputs": {"before": "Any"},
        "outputs": {"ended": {"type": "File", "outputBinding": {"glob": "ended"}}},
        "stdout": "ended",
    }
    steps: dict[str, JSON] = {
        f"s{number}": {
            "scatter": "before",
            "in": {"before": f"s{number - 1}/ended" if number else "numbers"},
            "out": ["ended"],
            "run": tool,
        }
        for number in range(cell.rounds)
    }
    return {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"numbers": "int[]"},
        "outputs": {
            "ends": {"type": "File[]", "outputSource": f"s{cell.rounds - 1}/ended"}
        },
        "steps": steps,
    }


def write(folder: Path, connector: str, cell: Cell, host: dict[str, JSON]) -> None:
    """Write the files of a run into a new folder.

    :param host: the deployment of the login node
    """
    folder.mkdir()
    (folder / "workflow.cwl").write_text(json.dumps(chain(cell)))
    (folder / "job.json").write_text(json.dumps({"numbers": [*range(cell.at_once)]}))
    work = str(folder / "work")
    cluster: dict[str, JSON] = {
        "maxConcurrentJobs": cell.at_once,
        "pollingInterval": 1,
        "services": {"nodes": {"nodes": str(cell.nodes)}},
    }
    target: JSON = {"deployment": "cluster", "service": "nodes"}
    content: dict[str, JSON] = {
        "version": "v1.0",
        "workflows": {
            "main": {
                "type": "cwl",
                "config": {"file": "workflow.cwl", "settings": "job.json"},
                "bindings": [{"step": "/", "target": target}],
            }
        },
        "deployments": {
            "host": {**host, "workdir": work},
            "cluster": {
                "type": connector,
                "workdir": work,
                "config": cluster,
                "wraps": "host",
            },
        },
        "database": {
            "type": "sqlite",
            "config": {"connection": str(folder / "sqlite.db")},
        },
    }
    if connector == "sfq.slurm":
        content["scheduling"] = JOURNAL
    (folder / "run.yml").write_text(json.dumps(content))  # JSON is valid YAML


def run(lab: Lab, folder: Path, *, debug: bool) -> Run:
    """Run StreamFlow in a folder with its files."""
    words = [str(BIN / "streamflow"), "run", "--outdir", "out", "run.yml"]
    began = time.monotonic()
    usage = used(lab, words + (["--debug"] if debug else []), folder)
    wall, now = time.monotonic() - began, time.time()
    last = max(float(end.read_text()) for end in (folder / "out").iterdir())
    return Run(wall, usage.ru_utime + usage.ru_stime, now - last)


def measure(
    lab: Lab, place: Path, cell: Cell, host: dict[str, JSON], args: argparse.Namespace
) -> list[dict[str, Run]]:
    """Run the pairs of a cell."""
    pairs = []
    for number in range(args.pairs):
        pair = {}
        for connector in _CONNECTORS[:: 1 if number % 2 else -1]:
            name = f"{cell.over}-{cell.at_once}-{cell.seconds:g}-{number}-{connector}"
            write(place / name, connector, cell, host)
            pair[connector] = run(lab, place / name, debug=args.keep is not None)
            lab.wait_idle()
        pairs.append(pair)
    return pairs


def row(cell: Cell, pairs: list[dict[str, Run]]) -> str:
    """Return a row of the table."""
    stock, ours = ([pair[name] for pair in pairs] for name in _CONNECTORS)

    def both(name: str) -> str:
        return ", ".join(
            f"{median(getattr(one, name) for one in runs):.2f}"
            for runs in (stock, ours)
        )

    ratios = [b.wall / a.wall for a, b in zip(stock, ours, strict=True)]
    ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    where = f"{cell.over} | {cell.at_once} x {cell.rounds} | {cell.seconds:g}"
    return (
        f"| {where} | {both('wall')} | {both('cpu')} | {both('after')} "
        f"| {ratio} | {os.getloadavg()[0]:.1f} |"
    )


def _ssh(folder: Path, port: int) -> dict[str, JSON]:
    """Return the deployment of a server and its folder."""
    config: dict[str, JSON] = {
        "nodes": [f"127.0.0.1:{port}"],
        "username": getpass.getuser(),
        "sshKey": str(folder / "user"),
        "checkHostKey": False,
    }
    return {"type": "ssh", "config": config}


def main() -> None:
    """Print the table, as markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--at-once", type=int, nargs="+", default=[*_ROUNDS])
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.1, 1, 10])
    parser.add_argument("--over", nargs="+", default=["local", "ssh", "slow"])
    parser.add_argument("--nodes", type=int, default=1, help="of each job (default: 1)")
    parser.add_argument("--keep", type=Path, help="folder for files and debug logs")
    args = parser.parse_args()
    if lacking := missing():
        sys.exit(lacking)
    heed_sigterm()
    options = Options(nodes=_NODES, qnodes=0, cpus=_CPUS)
    with (
        tempfile.TemporaryDirectory(prefix="sfq-short-") as name,
        running(Path(name) / "lab", options) as lab,
        sshd(Path(name) / "ssh", lab.environment) as port,
        sshd(Path(name) / "slow", lab.environment, f"{name}/shell") as slow_port,
    ):
        shell = Path(name) / "shell"
        shell.write_text(f'#!/bin/sh\nsleep {_SLOW_SECONDS}\nexec sh "$@"\n')
        shell.chmod(0o755)
        hosts: dict[str, dict[str, JSON]] = {
            "local": {"type": "local", "config": {}},
            "ssh": _ssh(Path(name) / "ssh", port),
            "slow": _ssh(Path(name) / "slow", slow_port),
        }
        place = args.keep or Path(name) / "runs"
        place.mkdir()
        print(
            "| login node | jobs | s | wall s | CPU s | after the last job, s | x | load |"
        )
        print("|---" * 8 + "|", flush=True)
        cells = product(args.at_once, args.seconds, args.over, [args.nodes])
        for cell in starmap(Cell, cells):
            print(
                row(cell, measure(lab, place, cell, hosts[cell.over], args)), flush=True
            )
        if args.keep:
            log = (lab.folder / "slurmctld.log").read_text()
            (place / "slurmctld.log").write_text(log)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
