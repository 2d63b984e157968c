"""What the loop of a variational algorithm costs outside a step and inside one, on the lab.

    python -m tests.benchmarks.variational [--evaluations 9] [--scales 0 0.5] [--runs 1]

The VQE of ``examples/variational`` runs on the Slurm lab, on an emulated superconducting
QPU (``sfq serve``, a process of its own) whose node is the one of the partition
``quantum``. With ``loop.cwl``, each measurement is a job with a lease of its own, on an
allocation of its own (``per-step``) or on one that is kept (``elastic``); what chooses the
angles runs beside the driver. With ``session.cwl``, the whole loop is one job with one
lease. The scale is that of the QPU's delays, 11.75 s for a measurement with 1.

Seconds are those of the run without the start-up of the driver, by its journal;
node-seconds are from Slurm's record. Both are divided by the number of evaluations.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from threading import Event

from sf_quantum.files import JSON
from tests.benchmarks import slurm_runs
from tests.benchmarks.submission import started
from tests.lab import running
from tests.support.folders import ROOT
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing
from tests.support.site_daemons import write_site_file

EXAMPLE = ROOT / "examples" / "variational"
# of a measurement, without delays of its own: two circuits of 4,000 shots in a job
MEASUREMENT_SECONDS = 9.75 + 2 * 4000 * 250e-6


@dataclass(frozen=True)
class Row:
    """A form of the loop.

    :param allocation: of the service ``quantum``
    """

    cwl: str
    step: str
    allocation: JSON


ROWS = {
    "outside, per-step": Row("loop.cwl", "/iterate/measure", "per-step"),
    "outside, elastic": Row(
        "loop.cwl", "/iterate/measure", {"strategy": "elastic", "idle": 60}
    ),
    "inside, session": Row("session.cwl", "/solve", "per-step"),
}


@dataclass(frozen=True)
class Figures:
    """Of a run; seconds and node-seconds are divided by its evaluations."""

    wall: float
    nodes: float
    evaluations: int
    energy: float


@contextmanager
def service(folder: Path, scale: float) -> Iterator[str]:
    """Serve the emulated QPU; yields its URL."""
    device: dict[str, JSON] = {"technology": "superconducting", "qubits": 9}
    device |= {"topology": "square", "noise": 0.0, "time_scale": scale}
    config = {"state": str(folder / "state"), "device": device}
    (folder / "service.yml").write_text(json.dumps(config))
    sfq = str(slurm_runs.BIN / "sfq")
    command = [sfq, "serve", "--config", str(folder / "service.yml")]
    with started(command) as (url, _):
        yield url


def measure(row: Row, scale: float, evaluations: int) -> Figures:
    """Run the VQE once, on a lab of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="sfq-variational-") as name,
        running(Path(name) / "lab", Options()) as lab,
    ):
        folder = Path(name)
        given = json.loads((EXAMPLE / "ising.json").read_text())
        problem = folder / "ising.json"
        problem.write_text(json.dumps({**given, "evaluations": evaluations}))
        with service(folder, scale) as url:
            site = write_site_file(folder, url)
            quantum: dict[str, JSON] = {"partition": "quantum", "gres": "qpu:1"}
            quantum |= {"qpu": ["qpu"], "allocation": row.allocation}
            file = slurm_runs.write(
                folder / "run",
                EXAMPLE / row.cwl,
                {"problem": {"class": "File", "path": str(problem)}},
                "sfq.slurm",
                {"qrmiConfig": str(site), "services": {"quantum": quantum}},
                {row.step: "quantum"},
            )
            journals = slurm_runs.drive(lab, [file], Event())
            held = slurm_runs.holds(lab)
        result = json.loads((file.parent / "out" / "result.json").read_text())
    count = result["evaluations"]
    return Figures(
        wall=slurm_runs.wall_seconds(journals) / count,
        nodes=sum(hold.node_seconds for hold in held) / count,
        evaluations=count,
        energy=result["energy"],
    )


def main() -> None:
    """Print the figures, as markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=9)
    parser.add_argument("--scales", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--runs", type=int, default=1)
    args = parser.parse_args()
    if lacking := missing():
        sys.exit(lacking)
    slurm_runs.heed_sigterm()
    print("| QPU seconds | form | evaluations | seconds | node-seconds | energy |")
    print("|---|---|---|---|---|---|")
    for scale in args.scales:
        for name, row in ROWS.items():
            runs = [measure(row, scale, args.evaluations) for _ in range(args.runs)]
            print(
                f"| {scale * MEASUREMENT_SECONDS:.1f} | {name} "
                f"| {runs[0].evaluations} | {fmean(one.wall for one in runs):.1f} "
                f"| {fmean(one.nodes for one in runs):.1f} | {runs[0].energy:.3f} |",
                flush=True,
            )
    print(f"load average {os.getloadavg()[1]:.1f}")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
