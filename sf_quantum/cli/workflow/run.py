"""``sfq run``: check a StreamFlow file, run it, show its progress, and report on it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sf_quantum.cli import discard_output
from sf_quantum.errors import InputError
from sf_quantum.reporting import outputs
from sf_quantum.reporting.progress import LiveProgress
from sf_quantum.reporting.runs import Run
from sf_quantum.text import escaped
from sf_quantum.validation import ValidationErrors
from sf_quantum.workflows import runs
from sf_quantum.workflows.previews import preview


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the file, the folder of the outputs, and the kind of run."""
    parser.epilog = (
        f"StreamFlow's log goes to {runs.LOG} in the folder of the outputs, where those of "
        f"{runs.KEPT_LOGS} runs before it are {runs.LOG}.1 and so on. The exit code is 0 "
        "if the run completed, 1 if it failed, and 2 if it was not begun, or with --dry-run "
        "could not be."
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a StreamFlow file")
    parser.add_argument(
        "--outdir",
        metavar="DIR",
        type=Path,
        default=runs.OUTDIR,
        help="folder of the outputs (default: %(default)s)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="reuse what earlier runs of the file have completed, where nothing that it "
        "depends on has changed",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="run nothing: say where each step would run now, why, and how the QPUs are",
    )
    parser.add_argument(
        "--json", action="store_true", help="with --dry-run: print this as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """Run the file to its end or, with ``--dry-run``, print what a run would do."""
    try:
        return _preview(args) if args.dry_run or args.json else _run(args)
    except ValidationErrors as error:
        print(*map(escaped, error.lines), sep="\n", file=sys.stderr)
        return InputError.exit_code


def _preview(args: argparse.Namespace) -> int:
    """Print what a run would do; return the exit status."""
    if not args.dry_run:
        raise InputError("--json: only with --dry-run")
    if args.resume:
        raise InputError("--dry-run: not with --resume, which decides job by job")
    runs.refuse_unwritable(args.outdir)
    plan = preview(args.file)
    print(json.dumps(plan.to_json(), indent=2) if args.json else plan)
    return 0 if plan.ok else InputError.exit_code


def _run(args: argparse.Namespace) -> int:
    """Run the file, show its progress, and print the report; return the exit status."""
    # SIGTERM stops a run in the same way as Ctrl-C. A shell lets its background commands
    # ignore SIGINT.
    signal.signal(signal.SIGTERM, _interrupt_once)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt_once)
    live_progress = LiveProgress(sys.stdout)
    shown: set[str] = set()

    def show(line: str) -> None:
        shown.add(line)
        try:
            live_progress.show(line)
        except BrokenPipeError:  # the run continues, and its result is the exit code
            discard_output()

    try:
        done = runs.run(
            args.file,
            outdir=args.outdir,
            resume=args.resume,
            progress=show,
            debug=args.debug,
        )
    except runs.RunFailed as error:
        if error.run is None:
            print(*error.lines, sep="\n")
        else:  # the lines of the progress include the reason for the failure
            _print_places(args.outdir, error.run)
        return error.exit_code
    # Lines that the progress has already shown are left out.
    lines = [line for line in str(done.report()).splitlines() if line not in shown]
    print("", "\n".join(lines).strip("\n"), sep="\n")
    made = outputs.lines(outputs.read(args.outdir / runs.LOG))
    if made:
        print("", *map(escaped, made), sep="\n")
    _print_places(args.outdir, done)
    return 0


def _interrupt_once(number: int, frame: FrameType | None) -> NoReturn:
    """Stop the run; another interrupt must not stop the wait for its end."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def _print_places(outdir: Path, done: Run) -> None:
    print(f"outputs: {outdir}; log: {outdir / runs.LOG}; journal: {done.path}")
