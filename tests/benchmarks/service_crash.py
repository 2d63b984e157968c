"""Kill the QPU service at random moments under load, and check what survives.

    python tests/benchmarks/service_crash.py [--kills 100] [--seed 1] [--waiting 10000]

One client per class submits jobs under its lease, production with pauses, the others
without, and cancels one in ten. Requests that were not acknowledged because the service
died are sent again with the same key. The service is killed (SIGKILL) at random moments
after its start, sometimes before it listens, and started again. Then all jobs run to
their end, and must be consistent:

- every acknowledged job exists once, under its key, and is over; a job that was seen to
be
  over has not changed; an acknowledged cancellation holds; a completed job has a result
- the device logs the start of each run in a file of its own: a job that ran more than
once
  reports it (attempt and note), and a completed job did run
- within a class jobs ran in the order they were acknowledged
- the same leases are held

With ``--waiting`` a service is also started on a queue of that length, and its start-up
compared with that on an empty queue. The suite runs the short form
(tests/integration/test_service_crash.py).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import cast, get_args

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client, Response
from sf_quantum.service.domain.jobs import (
    CLASSES,
    JobClass,
    Lease,
    Submission,
    UserClass,
)
from sf_quantum.service.store.store import Store
from tests.service import example_bqm

# the service, with a device that notes the seed of each job it begins to run: one write
# of a few bytes to a file opened for appending is whole or not there
SERVICE = """
import os, sys
from sf_quantum.cli import main
from sf_quantum.service.device.emulator.runners import ProblemRunner
runs = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
run = ProblemRunner.run
def noted(self, computation, interrupted):
    os.write(runs, b"%d\\n" % computation.parameters["seed"])
    return run(self, computation, interrupted)
ProblemRunner.run = noted
sys.exit(main(sys.argv[2:]))
"""
# 6 ms per job: some hundred jobs per second, as many as the clients send
SPEED = [
    "--technology",
    "annealer",
    "--time-scale",
    "0.3",
    "--vqpus",
    "3",
    "--log",
    "error",
]
OVER = ("Completed", "Failed", "Cancelled")


class Service:
    """The service as a process that is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.state = folder / "state"
        self.url = f"unix:{folder / 's'}"
        # a job may be running at each kill
        config = folder / "service.yml"
        config.write_text("service_deaths: 1000\n")
        self._command = [
            *(sys.executable, "-c", SERVICE, str(self.runs), "serve"),
            *("--config", str(config)),
            *("--socket", str(folder / "s"), "--state", str(self.state), *SPEED),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service, without waiting for it."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE)

    def ready(self) -> bool:
        """Wait until the service listens; false if it was killed before."""
        if self.process is None or self.process.stdout is None:
            return False
        return bool(self.process.stdout.readline())

    def kill(self) -> None:
        """Kill the service."""
        if self.process is not None:
            with self.process:  # closes its pipe
                self.process.kill()

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        lease: str | None = None,
    ) -> Response:
        """Send one request."""
        headers = {"X-SFQ-Lease": lease} if lease else {}
        return Client(self.url, headers).request(method, path, body, timeout_seconds=30)


@dataclass
class Load:
    """The requests of one client, and their answers."""

    service: Service
    job_class: JobClass
    lease: str
    first: int
    seed: int
    acknowledged: dict[int, str] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    over: dict[int, str] = field(default_factory=dict)
    stopped: bool = False
    unanswered: int = 0

    def run(self) -> None:
        """Submit until stopped."""
        draws = random.Random(self.seed)
        number = self.first
        # production jobs come one by one, so that they find others to pre-empt
        pause = 0.2 if self.job_class == "production" else 0.0
        while not self.stopped:
            time.sleep(draws.uniform(0, pause))
            number += 1
            found = self._until_answered("POST", "/v1/jobs", _job(number))
            self.acknowledged[number] = str(found["id"])
            self.order.append(number)
            if draws.random() < 0.1:
                path = f"/v1/jobs/{found['id']}"
                cancelled = self._until_answered("DELETE", path)
                self.over[number] = str(cancelled["state"])
            elif draws.random() < 0.2:
                # an old one: its state does not change once it is over
                old = draws.choice(self.order)
                path = f"/v1/jobs/{self.acknowledged[old]}"
                self._see(old, self._until_answered("GET", path))

    def _see(self, number: int, job: Mapping[str, JSON]) -> None:
        if job["state"] in OVER:
            seen = self.over.setdefault(number, str(job["state"]))
            if seen != job["state"]:
                raise AssertionError(f"job {number} was {seen}, is {job['state']}")

    def _until_answered(
        self, method: str, path: str, body: Mapping[str, JSON] | None = None
    ) -> dict[str, JSON]:
        while True:
            try:
                answer = self.service.ask(method, path, body, self.lease)
            except QpuError:
                self.unanswered += 1
                time.sleep(0.01)
                continue
            if answer.status in (200, 201):
                return answer.json()
            raise AssertionError(f"{method} {path}: {answer.status} {answer.body!r}")


def _job(number: int) -> dict[str, JSON]:
    parameters: dict[str, JSON] = {"num_reads": 5, "seed": number, "num_sweeps": 1}
    return {
        "problem": example_bqm(),
        "parameters": parameters,
        "idempotency_key": f"key-{number}",
    }


def torture(folder: Path, kills: int, seed: int) -> dict[str, float]:
    """Run the whole test.

    :returns: its figures
    :raises AssertionError: if something is inconsistent
    """
    service = Service(folder)
    service.start()
    service.ready()
    loads = []
    for number, name in enumerate(get_args(UserClass)):
        body: dict[str, JSON] = {"class": name}
        lease = str(service.ask("POST", "/v1/leases", body).json()["id"])
        loads.append(Load(service, name, lease, number * 1_000_000, seed + number))
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=_caught, args=(load, failures)) for load in loads
    ]
    for thread in threads:
        thread.start()
    early = 0
    starts: list[float] = []
    draws = random.Random(seed)
    for _ in range(kills):
        time.sleep(draws.uniform(0, 0.6))
        early += _kill_at(service, draws.uniform(0, 0.5), starts)
        if failures:
            break
    for load in loads:
        load.stopped = True
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    try:
        return {
            **_check(service, loads),
            "kills": kills,
            "before_it_listened": early,
            "unanswered": sum(load.unanswered for load in loads),
            "start_seconds": median(starts) if starts else 0.0,
        }
    finally:
        service.kill()


def _caught(load: Load, failures: list[BaseException]) -> None:
    try:
        load.run()
    except BaseException as error:  # noqa: BLE001 - raised by the main thread
        failures.append(error)


def _kill_at(service: Service, moment: float, starts: list[float]) -> bool:
    """Kill the service, and one in four of its successors at a moment of its start.

    :returns: whether a successor was killed before it listened
    """
    service.kill()
    begin = time.monotonic()
    service.start()
    early = moment < 0.125
    if early:
        time.sleep(moment * 4)
        service.kill()
        begin = time.monotonic()
        service.start()
    service.ready()
    starts.append(time.monotonic() - begin)
    return early


def _check(service: Service, loads: list[Load]) -> dict[str, float]:
    jobs: dict[int, dict[str, JSON]] = {}
    for load in loads:
        for number, id_ in load.acknowledged.items():
            job: dict[str, JSON] = {"state": "Queued"}
            while job["state"] not in OVER:
                job = service.ask("GET", f"/v1/jobs/{id_}?wait=10").json()
            jobs[number] = job
            seen = load.over.get(number, job["state"])
            _must(job["state"] == seen, f"job {number} was {seen}, is {job['state']}")
            _must(job["idempotency_key"] == f"key-{number}", f"{number}: its key")
        lease = service.ask("GET", f"/v1/leases/{load.lease}").json()
        _must(lease["held"] is True, f"the lease of {load.job_class} is not held")
    runs = [int(line) for line in service.runs.read_text().split()]
    _check_runs(jobs, Counter(runs))
    for load in loads:
        known = set(load.acknowledged)
        ran = [number for number in runs if number in known]
        in_order = all(one <= other for one, other in pairwise(ran))
        _must(in_order, f"{load.job_class} jobs did not run in their order")
        _must(sorted(load.order) == load.order, "the clients number their jobs")
    service.kill()
    _check_file(service, jobs)
    states = Counter(str(job["state"]) for job in jobs.values())
    return {
        "acknowledged": len(jobs),
        **{state.lower(): states[state] for state in OVER},
        "runs": len(runs),
        "preempted": _noted(jobs, "pre-empted"),
        "interrupted": _noted(jobs, "interrupted"),
    }


def _check_runs(jobs: Mapping[int, Mapping[str, JSON]], runs: Counter[int]) -> None:
    for number, job in jobs.items():
        ran, attempt = runs[number], cast("int", job["attempt"])
        _must(ran <= attempt, f"job {number} ran {ran} times, says {attempt}")
        _must(attempt == 1 or bool(job["note"]), f"job {number} does not say why")
        if job["state"] == "Completed":
            _must(ran >= 1, f"job {number} completed, but never ran")
        _must(job["state"] != "Failed", f"job {number} failed: {job['note']}")


def _check_file(service: Service, jobs: Mapping[int, Mapping[str, JSON]]) -> None:
    """Check the file: each job exists once, and each result is there."""
    store = Store(service.state / "service.sqlite")
    kept = store.jobs(limit=10_000_000)
    keys = Counter(job.key for job in kept)
    _must(set(keys.values()) <= {1}, "a key has two jobs")
    missing = {f"key-{number}" for number in jobs} - set(keys)
    _must(not missing, f"jobs are lost: {missing}")
    for job in kept:
        result = store.result(job.number)
        _must((job.state == "Completed") == (result is not None), f"result of {job}")
        if result is not None:
            info = json.loads(result)["info"]
            _must(f"key-{info['seed']}" == job.key, "a result of another job")
    integrity = store.report("PRAGMA integrity_check")[0][0]
    store.close()
    _must(integrity == "ok", f"the file is damaged: {integrity}")


def _noted(jobs: Mapping[int, Mapping[str, JSON]], word: str) -> int:
    return sum(str(job["note"]).startswith(word) for job in jobs.values())


def _must(good: bool, words: str) -> None:
    if not good:
        raise AssertionError(words)


def fill(state: Path, jobs: int) -> None:
    """Write a queue of pending jobs."""
    state.mkdir(mode=0o700)
    store = Store(state / "service.sqlite")
    leases = [
        Lease(
            *(name, "local", name, None, None, None, None, None, None),
            opened=time.time(),
            expires=None,
        )
        for name in CLASSES
    ]
    for lease in leases:
        store.add_lease(lease).result()
    body = _job(1)
    done = [
        store.add_job(
            leases[number % 3],
            Submission("problem", body["problem"], {"num_reads": 5}, str(number)),
            0.02,
        )
        for number in range(jobs)
    ]
    for future in done:
        future.result()
    store.close()


def restart(folder: Path, jobs: int) -> dict[str, float]:
    """Start the service on an empty queue and on a queue of pending jobs.

    :returns: seconds until it listens, and until it has described its last job; and the
        first figure relative to that of an empty queue
    """
    (folder / "empty").mkdir()
    empty = Service(folder / "empty")
    begin = time.monotonic()
    empty.start()
    empty.ready()
    at_once = time.monotonic() - begin
    empty.kill()
    service = Service(folder)
    fill(service.state, jobs)
    begin = time.monotonic()
    service.start()
    service.ready()
    listens = time.monotonic() - begin
    length = service.ask("GET", "/v1/device").json()["queue_length"]
    last = service.ask("GET", "/v1/jobs?limit=1")
    seconds = time.monotonic() - begin
    service.kill()
    _must(jobs - 1000 < cast("int", length) <= jobs, f"{length} jobs wait")
    _must(json.loads(last.body)[0]["position"] > jobs / 4, "the last job's position")
    return {
        "waiting": jobs,
        "listens_seconds": listens,
        "answers_seconds": seconds,
        "times_an_empty_start": listens / at_once,
    }


def main() -> None:
    """Print the figures, as lines of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--waiting", type=int, default=10_000)
    args = parser.parse_args()
    # short paths: a socket's has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="sfq-crash-") as folder:
        if args.kills:
            begin = time.monotonic()
            figures = torture(Path(folder), args.kills, args.seed)
            figures["seconds"] = time.monotonic() - begin
            print(json.dumps(figures))
    with tempfile.TemporaryDirectory(prefix="sfq-crash-") as folder:
        if args.waiting:
            print(json.dumps(restart(Path(folder), args.waiting)))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
