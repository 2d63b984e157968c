"""The time until a job starts on Slurm: in an existing allocation, and as a job of its own.

    python -m tests.benchmarks.slurm_starts [--jobs 20]

Jobs run one after the other on the Slurm lab, through the connector, without
StreamFlow's engine. Measured is the time from the call of the connector to the start of
the command.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

from sf_quantum.files import JSON
from tests.lab import Lab, running
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing
from tests.support.slurm_site import site

ALLOCATIONS: dict[str, JSON] = {
    "elastic": {"strategy": "elastic", "idle": 60},
    "reserved": {"strategy": "reserved", "reserve": ["node"]},
    "reserved, heterogeneous": {"strategy": "reserved", "reserve": ["node", "qpu"]},
    "per-step": "per-step",
}


async def measure(lab: Lab, folder: Path, allocation: JSON, jobs: int) -> list[float]:
    """Measure the seconds to each job's start, except a first job, which gets the nodes."""
    found = []
    async with site(lab, folder, allocation) as held:
        await held.run("true")
        for _ in range(jobs):
            submitted = time.time()
            found.append(float(await held.run("date +%s.%N")) - submitted)
    return found


def main() -> None:
    """Print medians and maxima, as markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20)
    jobs = parser.parse_args().jobs
    if lacking := missing():
        sys.exit(lacking)
    print("| allocation | to a job's start: median s | max s |")
    print("|---|---|---|")
    with (
        tempfile.TemporaryDirectory(prefix="sfq-starts-") as name,
        running(Path(name) / "lab", Options()) as lab,
    ):
        for allocation, settings in ALLOCATIONS.items():
            folder = Path(name) / allocation.replace(", ", "-")
            folder.mkdir()
            seconds = asyncio.run(measure(lab, folder, settings, jobs))
            print(f"| {allocation} | {median(seconds):.2f} | {max(seconds):.2f} |")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
