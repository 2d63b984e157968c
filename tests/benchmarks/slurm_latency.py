"""The time between the end of a step on Slurm and the next submission, by connector.

    python -m tests.benchmarks.slurm_latency [--steps 20] [--seed 1]

A chain of one-node steps runs on the Slurm lab, each with the file of the previous step
as its input. Measured is the time from the end of a step's command, which records it
last, to the controller's log entry of the next submission: what StreamFlow and its
connector need to see the end, fetch the outputs, schedule the next step and run
``sbatch``, without Slurm's own time from submission to start. Steps sleep 0.5 to 5.5 s
(random, by a seed, the same for each row), so that they end at any moment between two
polls.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from threading import Event

from sf_quantum.files import JSON
from tests.benchmarks import slurm_runs
from tests.lab import running
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing

ROWS: dict[str, tuple[str, Mapping[str, JSON]]] = {
    "sfq.slurm": ("sfq.slurm", {}),
    "slurm, pollingInterval 1": ("slurm", {"pollingInterval": 1}),
    "slurm, pollingInterval 5 (its default)": ("slurm", {"pollingInterval": 5}),
}
SLEEP_SECONDS = (0.5, 5.5)


def chain(seconds: list[float]) -> dict[str, JSON]:
    """Return a CWL workflow with a chain of steps."""
    steps: dict[str, JSON] = {}
    for number, length in enumerate(seconds):
        before = f"s{number - 1}/ended" if number else None
        steps[f"s{number}"] = {
            "in": {"before": {"source": before} if before else {}},
            "out": ["ended"],
            "run": {
                "class": "CommandLineTool",
                "baseCommand": ["sh", "-c", f"sleep {length:.2f}; date +%s.%N >ended"],
                "inputs": {"before": "File?"},
                "outputs": {
                    "ended": {"type": "File", "outputBinding": {"glob": "ended"}}
                },
            },
        }
    ends: dict[str, JSON] = {
        name: {"type": "File", "outputSource": f"{name}/ended"} for name in steps
    }
    return {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {},
        "outputs": ends,
        "steps": steps,
    }


def measure(row: str, seconds: list[float]) -> list[float]:
    """Measure the seconds between successive steps, on a lab of its own."""
    connector, config = ROWS[row]
    with (
        tempfile.TemporaryDirectory(prefix="sfq-latency-") as name,
        running(Path(name) / "lab", Options()) as lab,
    ):
        cwl = Path(name) / "chain.cwl"
        cwl.write_text(json.dumps(chain(seconds)))
        file = slurm_runs.write(
            Path(name) / "run",
            cwl,
            {},
            connector,
            {"services": {"node": {"nodes": "1"}}, **config},
            {"/": "node"},
        )
        slurm_runs.drive(lab, [file], Event())
        out = file.parent / "out"
        ends = sorted(float(path.read_text()) for path in out.iterdir())
        submitted = slurm_runs.submissions(lab)
    if not len(ends) == len(submitted) == len(seconds):
        raise slurm_runs.RunError(f"{len(submitted)} jobs, {len(ends)} ends")
    return [begin - end for end, begin in zip(ends, submitted[1:], strict=False)]


def main() -> None:
    """Print the medians, as markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.steps < 3:
        parser.error("--steps: at least 3")
    if lacking := missing():
        sys.exit(lacking)
    slurm_runs.heed_sigterm()
    draws = random.Random(args.seed)
    seconds = [draws.uniform(*SLEEP_SECONDS) for _ in range(args.steps)]
    print("| connector | between steps: median s | 10th to 90th percentile | x ours |")
    print("|---|---|---|---|")
    ours = 0.0
    for row in ROWS:
        gaps = measure(row, seconds)
        ours = ours or median(gaps)
        tenths = quantiles(gaps, n=10, method="inclusive")
        print(
            f"| {row} | {median(gaps):.2f} | {tenths[0]:.2f} to {tenths[-1]:.2f} | "
            f"{median(gaps) / ours:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
