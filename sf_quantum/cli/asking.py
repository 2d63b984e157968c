"""What the commands share that ask one QPU service something, as its user or operator."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from sf_quantum.cli.lease import add_selection, selection
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu.access import Access
from sf_quantum.qpu.sfq import SfqQpu

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_service(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which service is asked, and ``--json``."""
    add_selection(parser)
    parser.add_argument(
        "--json", action="store_true", help="print what the service answers"
    )


def service(args: argparse.Namespace) -> Access:
    """Find the service that is meant.

    :raises InputError: if it is not one, or not one of ours
    """
    found = selection(args).qpus(os.environ)
    if len(found) > 1:
        raise InputError(f"--qpu: name one of {', '.join(qpu.name for qpu in found)}")
    if not isinstance(found[0], SfqQpu):
        raise InputError(
            f"QPU {found[0].name!r} is of type {found[0].type}, not a service of sfq's"
        )
    return found[0].access


def ask(
    access: Access,
    method: str,
    path: str,
    body: Mapping[str, JSON] | None = None,
    *,
    wait_seconds: float = 0.0,
) -> JSON:
    """Ask once, and read the answer.

    :param wait_seconds: how long the service may take for it, beyond the usual
    :raises InputError: if it is refused
    :raises QpuError: if the service does not answer, or is in trouble
    """
    answer = access.checked(
        access.once(method, path, body, timeout_seconds=10 + wait_seconds)
    )
    content: JSON = json.loads(answer.body)
    return content


def rows(content: JSON) -> list[dict[str, JSON]]:
    """Read a list of objects."""
    listed = content if isinstance(content, list) else []
    return [one for one in listed if isinstance(one, dict)]


def ahead(text: str) -> float:
    """Read a time to come: see :func:`_moment`."""
    return _moment(text, 1)


def ago(text: str) -> float:
    """Read a time that is over: see :func:`_moment`."""
    return _moment(text, -1)


def shown(moment: JSON) -> str:
    """Write a time for people, in UTC."""
    if not isinstance(moment, int | float):
        return "-"
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def seconds(value: JSON) -> str:
    """Write seconds for people."""
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _moment(text: str, direction: int) -> float:
    """Read ISO 8601 (local time, if it names no zone), or a distance: 90s, 30m, 2h, 7d.

    :raises argparse.ArgumentTypeError: if it is neither
    """
    if distance := re.fullmatch(r"(\d{1,9})([smhd])", text):
        number, unit = distance.groups()
        return time.time() + direction * int(number) * _UNITS[unit]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a time such as 2026-11-21T16:00 or a distance such "
            "as 30m, 2h or 7d"
        ) from error
