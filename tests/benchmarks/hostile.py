"""What one user's attacks cost the others.

    python -m tests.benchmarks.hostile [--users 20] [--waiting 10000] [--seconds 20]
        [--clients 60] [--connections 1000] [--policy fair-share] [--attacks lists,headers]
        [--reads 100000]

``sfq serve`` runs as a process of its own, on loopback TCP, with a token for each user,
its state on disk and the default limits. One user, the attacker, has many waiting jobs.
Ordinary users each hold a lease and a connection, and submit ten jobs per second. A row
per attack, each in a process of its own, has the median and the 99th
percentile of their latencies, the jobs that they were told are on disk but which are
not, and the largest memory of the service meanwhile:

- ``nothing``: for comparison
- ``lists``: many parallel ``GET /v1/jobs?limit=1000``
- ``headers``: many connections that send half a header, and again when they are closed
- ``unread``: connections that request lists, as many as may be sent ahead of the
  answers, and do not read them
- ``results``: connections that request a result of 20 MB (READS) each, and do not
  read it
- ``deflated``: parallel SAPI problems that decompress to 64 MiB
- ``values``: parallel jobs whose JSON has a million values
- ``together``: ``lists``, ``headers`` and ``unread`` (with two thirds of the clients) at
  once
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import socket
import sqlite3
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

import psutil

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import document
from sf_quantum.service.http.connections import PIPELINED
from tests.benchmarks.submission import problem, site, started

PERIOD_SECONDS = 0.1
# of a job with a large result
RESULT_VARIABLES = 500
TITLES = "attack|jobs|p50 ms|p99 ms|lost|refused|memory MB"
PATH = "/v1/jobs?limit=1000"


@dataclass
class Attacker:
    """One user, from as many threads as it likes.

    :param until: the end of the attack, by the monotonic clock
    :param job: the id of one with a large result
    """

    address: tuple[str, int]
    token: str
    lease: str
    until: float
    clients: int
    connections: int
    job: str = ""

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def nothing(self) -> None:
        """Attack nobody."""

    def lists(self) -> None:
        self._in_parallel("GET", PATH, b"", {})

    def headers(self) -> None:
        half = f"GET / HTTP/1.1\r\nHost: {self.address[0]}\r\nX-".encode()
        self._hold(half, self.connections)

    def unread(self) -> None:
        head = f"GET {PATH} HTTP/1.1\r\nHost: {self.address[0]}\r\n"
        whole = f"{head}Authorization: Bearer {self.token}\r\n\r\n".encode()
        self._hold(whole * PIPELINED, self.clients)

    def results(self) -> None:
        head = f"GET /v1/jobs/{self.job}/result HTTP/1.1\r\nHost: {self.address[0]}\r\n"
        whole = f"{head}Authorization: Bearer {self.token}\r\n\r\n".encode()
        self._hold(whole, self.clients)

    def deflated(self) -> None:
        body = zlib.compress(b"[" + b"[]," * (64 * 2**20 // 3))
        headers = {"Content-Encoding": "deflate"}
        self._in_parallel("POST", "/sapi/v2/problems", body, headers)

    def values(self) -> None:
        body = b'{"problem": [' + b"1," * 2**20 + b"1]}"
        self._in_parallel("POST", "/v1/jobs", body, {"X-SFQ-Lease": self.lease})

    def together(self) -> None:
        fewer = replace(self, clients=self.clients * 2 // 3)
        in_threads([self.lists, self.headers, fewer.unread])

    def _hold(self, sent: bytes, number: int) -> None:
        held: list[socket.socket] = []
        with ExitStack() as stack:
            while self.goes_on:
                with suppress(OSError):
                    one = stack.enter_context(socket.create_connection(self.address))
                    one.setblocking(False)
                    one.send(sent)
                    held.append(one)
                if len(held) > number:
                    held.pop(0).close()

    def _in_parallel(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> None:
        def repeat() -> None:
            user = User(self.address, self.token)
            user.headers |= headers
            with closing(user):
                while self.goes_on:
                    with suppress(OSError, http.client.HTTPException):
                        user.ask(method, path, body)

        in_threads([repeat] * self.clients)


@dataclass
class User:
    """A user with one connection."""

    address: tuple[str, int]
    token: str
    latencies: list[float] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
        }
        self._connection = http.client.HTTPConnection(*self.address)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, body, self.headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def lease(self) -> None:
        _, content = self.ask("POST", "/v1/leases", b'{"job": "benchmark"}')
        self.headers["X-SFQ-Lease"] = json.loads(content)["id"]

    def submit(self, key: str) -> bool:
        body = {"problem": problem(), "idempotency_key": key}
        status, _ = self.ask("POST", "/v1/jobs", json.dumps(body).encode())
        return status == 201

    def work(self, name: str, until: float) -> None:
        """Submit ten jobs per second, at least one; a latency counts from when it was due."""
        due, number = time.monotonic(), 0
        while number == 0 or due < until:
            time.sleep(max(0.0, due - time.monotonic()))
            accepted = False
            with suppress(OSError, http.client.HTTPException):
                accepted = self.submit(f"{name} {number}")
            if accepted:
                self.latencies.append(time.monotonic() - due)
            else:
                self.refused += 1
            due, number = due + PERIOD_SECONDS, number + 1


def in_threads(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def large_result(user: User, reads: int) -> str:
    """Run a job with 200 bytes of result for each read, and return its id."""
    labels: list[JSON] = [*range(RESULT_VARIABLES)]
    bqm = document(labels, [0.5] * len(labels), [], [], "SPIN")
    parameters: JSON = {"num_reads": reads, "num_sweeps": 1}
    body = {"problem": bqm, "idempotency_key": "large", "parameters": parameters}
    _, content = user.ask("POST", "/v1/jobs", json.dumps(body).encode())
    job = json.loads(content)["id"]
    while True:
        _, content = user.ask("GET", f"/v1/jobs/{job}?wait=30")
        told = json.loads(content)
        if told["state"] == "Completed":
            return str(job)
        if told["ended"] is not None:
            raise RuntimeError(f"the job is {told['state']}: {told['note']}")


ATTACKS: Mapping[str, Callable[[Attacker], None]] = {
    "nothing": Attacker.nothing,
    "lists": Attacker.lists,
    "headers": Attacker.headers,
    "unread": Attacker.unread,
    "results": Attacker.results,
    "deflated": Attacker.deflated,
    "values": Attacker.values,
    "together": Attacker.together,
}


def row(
    attack: str,
    attacker: Attacker,
    users: list[User],
    file: Path,
    service: psutil.Process,
) -> list[str]:
    """Attack beside the users' work, and measure it."""
    for user in users:
        user.close()  # the service has closed what was unused since the last attack
    # a copy of this process: importing it again would take a core for a second
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=ATTACKS[attack], args=(attacker,))
    peak = [service.memory_info().rss]

    def watch() -> None:
        while child.is_alive():
            peak.append(service.memory_info().rss)
            time.sleep(PERIOD_SECONDS)

    child.start()
    work = [partial(user.work, attack, attacker.until) for user in users]
    in_threads([*work, watch])
    child.join()
    latencies = [seconds for user in users for seconds in user.latencies]
    refused = sum(user.refused for user in users)
    for user in users:
        user.latencies, user.refused = [], 0
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as db:
        query = "SELECT count(*) FROM jobs WHERE key LIKE ?"
        ((stored,),) = db.execute(query, (f"{attack} %",)).fetchall()
    db.close()
    return [
        attack,
        f"{len(latencies):,}",
        f"{1e3 * median(latencies):.1f}",
        f"{1e3 * quantiles(latencies, n=100)[98]:.1f}",
        str(max(0, len(latencies) - stored)),
        str(refused),
        f"{max(peak) / 1e6:,.1f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--policy", default="classes")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        command, (token, *tokens) = site(folder, args.users + 1)
        config = json.loads((folder / "service.yml").read_text())
        # to submit them at once; the attacks then have the default rate
        config["limits"] = {"burst": args.waiting + 200}
        config["policy"] = args.policy
        (folder / "service.yml").write_text(json.dumps(config))
        url, service = stack.enter_context(started(command))
        address = (str(urlsplit(url).hostname), urlsplit(url).port or 0)
        users = [User(address, token) for token in tokens]
        for user in users:
            stack.enter_context(closing(user)).lease()
        attacker = User(address, token)
        stack.enter_context(closing(attacker)).lease()
        job = large_result(attacker, args.reads) if "results" in args.attacks else ""
        for number in range(args.waiting):
            attacker.submit(f"waiting {number}")
        print(TITLES, flush=True)
        for attack in args.attacks.split(","):
            until = time.monotonic() + args.seconds
            lease = attacker.headers["X-SFQ-Lease"]
            enemy = Attacker(
                address, token, lease, until, args.clients, args.connections, job
            )
            file = folder / "state" / "service.sqlite"
            print("|".join(row(attack, enemy, users, file, service)), flush=True)


if __name__ == "__main__":
    main()
