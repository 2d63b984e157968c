"""What it costs to wait for a QPU with nodes in hand: one hybrid program, every way to run it.

    python -m tests.benchmarks.two_queues [--runs 5] [--jobs 6] [--scale 0.2]
    python -m tests.benchmarks.two_queues --queues file --queue-file waits.csv
    python -m tests.benchmarks.two_queues --cancellations 200

The program runs five times ``nodes, circuit, nodes``: each phase on nodes takes 20 s of
all its cores, and each circuit 3 s at a vendor, after a wait in the vendor's queue. The
same draws of that wait meet every way, side by side in one run. All of it is slept, scaled
by ``--scale``; the figures are divided by it again, other than CPU seconds and memory.

- ``plain``: one batch job holds its nodes throughout, and each circuit queues.
- ``session``: the same job opens a session of the vendor; only the first circuit queues.
- ``heterogeneous``: ``plain`` with a core of the quantum partition as second component.
- ``scout``: as flux-quantum does it. A job of one core opens the session and has a warm-up
  circuit wait in the queue; then it releases the job with the nodes, which was held, into
  the session, and keeps its core until that job ends.
- ``slurm``: StreamFlow's own connector; each phase and each circuit is a job, that of a
  circuit on one core of the quantum partition.
- ``per-step``, ``elastic``, ``ahead``, ``reserved``: ``sfq.slurm`` with that allocation, and
  the circuits through ``sfq.rest`` and a QPU service in front of the vendor, on no node.
- ``per-step, session``: the service keeps the vendor's session from circuit to circuit.

The distributions of the wait: constant 0, 10, 30 and 60 s; ``heavy``, log-normal with a
median of 10 s and a mean of 31 s; ``file``, the quantiles of a column of seconds in a CSV
file, such as ``avg_qpu_wait_s`` of the results of converged-computing/quantum-braket.

Core-seconds are from Slurm's accounting (sacct: allocated CPUs, start and end), whose whole
seconds are refined by the controller's log, which must agree with them. *useful* is what
the phases on nodes take. *helpers* are the CPU seconds of the driver with the programs that
it starts, and of the QPU service during the run, and the largest memory of all of them.
The first result counts from the first job that is submitted; the driver's start before it
is *start-up*. Nodes, cores and the vendor are stood in: Slurm counts cores that the lab
does not have, and Acme's machine (``tests/support/vendor.py``) sleeps.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations, product
from pathlib import Path
from statistics import median
from threading import Event
from typing import Literal, TypeVar, get_args

import dwave.samplers  # noqa: F401  # the vendor imports it with its first job otherwise
import psutil

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.samplers.problem import document
from tests.benchmarks import hybrid, slurm_runs, two_queues_plan
from tests.benchmarks.page import Block, wrapped
from tests.benchmarks.slurm_runs import BIN, RunError
from tests.benchmarks.two_queues_plan import Known
from tests.lab import Lab, running
from tests.support.journals import Event as JournalEvent
from tests.support.lab_conf import Options
from tests.support.lab_supervisor import missing
from tests.support.vendor import Vendor
from tests.support.vendor_machine import KEY
from tests.support.waiting import until

CIRCUITS = 5
PHASE_SECONDS, CIRCUIT_SECONDS = 20.0, 3.0
#: between two questions of every client, ours and theirs, before scaling
POLL_SECONDS = 1.0
#: for which the QPU service keeps the vendor's session without a job, its default
SESSION_SECONDS = 60.0
# of the problem that stands for a circuit
SPINS = 30
PARTITION, QUANTUM = "compute", "quantum"
# more than all cells have at once, so that none waits for another's
NODES = 4
# whose only node is never free
FULL = "full"
OPTIONS = Options(
    nodes=NODES, cpus=1024, site=True, extra=(f"PartitionName={FULL} Nodes=c{NODES}",)
)
PLAIN = "plain"
CONSTANT = ("0", "10", "30", "60")
HEAVY_MEDIAN, HEAVY_SIGMA = 10.0, 1.5

# What runs on the nodes of the ways without a workflow; the standard library alone.
PROGRAM = """\
import json, signal, subprocess, sys, time, urllib.request

mode, file, *rest = sys.argv[1:]
own = json.load(open(file))

def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"X-Acme-Key": own["key"]}
    request = urllib.request.Request(own["url"] + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)

def circuit(booking=""):
    body = {"tag": "", "booking": booking, "h": [1.0], "J": [], "shots": 1, "seed": 1}
    job = call("POST", "/jobs", body)["job"]
    while call("GET", f"/jobs/{job}")["phase"] != "done":
        time.sleep(own["poll"])
    return call("GET", f"/jobs/{job}/spins")

def result(booking=""):
    circuit(booking)
    with open(own["results"], "a") as results:
        print(time.time(), file=results)

def loop(booking=""):
    for _ in range(own["circuits"]):
        time.sleep(own["phase"])
        result(booking)
        time.sleep(own["phase"])

def session(body):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    call("PUT", "/bookings/own")
    try:
        body()
    finally:
        call("DELETE", "/bookings/own")

def scout():
    circuit("own")
    subprocess.run(["scontrol", "release", rest[0]], check=True)
    asked = ["squeue", "-h", "-j", rest[0], "-o", "%T"]
    while subprocess.run(asked, stdout=-1).stdout.strip():
        time.sleep(own["poll"] / 4)

modes = {
    "plain": loop,
    "session": lambda: session(lambda: loop("own")),
    "inside": lambda: loop("own"),
    "scout": lambda: session(scout),
    "circuit": result,
}
modes[mode]()
"""


@dataclass(frozen=True)
class Cell:
    """A run of one way.

    :param queue: the distribution of the wait for the vendor
    """

    queue: str
    cores: int
    way: str
    run: int


@dataclass(frozen=True)
class Figures:
    """What a run has cost, in unscaled seconds.

    :param held: core-seconds of all jobs, by Slurm's accounting
    :param whole: the same in the whole seconds of the accounting
    :param scout: the part of ``held`` that was the scout's
    :param useful: core-seconds of the phases on nodes
    :param first: time to the first result
    :param startup: real seconds from the driver's start to its first job
    :param cpu: real CPU seconds of the driver and what it starts
    :param service: real CPU seconds of the QPU service
    :param mib: largest resident memory of all helpers together
    """

    held: float
    whole: float
    scout: float
    useful: float
    first: float
    makespan: float
    startup: float = 0.0
    cpu: float = 0.0
    service: float = 0.0
    mib: float = 0.0


@dataclass(frozen=True)
class Setting:
    """What is the same for all cells.

    :param waits: the file's, in seconds
    """

    scale: float
    seed: int
    waits: Sequence[float]

    def queue(self, cell: Cell) -> list[float]:
        """Draw the wait of each circuit, in unscaled seconds: those of a run are the same."""
        draws = random.Random(f"{self.seed} {cell.queue} {cell.run}")
        if cell.queue == "heavy":
            mean = math.log(HEAVY_MEDIAN)
            return [draws.lognormvariate(mean, HEAVY_SIGMA) for _ in range(CIRCUITS)]
        if cell.queue == "file":
            return [quantile(self.waits, draws.random()) for _ in range(CIRCUITS)]
        return [float(cell.queue)]


def frustrated_bqm() -> dict[str, JSON]:
    """Return a BQM of which no part can be solved without a sampler."""
    draws = random.Random(1)
    pairs = [*combinations(range(SPINS), 2)]
    couplings = [draws.choice((-1.0, 1.0)) for _ in pairs]
    return document([*range(SPINS)], [0.0] * SPINS, pairs, couplings, "SPIN")


def quantile(values: Sequence[float], share: float) -> float:
    """Interpolate between sorted values."""
    at = share * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def read_waits(file: Path, column: str) -> list[float]:
    """Read a column of a CSV file, sorted.

    :raises SystemExit: if it is not one of seconds
    """
    with open(file, newline="") as lines:
        rows = [*csv.DictReader(lines)]
    try:
        values = sorted(float(row[column]) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        sys.exit(f"{file}: no column {column!r} of seconds: {error}")
    if not values or not all(0 <= value < math.inf for value in values):
        sys.exit(f"{file}: column {column!r}: expected seconds of at least 0")
    return values


@dataclass(frozen=True)
class Allocated:
    """A job in Slurm's accounting, with times to the millisecond."""

    job: int
    name: str
    cores: int
    started: float
    ended: float
    whole: float

    @property
    def core_seconds(self) -> float:
        return self.cores * (self.ended - self.started)


class Trial:
    """One cell on a lab that it shares with others: its vendor, its service, its jobs.

    :param name: of its jobs
    """

    def __init__(
        self, lab: Lab, folder: Path, name: str, cell: Cell, setting: Setting
    ) -> None:
        self.lab = lab
        self.folder = folder
        self.name = name
        self.cell = cell
        self.setting = setting
        self.partition = PARTITION
        self.results = folder / "results"
        self.vendor = Vendor(folder / "vendor")
        self.service: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.journal: list[JournalEvent] = []
        self.jobs: list[Allocated] = []

    def __enter__(self) -> Trial:
        self.sockets = Path(tempfile.mkdtemp(prefix="tq"))
        scale = self.setting.scale
        self.vendor.__enter__()
        self.vendor.set(
            setup=CIRCUIT_SECONDS * scale * 1e6,
            shot=0.0,
            queue_seconds=[one * scale for one in self.setting.queue(self.cell)],
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.service is not None:
            self.service.terminate()
            self.service.wait()
        shutil.rmtree(self.sockets)
        self.vendor.__exit__()

    @property
    def useful(self) -> float:
        return 2 * CIRCUITS * PHASE_SECONDS * self.cell.cores

    # jobs of programs

    def program(self, mode: str, *arguments: str) -> str:
        """Return the command of the program."""
        file = self.folder / "program.py"
        if not file.exists():
            file.write_text(PROGRAM)
            own = {
                "url": self.vendor.url,
                "key": KEY,
                "poll": POLL_SECONDS * self.setting.scale,
                "phase": PHASE_SECONDS * self.setting.scale,
                "circuits": CIRCUITS,
                "results": str(self.results),
            }
            (self.folder / "own.json").write_text(json.dumps(own))
        words = (sys.executable, "-S", "-E", str(file), mode)
        return " ".join([*words, str(self.folder / "own.json"), *arguments])

    def submit(self, command: str, *options: str, cores: int, name: str = "") -> int:
        """Submit a batch job of so many cores."""
        return self.lab.submit(
            f"--job-name={name or self.name}",
            *(
                f"--partition={self.partition}",
                "--ntasks=1",
                f"--cpus-per-task={cores}",
            ),
            *(f"--chdir={self.folder}", f"--output={self.folder}/%j.log"),
            *(*options, self.script(command)),
        )

    def script(self, command: str) -> str:
        file = self.folder / f"{len([*self.folder.glob('*.sh')])}.sh"
        file.write_text(f"#!/bin/sh\nexec {command}\n")
        return str(file)

    # a driver

    def serve(self, *, keeps_session: bool) -> str:
        """Start the QPU service in front of the vendor.

        :returns: its URL
        """
        scale = self.setting.scale
        config: dict[str, JSON] = {
            "device": {
                **{"type": "qpu", "qpu": "acme", "name": "vendor"},
                "config": self.vendor.config,
                "idle_seconds": SESSION_SECONDS * scale if keeps_session else 0.05,
                "poll_seconds": POLL_SECONDS * scale,
            }
        }
        file = self.folder / "service.yml"
        file.write_text(json.dumps(config))
        # a folder with a short path, as those of sockets have to be
        socket = self.sockets / "s"
        words = ["serve", "--config", str(file), "--socket", str(socket)]
        paths = [self.vendor.site(), os.environ.get("PYTHONPATH", "")]
        with open(self.folder / "service.log", "wb") as log:
            self.service = subprocess.Popen(
                [BIN / "sfq", *words, "--state", str(self.folder / "state")],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(socket.exists, "the service's socket")
        self.url = f"unix:{socket}"
        client = Client(self.url, {})

        def ready() -> bool:
            with suppress(QpuError):  # slow on a busy machine
                return client.request("GET", "/v1/health/ready").status == 200
            return False

        until(ready, "the service")
        return self.url

    def write(self, connector: str, config: Mapping[str, JSON], circuit: str) -> Path:
        """Write the StreamFlow file.

        :param circuit: URL of the QPU service; empty for a job on the quantum partition
        """
        phase = f"{PHASE_SECONDS * self.setting.scale:g}"
        shape: dict[str, JSON] = {"jobName": self.name, "ntasks": 1}
        node = {**shape, "partition": self.partition, "cpusPerTask": self.cell.cores}
        services: dict[str, JSON] = {self.name: node}
        others: dict[str, JSON] = {}
        if circuit:
            problem = self.folder / "problem.json"
            problem.write_text(json.dumps({"bqm": frustrated_bqm()}))
            solve = f"sfq solve --problem {problem} --output s.json --reads 10 --seed 1"
            command = f"{solve} && date +%s.%N >>{self.results}"
            rest: JSON = {"url": circuit}
            others["qpu"] = {"type": "sfq.rest", "config": rest, "wraps": "host"}
        else:
            command = self.program("circuit")
            services["qpu"] = {**shape, "partition": QUANTUM, "cpusPerTask": 1}
        return slurm_runs.write(
            self.folder / "run",
            hybrid.CWL,
            {
                "clusterings": [phase],
                "silhouette": phase,
                "quantum": command,
                "iterations": CIRCUITS,
            },
            connector,
            {"services": services, **config},
            {
                "/iterate/cluster": self.name,
                "/iterate/solve": "qpu",
                "/iterate/score": self.name,
            },
            others,
        )

    # figures

    def allocated(self) -> list[Allocated]:
        """Return the jobs of the cell in Slurm's accounting, once all have ended."""

        columns = "JobIDRaw,JobName,AllocCPUS,Start,End"
        command = ("sacct", "-X", "-a", "-n", "-P", "-S", "now-1days", "-o", columns)

        def ended() -> list[list[str]] | None:
            if self.queued():
                return None
            # slurmdbd learns of a job later than the controller's own record has it
            jobs = {job.id for job in self.lab.jobcomp() if self.owns(job.name)}
            text = self.lab.output("env", "SLURM_TIME_FORMAT=%s", *command)
            rows = [line.split("|") for line in text.splitlines()]
            rows = [row for row in rows if self.owns(row[1]) and row[4].isdecimal()]
            return rows if jobs and jobs <= {int(row[0]) for row in rows} else None

        rows = until(ended, f"the accounts of {self.name}")
        started = slurm_runs.moments(self.lab, slurm_runs.STARTED)
        over = slurm_runs.moments(self.lab, slurm_runs.ENDED)
        return [
            Allocated(
                *(int(job), name, int(cores)),
                started=slurm_runs.within(started.get(int(job), []), float(start)),
                ended=slurm_runs.within(over.get(int(job), []), float(end)),
                whole=int(cores) * (float(end) - float(start)),
            )
            for job, name, cores, start, end in rows
            # one that was cancelled before it had nodes
            if int(cores) and start.isdecimal() and int(job) in started
        ]

    def figures(self, began: float, ended: float = 0.0, **more: float) -> Figures:
        """Return the figures, once all jobs have ended.

        :param began: when the first job was submitted
        :param ended: when the last step ended; 0 for the end of the last job
        """
        jobs, scale = self.allocated(), self.setting.scale
        self.jobs = jobs
        results = [*map(float, self.results.read_text().split())]
        scouts = [job.core_seconds for job in jobs if job.name.endswith("-scout")]
        done = self.vendor_phases().count("done")
        if (len(results), done) != (CIRCUITS, CIRCUITS + bool(scouts)):
            raise RunError(f"{self.cell}: {len(results)} results, {done} circuits")
        return Figures(
            held=sum(job.core_seconds for job in jobs) / scale,
            whole=sum(job.whole for job in jobs) / scale,
            scout=sum(scouts) / scale,
            useful=self.useful,
            first=(min(results) - began) / scale,
            makespan=((ended or max(job.ended for job in jobs)) - began) / scale,
            **more,
        )

    def owns(self, job: str) -> bool:
        """Whether a job with this name is of this trial."""
        return self.name in re.split(r"[ -]", job)

    def queued(self) -> int:
        """Return how many of its jobs Slurm has in its queue, or runs."""
        names = self.lab.output("squeue", "-h", "-o", "%j").splitlines()
        return sum(map(self.owns, names))

    def vendor_phases(self) -> list[str]:
        """Return the phases of all jobs at the vendor."""
        counts = self.vendor.counts().values()
        return [phase for count in counts for phase in count.phases]

    def leftovers(self) -> dict[str, int]:
        """Count what is left of a run at Slurm, in the service and at the vendor."""
        live = {"waiting", "running"}
        found = {
            "Slurm jobs": self.queued(),
            "vendor jobs": sum(one in live for one in self.vendor_phases()),
            "sessions": self.vendor.seen("booked"),
        }
        if self.service is not None:
            answer = Client(self.url, {}).request("GET", "/v1/leases")
            found["leases"] = len(json.loads(answer.body))
        return found


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
    """

    connector: str = "sfq.slurm"
    allocation: Mapping[str, JSON] = field(default_factory=dict)
    keeps_session: bool = False

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
        file = trial.write(self.connector, config, url)
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
}


def measure(
    lab: Lab, folder: Path, setting: Setting, cell: Cell, stop: Event
) -> tuple[Figures, Known | None]:
    """Run a cell in a folder of its own.

    :returns: the figures, and what is known of it for predictions of others
    """
    folder.mkdir()
    with Trial(lab, folder, folder.name, cell, setting) as trial:
        figures = WAYS[cell.way].run(trial, stop)
        if not cell.queue.isdecimal():
            return figures, None
        held = [
            slurm_runs.Hold(one.job, one.name, PARTITION, 1, one.started, one.ended)
            for one in trial.jobs
        ]
        run = hybrid.Run([trial.journal], held) if trial.journal else None
        scale = setting.scale
        nodes = figures.held * scale / cell.cores
        wait, wall = float(cell.queue) * scale, figures.makespan * scale
        return figures, Known(cell.way, wait, wall, nodes, run)


def cells(
    queues: Sequence[str], cores: Sequence[int], ways: Sequence[str], run: int
) -> list[Cell]:
    """List the cells of a run, those that wait longest first, no way always first."""
    turn = run % len(ways)
    turned = [*ways[turn:], *ways[:turn]]
    keys = product(reversed(queues), cores, turned)
    return [Cell(queue, size, way, run) for queue, size, way in keys]


def report(results: Mapping[Cell, Figures]) -> list[str]:
    """Format the figures as lines of Markdown: medians, with the least and the most."""
    lines = [
        "| wait, cores | way | core-s | of useful | of plain | waiting | helpers: CPU s, MiB "
        "| first result [s] | makespan [s] |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((one.queue, one.cores, one.way) for one in results)
    for queue, cores, way in sorted(keys, key=_order):
        own = {
            cell.run: figures
            for cell, figures in results.items()
            if (cell.queue, cell.cores, cell.way) == (queue, cores, way)
        }
        ratios = [
            figures.held / plain.held
            for run, figures in own.items()
            if (plain := results.get(Cell(queue, cores, PLAIN, run)))
        ]
        every = [*own.values()]
        helpers = "-"
        if any(one.cpu for one in every):
            helpers = f"{median(one.cpu for one in every):.1f}, "
            helpers += f"{median(one.mib for one in every):.0f}"
        cells = (
            *(f"{queue}, {cores}", way),
            _spread([one.held for one in every], 0),
            f"{median(one.held / one.useful for one in every):.3f}",
            _spread(ratios, 2) if ratios else "-",
            _spread([one.held - one.useful for one in every], 0),
            *(helpers, _spread([one.first for one in every], 1)),
            _spread([one.makespan for one in every], 0),
        )
        lines.append(f"| {' | '.join(cells)} |")
    held, whole = (
        sum(getattr(one, name) for one in results.values())
        for name in ("held", "whole")
    )
    starts = [one.startup for one in results.values() if one.startup]
    text = (
        f"In whole seconds, as sacct prints them, the core-seconds of all cells are "
        f"{100 * whole / held:.1f} % of those of the table."
    )
    if starts:
        text += (
            f" A driver submits its first job {median(starts):.1f} ({min(starts):.1f} to "
            f"{max(starts):.1f}) real seconds after its start."
        )
    return [*lines, "", *wrapped(text)]


def _order(key: tuple[str, int, str]) -> tuple[int, str, int, int]:
    queue, cores, way = key
    length = int(queue) if queue.isdecimal() else sys.maxsize
    return length, queue, cores, [*WAYS].index(way)


def _spread(values: Sequence[float], digits: int) -> str:
    middle, low, high = (f"{one(values):,.{digits}f}" for one in (median, min, max))
    return middle if low == high else f"{middle} ({low} to {high})"


# cancellations

T = TypeVar("T")
R = TypeVar("R")
Moment = Literal[
    "nodes pending", "nodes running", "queued at the vendor", "running at the vendor"
]
MOMENTS: tuple[Moment, ...] = get_args(Moment)
#: before the first job of a driver
START_SECONDS = 2.0
#: of drivers; the first is the user's Ctrl-C
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
#: after a cancellation, until what is there is left over
SETTLE_SECONDS, LATE_SECONDS = 60.0, 3.0


def cancelled(
    trial: Trial, kill: signal.Signals, when: Callable[[], bool]
) -> dict[str, int]:
    """Start a trial, cancel it, and count what is left of it.

    :param when: whether it is time
    """
    way = WAYS[trial.cell.way]
    if isinstance(way, Flow):
        _, driver = way.start(trial)
        with driver:
            until(lambda: when() or driver.poll() is not None, "the moment")
            driver.send_signal(kill)
    else:
        jobs = way.start(trial)
        until(when, "the moment")
        trial.lab.run("scancel", *map(str, jobs))
    with suppress(TimeoutError):
        until(lambda: not any(trial.leftovers().values()), "the end", SETTLE_SECONDS)
    # a request that was under way may arrive late
    time.sleep(LATE_SECONDS)
    return trial.leftovers()


def is_moment(trial: Trial, moment: Moment) -> bool:
    """Whether a trial is at a moment."""
    if moment.endswith("vendor"):
        phase = "waiting" if moment.startswith("queued") else "running"
        return phase in trial.vendor_phases()
    state = moment.removeprefix("nodes ").upper()
    partition = f"--partition={trial.partition}"
    return any(
        trial.owns(name) and own == state
        for name, own in map(
            partial(str.rsplit, maxsplit=1),
            trial.lab.output("squeue", "-h", partition, "-o", "%j %T").splitlines(),
        )
    )


def cancel_at_moments(lab: Lab, folder: Path, setting: Setting, jobs: int) -> list[str]:
    """Cancel each way at each moment, and return the table of what is left."""

    def one(number: int, way: str, moment: Moment) -> dict[str, int]:
        own = folder / f"m{number}"
        own.mkdir()
        with Trial(lab, own, own.name, Cell("30", 4, way, 0), setting) as trial:
            # what is at the vendor stays there, unless somebody cancels it
            if moment == "queued at the vendor":
                trial.vendor.set(queue_seconds=[3600.0])
            elif moment == "running at the vendor":
                trial.vendor.set(queue_seconds=[], setup=3600e6)
            elif moment == "nodes pending":
                trial.partition = FULL
            return cancelled(trial, SIGNALS[0], lambda: is_moment(trial, moment))

    keys = [*product(WAYS, MOMENTS)]
    results = _all(jobs, lambda job: one(job[0], *job[1]), [*enumerate(keys)])
    found = dict(zip(keys, results, strict=True))
    lines = [f"| way | {' | '.join(MOMENTS)} |", f"|---{'|---' * len(MOMENTS)}|"]
    for way in WAYS:
        cells = (_left(found[way, moment]) for moment in MOMENTS)
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def cancel_at_random(
    lab: Lab, folder: Path, setting: Setting, number: int, jobs: int
) -> list[str]:
    """Cancel our ways at random moments, and return what is left."""
    ours = [
        name
        for name, way in WAYS.items()
        if isinstance(way, Flow) and way.connector == "sfq.slurm"
    ]
    longest = setting.scale * CIRCUITS * (2 * PHASE_SECONDS + CIRCUIT_SECONDS + 30)

    def one(index: int) -> dict[str, int]:
        draws = random.Random(f"{setting.seed} cancel {index}")
        own = folder / f"r{index}"
        own.mkdir()
        cell = Cell("30", 4, ours[index % len(ours)], index)
        with Trial(lab, own, own.name, cell, setting) as trial:
            # a part of them waits for nodes in vain
            trial.partition = FULL if draws.random() < 0.1 else PARTITION
            kill, at = draws.choice(SIGNALS), time.monotonic() + draws.uniform(
                0, longest
            )
            left = cancelled(trial, kill, lambda: time.monotonic() > at)
        if any(left.values()):
            print(cell, kill.name, _left(left), file=sys.stderr, flush=True)
        return left

    found = _all(jobs, one, range(number))
    leaked = sum(any(left.values()) for left in found)
    names = lab.output("squeue", "-h", "-o", "%j").splitlines()
    late = len(names) - names.count(slurm_runs.OTHERS)
    return [
        f"{number} cancellations at random moments: {leaked} left something; Slurm has "
        f"{late} of their jobs at the end."
    ]


def _all(jobs: int, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Do all items, some of them in parallel, and begin none after an error."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            return [*pool.map(work, items)]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _left(left: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in left.items() if count) or "0"


@contextmanager
def full_node(lab: Lab) -> Iterator[None]:
    """Keep the node of the partition ``full`` from everybody."""
    words = ("--exclusive", "--output=/dev/null", "--chdir=/", "--wrap", "sleep 86400")
    job = lab.submit(f"--partition={FULL}", f"--job-name={slurm_runs.OTHERS}", *words)
    lab.wait_for(lambda: lab.state(job) == "RUNNING", "the full node")
    try:
        yield
    finally:
        lab.run("scancel", str(job))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--runs", type=int, default=5)
    add("--jobs", type=int, default=6, help="cells side by side")
    add("--scale", type=float, default=0.2, help="real seconds of one second")
    add("--queues", nargs="+", default=[*CONSTANT], help="a number, heavy, file")
    add("--cores", nargs="+", type=int, default=[4])
    add("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    add("--seed", type=int, default=1, help="of the waits")
    add("--queue-file", type=Path, help="CSV file, for the queue named file")
    add("--column", default="avg_qpu_wait_s", help="of that file: seconds")
    add("--cancellations", type=int, help="cancel so many runs at random moments")
    add("--moments", action="store_true", help="cancel each way at four moments")
    add("--json", type=Path, help="a file for all figures")
    add("--page", type=Path, help="a page with a block for the table")
    args = parser.parse_args()
    if "file" in args.queues and args.queue_file is None:
        parser.error("--queues file: needs --queue-file")
    for queue in args.queues:
        if queue not in ("heavy", "file") and not queue.isdecimal():
            parser.error(f"--queues {queue}: expected whole seconds, heavy or file")
    return args


def main() -> None:
    """Print the table."""
    args = _arguments()
    if lacking := missing():
        sys.exit(lacking)
    slurm_runs.heed_sigterm()
    # a shell starts what is in its background with this ignored, also by drivers
    signal.signal(signal.SIGINT, signal.default_int_handler)
    waits = read_waits(args.queue_file, args.column) if args.queue_file else []
    setting = Setting(args.scale, args.seed, waits)
    name = "two_queues"
    with (
        tempfile.TemporaryDirectory(prefix="sfq-tq-") as made,
        running(Path(made) / "lab", OPTIONS) as lab,
    ):
        folder = Path(made)
        if args.moments or args.cancellations:
            name += "_moments" if args.moments else "_cancellations"
            block = Block(args.page, name) if args.page else None
            with full_node(lab):
                lines = (
                    cancel_at_moments(lab, folder, setting, args.jobs)
                    if args.moments
                    else cancel_at_random(
                        lab, folder, setting, args.cancellations, args.jobs
                    )
                )
        else:
            block = Block(args.page, name) if args.page else None
            chosen = [
                cell
                for run in range(args.runs)
                for cell in cells(args.queues, args.cores, args.ways, run)
            ]
            numbers = {cell: number for number, cell in enumerate(chosen)}

            known: list[Known] = []

            def work(cell: Cell, stop: Event) -> Figures:
                own = folder / f"c{numbers[cell]}"
                figures, run = measure(lab, own, setting, cell, stop)
                known.extend([run] if run else [])
                return figures

            load = os.getloadavg()[0]
            results = hybrid.measure_all(chosen, args.jobs, work)
            if args.json:
                found = [asdict(cell) | asdict(one) for cell, one in results.items()]
                args.json.write_text(json.dumps(found, indent=1) + "\n")
            program = two_queues_plan.Program(
                PHASE_SECONDS * args.scale, CIRCUIT_SECONDS * args.scale, CIRCUITS
            )
            lines = [*report(results), ""]
            lines += [*two_queues_plan.table(program, known, args.scale), ""]
            lines += [
                f"Load average: {load:.1f} before, {os.getloadavg()[0]:.1f} after."
            ]
    print(*lines, sep="\n")
    if block:
        block.write(lines)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
