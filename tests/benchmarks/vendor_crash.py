"""Kill the QPU service, or the vendor behind it, at random moments, and check what is left.

    python tests/benchmarks/vendor_crash.py [--kills 100] [--vendor-kills 30] [--seed 1]

The service drives a QPU of ``tests/vendor.py``, which has jobs of some ten milliseconds, two
of the service's at once, and counts them by tag. One client per class submits all the
time, every second job of the lower classes in slices, and cancels one in ten;
production jobs pre-empt the others. Requests without an answer are sent again with the
same key. The service is killed (SIGKILL) at random moments after its start, sometimes
before it listens, then the vendor, each time to be started again; one time in eight in the
moment when the vendor has accepted a job and has not answered yet. Then all jobs run to
their end, and:

- every acknowledged job is over: completed, or with the reason why not; one that was seen
  to be over has not changed
- no submission was accepted twice, and none ran twice; of a completed job, each slice was
  completed exactly once, and the shots add up
- the vendor has no job that the service does not know, or that is not over
- the service has booked for each job what the vendor bills

The suite runs the short form (tests/integration/test_vendor_crash.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client, Response
from sf_quantum.service.domain.jobs import Job, JobClass, UserClass
from sf_quantum.service.store.store import Store
from tests.service import example_bqm
from tests.vendor import VendorProcess
from tests.vendor_machine import Count
from tests.waiting import until

# the service, which notes the tag of each job that it finds again by its tag
SERVICE = """
import os, sys
from sf_quantum.cli import main
from sf_quantum.service.device.qpu import QpuDevice
found = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
find = QpuDevice.find
def noted(self, tag):
    job_id = find(self, tag)
    if job_id is not None:
        os.write(found, f"{tag}\\n".encode())
    return job_id
QpuDevice.find = noted
sys.exit(main(sys.argv[2:]))
"""
# microseconds: jobs of 14 ms, and of 55 ms in three slices
MACHINE: dict[str, JSON] = {"setup": 4000.0, "shot": 1000.0}
SHORT, LONG = 10, 51
SLICE_SECONDS = 0.03
OVER = ("Completed", "Failed", "Cancelled")
# jobs of a client that are not over
OPEN = 20
# two sums of the same durations, in seconds
ROUNDING = 1e-6


class Front:
    """The service, in front of the vendor, as a process."""

    def __init__(self, folder: Path, vendor: VendorProcess) -> None:
        self.found = folder / "found"
        self.state = folder / "state"
        self.url = f"unix:{folder / 's'}"
        device: dict[str, JSON] = {
            **{"type": "qpu", "qpu": "acme", "name": "one", "config": vendor.config},
            **{"poll_seconds": 0.02, "refresh_seconds": 0.2, "late_seconds": 0.2},
        }
        config: dict[str, JSON] = {"device": device, "slice_seconds": SLICE_SECONDS}
        file = folder / "service.yml"
        file.write_text(json.dumps({**config, "vqpus": 3}))
        self._command = [
            *(sys.executable, "-c", SERVICE, str(self.found), "serve"),
            *("--config", str(file), "--socket", str(folder / "s")),
            *("--state", str(self.state), "--log", "error"),
        ]
        self._environment = {**os.environ, "PYTHONPATH": vendor.site()}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting for it."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, env=self._environment
        )

    def listens(self) -> None:
        """Wait until it listens."""
        assert self._process
        assert self._process.stdout
        assert self._process.stdout.readline(), "the service has ended"

    def kill(self) -> None:
        if self._process is not None:
            with self._process:  # closes its pipe
                self._process.kill()
            self._process = None

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        lease: str | None = None,
    ) -> Response:
        headers = {"X-SFQ-Lease": lease} if lease else {}
        return Client(self.url, headers).request(method, path, body, timeout_seconds=30)


@dataclass
class Load:
    """One client: its jobs by the service's ids, and the ends that it has seen."""

    front: Front
    job_class: JobClass
    seed: int
    lease: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    stopped: bool = False
    unanswered: int = 0

    def acquire(self) -> None:
        """Take a lease, which the service gives once it knows the QPU."""
        body: dict[str, JSON] = {"class": self.job_class}

        def taken() -> bool:
            answer = self.front.ask("POST", "/v1/leases", body)
            self.lease = str(answer.json().get("id", ""))
            return answer.status == 201

        until(taken, f"a lease for {self.job_class} jobs")

    def run(self) -> None:
        """Submit until stopped."""
        draws = random.Random(self.seed)
        production, number, open_ = self.job_class == "production", 0, deque[str]()
        while not self.stopped:
            # production jobs come one by one, so that they find others to pre-empt
            time.sleep(draws.uniform(0, 0.4 if production else 0.05))
            number += 1
            shots = SHORT if production or number % 2 else LONG
            key = f"{self.job_class}-{number}"
            body = _job(key, number, shots)
            id_ = str(self._until_answered("POST", "/v1/jobs", body)["id"])
            assert self.keys.setdefault(id_, key) == key, "two keys have one job"
            open_.append(id_)
            if draws.random() < 0.1:
                self._see(self._until_answered("DELETE", f"/v1/jobs/{id_}"))
            while len(open_) > OPEN and not self.stopped:
                path = f"/v1/jobs/{open_[0]}?wait=0.5"
                if self._see(self._until_answered("GET", path)):
                    open_.popleft()

    def _see(self, job: Mapping[str, JSON]) -> bool:
        id_, state = str(job["id"]), str(job["state"])
        if state in OVER:
            seen = self.over.setdefault(id_, state)
            assert seen == state, f"job {id_} was {seen}, is {state}"
        return state in OVER

    def _until_answered(
        self, method: str, path: str, body: Mapping[str, JSON] | None = None
    ) -> dict[str, JSON]:
        while True:
            with suppress(QpuError):
                answer = self.front.ask(method, path, body, self.lease)
                if answer.status in (200, 201):
                    return answer.json()
                # it is being cancelled; the vendor does not answer
                text = f"{method} {path}: {answer.status} {answer.body!r}"
                assert answer.status == 503, text
            self.unanswered += 1
            time.sleep(0.05)

    def settle(self) -> None:
        """Wait until all jobs are over."""
        for id_ in self.keys:
            while not self._see(
                self.front.ask("GET", f"/v1/jobs/{id_}?wait=10").json()
            ):
                pass


def _job(key: str, seed: int, shots: int) -> dict[str, JSON]:
    parameters: dict[str, JSON] = {"num_reads": shots, "seed": seed}
    job: dict[str, JSON] = {"problem": example_bqm(), "parameters": parameters}
    return {**job, "idempotency_key": key}


def torture(folder: Path, kills: int, vendor_kills: int, seed: int) -> dict[str, float]:
    """Run the whole test.

    :returns: its figures
    :raises AssertionError: if something is inconsistent
    """
    (folder / "acme").mkdir()
    with VendorProcess(folder / "acme") as vendor:
        vendor.set(**MACHINE)
        front = Front(folder, vendor)
        front.start()
        try:
            return _tortured(front, vendor, kills, vendor_kills, seed)
        finally:
            front.kill()


def _tortured(
    front: Front, vendor: VendorProcess, kills: int, vendor_kills: int, seed: int
) -> dict[str, float]:
    front.listens()
    loads = [
        Load(front, name, seed + number)
        for number, name in enumerate(get_args(UserClass))
    ]
    for load in loads:
        load.acquire()
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=_caught, args=(load, failures)) for load in loads
    ]
    for thread in threads:
        thread.start()
    draws = random.Random(seed)
    early = _kill_often(front, vendor, kills, vendor_kills, draws, failures)
    for load in loads:
        load.stopped = True
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    for load in loads:
        load.settle()
    front.kill()
    return {
        **check(front, vendor, loads),
        "kills": kills + early,
        "before_it_listened": early,
        "vendor_kills": vendor_kills,
        "unanswered": sum(load.unanswered for load in loads),
    }


def _caught(load: Load, failures: list[BaseException]) -> None:
    try:
        load.run()
    except BaseException as error:  # noqa: BLE001 - raised by the main thread
        failures.append(error)


def _kill_often(
    front: Front,
    vendor: VendorProcess,
    kills: int,
    vendor_kills: int,
    draws: random.Random,
    failures: list[BaseException],
) -> int:
    """Kill the service, and one in eight of its successors while they start; the vendor.

    :returns: how many successors were killed before they listened
    """
    early = 0
    for _ in range(kills):
        _wait(vendor, draws, 2)
        front.kill()
        vendor.let_through()
        front.start()
        if draws.random() < 0.125:
            time.sleep(draws.uniform(0, 0.5))
            early += 1
            front.kill()
            front.start()
        front.listens()
        if failures:
            break
    for _ in range(vendor_kills):
        # the service asks it less often after it has not answered
        _wait(vendor, draws, 5)
        vendor.kill()
        time.sleep(draws.uniform(0, 0.5))
        vendor.start()
        if failures:
            break
    return early


def _wait(vendor: VendorProcess, draws: random.Random, longest: float) -> None:
    """Wait for a random moment, or for one in which the vendor has accepted a job."""
    time.sleep(draws.uniform(0, longest))
    if draws.random() < 0.125:
        late = vendor.seen("late")
        vendor.fault("late answer", path="/jobs", method="POST")
        vendor.until_late(late + 1)


def check(front: Front, vendor: VendorProcess, loads: list[Load]) -> dict[str, float]:
    """Compare what the service says with what the vendor has counted."""
    counts = vendor.counts()
    by_job = defaultdict[str, dict[str, Count]](dict)
    for tag, count in counts.items():
        by_job[tag.split("-")[1]][tag] = count
        assert (count.accepted, len(count.phases)) == (1, 1), f"{tag}: {count}"
        assert count.ran <= 1, f"{tag}: {count}"
        assert count.phases[0] in ("done", "stopped"), f"{tag}: {count}"
    keys = {id_: key for load in loads for id_, key in load.keys.items()}
    over = {id_: state for load in loads for id_, state in load.over.items()}
    store = Store(front.state / "service.sqlite")
    try:
        jobs = store.jobs(limit=10_000_000)
        assert {job.id: job.key for job in jobs} == keys, "jobs are lost, or unknown"
        unknown = by_job.keys() - keys.keys()
        assert not unknown, f"the vendor ran jobs that are unknown: {unknown}"
        for job in jobs:
            assert job.state == over[job.id], f"{job} was {over[job.id]}"
            _check_job(job, store.result(job.number), by_job[job.id])
    finally:
        store.close()
    states = Counter[str](job.state for job in jobs)
    billed = sum(count.micros for count in counts.values()) / 1e6
    booked = sum(job.qpu_seconds + job.lost_qpu_seconds for job in jobs)
    assert abs(billed - booked) < ROUNDING * len(counts), f"{billed} s, {booked} s"
    return {
        "acknowledged": len(jobs),
        **{state.lower(): states[state] for state in OVER},
        "vendor_jobs": len(counts),
        "vendor_runs": sum(count.ran for count in counts.values()),
        "sliced": sum(f"sfq-{job.id}-{job.attempt}-0" in counts for job in jobs),
        "interrupted": sum(job.attempt > 1 for job in jobs),
        "found_by_tag": _lines(front.found),
        "billed_seconds": round(billed, 6),
        "booked_seconds": round(booked, 6),
    }


def _check_job(job: Job, result: str | None, tags: Mapping[str, Count]) -> None:
    billed = sum(count.micros for count in tags.values()) / 1e6
    booked = job.qpu_seconds + job.lost_qpu_seconds
    text = f"{job}: billed {billed} s, booked {booked} s: {tags}"
    assert abs(billed - booked) < ROUNDING * (1 + len(tags)), text
    assert job.attempt == 1 or job.note, f"{job} does not say why it was repeated"
    assert (job.state == "Completed") == (result is not None), f"{job}: its result"
    if result is None:
        assert job.note, f"{job} does not say why"
        assert job.state == "Cancelled", f"{job}"
        return
    told = json.loads(result)
    shots = sum(told["vectors"]["num_occurrences"]["data"])
    assert shots == job.shots, f"{job} has {shots} shots: {tags}"
    parts = Counter(
        "-".join(tag.split("-")[3:])
        for tag, count in tags.items()
        if count.phases == ["done"]
    )
    slices = told["info"].get("slices")
    wanted = {""} if slices is None else {str(part) for part in range(len(slices))}
    assert parts == dict.fromkeys(wanted, 1), f"{job}: {tags}"
    if slices is not None:
        assert sum(one["shots"] for one in slices) == job.shots, f"{job}: {slices}"


def _lines(file: Path) -> int:
    return len(file.read_text().split())


def main() -> None:
    """Print the figures, as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--vendor-kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    # short paths: a socket's has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="sfq-crash-") as folder:
        begin = time.monotonic()
        figures = torture(Path(folder), args.kills, args.vendor_kills, args.seed)
        figures["seconds"] = round(time.monotonic() - begin, 1)
        figures["load"] = round(os.getloadavg()[1], 1)
        print(json.dumps(figures))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
