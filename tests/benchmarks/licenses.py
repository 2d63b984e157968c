"""Waits of licensed Slurm jobs for a lease while others use the QPU, with and without its keeper.

``python -m tests.benchmarks.licenses`` starts a lab with one licence a vQPU. Others lease vQPUs
for a while, and pause, both for exponential times. Meanwhile jobs that request a licence are
submitted one after the other; each leases a vQPU as it starts. The nodes wait for as long as the
lease does.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import running
from tests.support.lab_conf import Options
from tests.support.service import RunningService
from tests.support.service_process import SFQ
from tests.support.site_daemons import Site

# A longer wait is not only the start of `sfq lease`.
WAIT_SECONDS = 2.0
# Mean pause between two submissions, and the time for which a job needs its lease.
PAUSE_SECONDS, WORK_SECONDS = 4.0, 3.0


def main() -> None:
    """Print a row for each number of others, without the keeper and with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vqpus", type=int, default=2)
    parser.add_argument("--others", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument(
        "--held", type=float, default=10.0, help="mean seconds of a lease"
    )
    parser.add_argument(
        "--pause", type=float, default=10.0, help="mean seconds between"
    )
    args = parser.parse_args()
    print("others  keeper  jobs that wait  their wait in s: mean, max  all jobs' s")
    options = Options(nodes=1, qnodes=1, cpus=64, licenses=f"qpu:{args.vqpus}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with running(path / "lab", options) as lab:
            site = Site(lab, path)
            for others in args.others:
                for keeps in (False, True):
                    _print(others, keeps, *_trial(site, args, others, keeps=keeps))


def _print(others: int, keeps: bool, waits: list[float], seconds: float) -> None:
    long = [wait for wait in waits if wait > WAIT_SECONDS]
    mean, most = (statistics.mean(long), max(long)) if long else (0.0, 0.0)
    count = f"{len(long)} of {len(waits)}"
    print(f"{others:6}  {keeps!s:6}  {count:14}  {mean:.1f}, {most:.1f}  {seconds:.0f}")
    sys.stdout.flush()


def _trial(
    site: Site, args: argparse.Namespace, others: int, *, keeps: bool
) -> tuple[list[float], float]:
    """Return the seconds that each job with nodes waits for its lease, and those of all."""
    draws = random.Random(others)
    with site.serving(args.vqpus) as service, _others(service, args, others):
        keeper = None
        if keeps:
            words = [*SFQ, "slurm", *site.words("licenses")]
            keeper = subprocess.Popen(
                words,
                env={**os.environ, **site.lab.environment},
                stderr=subprocess.DEVNULL,
            )
        began = time.monotonic()
        script = (
            f"date +%s.%N; {SFQ[0]} lease --qrmi-config {site.config} --qpu qpu -- "
            f"sh -c 'date +%s.%N; sleep {WORK_SECONDS}' 2>/dev/null"
        )
        jobs = []
        for _ in range(args.jobs):
            jobs.append(site.submit(script, "--licenses=qpu:1"))
            time.sleep(draws.expovariate(1 / PAUSE_SECONDS))
        waits = []
        for job in jobs:
            started, leased = map(float, site.output(job).split()[:2])
            waits.append(leased - started)
        seconds = time.monotonic() - began
        if keeper is not None:
            keeper.terminate()
            keeper.wait()
    return waits, seconds


@contextmanager
def _others(
    service: RunningService, args: argparse.Namespace, number: int
) -> Iterator[None]:
    """Lease vQPUs and pause in turn, as so many users, until the end of the block."""
    end = threading.Event()

    def use(draws: random.Random) -> None:
        while not end.wait(draws.expovariate(1 / args.pause)):
            answer = service.ask("POST", "/v1/leases", {"wait": 30.0})
            if answer.status == 201:
                end.wait(draws.expovariate(1 / args.held))
                service.ask("DELETE", f"/v1/leases/{answer.json()['id']}")

    threads = [
        threading.Thread(target=use, args=[random.Random(seed)])
        for seed in range(number)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
