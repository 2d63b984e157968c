"""Options that select QPUs, and functions for commands that send requests to a service."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from sf_quantum.cli.arguments import checked, sentence
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, parse_json, socket_in
from sf_quantum.protocol.bounds import RESULT_BYTES
from sf_quantum.qpu.selection import QpuSelection
from sf_quantum.qpu.sfq.service_client import REQUEST_SECONDS, ServiceClient
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.reporting.aligned import align
from sf_quantum.text import rounded, utc

# Headers of columns with numbers, and keys whose values are times.
_NUMBERS = ("position", "start in s", "QPU s")
_TIMES = frozenset(
    "submitted started starts ended ends opened expires idle_expires closed".split()
)
# seconds of a unit of durations
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that select QPUs."""
    parser.add_argument(
        "--qpu",
        action="append",
        default=[],
        metavar="NAME",
        help="a QPU of the environment or of the QRMI configuration; separate several "
        "with commas, or repeat the option (default: all QPUs of the environment)",
    )
    address = parser.add_mutually_exclusive_group()
    address.add_argument(
        "--qrmi-config", metavar="FILE", help="a site's qrmi_config.json"
    )
    address.add_argument(
        "--url",
        help="a QPU service: unix:PATH, http://127.0.0.1:PORT, https://...",
    )
    credential = parser.add_mutually_exclusive_group()
    credential.add_argument(
        "--token-file",
        metavar="FILE",
        help="the bearer token that the service requires",
    )
    credential.add_argument(
        "--munge",
        nargs="?",
        const=True,
        metavar="SOCKET",
        help="send MUNGE credentials, created by the munged at SOCKET",
    )


def selection(args: argparse.Namespace, **lease_options: str | None) -> QpuSelection:
    """Return the selection of QPUs that the options describe.

    :param lease_options: configuration keys for leases that will be acquired
    """
    token_file = args.token_file and str(Path(args.token_file).absolute())
    return QpuSelection(
        [name for names in args.qpu for name in names.split(",") if name],
        args.url and socket_in(args.url),
        {"tokenFile": token_file, "munge": args.munge, **lease_options},
        args.qrmi_config,
    )


def add_service(parser: argparse.ArgumentParser) -> None:
    """Add the options that select one service, and ``--json``."""
    add_selection(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the service's answer as JSON"
    )
    parser.set_defaults(parser=parser)


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help_: str,
    action: Callable[[ServiceClient, argparse.Namespace], int | None],
) -> argparse.ArgumentParser:
    """Add a subcommand for an action, with the options that select one service."""
    added = actions.add_parser(name, help=help_, description=sentence(help_))
    add_service(added)
    added.set_defaults(action=action)
    return added


def client(args: argparse.Namespace) -> ServiceClient:
    """Return the client of the selected service: one QPU, which must be of type ``sfq``."""
    qpus = selection(args).qpus(os.environ)
    if len(qpus) > 1:
        raise InputError(f"--qpu: name one of {', '.join(qpu.name for qpu in qpus)}")
    if not isinstance(qpus[0], SfqQpu):
        raise InputError(
            f"QPU {qpus[0].name!r} has type {qpus[0].type}; expected type sfq"
        )
    return qpus[0].service


def request(
    client: ServiceClient,
    method: str,
    path: str,
    body: Mapping[str, JSON] | None = None,
    *,
    wait_seconds: float = 0.0,
) -> JSON:
    """Send one request and return the answer's content.

    :param wait_seconds: seconds that are added to the usual timeout
    """
    timeout = REQUEST_SECONDS + wait_seconds
    response = client.send(
        method, path, body, timeout_seconds=timeout, most_bytes=RESULT_BYTES
    )
    content: JSON = parse_json(response.body)
    return content


def objects(content: JSON) -> list[dict[str, JSON]]:
    """Return the objects in a list; an empty list if the content is not a list."""
    items = content if isinstance(content, list) else []
    return [item for item in items if isinstance(item, dict)]


def print_table(
    columns: Mapping[str, str],
    rows: Sequence[dict[str, JSON]],
    none: str,
    args: argparse.Namespace,
) -> None:
    """Print objects of the service as a table or, with ``--json``, as a list.

    :param columns: key that each column shows, by the column's header
    :param none: text that is printed instead of an empty table
    """
    if args.json:
        print(json.dumps(rows))
    elif rows:
        cells = [[cell(key, row.get(key)) for key in columns.values()] for row in rows]
        print(*align([[*columns], *cells], _NUMBERS), sep="\n")
    else:
        print(none)


def print_fields(content: dict[str, JSON], args: argparse.Namespace) -> None:
    """Print an object of the service, with one line per key, or with ``--json`` as JSON."""
    if args.json:
        print(json.dumps(content))
    else:
        print(*align([(key, cell(key, content[key])) for key in content]), sep="\n")


def cell(key: str, value: JSON) -> str:
    """Format the value of a key in an answer of the service."""
    if value is None:
        return "-"
    if key in _TIMES:
        return format_time(value)
    if key.endswith("seconds"):
        return format_seconds(value)
    return value if isinstance(value, str) else json.dumps(value)


def format_time(moment: JSON) -> str:
    """Format seconds since the epoch as a time in UTC."""
    if not isinstance(moment, int | float):
        return "-"
    return utc(moment)


def format_seconds(value: JSON) -> str:
    """Format seconds, or another number, with three digits; from 100 on as a whole number."""
    if not isinstance(value, int | float):
        return "-"
    return rounded(value)


def _time(text: str, direction: int) -> float:
    """Parse a time; return seconds since the epoch.

    :param direction: 1 if a duration leads into the future, -1 if it leads into the past
    """
    # The text is a duration, or a time in ISO 8601, which is local if it has no zone.
    if duration := re.fullmatch(r"(\d{1,9})([smhd])", text):
        number, unit = duration.groups()
        return time.time() + direction * int(number) * _UNITS[unit]
    time_ = datetime.fromisoformat(text)
    if time_.tzinfo is None:
        _check_single(text, time_)
    return time_.timestamp()


def _check_single(text: str, local: datetime) -> None:
    """Reject a local time that occurs twice or never, because the clocks are changed then.

    :raises ArgumentTypeError: if the time is ambiguous; the text lists the possible times
    """
    times = {local.replace(fold=fold).timestamp() for fold in (0, 1)}
    if len(times) > 1:
        meant = " or ".join(
            datetime.fromtimestamp(time_).astimezone().isoformat()
            for time_ in sorted(times)
        )
        why = "the clocks of this machine's zone are changed then"
        raise argparse.ArgumentTypeError(f"{text!r}: {why}; write {meant}")


def _is_shown(moment: float) -> bool:
    # utc() raises an error for a time outside the calendar.
    return bool(utc(moment))


_TIME = (
    "a time such as 2026-11-21T16:00 (of this machine's zone) or 2026-11-21T16:00Z, or a "
    "duration such as 30m, 2h or 7d"
)
#: the accepted formats of a time, for the help of commands
WHEN = (
    "WHEN: 2026-11-21T16:00 in the time zone of this machine (TZ), 2026-11-21T16:00Z or "
    "2026-11-21T16:00+01:00, or"
)
#: a time, or a duration from now
future_time = checked(partial(_time, direction=1), _TIME, accept=_is_shown)
#: a time, or a duration before now
past_time = checked(partial(_time, direction=-1), _TIME, accept=_is_shown)
