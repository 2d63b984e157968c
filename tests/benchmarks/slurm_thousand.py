"""Many small steps on Slurm, with StreamFlow's connector and with ours.

    python -m tests.benchmarks.slurm_thousand [--steps 1000] [--jobs 48] [--runs 1]

A scattered ``echo`` of ``--steps`` jobs, of which ``--jobs`` may be submitted at once, runs on
the Slurm lab with StreamFlow's connector ``slurm``, which is the opponent, and with
``sfq.slurm`` and its journal, in turns; ``--interval`` is their ``pollingInterval``. Two rows
are bounds: ``sbatch`` is what Slurm itself takes for as many jobs, submitted by a loop in a
shell, and ``local`` what StreamFlow itself takes for as many steps, on this machine and
without our package.

A row has the wall time of the driver, the CPU time of the driver and of the processes that it
starts, that of the whole machine (Slurm's daemons included), and the requests that Slurm's
controller received: submissions (``sbatch``), lists of jobs (``squeue``), and of one job
(``scontrol show job``, or ``squeue`` with one job).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from sf_quantum.files import JSON
from tests.benchmarks.driver import JOURNAL, WORKFLOW
from tests.benchmarks.slurm_runs import BIN, heed_sigterm, used
from tests.lab import Lab, running
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing

_NODES = 3
_CONNECTORS = ("slurm", "sfq.slurm")
_REQUESTS = {
    "sbatch": "REQUEST_SUBMIT_BATCH_JOB",
    "squeue": "REQUEST_JOB_(?:USER_)?INFO",
    "scontrol": "REQUEST_JOB_INFO_SINGLE",
}


@dataclass(frozen=True)
class Run:
    wall: float
    cpu: float
    machine: float
    requests: dict[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=48)
    parser.add_argument("--interval", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", action="append", metavar="ROW")
    args = parser.parse_args()
    if lacking := missing():
        sys.exit(lacking)
    heed_sigterm()
    rows: dict[str, Callable[[Lab, Path], Run]] = {
        "sbatch": lambda lab, _: _alone(lab, args.steps),
        **{name: partial(_driven, args, name) for name in ("local", *_CONNECTORS)},
    }
    chosen = args.only or list(rows)
    turns = [
        {row: _measured(rows[row], args.jobs) for row in chosen}
        for _ in range(args.runs)
    ]
    names = ("wall s", "driver CPU s", "machine CPU s", *_REQUESTS)
    print(f"| | {' | '.join(names)} | x slurm |")
    print(f"|---{'|---' * (len(names) + 1)}|")
    walls = {row: median(turn[row].wall for turn in turns) for row in chosen}
    for row, wall in walls.items():
        runs = [turn[row] for turn in turns]
        counts = (median(run.requests[name] for run in runs) for name in _REQUESTS)
        times = (
            f"{wall:.1f}",
            f"{median(run.cpu for run in runs):.1f}",
            f"{median(run.machine for run in runs):.1f}",
        )
        ratio = f"{wall / walls['slurm']:.2f}" if "slurm" in walls else ""
        print(f"| {row} | {' | '.join((*times, *map(str, counts)))} | {ratio} |")


def _measured(run: Callable[[Lab, Path], Run], jobs: int) -> Run:
    """One run, on a lab of its own."""
    options = Options(nodes=_NODES, qnodes=0, cpus=-(-jobs // _NODES))
    with (
        tempfile.TemporaryDirectory(prefix="sfq-thousand-") as name,
        running(Path(name) / "lab", options) as lab,
    ):
        return run(lab, Path(name))


def _alone(lab: Lab, steps: int) -> Run:
    """Submit and run jobs without StreamFlow."""
    submit = "sbatch --output=/dev/null --wrap='echo 1'"
    loop = f"for i in $(seq {steps}); do {submit}; done >/dev/null"
    script = f"{loop}; while squeue --noheader | grep -q .; do sleep 0.1; done"
    return _timed(lab, ["sh", "-c", script], lab.folder)


def _driven(args: argparse.Namespace, name: str, lab: Lab, place: Path) -> Run:
    _write(place, name, args)
    words = [str(BIN / "streamflow"), "run", "--quiet", "--outdir", "out", "run.yml"]
    return _timed(lab, words, place)


def _timed(lab: Lab, words: list[str], place: Path) -> Run:
    lab.output("sdiag", "--reset")
    began, busy = time.monotonic(), _busy()
    usage = used(lab, words, place)
    wall, machine = time.monotonic() - began, _busy() - busy
    told = lab.output("sdiag")
    return Run(
        wall,
        usage.ru_utime + usage.ru_stime,
        machine,
        {name: _count(told, request) for name, request in _REQUESTS.items()},
    )


def _busy() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait


def _count(told: str, request: str) -> int:
    found = re.findall(rf"^\s*{request}\s.*count:(\d+)", told, re.MULTILINE)
    return sum(map(int, found))


def _write(place: Path, name: str, args: argparse.Namespace) -> None:
    """Write the files of a run into a folder."""
    (place / "workflow.cwl").write_text(json.dumps(WORKFLOW))
    (place / "job.json").write_text(json.dumps({"numbers": list(range(args.steps))}))
    workflow: dict[str, JSON] = {
        "type": "cwl",
        "config": {"file": "workflow.cwl", "settings": "job.json"},
    }
    database: JSON = {"connection": str(place / "sqlite.db")}
    content: dict[str, JSON] = {
        "version": "v1.0",
        "workflows": {"main": workflow},
        "database": {"type": "sqlite", "config": database},
    }
    if name in _CONNECTORS:
        target: JSON = {"deployment": "cluster"}
        workflow["bindings"] = [{"step": "/", "target": target}]
        work = str(place / "work")
        content["deployments"] = {
            "host": {"type": "local", "workdir": work, "config": {}},
            "cluster": {
                "type": name,
                "workdir": work,
                "config": {
                    "maxConcurrentJobs": args.jobs,
                    "pollingInterval": args.interval,
                },
                "wraps": "host",
            },
        }
    if name == "sfq.slurm":
        content["scheduling"] = JOURNAL
    (place / "run.yml").write_text(json.dumps(content))  # JSON is valid YAML


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
