"""``sfq admin``: open and shut a QPU, announce maintenance, set what may be set."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias
from urllib.parse import quote

from sf_quantum.cli.asking import add_service, ahead, ask, rows, service, shown
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu.access import Access
from sf_quantum.reporting.columns import align

_DEVICE, _WINDOWS = "/v1/device", "/v1/device/maintenance"
_OPERATIONS, _AUDIT = "/v1/admin/operations", "/v1/admin/audit"
# asks the service, and prints what people read
Act: TypeAlias = Callable[[Access, argparse.Namespace], JSON]
Words: TypeAlias = Callable[[JSON], Iterator[str]]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add what can be done, each with its options."""
    parser.epilog = (
        "All but `status` and to list maintenance is for admins, and is written down "
        "(`audit`). WHEN: 2026-11-21T16:00, or in so long: 90s, 30m, 2h, 7d."
    )
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")

    def add(name: str, help_: str, act: Act, words: Words) -> argparse.ArgumentParser:
        made = acts.add_parser(name, help=help_, description=f"{help_}.")
        add_service(made)
        made.set_defaults(do=act, words=words)
        return made

    add("status", "how the QPU is, and its maintenance", _status, _status_words)
    add("open", "let jobs and leases start; ends maintenance", _turn, _status_words)
    for name, help_ in (
        ("drain", "let nothing start any more; the job that runs ends"),
        ("close", "let nothing start any more; the job that runs waits again"),
    ):
        made = add(name, help_, _turn, _status_words)
        made.add_argument("message", nargs="?", default="", help="told to the refused")
    _maintenance_options(
        add("maintenance", "list windows, announce one, or take one back", *_ON_WINDOWS)
    )
    add("operations", "what can be set on the device", *_ON_OPERATIONS)
    _run_options(add("run", "run an operation of the device", _run, _run_words))
    audit = add("audit", "what admins did, the latest first", _audit, _audit_words)
    audit.add_argument(
        "--limit", type=int, default=100, metavar="N", help="(default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Do it, and print what the service answers.

    :returns: 0
    :raises InputError: if an option is wrong, or the service refuses
    :raises QpuError: if the service does not answer
    """
    answer = args.do(service(args), args)
    print(*([json.dumps(answer)] if args.json else args.words(answer)), sep="\n")
    return 0


def _maintenance_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--starts", type=ahead, metavar="WHEN", help="announce a window")
    what.add_argument("--take-back", type=int, metavar="ID", help="or end it early")
    parser.add_argument(
        "--ends", type=ahead, metavar="WHEN", help="(default: when the QPU is opened)"
    )
    parser.add_argument("--message", help="told to the refused")


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the operation; `sfq admin operations` lists")
    parser.add_argument(
        "values", nargs="*", metavar="KEY=VALUE", help="its parameters, numbers"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check and tell, change nothing"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds to wait for the job that runs (default: %(default)g)",
    )


def _status(access: Access, _: argparse.Namespace) -> JSON:
    device, windows = ask(access, "GET", _DEVICE), ask(access, "GET", _WINDOWS)
    return {**device, "windows": windows} if isinstance(device, dict) else device


def _turn(access: Access, args: argparse.Namespace) -> JSON:
    body: dict[str, JSON] = {} if args.act == "open" else {"message": args.message}
    ask(access, "POST", f"{_DEVICE}/{args.act}", body)
    return _status(access, args)


def _maintenance(access: Access, args: argparse.Namespace) -> JSON:
    if args.starts is None:
        for option in ("ends", "message"):
            if getattr(args, option) is not None:
                raise InputError(f"--{option}: needs --starts")
    else:
        body: dict[str, JSON] = {"starts": args.starts, "ends": args.ends}
        body["message"] = args.message or ""
        ask(access, "POST", _WINDOWS, body)
    if args.take_back is not None:
        ask(access, "DELETE", f"{_WINDOWS}/{args.take_back}")
    return ask(access, "GET", _WINDOWS)


def _operations(access: Access, _: argparse.Namespace) -> JSON:
    return ask(access, "GET", _OPERATIONS)


def _run(access: Access, args: argparse.Namespace) -> JSON:
    parameters = dict(map(_value, args.values))
    body: dict[str, JSON] = {"parameters": {**parameters}, "dry_run": args.dry_run}
    body["wait"] = args.wait
    path = f"{_OPERATIONS}/{quote(args.name, safe='')}"
    return ask(access, "POST", path, body, wait_seconds=args.wait)


def _audit(access: Access, args: argparse.Namespace) -> JSON:
    return ask(access, "GET", f"{_AUDIT}?limit={args.limit}")


def _value(text: str) -> tuple[str, float]:
    key, _, value = text.partition("=")
    try:
        return key, float(value)
    except ValueError as error:
        raise InputError(f"{text}: expected KEY=VALUE, a number") from error


def _status_words(device: JSON) -> Iterator[str]:
    told = device if isinstance(device, dict) else {}
    status, reason = told["status"], told["reason"]
    yield f"{told['name']} ({told['technology']}): {reason or status}"
    leases = f"{told['leases']} of {told['vqpus']} leases"
    asked = f"{told['leases_waiting']} more asked for"
    yield f"{leases}, {asked}, {told['queue_length']} jobs wait or run"
    if windows := rows(told["windows"]):
        yield from _windows_words([*windows])


def _windows_words(windows: JSON) -> Iterator[str]:
    cells = [
        (
            *(str(one["id"]), shown(one["starts"])),
            *(shown(one["ends"]), str(one["message"])),
        )
        for one in rows(windows)
    ]
    yield from _listed(("window", "starts", "ends", "message"), cells, "no maintenance")


def _operations_words(operations: JSON) -> Iterator[str]:
    cells = [
        (str(one["name"]), *_parameter(parameter, one["now"]), _drained(one))
        for one in rows(operations)
        for parameter in rows(one["parameters"]) or [{}]
    ]
    heads = ("operation", "parameter", "from", "to", "now", "needs")
    yield from _listed(heads, cells, "the device has no operations")


def _parameter(one: dict[str, JSON], now: JSON) -> tuple[str, ...]:
    known = now if isinstance(now, dict) else {}
    if not one:
        words = ", ".join(f"{name} {value}" for name, value in known.items())
        return "-", "-", "-", words
    bounds = (str(one[bound]) for bound in ("least", "most"))
    return str(one["name"]), *bounds, str(known.get(str(one["name"]), "-"))


def _drained(one: dict[str, JSON]) -> str:
    return "a drained QPU" if one["drained"] else ""


def _run_words(outcome: JSON) -> Iterator[str]:
    told = outcome if isinstance(outcome, dict) else {}
    would = "would change" if told["dry_run"] else "changed"
    if not (changes := _changes(told)):
        yield f"{told['operation']}: nothing {would}"
    for change in changes:
        yield f"{told['operation']} {would} {change}"


def _audit_words(entries: JSON) -> Iterator[str]:
    cells = [
        (
            *(shown(one["time"]), str(one["user"]), str(one["action"])),
            *("; ".join(_changes(one)), str(one["outcome"])),
        )
        for one in rows(entries)
    ]
    heads = ("time", "user", "action", "changed", "outcome")
    yield from _listed(heads, cells, "no admin has done anything")


def _changes(told: dict[str, JSON]) -> list[str]:
    old, new = told["old"], told["new"]
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return []
    return [
        f"{name} from {old.get(name)} to {value}"
        for name, value in new.items()
        if old.get(name) != value
    ]


def _listed(
    heads: Sequence[str], cells: Sequence[Sequence[str]], none: str
) -> Iterator[str]:
    yield from align([heads, *cells]) if cells else [none]


_ON_WINDOWS = (_maintenance, _windows_words)
_ON_OPERATIONS = (_operations, _operations_words)
