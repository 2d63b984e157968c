"""A trial of ``two_queues`` on a lab: its program, its vendor, its service and its jobs."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import dwave.samplers  # noqa: F401  # the vendor imports it with its first job otherwise

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.samplers.problem import document
from tests.benchmarks import hybrid, slurm_runs
from tests.benchmarks.slurm_runs import BIN, RunError
from tests.lab import Lab
from tests.support import lab_site
from tests.support.journals import Event as JournalEvent
from tests.support.lab_conf import Options
from tests.support.plugin_site import USER
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
    nodes=NODES,
    qnodes=2,
    cpus=1024,
    site=True,
    extra=(f"PartitionName={FULL} Nodes=q2",),
)
PLAIN = "plain"
CONSTANT = ("0", "10", "30", "60")
HEAVY_MEDIAN, HEAVY_SIGMA = 10.0, 1.5

#: seconds on the nodes for which a classical method takes the place of a circuit
CLASSICAL_SECONDS = 25.0

# What runs on the nodes of the ways without a workflow; the standard library alone, but of a
# malleable program.
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

def result(booking="", around=circuit):
    around(booking)
    with open(own["results"], "a") as results:
        print(time.time(), file=results)

seeds = iter(range(own["circuits"]))

def solved(booking):
    # under one lease, the same job again would be answered at once
    subprocess.run([*own["solve"], "--seed", str(next(seeds))], check=True)

def loop(booking="", around=result):
    for _ in range(own["circuits"]):
        time.sleep(own["phase"])
        around(booking)
        time.sleep(own["phase"])

def offloaded(booking):
    from sf_quantum import qpu
    with qpu.offload(keep=1):
        result(booking)

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
    "malleable": lambda: loop(around=offloaded),
    "session": lambda: session(lambda: loop("own")),
    "inside": lambda: loop("own"),
    "scout": lambda: session(scout),
    "leased": lambda: loop(around=lambda booking: result(booking, solved)),
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


def service_socket(folder: Path) -> Path:
    """Return the socket of a trial's service, whose path has to be short."""
    return folder.with_suffix(".sock")


def with_qpus(folder: Path, names: Sequence[str]) -> Options:
    """Return what a lab is made of whose plugins know a QPU for each of some trials.

    :param folder: of all trials, which the user of their jobs may read from here on
    :param names: of these trials
    """
    if not names:
        return OPTIONS
    folder.chmod(0o755)
    resources: list[JSON] = [
        {
            "name": name,
            "type": "sfq",
            "environment": {"SFQ_URL": f"unix:{service_socket(folder / name)}"},
        }
        for name in names
    ]
    file = folder / "qrmi_config.json"
    file.write_text(json.dumps({"resources": resources}))
    return replace(OPTIONS, qrmi_config=str(file))


def add_user(lab: Lab) -> None:
    """Add the user of jobs with burst buffers to an account.

    :raises SystemExit: if this user cannot run what runs here
    """
    lab.run("sacctmgr", "-i", "add", "user", USER, f"account={lab_site.ACCOUNTS[0]}")
    user = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups")
    # setpriv itself still may execute what root may
    python = ("sh", "-c", 'exec "$0" -c "import sf_quantum"', sys.executable)
    if os.getuid() == 0 and lab.run(*user, *python).returncode != 0:
        sys.exit(
            f"user {USER}, as whom root runs the ways of the site's plugins, cannot run "
            f"{sys.executable}: use a Python and a clone that everybody may read"
        )


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
        # of the jobs that hold further nodes of a malleable one
        self._names: set[str] = set()
        #: when the first job of a program was submitted
        self.began = 0.0

    def __enter__(self) -> Trial:
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
                "solve": self.solve(),
            }
            (self.folder / "own.json").write_text(json.dumps(own))
        bare = () if mode == "malleable" else ("-S", "-E")
        words = (sys.executable, *bare, str(file), mode)
        return " ".join([*words, str(self.folder / "own.json"), *arguments])

    def submit(self, command: str, *options: str, cores: int, name: str = "") -> int:
        """Submit a batch job of so many cores, on one node unless the options have more."""
        self.began = self.began or time.time()
        job = self.lab.submit(
            f"--job-name={name or self.name}",
            *(f"--partition={self.partition}", "--ntasks-per-node=1"),
            f"--cpus-per-task={cores}",
            *(f"--chdir={self.folder}", f"--output={self.folder}/%j.log"),
            *(*options, self.script(command)),
        )
        self._names.add(f"sfq-nodes-{job}")
        return job

    def solve(self) -> list[str]:
        """Return the command of a circuit that goes through the QPU service."""
        problem = self.folder / "problem.json"
        problem.write_text(json.dumps({"bqm": frustrated_bqm()}))
        words = ["solve", "--problem", str(problem), "--output", "s.json"]
        return [str(BIN / "sfq"), *words, "--reads", "10"]

    def admit(self) -> list[str]:
        """Let the user of jobs with burst buffers, whom root has not, use the folder.

        :returns: the options of such a job
        """
        self.folder.chmod(0o777)
        service_socket(self.folder).chmod(0o666)
        options = [f"--qpu={self.name}"]
        return [*options, f"--uid={USER}"] if os.getuid() == 0 else options

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
        socket = service_socket(self.folder)
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

    def write(
        self,
        connector: str,
        config: Mapping[str, JSON],
        circuit: str,
        candidate: Mapping[str, JSON] | None = None,
    ) -> Path:
        """Write the StreamFlow file.

        :param circuit: URL of the QPU service; empty for a job on the quantum partition
        :param candidate: settings of the filter, if circuits may also run on nodes
        """
        phase = f"{PHASE_SECONDS * self.setting.scale:g}"
        shape: dict[str, JSON] = {"jobName": self.name, "ntasks": 1}
        node = {**shape, "partition": self.partition, "cpusPerTask": self.cell.cores}
        services: dict[str, JSON] = {self.name: node}
        others: dict[str, JSON] = {}
        if circuit:
            solve = " ".join([*self.solve(), "--seed", "1"])
            seconds = CLASSICAL_SECONDS * self.setting.scale
            classical = f"touch {self.folder}/classical-$$ && sleep {seconds:g}"
            method = f'{{ if [ -n "$QRMI_JOB_QPU_RESOURCES" ]; then {solve}; else {classical}; fi; }}'
            command = f"{method} && date +%s.%N >>{self.results}"
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
                "/iterate/solve": "qpu" if candidate is None else ["qpu", self.name],
                "/iterate/score": self.name,
            },
            others,
            candidate,
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
        # The accounting has a job that gives nodes back once with each number of them.
        for job, times in slurm_runs.moments(self.lab, slurm_runs.SHRUNK).items():
            for found in (started, over):
                found.setdefault(job, []).extend(times)
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
        classical = len([*self.folder.glob("classical-*")])
        due = CIRCUITS + bool(scouts) - classical
        if (len(results), done) != (CIRCUITS, due):
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
        return job in self._names or self.name in re.split(r"[ -]", job)

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
