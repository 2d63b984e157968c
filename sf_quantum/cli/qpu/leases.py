"""``sfq leases``: list and end the leases of a QPU service."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from sf_quantum.cli.qpu import service
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping
from sf_quantum.qpu.sfq.service_client import ServiceClient

_LEASES = "/v1/leases"
# Letters of a lease's id in a terminal: the whole id is a secret.
SHOWN = 12
_COLUMNS = {
    "lease": "id",
    "user": "user",
    "project": "project",
    "class": "class",
    "slurm job": "slurm_job_id",
    "opened": "opened",
    "expires": "expires",
    "idle until": "idle_expires",
    "ended": "closed",
    "purpose or reason": "job",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each action."""
    parser.epilog = (
        "Users see and end their own leases, admins those of all users. The id of a "
        "lease is its secret; tables show its beginning, --json the whole."
    )
    actions = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    help_ = (
        "list the leases that are held, or wait for a vQPU with problems of SAPI or IQM"
    )
    listing = service.add_action(actions, "list", help_, _list)
    listing.add_argument(
        "--ended", action="store_true", help="also the latest leases that ended"
    )
    ending = service.add_action(
        actions, "end", "end a lease, and cancel its unfinished jobs", _end
    )
    ending.add_argument("id", metavar="ID", help="the id, or its beginning as listed")


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    args.action(service.client(args), args)
    return 0


def _list(client: ServiceClient, args: argparse.Namespace) -> None:
    leases = _leases(client, "closed" if args.ended else "waiting")
    if not args.json:
        leases = [_shortened(lease) for lease in leases]
    service.print_table(_COLUMNS, leases, "no leases", args)


def _leases(client: ServiceClient, included: str) -> list[dict[str, JSON]]:
    """Return the leases that are held, and those that a parameter includes."""
    path = f"{_LEASES}?{included}=true"
    return service.objects(service.request(client, "GET", path))


def _shortened(lease: dict[str, JSON]) -> dict[str, JSON]:
    about = lease["reason"]
    if lease["closed"] is None:
        about = lease["job"] if lease["held"] else f"waits: {lease['job'] or '-'}"
    return {**lease, "id": str(lease["id"])[:SHOWN], "job": about}


def _end(client: ServiceClient, args: argparse.Namespace) -> None:
    if not args.id:  # every id begins with "", the value of an unset variable
        raise InputError("ID: is empty (sfq leases list)")
    ids = [str(lease["id"]) for lease in _leases(client, "waiting")]
    matches = [id_ for id_ in ids if id_ == args.id] or [
        id_ for id_ in ids if id_.startswith(args.id)
    ]
    if len(matches) != 1:
        what = f"{len(matches)} leases begin so" if matches else "not held"
        raise InputError(f"{args.id}: {what} (sfq leases list)")
    ended = service.request(client, "DELETE", f"{_LEASES}/{quote(matches[0], safe='')}")
    lease = mapping(ended)
    service.print_table(_COLUMNS, [lease if args.json else _shortened(lease)], "", args)
