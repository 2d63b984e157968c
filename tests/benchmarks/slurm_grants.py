"""The time from a request for nodes to the start of its command, beside a bare ``salloc``.

    python -m tests.benchmarks.slurm_grants [--rounds 20]

On an idle lab, in turns:

- ``salloc``: from its start to the command that it runs
- ``sbatch``: from its start to the script
- ``scontrol release``: of a held job, from its start to the script
- ``sfq slurm gate``: of a held job that waits for the only vQPU, from the end of the lease of
  another to the script; the gate learns of its own lease, renews it, and releases the job
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from tests.benchmarks import slurm_runs
from tests.lab import Lab, running
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing
from tests.support.service import RunningService
from tests.support.service_process import SFQ
from tests.support.site_daemons import Site
from tests.support.waiting import until


class Grants:
    """A lab with a gate, and what each row measures there."""

    def __init__(self, lab: Lab, folder: Path, service: RunningService) -> None:
        self._lab, self._service = lab, service
        self._mark = folder / "started"
        self._script = f"date +%s.%N >{self._mark}"
        self.rows: dict[str, Callable[[], float]] = {
            "salloc": self._salloc,
            "sbatch": self._sbatch,
            "scontrol release": self._release,
            "sfq slurm gate": self._gate,
        }

    def _salloc(self) -> float:
        began = time.time()
        return float(self._lab.output("salloc", "-Q", "date", "+%s.%N")) - began

    def _sbatch(self) -> float:
        return self._started(self._submit)

    def _release(self) -> float:
        job = self._submit("--hold")
        return self._started(lambda: self._lab.output("scontrol", "release", str(job)))

    def _gate(self) -> float:
        lease = self._service.acquire()
        self._submit("--hold", "--comment=qpu=qpu")
        until(
            lambda: self._service.queue.leases.waiting == 1, "the request of the gate"
        )
        ended = ("DELETE", f"/v1/leases/{lease}")
        return self._started(lambda: self._service.ask(*ended))

    def _submit(self, *options: str) -> int:
        return self._lab.submit("--output=/dev/null", *options, "--wrap", self._script)

    def _started(self, act: Callable[[], object]) -> float:
        began = time.time()
        act()
        until(lambda: self._mark.exists() and self._mark.read_text(), "its start")
        return float(self._mark.read_text()) - began

    def settle(self) -> None:
        """Wait until nothing of a row is left."""
        self._lab.wait_idle()
        until(lambda: not self._service.queue.leases.held, "no lease")
        self._mark.unlink(missing_ok=True)


@contextmanager
def gating(site: Site) -> Iterator[None]:
    """Run the gate."""
    environment = {**os.environ, **site.lab.environment}
    gate = subprocess.Popen([*SFQ, "slurm", *site.words("gate")], env=environment)
    try:
        yield
    finally:
        gate.kill()
        gate.wait()


def main() -> None:
    """Print the medians, as markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    if lacking := missing():
        sys.exit(lacking)
    slurm_runs.heed_sigterm()
    with (
        tempfile.TemporaryDirectory(prefix="sfq-grants-") as name,
        running(Path(name) / "lab", Options()) as lab,
    ):
        site = Site(lab, Path(name))
        with site.serving() as service, gating(site):
            grants = Grants(lab, Path(name), service)
            measured: dict[str, list[float]] = {row: [] for row in grants.rows}
            for _ in range(args.rounds):
                for row, measure in grants.rows.items():
                    measured[row].append(measure())
                    grants.settle()
    print("| | median s | least to greatest |")
    print("|---|--:|--:|")
    for row, times in measured.items():
        print(f"| {row} | {median(times):.2f} | {min(times):.2f} to {max(times):.2f} |")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
