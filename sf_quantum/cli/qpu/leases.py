"""``sfq leases``: list and end the leases of a QPU service."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from urllib.parse import quote

from sf_quantum.cli.qpu import service
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu.sfq.service_client import ServiceClient, read_answer

_LEASES = "/v1/leases"
# Number of characters of a lease's id that are shown in a terminal: the whole id is a secret.
SHOWN = 12
# header and key of each column
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


@dataclass(frozen=True)
class _Lease:
    id: str
    job: str | None
    held: bool
    closed: float | None
    reason: str | None

    @property
    def shown(self) -> dict[str, str | None]:
        """The columns of a table that differ from the service's answer."""
        about = self.reason
        if self.closed is None:
            about = self.job if self.held else f"waits: {self.job or '-'}"
        return {"id": self.id[:SHOWN], "job": about}


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
    _print(client, _leases(client, "closed" if args.ended else "waiting"), args)


def _leases(client: ServiceClient, included: str) -> JSON:
    """Return the leases that are held, and those that a parameter includes."""
    return service.request(client, "GET", f"{_LEASES}?{included}=true")


def _read(client: ServiceClient, answer: JSON) -> _Lease:
    return read_answer(client.name, _Lease, answer, "a lease")


def _print(client: ServiceClient, leases: JSON, args: argparse.Namespace) -> None:
    rows = service.objects(leases)
    if not args.json:
        rows = [{**row, **_read(client, row).shown} for row in rows]
    service.print_table(_COLUMNS, rows, "no leases", args)


def _end(client: ServiceClient, args: argparse.Namespace) -> None:
    """End a lease, and print it."""
    if not args.id:  # an unset shell variable gives "", with which every id begins
        raise InputError("ID: is empty (sfq leases list)")
    held = service.objects(_leases(client, "waiting"))
    ids = [_read(client, lease).id for lease in held]
    matches = [id_ for id_ in ids if id_ == args.id] or [
        id_ for id_ in ids if id_.startswith(args.id)
    ]
    if len(matches) != 1:
        what = f"{len(matches)} leases begin so" if matches else "not held"
        raise InputError(f"{args.id}: {what} (sfq leases list)")
    ended = service.request(client, "DELETE", f"{_LEASES}/{quote(matches[0], safe='')}")
    _print(client, [ended], args)
