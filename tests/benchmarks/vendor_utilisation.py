"""Measure how busy the QPU service keeps a real QPU whose vendor answers slowly.

    python tests/benchmarks/vendor_utilisation.py [--jobs 30] [--latency 0.2]

Jobs of 1 to 2 s are run at ``tests/support/vendor.py``, which takes 200 ms to answer any request and
has a queue of its own: by the service with a job ahead in the vendor's queue, by the
service without, and directly by a client of the vendor, one job after the other. Utilisation
is measured at the vendor: the time in which jobs ran, over the time from the start of the
first to the end of the last.

Then jobs of 100 ms are sent one by one, through the service and directly: the difference of
the medians is the time that the service adds to each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

from sf_quantum import qpu
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import OVER, Task
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.environment import from_environment, job_environment
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.domain.settings import ServiceSettings
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.vendor import Vendor
from tests.support.waiting import until

# seconds per shot, without set-up: the vendor samples few shots in no time
SHOT = 0.1
SHORT = 1
#: how a client that asks the vendor directly waits for its job
POLL_SECONDS = 0.2


class Counted:
    """A vendor in a folder of its own, and a client of it."""

    def __init__(self, folder: Path, latency: float) -> None:
        folder.mkdir()
        self.vendor = Vendor(folder)
        self.latency = latency

    def __enter__(self) -> Counted:
        self.vendor.__enter__()
        self.vendor.set(setup=0.0, shot=SHOT * 1e6, latency_seconds=self.latency)
        return self

    def __exit__(self, *_: object) -> None:
        self.vendor.__exit__()

    def runs(self) -> list[tuple[float, float]]:
        """The start and the duration of each job, in seconds."""
        with sqlite3.connect(self.vendor.folder / "acme.sqlite") as database:
            query = "SELECT started, took / 1e6 FROM jobs WHERE phase = 'done'"
            rows = [*database.execute(f"{query} ORDER BY started")]
        database.close()
        return rows

    def utilisation(self) -> dict[str, float]:
        runs = self.runs()
        span = max(start + took for start, took in runs) - runs[0][0]
        busy = sum(took for _, took in runs)
        gaps = [after - start - took for (start, took), (after, _) in pairwise(runs)]
        return {
            "jobs": len(runs),
            "busy_percent": round(100 * busy / span, 1),
            "seconds": round(span, 1),
            "median_gap_seconds": round(median(gaps), 3),
            "longest_gap_seconds": round(max(gaps), 3),
        }

    def front(self, **more: JSON) -> QpuDevice:
        config: dict[str, JSON] = {"qpu": "acme", "config": self.vendor.config}
        return QpuDevice.from_config({"name": "one", **config, **more})


def _parameters(shots: int) -> dict[str, int | None]:
    return {"num_reads": shots, "seed": 1}


def _submit(service: RunningService, lease: str, number: int, shots: int) -> str:
    body: dict[str, JSON] = {
        **{"problem": example_bqm(), "parameters": {**_parameters(shots)}},
        "idempotency_key": f"key-{number}",
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    assert answer.status in (200, 201), answer
    return str(answer.json()["id"])


def _ended(service: RunningService, job: str) -> None:
    state = ""
    while state not in OVER:
        state = str(service.ask("GET", f"/v1/jobs/{job}?wait=30").json()["state"])
    assert state == "Completed"


def _acquired(service: RunningService) -> str:
    """Take a lease, which the service gives once it knows the QPU."""
    until(lambda: service.ask("POST", "/v1/leases", {}).status == 201, "a lease", 30)
    return str(json.loads(service.ask("GET", "/v1/leases").body)[0]["id"])


def through_service(counted: Counted, shots: list[int], ahead: int) -> dict[str, float]:
    """Have the service run a backlog of jobs."""
    settings = ServiceSettings(slice_seconds=None)
    with (
        counted,
        running_service(counted.front(ahead=ahead), settings=settings) as service,
    ):
        lease = _acquired(service)
        jobs = [
            _submit(service, lease, number, one) for number, one in enumerate(shots)
        ]
        for job in jobs:
            _ended(service, job)
        return counted.utilisation()


def _client(counted: Counted) -> Qpu:
    driver = qpu.load("acme").from_config("one", counted.vendor.config)
    client = from_environment(job_environment([(driver, driver.acquire())]))
    assert client is not None
    return client


def _run(client: Qpu, number: int, shots: int) -> None:
    payload = json.dumps(example_bqm())
    task = Task(f"direct-{number}", "problem", payload, _parameters(shots))
    job = client.submit(task)
    while client.poll(job).state not in OVER:
        time.sleep(POLL_SECONDS)
    assert client.result(job, task).result is not None


def directly(counted: Counted, shots: list[int]) -> dict[str, float]:
    """Run jobs one after the other."""
    with counted:
        client = _client(counted)
        for number, one in enumerate(shots):
            _run(client, number, one)
        return counted.utilisation()


def short_jobs(folder: Path, number: int, latency: float) -> dict[str, float]:
    """Run short jobs, one by one, through the service and directly."""
    service_seconds, direct_seconds = list[float](), list[float]()
    with Counted(folder / "short", latency) as counted:
        with running_service(counted.front()) as service:
            lease = _acquired(service)
            for one in range(number):
                begin = time.monotonic()
                _ended(service, _submit(service, lease, one, SHORT))
                service_seconds.append(time.monotonic() - begin)
        counted.vendor.end_bookings()
        client = _client(counted)
        for one in range(number):
            begin = time.monotonic()
            _run(client, one, SHORT)
            direct_seconds.append(time.monotonic() - begin)
    return {
        "short_jobs": number,
        "service_seconds": round(median(service_seconds), 3),
        "direct_seconds": round(median(direct_seconds), 3),
        "added_seconds": round(median(service_seconds) - median(direct_seconds), 3),
    }


def main() -> None:
    """Print the figures, a line of JSON each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draws = random.Random(args.seed)
    shots = [round(draws.uniform(1, 2) / SHOT) for _ in range(args.jobs)]
    with tempfile.TemporaryDirectory(prefix="sfq-busy-") as name:
        folder = Path(name)
        site = Vendor(folder / "site").site()
        sys.path.insert(0, site)
        # beside one another: they wait most of the time
        figures: dict[str, dict[str, float]] = {}

        def kept(case: str, measure: str) -> None:
            counted = Counted(folder / case, args.latency)
            if measure == "direct":
                figures[case] = directly(counted, shots)
            else:
                figures[case] = through_service(counted, shots, int(measure))

        cases = {"ahead": "1", "not ahead": "0", "direct": "direct"}
        threads = [threading.Thread(target=kept, args=case) for case in cases.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for case in cases:
            print(json.dumps({"case": case, **figures[case]}), flush=True)
        short = short_jobs(folder, 10, args.latency)
        print(json.dumps({**short, "load": round(os.getloadavg()[1], 1)}))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
