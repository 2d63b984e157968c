"""``sfq qpus``: which kinds of QPU can be used here, and how given ones are."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from sf_quantum import qpu
from sf_quantum.cli.lease import add_selection, selection
from sf_quantum.errors import InputError, QpuError
from sf_quantum.qpu import RESOURCES, Qpu

HEADS = ("qpu", "type", "technology", "state", "leases", "queue", "start in", "note")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "Without options: the kinds installed, and the QPUs of the environment. Exit "
        "status: 2 if a QPU refuses or cannot be used from here, else 75 if one does "
        "not answer."
    )
    add_selection(parser)


def run(args: argparse.Namespace) -> int:
    """Print the tables.

    :returns: 0; 2 if a QPU refuses or cannot be used, else 75 if one does not answer
    :raises InputError: if an option is wrong
    """
    asked = selection(args)
    if not (asked.names or asked.url or asked.qrmi_config):
        _print([("type", "usable"), *_kinds()])
        if not any(key in os.environ for key in RESOURCES):
            return 0
        print()
    rows = [_status(client) for client in asked.all(os.environ)]
    _print([HEADS, *(row for row, _ in rows)])
    codes = {code for _, code in rows}
    # trying again cures the one and not the other
    wrong = (InputError.exit_code, QpuError.exit_code)
    return next((code for code in wrong if code in codes), 0)


def _kinds() -> Iterator[tuple[str, ...]]:
    for name in qpu.names():
        try:
            problem = qpu.load(name).problem()
        except InputError as error:
            problem = str(error)
        yield name, "yes" if problem is None else f"no: {problem}"


def _status(client: Qpu) -> tuple[tuple[str, ...], int]:
    """The QPU's row, and the exit status it calls for."""
    blank = (client.name, client.type, "-")
    if (problem := client.problem()) is not None:
        return (*blank, "unusable", "-", "-", "-", problem), InputError.exit_code
    try:
        told = client.status()
    except (QpuError, InputError) as error:
        state = "refused" if isinstance(error, InputError) else "no answer"
        return (*blank, state, "-", "-", "-", str(error)), error.exit_code
    eta = "-" if told.eta_seconds is None else f"{told.eta_seconds:.0f} s"
    row = (
        *(client.name, client.type, told.technology),
        "online" if told.online else "offline",
        *(f"{told.leases}/{told.vqpus}", str(told.queue_length), eta, told.reason),
    )
    return row, 0


def _print(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
