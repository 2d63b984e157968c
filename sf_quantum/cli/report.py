"""``sfq report``: a run's journal as a table, JSON or a timeline, or as it is written."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sf_quantum import journal, report


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``sfq report``.

    :param parser: of this command
    """
    parser.add_argument(
        "where",
        metavar="JOURNAL",
        nargs="?",
        default=".",
        help="a journal, a folder or a StreamFlow file: the newest run of it "
        "(default: the current folder)",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--timeline", metavar="FILE.png", type=Path, help="draw who was where, and when"
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="print a line as each job starts or ends, until the run's end",
    )


def run(args: argparse.Namespace) -> int:
    """Show a run.

    :param args: the arguments
    :returns: 0
    :raises InputError: if there is no such run, or the picture cannot be written
    """
    path = report.locate(args.where)
    if args.follow:
        report.show(journal.follow(path), sys.stdout)
    events = journal.read(path)
    rows = report.collect(events)
    if not journal.is_open(path):
        report.close(rows)
    if args.json:
        print(json.dumps([row.to_json() for row in rows], indent=2))
    elif not args.follow:
        print(f"{path}\n\n{report.table(rows)}")
    if args.timeline is not None:
        from sf_quantum import timeline  # takes half a second to import

        timeline.draw(rows, args.timeline)
    return 0
