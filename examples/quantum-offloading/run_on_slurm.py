"""Run the step on the Slurm cluster of this shell, with an emulated or a real QPU."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sf_quantum import journal
from sf_quantum.journal.events import Allocation, Qpu, Slurm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = Path(sys.executable).parent
FILES = ("streamflow.yml", "offload.cwl", "offload.py", "job.yml")


def main() -> int:
    """Copy the example, run it, and report what it held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--qrmi-config",
        type=Path,
        metavar="FILE",
        help="the site's QPUs, one of them named qpu (default: an emulated QPU)",
    )
    parser.add_argument("--iterations", type=int, help="default: those of job.yml")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / ".streamflow" / "quantum-offloading",
        help="replaced; must be shared with the nodes (default .streamflow/quantum-offloading)",
    )
    args = parser.parse_args()
    if shutil.which("sbatch") is None:
        print(
            "sbatch not found: run `make lab`, then the SLURM_CONF line that it prints"
        )
        return 2
    folder = args.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    if args.iterations is not None:
        (folder / "job.yml").write_text(f"iterations: {args.iterations}\n")
    definitions = folder / "qrmi_config.json"
    definitions.touch(0o600)
    if args.qrmi_config is not None:
        definitions.write_text(args.qrmi_config.read_text())
        return run(folder)
    with emulated() as url:
        qpu = {"name": "qpu", "type": "sfq", "environment": {"SFQ_URL": url}}
        definitions.write_text(json.dumps({"resources": [qpu]}))
        return run(folder)


@contextmanager
def emulated() -> Iterator[str]:
    """Serve an emulated QPU; yields its URL."""
    with subprocess.Popen(
        [BIN / "sfq", "serve", "--name", "qpu", "--noise", "0", "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        yield str(json.loads(service.stdout.readline())["url"])
        service.stdin.close()


def run(folder: Path) -> int:
    """Run StreamFlow, and print the energies and the resources held."""
    log = folder / "streamflow.log"
    with log.open("wb") as output:
        status = subprocess.run(
            [BIN / "streamflow", "run", "streamflow.yml", "--outdir", "results"],
            cwd=folder,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    path = journal.newest(folder / journal.DIRECTORY)
    if status != 0 or path is None:
        print(log.read_text(errors="replace"))
        return 1
    events = journal.read(path)
    print((folder / "results" / "energies.txt").read_text(), end="")
    (job,) = (event for event in events if isinstance(event, Slurm))
    changes = [event for event in events if isinstance(event, Allocation)]
    (granted,) = (event for event in changes if event.status == "granted")
    solved = [event for event in events if isinstance(event, Qpu)]
    seconds = sum(event.qpu_seconds or 0.0 for event in solved)
    print(
        f"{granted.nodes} nodes held for "
        f"{(job.ended or 0.0) - (job.started or 0.0):.1f} s, "
        f"{len(solved)} jobs on QPU {solved[0].qpu} in {seconds:.1f} s of its time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
