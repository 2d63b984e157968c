"""What the crash tests share: a service that is killed, and clients that are not."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client, Response
from sf_quantum.protocol.tasks import OVER
from sf_quantum.service.domain.jobs import JobClass
from tests.support.service import example_bqm
from tests.support.waiting import until

# for the jobs that are left in the end, also on a machine that does much else
SETTLE_SECONDS = 300.0


class KilledService:
    """The service as a process that is killed and started again.

    :param program: Python code that runs ``sfq`` with all arguments but the first, which
        is a file in which it notes something
    """

    def __init__(
        self,
        folder: Path,
        program: str,
        config: Mapping[str, JSON],
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.noted = folder / "noted"
        self.state = folder / "state"
        self.url = f"unix:{folder / 's'}"
        file = folder / "service.yml"
        file.write_text(json.dumps(config))
        self._command = [
            *(sys.executable, "-c", program, str(self.noted), "serve"),
            *("--config", str(file), "--socket", str(folder / "s")),
            *("--state", str(self.state), "--log", "error", *options),
        ]
        self._environment = {**os.environ, **(environment or {})}
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

    def start_again(self, early_seconds: float | None) -> float:
        """Start the next one, or, if one is to be killed early, the next but one.

        :param early_seconds: after which the next one is killed
        :returns: the seconds until it listened
        """
        if early_seconds is not None:
            self.start()
            time.sleep(early_seconds)
            self.kill()
        begin = time.monotonic()
        self.start()
        self.listens()
        return time.monotonic() - begin

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
    """A client under a lease of its class: the keys of its jobs, and the ends it has seen.

    Requests without an answer are sent again.
    """

    #: statuses of answers that are no refusals, but come from trouble that passes
    passing: ClassVar[tuple[int, ...]] = ()

    service: KilledService
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
            answer = self.service.ask("POST", "/v1/leases", body)
            self.lease = str(answer.json().get("id", ""))
            return answer.status == 201

        until(taken, f"a lease for {self.job_class} jobs")

    def run(self) -> None:
        """Submit until stopped."""
        draws, number = random.Random(self.seed), 0
        while not self.stopped:
            number += 1
            self.step(number, draws)

    def step(self, number: int, draws: random.Random) -> None:
        """Submit a job, and what belongs to it."""
        raise NotImplementedError

    def submit(self, key: str, parameters: Mapping[str, JSON]) -> str:
        """Submit a job until it is acknowledged, and return its id."""
        body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": key}
        body["parameters"] = {**parameters}
        id_ = str(self.until_answered("POST", "/v1/jobs", body)["id"])
        assert self.keys.setdefault(id_, key) == key, "two keys have one job"
        return id_

    def see(self, job: Mapping[str, JSON]) -> bool:
        """Note whether a job is over, which does not change."""
        id_, state = str(job["id"]), str(job["state"])
        if state in OVER:
            seen = self.over.setdefault(id_, state)
            assert seen == state, f"job {id_} was {seen}, is {state}"
        return state in OVER

    def until_answered(
        self, method: str, path: str, body: Mapping[str, JSON] | None = None
    ) -> dict[str, JSON]:
        """Send a request until it is answered."""
        while True:
            try:
                answer = self.service.ask(method, path, body, self.lease)
            except QpuError:
                pass
            else:
                if answer.status in (200, 201):
                    return answer.json()
                text = f"{method} {path}: {answer.status} {answer.body!r}"
                assert answer.status in self.passing, text
            self.unanswered += 1
            time.sleep(0.02)

    def settle(self) -> dict[str, dict[str, JSON]]:
        """Wait until all jobs are over, and return them by id."""
        jobs = dict[str, dict[str, JSON]]()
        end = time.monotonic() + SETTLE_SECONDS
        for id_ in self.keys:
            jobs[id_] = {"id": id_, "state": "Queued"}
            while not self.see(jobs[id_]):
                assert time.monotonic() < end, f"this job does not end: {jobs[id_]}"
                jobs[id_] = self.service.ask("GET", f"/v1/jobs/{id_}?wait=10").json()
        return jobs


@contextmanager
def running(loads: Sequence[Load]) -> Iterator[list[BaseException]]:
    """Run clients in threads, and yield what they have raised so far.

    :raises BaseException: the first of these, in the end
    """
    failures: list[BaseException] = []

    def caught(load: Load) -> None:
        try:
            load.run()
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            failures.append(error)

    threads = [threading.Thread(target=caught, args=(load,)) for load in loads]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        for load in loads:
            load.stopped = True
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
