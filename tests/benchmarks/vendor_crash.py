"""Kill the QPU service, or the vendor behind it, at random moments, and check what is left.

    python tests/benchmarks/vendor_crash.py [--kills 100] [--vendor-kills 30] [--seed 1]

The service drives a QPU of ``tests/support/vendor.py``, which has jobs of some ten milliseconds, two
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

The suite runs the short form (tests/service/device/vendor/test_crash.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import OVER
from sf_quantum.service.domain.jobs import Job, UserClass
from sf_quantum.service.store.store import Store
from tests.benchmarks.crashes import KilledService, Load, running
from tests.support.vendor import VendorProcess
from tests.support.vendor_machine import Count

# the service, which notes the tag of each job that it finds again by its tag
SERVICE = """
import os, sys
from sf_quantum.cli import main
from sf_quantum.service.device.vendor.vendor_jobs import VendorJobs
found = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
find = VendorJobs.find
def noted(self, tag):
    job_id = find(self, tag)
    if job_id is not None:
        os.write(found, f"{tag}\\n".encode())
    return job_id
VendorJobs.find = noted
sys.exit(main(sys.argv[2:]))
"""
# microseconds: jobs of 14 ms, and of 55 ms in three slices
MACHINE: dict[str, JSON] = {"setup": 4000.0, "shot": 1000.0}
SHORT, LONG = 10, 51
SLICE_SECONDS = 0.03
# jobs of a client that are not over
OPEN = 20
# two sums of the same durations, in seconds
ROUNDING = 1e-6


def front(folder: Path, vendor: VendorProcess) -> KilledService:
    """Make the service in front of the vendor."""
    device: dict[str, JSON] = {
        **{"type": "qpu", "qpu": "acme", "name": "one", "config": vendor.config},
        **{"poll_seconds": 0.02, "refresh_seconds": 0.2, "late_seconds": 0.2},
    }
    config: dict[str, JSON] = {"device": device, "slice_seconds": SLICE_SECONDS}
    environment = {"PYTHONPATH": vendor.site()}
    return KilledService(
        folder, SERVICE, {**config, "vqpus": 3}, environment=environment
    )


@dataclass
class Submitting(Load):
    """Submits short jobs, and long ones, and looks after the oldest."""

    #: while a job is being cancelled and the vendor does not answer
    passing = (503,)

    open: deque[str] = field(default_factory=deque)

    def step(self, number: int, draws: random.Random) -> None:
        production = self.job_class == "production"
        # production jobs come one by one, so that they find others to pre-empt
        time.sleep(draws.uniform(0, 0.4 if production else 0.05))
        shots = SHORT if production or number % 2 else LONG
        key = f"{self.job_class}-{number}"
        id_ = self.submit(key, {"num_reads": shots, "seed": number})
        self.open.append(id_)
        if draws.random() < 0.1:
            self.see(self.until_answered("DELETE", f"/v1/jobs/{id_}"))
        while len(self.open) > OPEN and not self.stopped:
            path = f"/v1/jobs/{self.open[0]}?wait=0.5"
            if self.see(self.until_answered("GET", path)):
                self.open.popleft()


def torture(folder: Path, kills: int, vendor_kills: int, seed: int) -> dict[str, float]:
    """Run the whole test.

    :returns: its figures
    :raises AssertionError: if something is inconsistent
    """
    (folder / "acme").mkdir()
    with VendorProcess(folder / "acme") as vendor:
        vendor.set(**MACHINE)
        service = front(folder, vendor)
        service.start()
        try:
            return _tortured(service, vendor, kills, vendor_kills, seed)
        finally:
            service.kill()


def _tortured(
    service: KilledService,
    vendor: VendorProcess,
    kills: int,
    vendor_kills: int,
    seed: int,
) -> dict[str, float]:
    service.listens()
    loads = [
        Submitting(service, name, seed + number)
        for number, name in enumerate(get_args(UserClass))
    ]
    for load in loads:
        load.acquire()
    early, draws = 0, random.Random(seed)
    with running(loads) as failures:
        for _ in range(kills):
            _wait(vendor, draws, 2)
            service.kill()
            vendor.let_through()
            # one in eight is killed while it starts
            soon = draws.uniform(0, 0.5) if draws.random() < 0.125 else None
            service.start_again(soon)
            early += soon is not None
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
    for load in loads:
        load.settle()
    service.kill()
    return {
        **check(service, vendor, loads),
        "kills": kills + early,
        "before_it_listened": early,
        "vendor_kills": vendor_kills,
        "unanswered": sum(load.unanswered for load in loads),
    }


def _wait(vendor: VendorProcess, draws: random.Random, longest: float) -> None:
    """Wait for a random moment, or for one in which the vendor has accepted a job."""
    time.sleep(draws.uniform(0, longest))
    if draws.random() < 0.125:
        late = vendor.seen("late")
        vendor.fault("late answer", path="/jobs", method="POST")
        vendor.until_late(late + 1)


def check(
    service: KilledService, vendor: VendorProcess, loads: Sequence[Load]
) -> dict[str, float]:
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
    store = Store(service.state / "service.sqlite")
    try:
        jobs = store.jobs.latest(limit=10_000_000)
        assert {job.id: job.key for job in jobs} == keys, "jobs are lost, or unknown"
        unknown = by_job.keys() - keys.keys()
        assert not unknown, f"the vendor ran jobs that are unknown: {unknown}"
        for job in jobs:
            assert job.state == over[job.id], f"{job} was {over[job.id]}"
            _check_job(job, store.jobs.result(job.number), by_job[job.id])
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
        "found_by_tag": _lines(service.noted),
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
