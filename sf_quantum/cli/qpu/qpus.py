"""``sfq qpus``: the kinds of QPU that can be used here, and the status of given QPUs."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass, replace

from sf_quantum import qpu
from sf_quantum.cli.qpu.service import add_selection, selection
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu, QpuStatus
from sf_quantum.qpu.environment import RESOURCES
from sf_quantum.reporting.aligned import align

# headers of the table, and keys of the JSON object, of the QPUs
HEADS = ("qpu", "type", "technology", "state", "leases", "queue", "start in", "note")
KEYS = (
    "qpu type technology state leases vqpus queue_length eta_seconds note "
    "maintenance_seconds"
).split()


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
    """Print the tables, or one JSON object."""
    selected = selection(args)
    given = bool(selected.names or selected.url or selected.qrmi_config)
    kinds = {} if given else {name: _unusable(name) for name in qpu.names()}
    has_qpus = given or any(key in os.environ for key in RESOURCES)
    reports = (
        [_report(client) for client in selected.all(os.environ)] if has_qpus else []
    )
    if selected.url and not selected.names:
        reports = [replace(report, name=_own_name(report)) for report in reports]
    if args.json:
        types = {"types": kinds} if kinds else {}
        print(json.dumps({**types, "qpus": list(map(QpuReport.to_json, reports))}))
    else:
        tables = []
        if kinds:
            usable = [
                (kind, f"no: {why}" if why else "yes") for kind, why in kinds.items()
            ]
            tables.append(align([("type", "usable"), *usable]))
        if reports:
            tables.append(align([HEADS, *map(QpuReport.row, reports)]))
        print(*map("\n".join, tables), sep="\n\n", end="\n" if tables else "")
    states = {report.state for report in reports}
    if states & {"refused", "unusable"}:
        return InputError.exit_code
    return QpuError.exit_code if "no answer" in states else 0


@dataclass(frozen=True)
class QpuReport:
    """The known part of a QPU's status.

    :param name: name with which the QPU was selected; its own name if only a URL selected it
    :param state: online, offline, no answer, refused or unusable
    :param note: reason why the QPU is not online, or when it will stop accepting jobs
    """

    name: str
    type: str
    state: str
    note: str
    status: QpuStatus | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return the object of ``--json``."""
        fields: dict[str, JSON] = asdict(self.status) if self.status else {}
        fields |= {"qpu": self.name, "type": self.type}
        fields |= {"state": self.state, "note": self.note}
        return {key: fields.get(key) for key in KEYS}

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        technology = leases = queue = start = "-"
        if (status := self.status) is not None:
            technology = status.technology or "-"
            leases = f"{status.leases}/{status.vqpus}"
            queue = str(status.queue_length)
            if status.eta_seconds is not None:
                start = f"{status.eta_seconds:.0f} s"
        qpu_ = (self.name, self.type, technology)
        return (*qpu_, self.state, leases, queue, start, self.note)


def _own_name(report: QpuReport) -> str:
    return report.status.name if report.status else report.name


def _unusable(type_: str) -> str | None:
    """Return why a kind of QPU cannot be used on this host, or only to hold leases."""
    try:
        kind = qpu.load(type_)
    except InputError as error:
        return str(error)
    sampler_problem = kind.sampler_problem()
    return kind.problem() or (
        None if sampler_problem is None else f"for leases only, {sampler_problem}"
    )


def _report(client: Qpu) -> QpuReport:
    """Query a QPU's status."""
    known_as = client.name, client.type
    if (problem := client.problem()) is not None:
        return QpuReport(*known_as, "unusable", problem)
    try:
        status = client.status()
    except InputError as error:
        return QpuReport(*known_as, "refused", str(error))
    except QpuError as error:
        return QpuReport(*known_as, "no answer", str(error))
    note, seconds_left = status.reason or status.trouble, status.maintenance_seconds
    if seconds_left is not None and status.online:
        note = f"stops taking jobs in {seconds_left:.0f} s: maintenance is announced"
    state = "online" if status.online else "offline"
    return QpuReport(*known_as, state, note, status)
