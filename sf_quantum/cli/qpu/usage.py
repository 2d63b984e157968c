"""``sfq usage``: reports of QPU usage as a table, CSV or JSON, and traces of jobs."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

from sf_quantum.cli.qpu import service
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, check_writable, mapping
from sf_quantum.protocol.usage_columns import KEYS, SUMS, By
from sf_quantum.qpu.sfq.service_client import ServiceClient, read_answer
from sf_quantum.reporting.aligned import align
from sf_quantum.text import PERIOD, csv_row, escaped, exact_utc, plural

# sums that CSV and JSON contain, but not the table
_UNLISTED = ("wait_seconds", "lost_seconds")
# number of rows in a request
PAGE = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A job counts once it has ended, in any state. Attempts that were interrupted "
        "are lost, and counted apart. qpu_seconds are the QPU's own time, seconds go from a "
        "job's start to its end, and months are those of UTC. CSV has the period in each row. "
        "Users see their own jobs, admins all jobs. "
        f"{service.WHEN} a duration before now: 90s, 30m, 2h, 7d."
    )
    service.add_service(parser)
    add = parser.add_argument
    add("--csv", action="store_true", help="print the rows as CSV, without the total")
    add("--by", choices=KEYS, help="what each row sums up (default: user)")
    add(
        "--from",
        dest="from_",
        type=service.past_time,
        metavar="WHEN",
        help="start of the period (default: all that the service has)",
    )
    add(
        "--until",
        type=service.past_time,
        metavar="WHEN",
        help="end of the period (default: now)",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the jobs that were submitted in the period and are over, as a trace "
        "for sfq plan, instead of a report",
    )
    add(
        "--anonymise",
        action="store_true",
        help="in the trace, write numbers instead of names, and times from the first "
        "submission on",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report, or write the trace."""
    if args.trace is not None:
        return _write_trace(args)
    if args.anonymise:
        raise InputError("--anonymise: only with --trace")
    if args.csv and args.json:
        raise InputError("--csv: not with --json; name one format")
    args.by = args.by or "user"
    client = service.client(args)
    pages = list(_pages(client, args))
    content, first = pages[0]
    report = replace(first, rows=[row for _, page in pages for row in page.rows])
    if args.csv:
        _print_csv(args.by, report)
    elif args.json:
        print(json.dumps({**content, "rows": report.rows}))
    else:
        print(*_table(args.by, report), sep="\n")
    return 0


def _write_trace(args: argparse.Namespace) -> int:
    """Write the trace of the jobs in a period."""
    from sf_quantum.cli.qpu import qpu_trace
    from sf_quantum.planning.traces import qpu

    if given := [f"--{name}" for name in ("by", "csv", "json") if getattr(args, name)]:
        raise InputError(f"--trace: writes no report, so leave out {given[0]}")
    check_writable(args.trace)

    def warn(line: str) -> None:
        print(f"sfq usage: {escaped(line)}", file=sys.stderr)

    client = service.client(args)
    trace, pending = qpu_trace.collect(client, args.from_, args.until, warn)
    qpu.write(args.trace, qpu.anonymised(trace) if args.anonymise else trace)
    left_out = f" ({pending} not over yet, left out)" if pending else ""
    print(f"{args.trace}: {plural(len(trace.jobs), 'job')}{left_out}")
    return 0


@dataclass(frozen=True)
class _Report:
    """Rows of a report, and their sums; the period is in seconds since the epoch."""

    from_: float | None
    until: float
    count: int
    rows: list[dict[str, JSON]]
    total: dict[str, JSON]


def _pages(
    client: ServiceClient, args: argparse.Namespace
) -> Iterator[tuple[dict[str, JSON], _Report]]:
    """Yield the pages of a report, each as the service's reply and as typed rows."""
    count, until = 1, args.until
    offset, previous = 0, list[dict[str, JSON]]()
    while offset < count:
        page = mapping(service.request(client, "GET", _path(args, until, offset)))
        report = read_answer(client.name, _Report, page, "a report")
        # A service that ignores the offset, or whose count is wrong, would be queried without end.
        if offset and report.rows == previous:
            return
        yield page, report
        if not report.rows:
            return
        until, count, previous = report.until, report.count, report.rows
        offset += len(report.rows)


def _path(args: argparse.Namespace, until: JSON, offset: int) -> str:
    """Return the path of a request for a page of the report."""
    query = {
        "by": args.by,
        "from": args.from_,
        "until": until,
        "limit": PAGE,
        "offset": offset,
    }
    given = {name: value for name, value in query.items() if value is not None}
    return f"/v1/accounting?{urlencode(given)}"


def _print_csv(by: By, report: _Report) -> None:
    # The rows have the format of the service's own CSV.
    names = [*KEYS[by], *report.total]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*PERIOD, *names])
    for row in report.rows:
        cells = [
            value if isinstance(value, str | int | float) else None
            for value in map(row.get, names)
        ]
        writer.writerow(csv_row((report.from_, report.until), cells))


def _table(by: By, report: _Report) -> Iterator[str]:
    keys, sums = KEYS[by], report.total
    # The cost is unknown if the device has no price.
    unlisted = _UNLISTED if sums.get("cost") is not None else (*_UNLISTED, "cost")
    numbers = [name for name in SUMS if name not in unlisted]
    rows = [_row(keys, numbers, row) for row in report.rows]
    total = ("total", *("" for _ in keys[1:]), *_row((), numbers, sums))
    yield from align([(*keys, *numbers), *rows, total], numbers)
    start, end = map(exact_utc, (report.from_, report.until))
    yield f"from {start or '-'} until {end}"


def _row(
    keys: Sequence[str], numbers: Sequence[str], row: dict[str, JSON]
) -> tuple[str, ...]:
    names = ("-" if row.get(key) is None else str(row[key]) for key in keys)
    return (*names, *(service.format_seconds(row.get(key)) for key in numbers))
