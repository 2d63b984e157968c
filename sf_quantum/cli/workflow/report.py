"""``sfq report``: show journals of runs as tables, JSON, pictures or a live log."""

from __future__ import annotations

import argparse
import json
import sys

from sf_quantum import journal
from sf_quantum.cli.arguments import picture
from sf_quantum.errors import InputError
from sf_quantum.reporting import progress, run_usage
from sf_quantum.reporting.runs import Report, Run


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "where",
        metavar="JOURNAL",
        nargs="*",
        default=["."],
        help="journals, or folders or StreamFlow files whose newest run is shown "
        "(default: the current folder)",
    )
    add(
        "--json",
        action="store_true",
        help="print jobs, decisions on quantum candidates, and Slurm usage as JSON",
    )
    add(
        "--timeline",
        metavar="FILE.png|svg",
        type=picture,
        help="draw where each job waited and ran",
    )
    add(
        "--nodes",
        metavar="FILE.png|svg",
        type=picture,
        help="draw the nodes held on Slurm over time, by workflow; name several journals "
        "for runs that shared a cluster",
    )
    add(
        "--follow",
        action="store_true",
        help="print a line when a job waits, starts or ends, until the run ends; the exit "
        "code tells how it has ended",
    )


def run(args: argparse.Namespace) -> int:
    """Report on one or more runs."""
    runs = {run.path: run for run in map(Run, args.where)}
    if len(runs) > 1 and (args.json or args.follow or args.timeline):
        raise InputError(
            "--json, --timeline and --follow show one run; name one journal"
        )
    reports = [_show(run, args) for run in runs.values()]
    held = [report.usage for report in reports]
    if len(held) > 1:
        print(run_usage.overall(held))
    if args.nodes is not None:
        from sf_quantum.reporting import pictures

        pictures.draw_nodes(held, args.nodes)
    return 1 if args.follow and reports[0].status != "completed" else 0


def _show(run: Run, args: argparse.Namespace) -> Report:
    """Print the report on a run in the form that the options select, and return it."""
    if args.follow:
        progress.print_progress(journal.follow(run.path), sys.stdout)
    summary = run.report()
    if args.json:
        print(json.dumps(summary.to_json(), indent=2))
    elif not args.follow:
        print(
            run.path, summary, sep="\n\n", end="\n\n" if len(args.where) > 1 else "\n"
        )
    if args.timeline is not None:
        from sf_quantum.reporting import pictures  # takes half a second to import

        pictures.draw_timeline(summary.attempts, args.timeline)
    return summary
