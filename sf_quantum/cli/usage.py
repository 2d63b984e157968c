"""``sfq usage``: who used a QPU, for how long, and waited how long for it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from urllib.parse import urlencode

from sf_quantum.cli.asking import add_service, ago, ask, rows, seconds, service, shown
from sf_quantum.files import JSON
from sf_quantum.qpu.access import Access
from sf_quantum.reporting.columns import align

# each with the columns that tell its rows apart
REPORTS = {
    "user": ("user",),
    "project": ("project",),
    "lease": ("lease", "user", "project", "slurm_job_id"),
    "slurm-job": ("slurm_job_id", "user"),
    "step": ("user", "run", "step"),
}
_JOBS = {name: name for name in ("jobs", "completed", "failed", "cancelled")}
_SECONDS = {
    "QPU s": "qpu_seconds",
    "device s": "seconds",
    "mean wait s": "mean_wait_seconds",
    "longest wait s": "longest_wait_seconds",
}
PAGE = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "Jobs count when they are over, whatever became of them, with all their "
        "attempts. Users see their own, admins everybody's. WHEN: 2026-11-21T16:00, or "
        "so long ago: 90s, 30m, 2h, 7d."
    )
    add_service(parser)
    parser.add_argument(
        "--csv", action="store_true", help="print the rows as CSV, without the total"
    )
    parser.add_argument(
        "--by",
        choices=REPORTS,
        default="user",
        help="what a row adds up (default: %(default)s)",
    )
    parser.add_argument(
        "--from",
        dest="from_",
        type=ago,
        metavar="WHEN",
        help="start of the period (default: as long as the service remembers)",
    )
    parser.add_argument(
        "--until", type=ago, metavar="WHEN", help="end of the period (default: now)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the report.

    :returns: 0
    :raises InputError: if an option is wrong, or the service refuses
    :raises QpuError: if the service does not answer
    """
    access = service(args)
    pages = list(_pages(access, args))
    if args.csv:
        print(_csv(access, args, pages), end="")
        return 0
    listed: list[JSON] = [row for page in pages for row in rows(page["rows"])]
    whole: dict[str, JSON] = {**pages[0], "rows": listed}
    if args.json:
        print(json.dumps(whole))
    else:
        print(*_table(args.by, whole), sep="\n")
    return 0


def _pages(access: Access, args: argparse.Namespace) -> Iterator[dict[str, JSON]]:
    count, until = 1, args.until
    offset = 0
    while offset < count:
        page = ask(access, "GET", _path(args, until, offset))
        if not isinstance(page, dict):
            return
        yield page
        until, count = page["until"], int(str(page["count"]))
        offset += PAGE


def _path(
    args: argparse.Namespace, until: JSON, offset: int, format_: str = "json"
) -> str:
    asked = {"by": args.by, "from": args.from_, "until": until, "format": format_}
    asked |= {"limit": PAGE, "offset": offset}
    given = {name: value for name, value in asked.items() if value is not None}
    return f"/v1/accounting?{urlencode(given)}"


def _csv(access: Access, args: argparse.Namespace, pages: list[dict[str, JSON]]) -> str:
    text = ""
    for number, page in enumerate(pages):
        path = _path(args, page["until"], number * PAGE, "csv")
        body = access.checked(access.once("GET", path)).body.decode()
        text += body if not number else body.partition("\r\n")[2]
    return text.replace("\r\n", "\n")


def _table(by: str, report: dict[str, JSON]) -> Iterator[str]:
    keys, total = REPORTS[by], report["total"]
    heads = (*keys, *_JOBS, *_SECONDS)
    cells = [_cells(keys, row) for row in rows(report["rows"])]
    if isinstance(total, dict):
        cells.append(("total", *("" for _ in keys[1:]), *_cells((), total)))
    yield from align([heads, *cells], {*_JOBS, *_SECONDS})
    yield f"from {shown(report['from'])} until {shown(report['until'])}"


def _cells(keys: tuple[str, ...], row: dict[str, JSON]) -> tuple[str, ...]:
    names = ("-" if row[key] is None else str(row[key]) for key in keys)
    counts = (str(row[name]) for name in _JOBS.values())
    return (*names, *counts, *(seconds(row[name]) for name in _SECONDS.values()))
