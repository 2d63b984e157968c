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
from tests.benchmarks.two_queues_trial import (
    NODES,
    PARTITION,
    PLAIN,
    QUANTUM,
    Figures,
    Trial,
)
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
        jobs = self.start(trial)
        helpers = Helpers(trial)
        pause = 0.2 + 2 * trial.setting.scale
        while trial.queued():
            helpers.poll()
            if stop.wait(pause):
                raise RunError("stopped")
        helpers.end()
        if bad := [job for job in jobs if trial.lab.state(job) != "COMPLETED"]:
            logs = (trial.folder / f"{job}.log" for job in bad)
            said = [log.read_text(errors="replace") for log in logs if log.exists()]
            raise RunError(f"{trial.cell}: jobs {bad} have not completed: {said}")
        return trial.figures(trial.began, service=helpers.service, mib=helpers.mib)

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
class Leased(Program):
    """A job whose lease the site's plugins acquire before it has nodes.

    :param keeps_session: whether the QPU service keeps the vendor's session
    """

    keeps_session: bool = False

    def start(self, trial: Trial) -> list[int]:
        trial.serve(keeps_session=self.keeps_session)
        if trial.partition == PARTITION:
            trial.partition = QUANTUM  # whose nodes have the QPUs
        options, command = trial.admit(), trial.program(self.mode)
        return [trial.submit(command, *options, cores=trial.cell.cores)]


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
            helpers = Helpers(trial, driver)
            began = time.time()
            while not helpers.poll():
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
    """What a QPU service uses during a run, and a driver, if there is one."""

    def __init__(
        self, trial: Trial, driver: subprocess.Popen[bytes] | None = None
    ) -> None:
        # between two looks at their memory, which cost CPU time
        self._pause = 1 + 10 * trial.setting.scale
        self._next = time.monotonic() + self._pause
        self.cpu = self.service = self.mib = 0.0
        self._driver = driver
        service = trial.service
        self._service = psutil.Process(service.pid) if service else None
        self._before = self._service_seconds()

    def poll(self) -> bool:
        """Look at their memory; whether the driver has ended."""
        if (driver := self._driver) is not None:
            pid, status, usage = os.wait4(driver.pid, os.WNOHANG)
            if pid:
                driver.returncode = os.waitstatus_to_exitcode(status)
                self.cpu = usage.ru_utime + usage.ru_stime
                self.end()
                return True
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._pause
        roots = [psutil.Process(driver.pid)] if driver else []
        roots += [self._service] if self._service else []
        held = 0
        for root in roots:
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):
                    held += process.memory_info().rss
        self.mib = max(self.mib, held / 2**20)
        return False

    def end(self) -> None:
        """Count what the service has used."""
        self.service = self._service_seconds() - self._before

    def _service_seconds(self) -> float:
        return cpu_seconds(self._service) if self._service else 0.0


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of all that it has started."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            times = one.cpu_times()
            # It has CPU times of children that have ended, for which it has waited.
            total += times.children_user + times.children_system
            total += times.user + times.system
    return total


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
    "site plugins": Leased("leased"),
    "site plugins, session": Leased("leased", keeps_session=True),
}
