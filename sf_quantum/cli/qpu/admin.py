"""``sfq admin``: open and close a QPU, announce maintenance, change device settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from sf_quantum.cli.arguments import positive, seconds, sentence
from sf_quantum.cli.qpu import service
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing
from sf_quantum.qpu.sfq.service_client import ServiceClient, read_answer
from sf_quantum.reporting.aligned import align
from sf_quantum.text import escaped, plural

_DEVICE, _WINDOWS = "/v1/device", "/v1/device/maintenance"
_OPERATIONS, _AUDIT = "/v1/admin/operations", "/v1/admin/audit"
Action: TypeAlias = Callable[[ServiceClient, argparse.Namespace], JSON]
#: formats the result of an action, of a service with a name, as lines
Format: TypeAlias = Callable[[str, JSON], Iterable[str]]


@dataclass(frozen=True)
class _Window:
    id: int
    starts: float
    ends: float | None
    message: str


@dataclass(frozen=True)
class _Device:
    name: str
    technology: str
    status: str
    reason: str
    leases: int
    vqpus: int
    leases_waiting: int
    queue_length: int
    windows: list[_Window]


@dataclass(frozen=True)
class _Parameter:
    name: str
    least: float
    most: float


@dataclass(frozen=True)
class _Operation:
    name: str
    drained: bool
    now: dict[str, JSON]
    parameters: list[_Parameter]


@dataclass(frozen=True)
class _Outcome:
    operation: str
    dry_run: bool
    old: dict[str, JSON]
    new: dict[str, JSON]


@dataclass(frozen=True)
class _AuditEntry:
    time: float
    user: str
    action: str
    parameters: dict[str, JSON]
    old: dict[str, JSON]
    new: dict[str, JSON]
    outcome: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each action."""
    parser.epilog = (
        "All actions but `status` and listing maintenance need an admin, and are audited "
        f"(`audit`). {service.WHEN} from now: 90s, 30m, 2h, 7d. Times are shown in UTC."
    )
    actions = parser.add_subparsers(dest="act", required=True, metavar="ACT")

    def add(
        name: str, help_: str, action: Action, format_: Format
    ) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=help_, description=sentence(help_))
        service.add_service(added)
        added.set_defaults(action=action, format=format_)
        return added

    add("status", "show the QPU's status and its maintenance", _status, _format_status)
    add(
        "open",
        "accept jobs and leases, and end maintenance",
        _set_status,
        _format_status,
    )
    for name, help_ in (
        ("drain", "accept no jobs or leases; the running job ends"),
        ("close", "accept no jobs or leases; the running job is queued again"),
    ):
        closing = add(name, help_, _set_status, _format_status)
        _add_message(closing)
    maintenance = add(
        "maintenance",
        "list maintenance windows, announce one, or cancel one",
        _maintenance,
        _format_windows,
    )
    window = maintenance.add_mutually_exclusive_group()
    window.add_argument(
        "--starts", type=service.future_time, metavar="WHEN", help="announce a window"
    )
    window.add_argument(
        "--take-back", type=int, metavar="ID", help="cancel a window, or end it early"
    )
    maintenance.add_argument(
        "--ends",
        type=service.future_time,
        metavar="WHEN",
        help="(default: when the QPU is opened)",
    )
    _add_message(maintenance)
    add("operations", "list the device's settings", _operations, _format_operations)
    operation = add("run", "run an operation of the device", _run, _format_outcome)
    operation.add_argument("name", help="of the operation, see `sfq admin operations`")
    operation.add_argument(
        "values", nargs="*", metavar="KEY=VALUE", help="its parameters, numbers"
    )
    operation.add_argument(
        "--dry-run", action="store_true", help="check and report, but change nothing"
    )
    operation.add_argument(
        "--wait",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds to wait for the running job (default: %(default)g)",
    )
    audit = add("audit", "list admins' actions, latest first", _audit, _format_audit)
    audit.add_argument(
        "--limit",
        type=positive,
        default=100,
        metavar="N",
        help="(default: %(default)s)",
    )
    help_ = "copy the state of a service on this machine, also while it runs"
    backup = actions.add_parser(
        "backup",
        help=help_,
        description=sentence(help_),
        epilog="Needs no admin but the right to read the state folder. Tokens, "
        "certificates and the configuration are not copied.",
    )
    backup.add_argument("file", type=Path, metavar="FILE", help="replaced if it exists")
    of = backup.add_mutually_exclusive_group(required=True)
    of.add_argument("--state", type=Path, metavar="DIR", help="the state folder")
    of.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration that names it"
    )


def _add_message(parser: argparse.ArgumentParser) -> None:
    help_ = "shown to refused users"
    parser.add_argument("--message", metavar="TEXT", help=help_)


def run(args: argparse.Namespace) -> int:
    """Run the action, and print the service's answer."""
    if args.act == "backup":
        _back_up(args)
        return 0
    client = service.client(args)
    answer = args.action(client, args)
    lines = [json.dumps(answer)] if args.json else args.format(client.name, answer)
    print(*map(escaped, lines), sep="\n")
    return 0


def _back_up(args: argparse.Namespace) -> None:
    """Write a backup of the service's database."""
    from sf_quantum.service.state import DATABASE
    from sf_quantum.service.store.file.backup import back_up

    state = args.state
    if args.config is not None:
        from sf_quantum.service.config import load

        state = load(args.config, {}, {}).state
        if state is None:
            raise InputError(f"{args.config}: has no key state, so nothing is kept")
    back_up(state / DATABASE, args.file)
    print(f"{args.file}: {args.file.stat().st_size:,} bytes")


def _status(client: ServiceClient, _: argparse.Namespace) -> JSON:
    device = service.request(client, "GET", _DEVICE)
    windows = service.request(client, "GET", _WINDOWS)
    return {**device, "windows": windows} if isinstance(device, dict) else device


def _set_status(client: ServiceClient, args: argparse.Namespace) -> JSON:
    body = {} if args.act == "open" else {"message": args.message or ""}
    service.request(client, "POST", f"{_DEVICE}/{args.act}", body)
    return _status(client, args)


def _maintenance(client: ServiceClient, args: argparse.Namespace) -> JSON:
    """Announce or cancel a maintenance window, and return all windows."""
    if args.starts is not None:
        message = args.message or ""
        body = {"starts": args.starts, "ends": args.ends, "message": message}
        service.request(client, "POST", _WINDOWS, body)
    elif args.ends is not None or args.message is not None:
        option = "message" if args.ends is None else "ends"
        raise InputError(f"--{option}: needs --starts")
    if args.take_back is not None:
        service.request(client, "DELETE", f"{_WINDOWS}/{args.take_back}")
    return service.request(client, "GET", _WINDOWS)


def _operations(client: ServiceClient, _: argparse.Namespace) -> JSON:
    return service.request(client, "GET", _OPERATIONS)


def _run(client: ServiceClient, args: argparse.Namespace) -> JSON:
    """Request an operation of the device."""
    body = {
        "parameters": dict(map(_parameter, args.values)),
        "dry_run": args.dry_run,
        "wait": args.wait,
    }
    path = f"{_OPERATIONS}/{quote(args.name, safe='')}"
    return service.request(client, "POST", path, body, wait_seconds=args.wait)


def _audit(client: ServiceClient, args: argparse.Namespace) -> JSON:
    return service.request(client, "GET", f"{_AUDIT}?limit={args.limit}")


def _parameter(text: str) -> tuple[str, JSON]:
    key, _, value = text.partition("=")
    try:
        return key, float(value)
    except ValueError as error:
        raise InputError(f"{text}: expected KEY=VALUE, a number") from error


def _format_status(who: str, answer: JSON) -> Iterator[str]:
    device = read_answer(who, _Device, answer, "a device")
    yield f"{device.name} ({device.technology}): {device.reason or device.status}"
    yield (
        f"{device.leases} of {device.vqpus} leases held, "
        f"{device.leases_waiting} requested, "
        f"{plural(device.queue_length, 'job')} pending or running"
    )
    if device.windows:
        yield from _window_table(device.windows)


def _format_windows(who: str, windows: JSON) -> list[str]:
    read = partial(read_answer, who, _Window, what="a maintenance window")
    return _window_table([*map(read, listing(windows))]) or ["no maintenance"]


def _window_table(windows: Sequence[_Window]) -> list[str]:
    rows = [
        (
            str(window.id),
            service.format_time(window.starts),
            service.format_time(window.ends),
            window.message,
        )
        for window in windows
    ]
    return _table("window starts ends message", rows)


def _format_operations(who: str, operations: JSON) -> list[str]:
    rows = []
    for answer in listing(operations):
        operation = read_answer(who, _Operation, answer, "an operation")
        name, now = operation.name, operation.now
        needs = "a drained QPU" if operation.drained else ""
        for one in operation.parameters:
            value = str(now.get(one.name, "-"))
            rows.append((name, one.name, str(one.least), str(one.most), value, needs))
        if not operation.parameters:
            values = ", ".join(f"{key} {value}" for key, value in now.items())
            rows.append((name, "-", "-", "-", values, needs))
    table = _table("operation parameter from to now needs", rows)
    return table or ["the device has no operations"]


def _format_outcome(who: str, answer: JSON) -> Iterator[str]:
    outcome = read_answer(who, _Outcome, answer, "an outcome")
    would = "would change" if outcome.dry_run else "changed"
    changes = _changes(outcome)
    if not changes:
        yield f"{outcome.operation}: nothing {would}"
    for change in changes:
        yield f"{outcome.operation} {would} {change}"


def _format_audit(who: str, entries: JSON) -> list[str]:
    read = partial(read_answer, who, _AuditEntry, what="an entry of the audit")
    rows = [
        (
            service.format_time(entry.time),
            entry.user,
            entry.action,
            "; ".join(_changes(entry)),
            str(entry.parameters.get("of", "-")),
            entry.outcome,
        )
        for entry in map(read, listing(entries))
    ]
    return _table("time user action changed of outcome", rows) or ["no entries"]


def _table(heads: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    return align([heads.split(), *rows]) if rows else []


def _changes(entry: _Outcome | _AuditEntry) -> list[str]:
    old = entry.old
    return [
        f"{name} from {service.cell(name, old.get(name))} "
        f"to {service.cell(name, value)}"
        for name, value in entry.new.items()
        if old.get(name) != value
    ]
