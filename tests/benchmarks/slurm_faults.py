"""Let Slurm fail at random while jobs run, and check that nothing is lost.

    python -m tests.benchmarks.slurm_faults [--faults 100] [--jobs 50] [--seed 1]

A driver runs scattered jobs through ``sfq.slurm`` on a lab of its own, and StreamFlow's
failure manager repeats failed jobs. Meanwhile, at random, a job is cancelled, a node's
daemon is killed with everything that runs there, the controller is restarted, or
``squeue`` fails for a while. Afterwards all of these must hold:

- the workflow completes, and each of its outputs is right
- each attempt ended as in Slurm's own record (jobcomp), and no job of that record is
  missing: no lost job, no false success
- no job is left in Slurm's queue, and no process or folder of the driver's

The suite runs the short form (tests/connectors/slurm/lab/test_faults.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sf_quantum import journal
from sf_quantum.files import JSON
from tests.lab import Lab, running
from tests.support.journals import Event, read
from tests.support.lab_cluster import LabError
from tests.support.lab_conf import Options

STREAMFLOW = Path(sys.executable).parent / "streamflow"
ATTEMPTS = 1000
# the controller writes a job's end to jobcomp only after its node has reported it
SETTLE_SECONDS = 60


class Faults:
    """Random faults."""

    def __init__(self, lab: Lab, chance: random.Random, commands: Path) -> None:
        self._lab = lab
        self._chance = chance
        self.count: Counter[str] = Counter()
        self._hurried: set[str] = set()
        self._blind = commands / "blind"
        stand_in = commands / "squeue"
        stand_in.write_text(
            f'#!/bin/sh\n[ ! -e {self._blind} ] || exit 1\nexec /usr/bin/squeue "$@"\n'
        )
        stand_in.chmod(0o755)

    def strike(self) -> None:
        """Cause one fault."""
        kinds: list[Callable[[], bool]] = [
            *(self.cancel, self.cancel, self.cancel),
            *(self.kill_node, self.restart_controller, self.blind),
        ]
        fault = self._chance.choice(kinds)
        with suppress(LabError):  # the target has just ended
            if fault():
                self.count[fault.__name__] += 1

    def hurry(self) -> None:
        """Let requeued jobs start now, and not in two minutes.

        Not within the same second, in which nodes confuse them with the killed runs.
        """
        with suppress(LabError):
            waiting = self._lab.output("squeue", "-h", "-t", "PD", "-o", "%A %r")
            jobs = [line.split(maxsplit=1) for line in waiting.splitlines()]
            self._hurried &= {job for job, _ in jobs}
            for job, reason in jobs:
                if reason == "BeginTime" and job not in self._hurried:
                    self._hurried.add(job)
                    self._lab.output(
                        "scontrol", "update", f"JobId={job}", "StartTime=now+2"
                    )

    def cancel(self) -> bool:
        jobs = self._lab.jobs()
        if jobs:
            self._lab.output("scancel", str(self._chance.choice(jobs)))
        return bool(jobs)

    def kill_node(self) -> bool:
        node = self._chance.choice(["c1", "c2", "c3"])
        self._lab.stop_node(node)
        # long enough for Slurm to see it, or not
        time.sleep(self._chance.choice([0.1, 4.0]))
        self._lab.start_node(node)
        return True

    def restart_controller(self) -> bool:
        self._lab.stop_controller()
        time.sleep(self._chance.uniform(0, 1))
        self._lab.start_controller()
        return True

    def blind(self) -> bool:
        self._blind.touch()
        time.sleep(self._chance.uniform(0.5, 3))
        self._blind.unlink()
        return True


def torture(folder: Path, faults: int, jobs: int, seed: int) -> dict[str, float]:
    """Run the jobs under faults.

    :param folder: a fresh one
    :param faults: how many at least
    :returns: the figures
    """
    chance = random.Random(seed)
    options = Options(cpus=4, node_timeout=2, extra=("KillWait=1",))
    with running(folder / "lab", options) as lab:
        commands = folder / "commands"
        commands.mkdir()
        strikes = Faults(lab, chance, commands)
        _write(folder, faults, jobs)
        began = time.monotonic()
        driver = _start(folder, lab, commands)
        try:
            _wait_for(lambda: bool(lab.jobs()), 60)
            while driver.poll() is None:
                if strikes.count.total() < faults:
                    strikes.strike()
                strikes.hurry()
                time.sleep(chance.uniform(0, 0.3))
        finally:
            driver.kill()
            driver.wait()
        seconds = time.monotonic() - began
        _must(driver.returncode == 0, f"the driver failed: see {folder}/log")
        return {
            "seconds": seconds,
            "faults": strikes.count.total(),
            **strikes.count,
            **_check(folder, lab, jobs),
        }


def _check(folder: Path, lab: Lab, jobs: int) -> dict[str, float]:
    """Check the driver's journal against Slurm's record."""
    results = sorted(path.read_text() for path in folder.glob("out*"))
    _must(results == sorted(f"{n}\n" for n in range(jobs)), f"outputs: {results}")
    _wait_for(lambda: not lab.jobs(), SETTLE_SECONDS)
    path = journal.newest(folder / journal.DIRECTORY)
    events: list[Event] = [] if path is None else read(path)
    told = {str(e["slurm_job"]): e for e in events if e["event"] == "slurm"}
    kept = {str(one.id): one for one in lab.jobcomp()}
    _must(set(told) == set(kept), f"told of and kept differ: {set(told) ^ set(kept)}")
    for id_, event in told.items():
        state = kept[id_].state
        # of one that was to run again and was cancelled before, it keeps the first end
        same = event["state"] == state or (
            event["state"] == "CANCELLED" and event["restarts"] and state != "COMPLETED"
        )
        # while Slurm does not answer, the end is told by the script, which was terminated
        terminated = event["exit_code"] == 128 + signal.SIGTERM
        same = same or (state == "CANCELLED" and terminated)
        _must(bool(same), f"job {id_} is {state}, but told was {event}")
    good = [e for e in told.values() if e["state"] == "COMPLETED"]
    _must(len(good) == jobs, f"{len(good)} of {jobs} jobs completed")
    # where the driver could not see to it, the login node's shell does
    _wait_for(lambda: not list(folder.rglob(".sfq-*")), SETTLE_SECONDS)
    _must(not journal.is_open(path) if path else False, "the journal is open")
    return {
        "attempts": len(told),
        "failed": len(told) - len(good),
        "run_again_by_slurm": sum(int(str(e["restarts"])) > 0 for e in told.values()),
    }


def _write(folder: Path, faults: int, jobs: int) -> None:
    numbers: list[JSON] = list(range(jobs))
    # long enough that the faults find jobs to hit
    pace = 2 * faults / jobs
    choose = f"case $(($0 % 3)) in 0) s=0.5;; 1) s={pace:g};; *) s={2 * pace:g};; esac"
    tool: JSON = {
        "class": "CommandLineTool",
        "baseCommand": ["sh", "-c", f"{choose}; sleep $s; echo $0 >out"],
        "inputs": {"n": {"type": "int", "inputBinding": {}}},
        "outputs": {"out": {"type": "File", "outputBinding": {"glob": "out"}}},
    }
    workflow: JSON = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"ns": {"type": "int[]", "default": numbers}},
        "outputs": {"outs": {"type": "File[]", "outputSource": "work/out"}},
        "steps": {
            "work": {"run": tool, "in": {"n": "ns"}, "scatter": "n", "out": ["out"]}
        },
    }
    (folder / "main.cwl").write_text(json.dumps(workflow))
    config: JSON = {
        "version": "v1.0",
        "workflows": {
            "faults": {
                "type": "cwl",
                "config": {"file": "main.cwl"},
                "bindings": [{"step": "/work", "target": {"deployment": "cluster"}}],
            }
        },
        "deployments": {
            "cluster": {
                "type": "sfq.slurm",
                "workdir": str(folder / "work"),
                "config": {"maxConcurrentJobs": 10, "pollingInterval": 1},
            }
        },
        "failureManager": {
            "type": "default",
            "config": {"max_retries": ATTEMPTS, "retry_delay": 0},
        },
        "scheduling": {"scheduler": {"type": "sfq.journal", "config": {}}},
        "database": {
            "type": "default",
            "config": {"connection": str(folder / "streamflow.db")},
        },
    }
    (folder / "streamflow.yml").write_text(json.dumps(config))


def _start(folder: Path, lab: Lab, commands: Path) -> subprocess.Popen[bytes]:
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(
            [STREAMFLOW, "run", "streamflow.yml"],
            cwd=folder,
            env={
                **os.environ,
                **lab.environment,
                "PATH": f"{commands}:{os.environ['PATH']}",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        _must(time.monotonic() < deadline, "waited in vain")
        time.sleep(0.05)


def _must(condition: bool, what: str) -> None:
    if not condition:
        sys.exit(what)


def main() -> None:
    """Print the figures, as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, help="a fresh folder, to look at afterwards"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sfq-faults-") as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        print(json.dumps(torture(folder, args.faults, args.jobs, args.seed)))


if __name__ == "__main__":
    main()
