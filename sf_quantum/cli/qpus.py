"""``sfq qpus``: the kinds of QPU that can be used here, and the status of given QPUs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from sf_quantum import qpu
from sf_quantum.cli.service import add_selection, selection
from sf_quantum.errors import InputError, QpuError
from sf_quantum.qpu import RESOURCES, Qpu, QpuStatus
from sf_quantum.reporting.columns import align

HEADS = ("qpu", "type", "technology", "state", "leases", "queue", "start in", "note")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Without options: the kinds installed, and the QPUs of the environment. Exit "
        "status: 2 if a QPU refuses or cannot be used from here, else 75 if a QPU does "
        "not answer."
    )
    add_selection(parser)
    parser.add_argument(
        "--json", action="store_true", help="one JSON object instead of tables"
    )


def run(args: argparse.Namespace) -> int:
    """Print the tables, or the object.

    :returns: 0; 2 if a QPU refuses or cannot be used, else 75 if a QPU does not answer
    :raises InputError: if an option is wrong
    """
    selected = selection(args)
    given = bool(selected.names or selected.url or selected.qrmi_config)
    kinds = {} if given else {name: _unusable(name) for name in qpu.names()}
    known = given or any(key in os.environ for key in RESOURCES)
    reports = [_report(client) for client in selected.all(os.environ)] if known else []
    if args.json:
        types = {"types": kinds} if kinds else {}
        print(json.dumps({**types, "qpus": [asdict(report) for report in reports]}))
    else:
        _print_tables(kinds, reports)
    states = {report.state for report in reports}
    if states & {"refused", "unusable"}:
        return InputError.exit_code
    return QpuError.exit_code if "no answer" in states else 0


@dataclass(frozen=True, kw_only=True)
class QpuReport:
    """The status of a QPU, as far as it is known; the fields are those of ``--json``.

    :param state: online, offline, no answer, refused or unusable
    :param eta_seconds: time until a job submitted now would start
    :param note: why the QPU is not online, or when it stops taking jobs
    :param maintenance_seconds: time until the next announced maintenance
    """

    qpu: str
    type: str
    technology: str | None = None
    state: str
    leases: int | None = None
    vqpus: int | None = None
    queue_length: int | None = None
    eta_seconds: float | None = None
    note: str
    maintenance_seconds: float | None = None


def _unusable(type_: str) -> str | None:
    """Return why a kind of QPU cannot be used here, or not fully."""
    try:
        kind = qpu.load(type_)
    except InputError as error:
        return str(error)
    lack = kind.lack()
    return kind.problem() or (None if lack is None else f"for leases only, {lack}")


def _report(client: Qpu) -> QpuReport:
    state, note = "unusable", client.problem()
    if note is None:
        try:
            return _of_status(client, client.status())
        except InputError as error:
            state, note = "refused", str(error)
        except QpuError as error:
            state, note = "no answer", str(error)
    return QpuReport(qpu=client.name, type=client.type, state=state, note=note)


def _of_status(client: Qpu, status: QpuStatus) -> QpuReport:
    note, stops = status.reason, status.maintenance_seconds
    if stops is not None and status.online:
        note = f"stops taking jobs in {stops:.0f} s: maintenance is announced"
    return QpuReport(
        qpu=client.name,
        type=client.type,
        technology=status.technology,
        state="online" if status.online else "offline",
        leases=status.leases,
        vqpus=status.vqpus,
        queue_length=status.queue_length,
        eta_seconds=status.eta_seconds,
        note=note,
        maintenance_seconds=stops,
    )


def _print_tables(
    kinds: Mapping[str, str | None], reports: Sequence[QpuReport]
) -> None:
    if kinds:
        usable = [(name, f"no: {why}" if why else "yes") for name, why in kinds.items()]
        print(*align([("type", "usable"), *usable]), sep="\n")
    if kinds and reports:
        print()
    if reports:
        print(*align([HEADS, *map(_row, reports)]), sep="\n")


def _row(report: QpuReport) -> tuple[str, ...]:
    return (
        report.qpu,
        report.type,
        report.technology or "-",
        report.state,
        "-" if report.leases is None else f"{report.leases}/{report.vqpus}",
        "-" if report.queue_length is None else str(report.queue_length),
        "-" if report.eta_seconds is None else f"{report.eta_seconds:.0f} s",
        report.note,
    )
