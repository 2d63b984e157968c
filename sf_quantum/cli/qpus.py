"""``sfq qpus``: which kinds of QPU can be used here, and how given ones are."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from sf_quantum import qpu
from sf_quantum.cli.lease import add_selection, selection
from sf_quantum.errors import InputError, QpuError
from sf_quantum.qpu import RESOURCES, Qpu
from sf_quantum.reporting.columns import align

HEADS = ("qpu", "type", "technology", "state", "leases", "queue", "start in", "note")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "Without options: the kinds installed, and the QPUs of the environment. Exit "
        "status: 2 if a QPU refuses or cannot be used from here, else 75 if one does "
        "not answer."
    )
    add_selection(parser)
    parser.add_argument(
        "--json", action="store_true", help="one JSON object instead of tables"
    )


def run(args: argparse.Namespace) -> int:
    """Print the tables, or the object.

    :returns: 0; 2 if a QPU refuses or cannot be used, else 75 if one does not answer
    :raises InputError: if an option is wrong
    """
    asked = selection(args)
    given = bool(asked.names or asked.url or asked.qrmi_config)
    kinds = {} if given else dict(_kinds())
    known = given or any(key in os.environ for key in RESOURCES)
    found = [_ask(client) for client in asked.all(os.environ)] if known else []
    if args.json:
        told = {"types": kinds} if kinds else {}
        print(json.dumps({**told, "qpus": [asdict(qpu) for qpu in found]}))
    else:
        _print_tables(kinds, found)
    # trying again cures the one and not the other
    for states, code in (
        (("refused", "unusable"), InputError.exit_code),
        (("no answer",), QpuError.exit_code),
    ):
        if any(qpu.state in states for qpu in found):
            return code
    return 0


@dataclass(frozen=True)
class _Qpu:
    """What a QPU says of itself, as far as it does.

    :param state: online, offline, no answer, refused or unusable
    :param eta_seconds: after how long a job submitted now would start
    :param note: why it is not online, or when it stops taking jobs
    :param maintenance_seconds: after how long it does, if that is announced
    """

    qpu: str
    type: str
    technology: str | None
    state: str
    leases: int | None
    vqpus: int | None
    queue_length: int | None
    eta_seconds: float | None
    note: str
    maintenance_seconds: float | None = None


def _kinds() -> Iterator[tuple[str, str | None]]:
    """The kinds installed, each with the reason why it cannot be used here."""
    for name in qpu.names():
        try:
            kind = qpu.load(name)
            lack = kind.lack()
            only = None if lack is None else f"for leases only, {lack}"
            yield name, kind.problem() or only
        except InputError as error:
            yield name, str(error)


def _ask(client: Qpu) -> _Qpu:
    about, untold = (client.name, client.type), (None,) * 4
    if (problem := client.problem()) is not None:
        return _Qpu(*about, None, "unusable", *untold, problem)
    try:
        told = client.status()
    except InputError as error:
        return _Qpu(*about, None, "refused", *untold, str(error))
    except QpuError as error:
        return _Qpu(*about, None, "no answer", *untold, str(error))
    state = "online" if told.online else "offline"
    counts = (told.leases, told.vqpus, told.queue_length)
    known = (*about, told.technology, state)
    stops = told.maintenance_seconds
    note = told.reason
    if stops is not None and told.online:
        note = f"takes no jobs in {stops:.0f} s: maintenance is announced"
    return _Qpu(*known, *counts, told.eta_seconds, note, stops)


def _print_tables(kinds: Mapping[str, str | None], found: Sequence[_Qpu]) -> None:
    if kinds:
        usable = [(name, f"no: {why}" if why else "yes") for name, why in kinds.items()]
        print(*align([("type", "usable"), *usable]), sep="\n")
    if kinds and found:
        print()
    if found:
        print(*align([HEADS, *map(_row, found)]), sep="\n")


def _row(told: _Qpu) -> tuple[str, ...]:
    leases = "-" if told.leases is None else f"{told.leases}/{told.vqpus}"
    queue = "-" if told.queue_length is None else str(told.queue_length)
    eta = "-" if told.eta_seconds is None else f"{told.eta_seconds:.0f} s"
    about = (told.qpu, told.type, told.technology or "-", told.state)
    return (*about, leases, queue, eta, told.note)
