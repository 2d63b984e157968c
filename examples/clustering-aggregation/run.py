"""Run the workflow of Rocco et al. (QCE 2025) by ``sfq run``, and sum it up."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from sf_quantum import cli

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The program of a process that imports Matplotlib while steps leave a core free. It draws the
# timeline of the file that it reads, or nothing.
DRAW = """\
import os, sys
os.nice(10)
from pathlib import Path
from sf_quantum import journal
from sf_quantum.reporting import attempts, pictures, report
if file := sys.stdin.read():
    rows = attempts.collect(journal.read(report.locate(file)))
    pictures.draw_timeline(rows, Path(sys.argv[1]))
"""


def main() -> int:
    """Make the points, run the workflow, and summarize."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        default=ROOT / "deployments" / "emulator.yml",
        help="StreamFlow file (default deployments/emulator.yml)",
    )
    parser.add_argument("--outdir", type=Path, default=ROOT / "results")
    args = parser.parse_args()
    if not (HERE / "points.csv").exists():
        print("making the 80,000 points of the paper", flush=True)
        script, points = str(HERE / "make_points.py"), str(HERE / "points.csv")
        subprocess.run([sys.executable, script, points], check=True)
    started = time.monotonic()
    os.environ |= _environment()
    timeline = str(args.outdir / "timeline.png")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", DRAW, timeline],
        stdin=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C reaches this process alone
    ) as drawer:
        if status := cli.main(["run", str(args.file), "--outdir", str(args.outdir)]):
            return status
        drawer.communicate(str(args.file))
    if drawer.returncode:
        return 1
    sum_up(args.outdir, time.monotonic() - started)
    return 0


def sum_up(outdir: Path, seconds: float) -> None:
    """Print the score, the iterations, and the output files."""
    summary = json.loads((outdir / "summary.json").read_text())
    best = summary["per_iteration"][summary["best_iteration"] - 1]
    estimate = "exact" if summary["exact"] else f"± {summary['score_error']:.4f}"
    print(
        f"\nsilhouette {summary['score']:.4f} ({estimate}), {summary['clusters']} clusters,"
        f" in iteration {summary['best_iteration']} of {summary['iterations']}"
        f" ({seconds:.1f} s in total)"
    )
    print(
        f"any of {best['reads_that_end_alone']:,} samples (out of {best['reads']:,}) would have"
        " been enough to end the loop"
    )
    print()
    for name, what in (
        ("labels.csv", "the best consensus"),
        ("summary.json", "scores, energies, samplers, seeds"),
        ("clusters.png", "the clusters and the score by iteration"),
        ("timeline.png", "where and when each step waited and ran"),
        ("streamflow.log", "StreamFlow's log"),
    ):
        print(f"{_relative(outdir / name)}: {what}")


def _environment() -> dict[str, str]:
    """Put sfq on the driver's PATH, and its temporary files below the project."""
    temporary = ROOT / ".streamflow" / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {"PATH": os.pathsep.join(path), "TMPDIR": str(temporary)}


def _relative(path: Path) -> Path:
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
