"""Kill the QPU service at random moments under load, and check what survives.

    python tests/benchmarks/service_crash.py [--kills 100] [--seed 1] [--waiting 10000]
        [--device sfq|dwave|acme] [--ahead 1]

One client per class submits jobs under its lease, production with pauses, the others
without, and cancels one in ten. Requests that were not acknowledged because the service
died are sent again with the same key. The service is killed (SIGKILL) at random moments
after its start, every other time while the device has a job, sometimes before it listens, and
started again. Then all jobs run to their end, and must be consistent:

- every acknowledged job exists once, under its key, and is over; a job that was seen to
  be over has not changed; an acknowledged cancellation holds; a completed job has a result
- the device logs the start of each run in a file of its own, or the vendor knows them: a
  job that ran more than once reports it (attempt and note), and a completed job did run
- within a class jobs ran in the order they were acknowledged; with --ahead, where one may
  begin while the one before it is being pre-empted, their last runs did
- the same leases are held

With ``--waiting`` a service is also started on a queue of that length, and its start-up
compared with that on an empty queue. With ``--device`` the QPU is a vendor's, reached by a
real client (tests/support/devices.py), and goes on while the service is down. The suite runs the
short form (tests/service/test_crash.py).
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import ClassVar, cast, get_args

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import OVER
from sf_quantum.service.domain.jobs import CLASSES, Lease, Submission, UserClass
from sf_quantum.service.store.store import Store
from tests.benchmarks.crashes import KilledService, Load, running
from tests.support import devices
from tests.support.service import example_bqm
from tests.support.waiting import until

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
EMULATED: dict[str, JSON] = {"technology": "annealer", "time_scale": 0.3}
# 60 ms
AT_A_VENDOR: dict[str, JSON] = {"technology": "annealer", "time_scale": 3}
# a job may be running at each kill
CONFIG: dict[str, JSON] = {"service_deaths": 1000, "vqpus": 3}
# jobs between two kills, at least
ACKNOWLEDGED = 5
# of each client's jobs
FIRST = {name: 1_000_000 * i for i, name in enumerate(get_args(UserClass))}


class Front(KilledService):
    """The service, and the device that it drives."""

    def __init__(self, folder: Path, device: devices.Configured) -> None:
        config: dict[str, JSON] = {**CONFIG, "device": device.device}
        super().__init__(folder, SERVICE, config, environment=device.environment)
        self.device = device

    def had_given(self) -> bool:
        """Whether the device has, or had, a job of the service."""
        # read only: what is left is for the next service to mend
        file = f"file:{self.state / 'service.sqlite'}?mode=ro"
        with closing(sqlite3.connect(file, uri=True)) as database:
            query = (
                "SELECT EXISTS (SELECT * FROM jobs WHERE state = 'Running'"
                " OR (state = 'Queued' AND device_job IS NOT NULL))"
            )
            return bool(database.execute(query).fetchone()[0])

    def runs(self, numbers: Mapping[str, int]) -> list[int]:
        """The jobs that the device has begun to run, in their order.

        :param numbers: of the jobs, by their ids
        """
        if self.device.runs is None:
            return [int(line) for line in self.noted.read_text().split()]
        return [numbers[tag.split("-")[1]] for tag in self.device.ran()]


@dataclass
class Submitting(Load):
    """Submits jobs whose seeds are numbers that no other client has."""

    pause_seconds: ClassVar[float] = 0.0
    order: list[str] = field(default_factory=list)

    def step(self, number: int, draws: random.Random) -> None:
        # production jobs come one by one, so that they find others to pre-empt
        pause = 0.2 if self.job_class == "production" else 0.0
        time.sleep(draws.uniform(0, pause + self.pause_seconds))
        number += FIRST[self.job_class]
        parameters: dict[str, JSON] = {"num_reads": 5, "seed": number}
        id_ = self.submit(f"key-{number}", parameters)
        self.order.append(id_)
        if draws.random() < 0.1:
            self.see(self.until_answered("DELETE", f"/v1/jobs/{id_}"))
        elif draws.random() < 0.2:
            # an old one: its state does not change once it is over
            path = f"/v1/jobs/{draws.choice(self.order)}"
            self.see(self.until_answered("GET", path))


class SubmittingToVendor(Submitting):
    """Submits no more jobs than a vendor can run."""

    pause_seconds = 0.1
    #: while a job is being cancelled, or the vendor has not answered yet
    passing = (503,)


def torture(
    folder: Path, device: devices.Configured, kills: int, seed: int
) -> dict[str, float]:
    """Run the whole test.

    :returns: its figures
    :raises AssertionError: if something is inconsistent
    """
    service = Front(folder, device)
    service.start()
    try:
        return _tortured(service, kills, seed)
    finally:
        service.kill()


def _tortured(service: Front, kills: int, seed: int) -> dict[str, float]:
    service.listens()
    kind = Submitting if service.device.runs is None else SubmittingToVendor
    loads = [
        kind(service, name, seed + number)
        for number, name in enumerate(get_args(UserClass))
    ]
    for load in loads:
        load.acquire()
    amid, early, draws = 0, 0, random.Random(seed)
    starts: list[float] = []
    with running(loads) as failures:
        for _ in range(kills):
            _let_work(loads, failures)
            time.sleep(draws.uniform(0, 0.6))
            # one in four of the successors is killed while it starts
            moment = draws.uniform(0, 0.5)
            soon = moment * 4 if moment < 0.125 else None
            if draws.random() < 0.5:
                until(lambda: failures or service.had_given(), "a job on the device")
            service.kill()
            amid += service.had_given()
            starts.append(service.start_again(soon))
            early += soon is not None
            if failures:
                break
    return {
        **_check(service, loads),
        "kills": kills,
        "amid_a_job": amid,
        "before_it_listened": early,
        "unanswered": sum(load.unanswered for load in loads),
        "start_seconds": median(starts) if starts else 0.0,
    }


def _let_work(loads: Sequence[Load], failures: Sequence[BaseException]) -> None:
    """Wait for jobs, so that the service dies while it works on a slow machine, too."""
    before = sum(len(load.keys) for load in loads)

    def worked() -> bool:
        now = sum(len(load.keys) for load in loads)
        return bool(failures) or now >= before + ACKNOWLEDGED

    until(worked, f"{ACKNOWLEDGED} jobs are acknowledged")


def _check(service: Front, loads: Sequence[Submitting]) -> dict[str, float]:
    jobs: dict[int, dict[str, JSON]] = {}
    for load in loads:
        for id_, job in load.settle().items():
            assert job["idempotency_key"] == load.keys[id_], f"{id_}: its key"
            jobs[_number(load.keys[id_])] = job
        lease = service.ask("GET", f"/v1/leases/{load.lease}").json()
        assert lease["held"] is True, f"the lease of {load.job_class} is not held"
    numbers = {id_: _number(k) for load in loads for id_, k in load.keys.items()}
    runs = service.runs(numbers)
    _check_runs(jobs, Counter(runs))
    # where one may begin while the one before it is pre-empted, each job's last
    ordered = [*dict.fromkeys(reversed(runs))][::-1] if devices.ahead else runs
    for load in loads:
        known = {_number(key) for key in load.keys.values()}
        ran = [number for number in ordered if number in known]
        in_order = all(one <= other for one, other in pairwise(ran))
        assert in_order, f"{load.job_class} jobs did not run in their order"
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


def _number(key: str) -> int:
    return int(key.removeprefix("key-"))


def _check_runs(jobs: Mapping[int, Mapping[str, JSON]], runs: Counter[int]) -> None:
    for number, job in jobs.items():
        ran, attempt = runs[number], cast("int", job["attempt"])
        assert ran <= attempt, f"job {number} ran {ran} times, says {attempt}"
        assert attempt == 1 or bool(job["note"]), f"job {number} does not say why"
        if job["state"] == "Completed":
            assert ran >= 1, f"job {number} completed, but never ran"
        assert job["state"] != "Failed", f"job {number} failed: {job['note']}"


def _check_file(service: Front, jobs: Mapping[int, Mapping[str, JSON]]) -> None:
    """Check the file: each job exists once, and each result is there."""
    store = Store(service.state / "service.sqlite")
    kept = store.jobs.latest(limit=10_000_000)
    keys = Counter(job.key for job in kept)
    assert set(keys.values()) <= {1}, "a key has two jobs"
    missing = {f"key-{number}" for number in jobs} - set(keys)
    assert not missing, f"jobs are lost: {missing}"
    for job in kept:
        result = store.jobs.result(job.number)
        assert (job.state == "Completed") == (result is not None), f"result of {job}"
        if result is not None and service.device.runs is None:
            info = json.loads(result)["info"]
            assert f"key-{info['seed']}" == job.key, "a result of another job"
    integrity = store.report("PRAGMA integrity_check")[0][0]
    store.close()
    assert integrity == "ok", f"the file is damaged: {integrity}"


def _noted(jobs: Mapping[int, Mapping[str, JSON]], word: str) -> int:
    return sum(str(job["note"]).startswith(word) for job in jobs.values())


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
        store.leases.add(lease).result()
    done = [
        store.jobs.add(
            leases[number % 3],
            Submission("problem", example_bqm(), {"num_reads": 5}, str(number)),
            0.02,
        )
        for number in range(jobs)
    ]
    for future in done:
        future.result()
    store.close()


def restart(folder: Path, device: devices.Configured, jobs: int) -> dict[str, float]:
    """Start the service on an empty queue and on a queue of pending jobs.

    :returns: seconds until it listens, and until it has described its last job; and the
        first figure relative to that of an empty queue
    """
    (folder / "empty").mkdir()
    empty = Front(folder / "empty", device)
    at_once = empty.start_again(None)
    empty.kill()
    service = Front(folder, device)
    fill(service.state, jobs)
    listens = service.start_again(None)
    begin = time.monotonic()
    length = service.ask("GET", "/v1/device").json()["queue_length"]
    last = service.ask("GET", "/v1/jobs?limit=1")
    seconds = listens + time.monotonic() - begin
    service.kill()
    assert jobs - 1000 < cast("int", length) <= jobs, f"{length} jobs wait"
    assert json.loads(last.body)[0]["position"] > jobs / 4, "the last job's position"
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
    parser.add_argument("--device", choices=devices.KINDS, default="emulated")
    parser.add_argument("--ahead", type=int, default=0)
    args = parser.parse_args()
    devices.chosen, devices.ahead = args.device, args.ahead
    if args.kills:
        with _device() as (folder, device):
            begin = time.monotonic()
            figures = torture(folder, device, args.kills, args.seed)
            figures["seconds"] = time.monotonic() - begin
            print(json.dumps(figures))
    if args.waiting:
        with _device() as (folder, device):
            print(json.dumps(restart(folder, device, args.waiting)))


@contextmanager
def _device() -> Iterator[tuple[Path, devices.Configured]]:
    """Make the device that was chosen, and a folder for the service."""
    wanted = EMULATED if devices.chosen == "emulated" else AT_A_VENDOR
    # short paths: a socket's has at most 107 bytes
    with (
        tempfile.TemporaryDirectory(prefix="sfq-crash-") as name,
        devices.configured(wanted, Path(name) / "vendor") as device,
    ):
        yield Path(name), device


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
