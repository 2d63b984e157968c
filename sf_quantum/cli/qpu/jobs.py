"""``sfq jobs``: list, show, cancel and follow the jobs of a QPU service."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from urllib.parse import quote, urlencode

from sf_quantum.cli.arguments import positive
from sf_quantum.cli.qpu import service
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Response
from sf_quantum.qpu.sfq.service_client import REQUEST_SECONDS, ServiceClient
from sf_quantum.qpu.sfq.service_job import ServiceJob
from sf_quantum.text import escaped

_JOBS = "/v1/jobs"
# Limits that the service sets for one request: the wait for a change, and the number of jobs.
LONGEST_WAIT_SECONDS = 10.0
PAGE = 1000
# header and key of each column
_COLUMNS = {
    "job": "id",
    "user": "user",
    "class": "class",
    "kind": "kind",
    "state": "state",
    "position": "position",
    "start in s": "eta_seconds",
    "QPU s": "qpu_seconds",
    "submitted": "submitted",
    "note": "note",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each action."""
    parser.epilog = "Users see and cancel their own jobs, admins those of all users."
    actions = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    listing = service.add_action(actions, "list", "list the latest jobs", _list)
    number = listing.add_mutually_exclusive_group()
    number.add_argument(
        "--limit",
        type=positive,
        default=100,
        metavar="N",
        help="how many at most (default: %(default)s)",
    )
    number.add_argument(
        "--all",
        dest="limit",
        action="store_const",
        const=math.inf,
        help="all that the service has",
    )
    listing.add_argument(
        "--live", action="store_true", help="only pending and running jobs"
    )
    given = f"as listed, or the first characters of one of the latest {PAGE}"
    for name, help_, action in (
        ("show", "show all that the service tells about a job", _show),
        ("cancel", "cancel jobs, and wait until they have left the device", _cancel),
        ("follow", "print a job whenever its state or position changes", _follow),
    ):
        added = service.add_action(actions, name, help_, action)
        nargs_ = "+" if name == "cancel" else None
        added.add_argument("ids", nargs=nargs_, metavar="ID", help=given)
        if name == "follow":
            added.epilog = "Exit status: 0 if the job completed, else 1."


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    return int(args.action(service.client(args), args))


def _list(client: ServiceClient, args: argparse.Namespace) -> int:
    listed = [*pages(client, args.limit, live=args.live)]
    jobs = [job for page in reversed(listed) for job in page]
    service.print_table(_COLUMNS, jobs, "no jobs", args)
    return 0


def pages(
    client: ServiceClient, most: float = math.inf, *, live: bool = False
) -> Iterator[list[dict[str, JSON]]]:
    """Yield pages of jobs, the latest page first; each page begins with its oldest job."""
    query: dict[str, JSON] = {"live": "true"} if live else {}
    last = set[str]()
    while most > 0:
        query["limit"] = limit = int(min(PAGE, most))
        path = f"{_JOBS}?{urlencode(query)}"
        page = service.objects(service.request(client, "GET", path))
        ids = _ids(page)
        # A service that ignores the key before would be queried without end.
        if last & {*ids}:
            return
        last = {*ids}
        yield page
        if len(page) < limit or not ids:
            return
        query["before"] = ids[0]
        most -= limit


def _ids(page: Iterable[dict[str, JSON]]) -> list[str]:
    """Return the ids of the jobs in a page, of those that have one."""
    return [id_ for job in page if isinstance(id_ := job.get("id"), str)]


def _show(client: ServiceClient, args: argparse.Namespace) -> int:
    answer, _ = _job(client, "GET", args.ids)
    service.print_fields(answer, args)
    return 0


def _cancel(client: ServiceClient, args: argparse.Namespace) -> int:
    found = [_job(client, "DELETE", id_) for id_ in args.ids]
    service.print_table(_COLUMNS, [answer for answer, _ in found], "no jobs", args)
    # A job that ended before the request is not cancelled.
    return 0 if all(job.state == "Cancelled" for _, job in found) else 1


def _follow(client: ServiceClient, args: argparse.Namespace) -> int:
    for answer, job in _changes(client, args.ids):
        print(json.dumps(answer) if args.json else _line(job), flush=True)
    return 0 if job.state == "Completed" else 1


def _changes(
    client: ServiceClient, id_: str
) -> Iterator[tuple[dict[str, JSON], ServiceJob]]:
    """Yield a job whenever its state, attempt, position or note changes; stop at its end."""
    seen, wait = None, 0.0
    while True:
        answer, job = _job(client, "GET", id_, wait)
        now = job.state, job.attempt, job.position, job.note
        if now != seen:
            yield answer, job
        if job.ended is not None:
            return
        # the service replies before the wait is over if the job ends
        seen, wait = now, LONGEST_WAIT_SECONDS if job.state == "Running" else 1.0


def _line(job: ServiceJob) -> str:
    """Describe a job's state in a line."""
    parts: list[str] = [job.state]
    if job.state == "Queued":
        start = ""
        if job.eta_seconds is not None:
            start = f", starts in {service.format_seconds(job.eta_seconds)} s"
        parts.append(f"position {job.position}{start}")
    if job.note:
        parts.append(escaped(job.note))
    return ": ".join(parts)


def _job(
    client: ServiceClient, method: str, id_: str, wait: float = 0.0
) -> tuple[dict[str, JSON], ServiceJob]:
    """Send a request for a job, by its id or the id's beginning; return reply and job."""
    query = f"?wait={wait:g}" if method == "GET" else ""
    timeout = REQUEST_SECONDS + wait

    def send(whole: str) -> Response:
        path = f"{_JOBS}/{quote(whole, safe='')}{query}"
        return client.send(method, path, timeout_seconds=timeout, expected=(404,))

    if not id_:  # an unset shell variable gives "", with which every id begins
        raise InputError("ID: is empty (sfq jobs list)")
    response = send(id_)
    if response.status == 404:
        latest = service.objects(
            service.request(client, "GET", f"{_JOBS}?limit={PAGE}")
        )
        matches = [match for match in _ids(latest) if match.startswith(id_)]
        if len(matches) != 1:
            what = f"{len(matches)} jobs begin so" if matches else "no such job"
            raise InputError(f"{id_}: {what} (sfq jobs list)")
        response = send(matches[0])
    answer = response.json()
    return answer, ServiceJob.read(client.name, answer)
