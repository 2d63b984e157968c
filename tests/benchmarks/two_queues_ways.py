"""The ways of ``two_queues`` to run its program."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import psutil

from sf_quantum.files import JSON
from tests.benchmarks import slurm_runs
from tests.benchmarks.slurm_runs import RunError
from tests.benchmarks.two_queues_trial import NODES, PLAIN, QUANTUM, Figures, Trial
from tests.support.journals import Event as JournalEvent


@dataclass(frozen=True)
class Program:
    """A way without a workflow.

    :param mode: of the program
    :param component: options of a second component of a heterogeneous job
    """

    mode: str
    component: tuple[str, ...] = ()

    def run(self, trial: Trial, stop: Event) -> Figures:
        began = time.time()
        jobs = self.start(trial)
        pause = 0.2 + 2 * trial.setting.scale
        while trial.queued():
            if stop.wait(pause):
                raise RunError("stopped")
        if bad := [job for job in jobs if trial.lab.state(job) != "COMPLETED"]:
            raise RunError(f"{trial.cell}: jobs {bad} have not completed")
        return trial.figures(began)

    def start(self, trial: Trial) -> list[int]:
        """Submit the jobs."""
        command = trial.program(self.mode)
        named = (f"--job-name={trial.name}",) if self.component else ()
        options = (":", *named, *self.component) if self.component else ()
        return [trial.submit(command, *options, cores=trial.cell.cores)]


@dataclass(frozen=True)
class Malleable(Program):
    """A job whose cores are spread over nodes, and that keeps one of these for a circuit."""

    def start(self, trial: Trial) -> list[int]:
        nodes = math.gcd(trial.cell.cores, NODES)
        command = trial.program(self.mode)
        cores = trial.cell.cores // nodes
        return [trial.submit(command, f"--nodes={nodes}", cores=cores)]


@dataclass(frozen=True)
class Scout(Program):
    """A job of one core that waits in the vendor's queue, and one that it releases."""

    def start(self, trial: Trial) -> list[int]:
        command = trial.program(self.mode)
        held = trial.submit(command, "--hold", cores=trial.cell.cores)
        command = trial.program("scout", str(held))
        name = f"{trial.name}-scout"
        return [held, trial.submit(command, cores=1, name=name)]


@dataclass(frozen=True)
class Flow:
    """A workflow.

    :param connector: of the phases on nodes
    :param allocation: of it
    :param keeps_session: whether the QPU service keeps the vendor's session
    :param candidate: settings of the filter, if circuits may also run on nodes
    """

    connector: str = "sfq.slurm"
    allocation: Mapping[str, JSON] = field(default_factory=dict)
    keeps_session: bool = False
    candidate: Mapping[str, JSON] | None = None

    def run(self, trial: Trial, stop: Event) -> Figures:
        file, driver = self.start(trial)
        with driver, ExitStack() as stack:
            stack.callback(driver.kill)  # of one that has ended it does nothing
            helpers = Helpers(driver, trial.service, 1 + 10 * trial.setting.scale)
            began = time.time()
            while not helpers.look():
                if stop.wait(0.2):
                    raise RunError("stopped")
        if driver.returncode:
            text = (file.parent / "log").read_text(errors="replace")
            raise RunError(f"{trial.cell}: {text[-2000:]}")
        trial.journal = slurm_runs.completed(file)
        jobs = [event for event in trial.journal if event["event"] == "job"]
        first = min(_times(jobs, "waiting"))
        return trial.figures(
            *(first, max(_times(jobs, "completed"))),
            startup=first - began,
            cpu=helpers.cpu,
            service=helpers.service,
            mib=helpers.mib,
        )

    def start(self, trial: Trial) -> tuple[Path, subprocess.Popen[bytes]]:
        """Start the service, if it has one, and the driver."""
        ours = self.connector == "sfq.slurm"
        url = trial.serve(keeps_session=self.keeps_session) if ours else ""
        allocation = dict(self.allocation)
        if allocation.get("strategy") == "reserved":
            allocation["reserve"] = [trial.name]
        # beside the jobs of classical steps, that of a circuit counts as one
        config: dict[str, JSON] = {"maxConcurrentJobs": 2}
        config |= {"allocation": allocation} if allocation else {}
        file = trial.write(self.connector, config, url, self.candidate)
        return file, slurm_runs.start(trial.lab, file, {})


def _times(jobs: Sequence[JournalEvent], status: str) -> Iterator[float]:
    for event in jobs:
        if event["status"] == status:
            yield float(str(event["time"]))


class Helpers:
    """What a driver and a QPU service use while the driver runs.

    :param pause: seconds between two looks at their memory, which cost CPU time
    """

    def __init__(
        self,
        driver: subprocess.Popen[bytes],
        service: subprocess.Popen[bytes] | None,
        pause: float,
    ) -> None:
        self._pause, self._next = pause, time.monotonic() + pause
        self.cpu = self.service = self.mib = 0.0
        self._driver = driver
        self._service = psutil.Process(service.pid) if service else None
        self._before = self._service_seconds()

    def look(self) -> bool:
        """Look at their memory; whether the driver has ended."""
        pid, status, usage = os.wait4(self._driver.pid, os.WNOHANG)
        if pid:
            self._driver.returncode = os.waitstatus_to_exitcode(status)
            self.cpu = usage.ru_utime + usage.ru_stime
            self.service = self._service_seconds() - self._before
            return True
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._pause
        roots = [psutil.Process(self._driver.pid)]
        roots += [self._service] if self._service else []
        held = 0
        for root in roots:
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):
                    held += process.memory_info().rss
        self.mib = max(self.mib, held / 2**20)
        return False

    def _service_seconds(self) -> float:
        if self._service is None:
            return 0.0
        times = self._service.cpu_times()
        return float(
            times.user + times.system + times.children_user + times.children_system
        )


# given back after a second without a job
_ELASTIC: dict[str, JSON] = {"strategy": "elastic", "idle": 1, "max": 1}
WAYS: Mapping[str, Program | Flow] = {
    PLAIN: Program("plain"),
    "session": Program("session"),
    "heterogeneous": Program("plain", (f"--partition={QUANTUM}", "--ntasks=1")),
    "scout": Scout("inside"),
    "slurm": Flow("slurm"),
    "per-step": Flow(),
    "per-step, session": Flow(keeps_session=True),
    "elastic": Flow(allocation=_ELASTIC),
    "ahead": Flow(allocation={**_ELASTIC, "ahead": True}),
    "reserved": Flow(allocation={"strategy": "reserved"}),
    "candidate": Flow(candidate={"prefer": "earliest"}),
    "malleable": Malleable("malleable"),
}
