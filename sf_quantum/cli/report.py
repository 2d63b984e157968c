"""``sfq report``: journals of runs as tables, JSON, pictures or a live log."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sf_quantum import journal
from sf_quantum.cli.arguments import checked
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.reporting import report, usage

PICTURE = checked(
    Path, "a .png or .svg file", lambda path: path.suffix.lower() in (".png", ".svg")
)


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
        metavar="FILE.png",
        type=Path,
        help="draw where each job waited and ran",
    )
    add(
        "--nodes",
        metavar="FILE.png|svg",
        type=PICTURE,
        help="draw the nodes held on Slurm over time, by workflow; name several journals "
        "for runs that shared a cluster",
    )
    add(
        "--follow",
        action="store_true",
        help="print a line when a job starts or ends, until the run ends",
    )


def run(args: argparse.Namespace) -> int:
    """Report on one or several runs."""
    paths = list(dict.fromkeys(report.locate(where) for where in args.where))
    if len(paths) > 1 and (args.json or args.follow or args.timeline):
        raise InputError(
            "--json, --timeline and --follow show one run; name one journal"
        )
    runs = [_show(path, args) for path in paths]
    if len(runs) > 1:
        print(usage.overall(runs))
    if args.nodes is not None:
        from sf_quantum.reporting import pictures

        pictures.draw_nodes(runs, args.nodes)
    return 0


def _show(path: Path, args: argparse.Namespace) -> usage.RunUsage:
    if args.follow:
        report.print_progress(journal.follow(path), sys.stdout)
    events = journal.read(path)
    rows, held = report.collect(events), usage.measure(events)
    if not journal.is_open(path):
        report.mark_lost(rows)
    if args.json:
        content: JSON = {
            "jobs": [row.to_json() for row in rows],
            "decisions": [event for event in events if event["event"] == "decision"],
            "usage": held.to_json(),
        }
        print(json.dumps(content, indent=2))
    elif not args.follow:
        tables = filter(None, (report.table(rows), usage.table(held)))
        print(path, *tables, sep="\n\n", end="\n\n" if len(args.where) > 1 else "\n")
    if args.timeline is not None:
        from sf_quantum.reporting import pictures  # takes half a second to import

        pictures.draw_timeline(rows, args.timeline)
    return held
