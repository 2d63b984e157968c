"""The QPU service's throughput of submissions, and their cost.

    python -m tests.benchmarks.submission [--jobs 100000] [--clients 100] [--rate 1000]

``sfq serve`` runs as a process of its own, on loopback TCP, with a token for each user
and its state on disk. Each client is a user with a connection that stays open and a
lease; it submits problems of 12 variables under new keys, and waits for each 201. Four
loads, each on a new service:

- ``empty``: for comparison, a FastAPI route that validates the same body and does
nothing
  else, under the same server with the same settings
- ``waiting``: each client submits again as soon as it is answered; the device is slow,
so
  that nearly all jobs are pending, and stay in the service's memory
- ``paced``: ``--rate`` jobs per second, evenly among the clients; a job's latency
counts
  from the time when it was due, whether or not its client was free then
- ``ended``: as ``waiting``, but after 100 jobs each client releases its lease, which
  cancels its pending jobs, and acquires a new one: jobs that are over must not stay in
  memory

A row per tenth of a load has jobs per second, the median and the 99th percentile of the
latencies, the CPU time per job (user and system) of the service and of this process,
which is the load, the load's share of the whole machine, and the service's memory. On a
machine with other work, CPU time is the most reliable figure. At the end each load is
compared with ``empty``.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median, quantiles
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import psutil
import uvicorn
from fastapi import FastAPI

from sf_quantum.files import JSON
from sf_quantum.service.dialects.v1.models import JobBody
from sf_quantum.service.http.tokens import new_token, token_entry
from tests.support.service import example_bqm

VARIABLES = 12
LEASE_JOBS = 100
ROWS = 10
MB = 1e6
# what a client waits for: a lease, its end, a job's acknowledgement
Requested: TypeAlias = Literal["lease", "end", "job"]
LOADS = ("empty", "waiting", "paced", "ended")
TITLES = "load|jobs|jobs/s|p50 ms|p99 ms|service us/job|load us/job|load %|memory MB"


def problem() -> JSON:
    """A BQM in which all variables interact."""
    pairs = [*combinations(range(VARIABLES), 2)]
    return {
        **example_bqm(),
        "num_variables": VARIABLES,
        "num_interactions": len(pairs),
        "variable_labels": [f"v{number}" for number in range(VARIABLES)],
        "linear_biases": [-1.0 - number / 16 for number in range(VARIABLES)],
        "quadratic_biases": [0.25 + tail / 16 for _, tail in pairs],
        "quadratic_head": [head for head, _ in pairs],
        "quadratic_tail": [tail for _, tail in pairs],
    }


class Client:
    """A user with one connection; formats each request once, and never blocks."""

    def __init__(self, url: str, token: str) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port or 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = f"Host: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
        content = json.dumps({"problem": problem(), "parameters": {"num_reads": 20}})
        self._before = f'{content[:-1]}, "idempotency_key": "'
        self._job = b""
        self._answer = bytearray()
        self._lease = ""
        self._requested: Requested | None = None
        #: when the job under way was due
        self.due = 0.0
        #: how many more jobs to submit under the lease
        self.left = 0

    def acquire(self) -> None:
        """Request a lease."""
        self._send("lease", self._request("POST", "/v1/leases", '{"job": "benchmark"}'))

    def release(self) -> None:
        """Release the lease."""
        self._send("end", self._request("DELETE", f"/v1/leases/{self._lease}"))

    def submit(self, number: int) -> None:
        """Submit a job."""
        self.left -= 1
        self._send("job", b"%b%032d%b" % (self._job, number, b'"}'))

    def answered(self) -> Requested | None:
        """Read a part of an answer.

        :returns: what was requested, once the answer is complete

        :raises RuntimeError: if the service refuses, or goes away
        """
        part = self.socket.recv(65536)
        self._answer += part
        head, end, body = bytes(self._answer).partition(b"\r\n\r\n")
        if not part or (end and head[9:10] != b"2"):
            raise RuntimeError(f"the service answered {bytes(self._answer)!r}")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not end or len(body) < int(length):
            return None
        self._answer.clear()
        if self._requested == "lease":
            self._under(str(json.loads(body)["id"]))
        return self._requested

    def _under(self, lease: str) -> None:
        self._lease, self.left = lease, LEASE_JOBS
        body = f'{self._before}{0:032d}"}}'
        whole = self._request("POST", "/v1/jobs", body, f"X-SFQ-Lease: {lease}\r\n")
        self._job = whole[:-34]

    def _send(self, what: Requested, request: bytes) -> None:
        self._requested = what
        self.socket.sendall(request)  # its buffer is larger

    def _request(self, method: str, path: str, body: str = "", more: str = "") -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\n{self._headers}{more}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()


@dataclass
class Row:
    """The measurements of a part of a load."""

    service: psutil.Process
    latencies: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        self._service, self._own = self._cpu()

    def _cpu(self) -> tuple[float, float]:
        times = self.service.cpu_times()
        return times.user + times.system, time.process_time()

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return len(self.latencies) / (time.perf_counter() - self._began)

    @property
    def cost(self) -> float:
        """Seconds of CPU time of the service per job."""
        return (self._cpu()[0] - self._service) / len(self.latencies)

    def cells(self) -> list[str]:
        """Format them, without the load's name and the jobs so far."""
        own = (self._cpu()[1] - self._own) / len(self.latencies)
        return [
            f"{self.rate:,.0f}",
            f"{1e3 * median(self.latencies):.1f}",
            f"{1e3 * quantiles(self.latencies, n=100)[98]:.1f}",
            f"{1e6 * self.cost:,.0f}",
            f"{1e6 * own:,.0f}",
            f"{100 * own * self.rate / (os.cpu_count() or 1):.1f}",
            f"{self.service.memory_info().rss / MB:,.1f}",
        ]


class Load:
    """Submits through many clients, each of which waits for its answer.

    :param rate: jobs per second; ``None`` submits as fast as answers come
    :param renew: whether clients acquire a new lease after some jobs
    """

    def __init__(
        self, name: str, clients: list[Client], rate: float | None, *, renew: bool
    ) -> None:
        self._name = name
        self._clients = clients
        self._rate = rate
        self._renew = renew
        self._selector = selectors.DefaultSelector()
        for client in clients:
            self._selector.register(client.socket, selectors.EVENT_READ, client)

    def run(self, jobs: int, service: psutil.Process) -> tuple[float, float]:
        """Submit jobs, and print the rows.

        :returns: jobs per second, and the service's CPU time per job, of all rows
        """
        done = self._done(jobs)
        # the first jobs fill caches and memory
        warm = min(1000, jobs // 10)
        for _ in range(warm):
            next(done)
        seen, part, whole = warm, jobs // ROWS, Row(service)
        while seen < jobs:
            row = Row(service)
            for _ in range(min(part, jobs - seen)):
                row.latencies.append(next(done))
                seen += 1
            whole.latencies += row.latencies
            print("|".join([self._name, f"{seen:,}", *row.cells()]), flush=True)
        result = whole.rate, whole.cost
        for _ in done:  # until every lease is released
            pass
        return result

    def _done(self, jobs: int) -> Iterator[float]:
        """Submit jobs, and yield the latency of each once it is answered."""
        free = self._with_leases()
        sent = 0
        began = time.perf_counter()
        while sent < jobs or len(free) < len(self._clients):
            now = time.perf_counter()
            while free and sent < jobs:
                due = now if self._rate is None else began + sent / self._rate
                if due > now:
                    break
                client = free.popleft()
                client.due = due
                client.submit(sent)
                sent += 1
            pause = None if self._rate is None else 1e-3
            for key, _ in self._selector.select(pause):
                client = key.data
                what = client.answered()
                latency = time.perf_counter() - client.due
                if what == "end":
                    client.acquire()
                elif what == "job" and self._renew and not client.left:
                    client.release()
                elif what is not None:
                    free.append(client)
                if what == "job":
                    yield latency

    def _with_leases(self) -> deque[Client]:
        for client in self._clients:
            client.acquire()
        free = deque[Client]()
        while len(free) < len(self._clients):
            some = [key.data for key, _ in self._selector.select()]
            free += [client for client in some if client.answered()]
        return free


@contextmanager
def started(command: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    """Run a service that prints its URL, and stop it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            line = process.stdout.readline() if process.stdout else b""
            yield str(json.loads(line)["url"]), psutil.Process(process.pid)
        finally:
            process.terminate()


def site(folder: Path, users: int) -> tuple[list[str], list[str]]:
    """Write the configuration of a site with many users.

    :returns: the service's command, and the users' tokens
    """
    tokens = [new_token() for _ in range(users)]
    file = folder / "tokens.yml"
    file.touch(0o600)
    entries: list[JSON] = [
        token_entry(f"user{number}", token, admin=False)
        for number, token in enumerate(tokens)
    ]
    file.write_text(json.dumps(entries))
    config: dict[str, JSON] = {
        "state": str(folder / "state"),
        "auth": {"mode": "token", "tokens": str(file)},
        # some five jobs per second
        "device": {"technology": "annealer", "time_scale": 10.0},
        "vqpus": users,
    }
    (folder / "service.yml").write_text(json.dumps(config))
    sfq = str(Path(sys.executable).parent / "sfq")
    return [sfq, "serve", "--config", str(folder / "service.yml")], tokens


def empty() -> None:
    """Run the route for comparison."""
    app = FastAPI()

    @app.post("/v1/jobs", status_code=201)
    async def submit(body: JobBody) -> dict[str, str]:
        return {"id": body.idempotency_key}

    @app.post("/v1/leases", status_code=201)
    async def acquire() -> dict[str, str]:
        return {"id": "none"}

    bare(app)


def bare(app: FastAPI) -> None:
    """Run an application as the service runs its own, and print its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(json.dumps({"url": url}), flush=True)
    config = uvicorn.Config(
        app, access_log=False, log_config=None, server_header=False, ws="none"
    )
    uvicorn.Server(config).run([listener])


def measure(name: str, args: argparse.Namespace) -> tuple[float, float]:
    """Put one load on a new service.

    :returns: see :meth:`Load.run`
    """
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="sfq-", dir=args.folder)
        command, tokens = site(Path(stack.enter_context(made)), args.clients)
        if name == "empty":
            command = [sys.executable, "-m", "tests.benchmarks.submission", "--empty"]
        url, service = stack.enter_context(started(command))
        clients = [Client(url, token) for token in tokens]
        for client in clients:
            stack.enter_context(client.socket)
        rate = args.rate if name == "paced" else None
        jobs = args.jobs if name in ("waiting", "ended") else args.jobs // 5
        return Load(name, clients, rate, renew=name == "ended").run(jobs, service)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1000.0, help="of the paced load")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument(
        "--folder", default="/var/tmp", help="for the state (default /var/tmp)"
    )
    parser.add_argument("--empty", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.empty:
        empty()
        return
    others = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores; others have {others:.1f} busy processes", flush=True
    )
    print(TITLES, flush=True)
    results = {name: measure(name, args) for name in args.loads}
    for name in [name for name in results if name != "empty" and "empty" in results]:
        rate, cost = (results[name][i] / results["empty"][i] for i in range(2))
        print(f"{name}: {rate:.2f} times the rate of empty, {cost:.1f} times its CPU")


if __name__ == "__main__":
    main()
