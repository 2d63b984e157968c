"""Run the workflow of Rocco et al. (QCE 2025), and report its progress."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sf_quantum import journal
from sf_quantum.reporting import report
from sf_quantum.reporting.pictures import draw_timeline

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> int:
    """Make the points, run StreamFlow, follow its journal, and summarize."""
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
    if " " in str(ROOT):
        print(
            f"{ROOT}: StreamFlow does not support paths with spaces; move the project"
        )
        return 2
    args.file, args.outdir = args.file.resolve(), args.outdir.resolve()
    try:
        args.outdir.mkdir(parents=True, exist_ok=True)
        (args.outdir / "streamflow.log").touch()
    except OSError as error:
        print(f"{args.outdir}: cannot be written: {error.strerror}; name an --outdir")
        return 2
    if not (HERE / "points.csv").exists():
        print("making the 80,000 points of the paper", flush=True)
        script, points = str(HERE / "make_points.py"), str(HERE / "points.csv")
        subprocess.run([sys.executable, script, points], check=True)
    log = args.outdir / "streamflow.log"
    journals = args.file.parent / journal.DIRECTORY
    known = set(journals.glob("*.jsonl"))
    started = time.monotonic()
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [
                Path(sys.executable).with_name("streamflow"),
                "run",
                args.file,
                "--outdir",
                args.outdir,
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(),
            cwd=ROOT,
        )
        signal.signal(signal.SIGTERM, lambda *_: driver.terminate())
        try:
            path = journal.await_new(
                journals, driver.pid, known, lambda: driver.poll() is None
            )
            if path is not None:
                report.print_progress(journal.follow(path), sys.stdout)
            status = driver.wait()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("interrupted: stopping the QPU service and all steps", flush=True)
            driver.wait()
            print("stopped")
            return 130
    if status != 0 or path is None:
        lines = log.read_text(errors="replace").splitlines()
        # the commands' error messages, each of which appears in several tracebacks
        errors = dict.fromkeys(
            line.strip() for line in lines if line.startswith("\tsfq ")
        )
        print("\n".join(errors))
        print(f"streamflow ended with status {status}; its log is {log}")
        return 1
    rows = report.collect(journal.read(path))
    draw_timeline(rows, args.outdir / "timeline.png")
    sum_up(rows, args.outdir, time.monotonic() - started)
    return 0


def sum_up(rows: list[report.JobAttempt], outdir: Path, seconds: float) -> None:
    """Print the score, the iterations, the time per step, and the output files."""
    summary = json.loads((outdir / "summary.json").read_text())
    best = summary["per_iteration"][summary["best_iteration"] - 1]
    estimate = "exact" if summary["exact"] else f"± {summary['score_error']:.4f}"
    print(
        f"\nsilhouette {summary['score']:.4f} ({estimate}), {summary['clusters']} clusters,"
        f" in iteration {summary['best_iteration']} of {summary['iterations']}"
        f" ({seconds:.1f} s in all)"
    )
    print(
        f"each of {best['reads_that_end_alone']:,} of the {best['reads']:,} samples of that"
        " iteration would have ended the loop by itself"
    )
    steps = list(dict.fromkeys(row.step for row in rows))
    width = max(map(len, steps))
    print(f"\n{'step':{width}}  jobs   waited      ran")
    for step in steps:
        of_step = [row for row in rows if row.step == step]
        waited = sum(row.waited or 0 for row in of_step)
        ran = sum(row.ran or 0 for row in of_step)
        print(f"{step:{width}}  {len(of_step):4}  {waited:5.1f} s  {ran:5.1f} s")
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
    return os.environ | {"PATH": os.pathsep.join(path), "TMPDIR": str(temporary)}


def _relative(path: Path) -> Path:
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
