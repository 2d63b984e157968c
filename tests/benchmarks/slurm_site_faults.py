"""A site's Slurm with jobs that cannot start, while its daemons are killed.

    python -m tests.benchmarks.slurm_site_faults [--jobs 100] [--kills 5] [--seed 1]

Five users submit jobs for one QPU, a fifth of which Slurm can never start: wrong memory, nodes,
tasks, gres and features, a partition that is down, a dependency that is never satisfied, a begin
that is hours away, jobs that are held. One of the users has a reservation of the QPU's node for
a part of the time, in which the others' jobs cannot start either. The controller and the QPU's
service are killed at random moments, and so is what asks for leases on the controller's host.

At the end, every job that could start has run, no lease was without nodes for longer than
``LEASE_SECONDS``, no lease of others was held in the reservation, and neither a place nor a file
nor a process is left. It needs root, since the jobs are those of several users.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import psutil

from sf_quantum.files import JSON, listing
from sf_quantum.net.transport import Client, Unreachable
from tests.lab import Lab, running
from tests.support.lab_cluster import LabError
from tests.support.lab_conf import Options
from tests.support.site_daemons import write_site_file
from tests.support.waiting import until

USERS = {
    "daemon": "physics",
    "bin": "physics",
    "sys": "physics",
    "games": "physics",
    "man": "chemistry",
}
# whose account has the reservation
OWNER = "man"
RESERVATION = "beam"
LEASE_SECONDS = 40.0
# for the last job to end after all faults; Slurm defers jobs for up to two minutes
END_SECONDS = 1200.0
# after which Slurm and the plugins have swept what the last job has left
SWEPT_SECONDS = 90.0
# Slurm writes its jobs that often, and a killed controller loses the others
SAVED_SECONDS = 6.0
VQPUS = 2
IMPOSSIBLE: Mapping[str, Sequence[str]] = {
    "memory": ["--mem=900G"],
    "nodes": ["--exclude=q1"],
    "number of nodes": ["--nodes=2"],
    "tasks": ["--ntasks=64"],
    "gres": ["--gres=qpu:9"],
    "feature": ["--constraint=fast"],
    "partition": ["--partition=closed"],
    "partition without the QPU": ["--partition=compute"],
    "dependency": ["--dependency=afterok:{failed}"],
    "begin": ["--begin=now+10hours"],
    "hold": ["--hold"],
}
# how a job may ask, with what it needs beside the QPU
POSSIBLE: Sequence[Sequence[str]] = (
    [],
    ["--mem=100"],
    ["--ntasks=2"],
    ["--exclude=c1"],
    ["--array=0"],
)


class Missed(Exception):
    """What should be so is not."""


@dataclass
class Job:
    """A job as it was submitted.

    :param id: Slurm's; a job that a killed controller has lost is submitted again
    """

    user: str
    words: list[str]
    possible: bool
    id: str = ""
    reserved: bool = False
    submitted: float = field(default_factory=time.time)


class QpuService:
    """``sfq serve`` as a process that is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.socket = folder / "qpu.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["sfq", "serve", "--socket", str(self.socket), "--vqpus", str(VQPUS)]
        words += ["--state", str(self._folder / "service"), "--time-scale", "0"]
        with open(self._folder / "service.log", "ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        until(lambda: self.leases() is not None, "the service", 150)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def leases(self) -> list[dict[str, JSON]] | None:
        """All leases; ``None`` while it does not answer."""
        try:
            response = Client(f"unix:{self.socket}", {}).request(
                "GET", "/v1/leases?closed=true"
            )
        except Unreachable:
            return None
        listed = listing(json.loads(response.body))
        return [lease for lease in listed if isinstance(lease, dict)]


class SiteUnderFaults:
    """The lab, the users' jobs, and the faults."""

    def __init__(self, lab: Lab, folder: Path, chance: random.Random) -> None:
        self.lab = lab
        self.service = QpuService(folder)
        self._folder = folder
        self._runs = folder / "runs"
        self._chance = chance
        self.jobs: list[Job] = []
        self.faults: Counter[str] = Counter()
        self.reservation = math.inf, math.inf
        #: why the reservation could not be deleted, as Slurm says
        self.not_deleted = ""
        #: when the service was down
        self.down: list[tuple[float, float]] = []
        self.refused: Counter[str] = Counter()

    @property
    def state(self) -> Path:
        """The folder of the plugins."""
        return plugins_folder(self.lab)

    def prepare(self) -> None:
        self._runs.mkdir()
        self._runs.chmod(0o777)
        for user, account in USERS.items():
            self.lab.output("sacctmgr", "-i", "add", "user", user, f"account={account}")
        self.lab.output("scontrol", "update", "nodename=c1", "availablefeatures=fast")
        self.lab.output("scontrol", "update", "nodename=c1", "activefeatures=fast")
        self.service.start()

    def submit(self, job: Job) -> None:
        script = (
            f'[ "$qpu_QRMI_JOB_ACQUISITION_TOKEN" ] || exit 9; '
            f"date +%s.%N >>{self._runs}/$SLURM_JOB_ID; sleep "
            f"{self._chance.choice([0.5, 1, 3])}; date +end.%s.%N >>{self._runs}/$SLURM_JOB_ID"
        )
        words = ["sbatch", "--parsable", f"--uid={job.user}", f"--chdir={self._runs}"]
        words += ["--output=/dev/null", "--time=1", "--partition=quantum", "--qpu=qpu"]
        words += [f"--account={USERS[job.user]}", *job.words, "--wrap", script]
        job.id = self.lab.output(*words).split(";")[0]
        job.submitted = time.time()

    def submit_all(self, jobs: list[Job]) -> None:
        for job in jobs:
            try:
                self.submit(job)
            except LabError as error:
                if job.possible:
                    raise
                self.refused[" ".join(job.words)] += 1
                print(f"refused: {error}", file=sys.stderr)
                continue
            self.jobs.append(job)
        time.sleep(SAVED_SECONDS)

    def submit_lost(self) -> None:
        """Submit the jobs again that a killed controller has forgotten."""
        known = set(
            self.lab.output("squeue", "-a", "-h", "-t", "all", "-o", "%A").split()
        )
        for job in self.jobs:
            if job.id not in known and not self.ran(job):
                self.faults["jobs lost by Slurm"] += 1
                self.submit(job)

    def resume_node(self) -> None:
        """Do what an operator does when Slurm drains a node itself.

        A killed controller may have forgotten that a job has run, and starts it again;
        if the node knows it, Slurm drains the node.
        """
        told = self.lab.run("sinfo", "-h", "-n", "q1", "-o", "%T %E").stdout
        if "drain" in told and "Duplicate jobid" in told:
            self.faults["nodes drained by Slurm"] += 1
            self.lab.run("scontrol", "update", "nodename=q1", "state=resume")

    def all_ran(self) -> bool:
        """Whether all jobs that can run have done so."""
        self.resume_node()
        # a controller's last kill is found by Slurm's nodes only a while later
        self.submit_lost()
        self.end_reservation()
        return all(self.ran(job) for job in self.jobs if job.possible)

    def ran(self, job: Job) -> bool:
        """Whether a job has run to its end."""
        with suppress(FileNotFoundError):
            return "end" in (self._runs / job.id).read_text()
        return False

    def runs(self, id_: str) -> list[tuple[float, float]]:
        """When a job has started and ended; one that was killed has no end."""
        try:
            lines = (self._runs / id_).read_text().split()
        except FileNotFoundError:
            return []
        found: list[tuple[float, float]] = []
        for line in lines:
            if line.startswith("end."):
                found[-1] = found[-1][0], float(line.removeprefix("end."))
            else:
                found.append((float(line), math.inf))
        return found

    def strike(self, what: str) -> None:
        """Kill something at a random moment, and start it again."""
        time.sleep(self._chance.uniform(0, 8))
        self.faults[what] += 1
        if what == "controller":
            self.lab.kill_controller()
            time.sleep(self._chance.uniform(0, 2))
            self.lab.start_controller()
        elif what == "service":
            killed = time.time()
            self.service.kill()
            time.sleep(self._chance.uniform(0, 3))
            self.service.start()
            self.down.append((killed, time.time()))
        else:
            kill_plugin(self.lab, what, self._chance)

    def reserve(self) -> None:
        """Give the owner's account the QPU's node until the owner's jobs have run."""
        self.reservation = time.time() + 1, math.inf
        self.lab.output(
            *("scontrol", "create", "reservation", f"reservationname={RESERVATION}"),
            *(f"accounts={USERS[OWNER]}", "nodes=q1", "starttime=now+1"),
            *("duration=60", "flags=ignore_jobs"),
        )

    def end_reservation(self) -> None:
        """End the reservation when it is of no use any more."""
        start, end = self.reservation
        own = [job for job in self.jobs if job.reserved]
        if own and end == math.inf and all(map(self.ran, own)):
            for job in own:
                # one that a killed controller has forgotten would run again in it
                self.lab.run("scancel", job.id)
            deleted = self.lab.run("scontrol", "delete", f"reservation={RESERVATION}")
            self.not_deleted = deleted.stderr
            if deleted.returncode == 0:
                self.reservation = start, time.time()

    def places(self) -> tuple[int, int]:
        """Places that are free, and all that there should be."""
        told = self.lab.output("scontrol", "show", "burst")
        free = re.search(r"PoolName\[0\]=qpu .*FreeSpace=(\d+)", told)
        return int(free[1]) if free else 0, 8

    def files(self) -> list[str]:
        """What the plugins keep of jobs."""
        own = {"watch", "places"}
        return sorted(
            path.name for path in self.state.iterdir() if path.name not in own
        )


def plugins_folder(lab: Lab) -> Path:
    """What the plugins keep of the jobs of a lab with a site."""
    return (lab.folder / "run").resolve() / "private" / "qpu"


def plugin_processes(lab: Lab, action: str = "") -> list[psutil.Process]:
    """What runs of ``sfq slurm`` for a lab."""
    state, running_now = str(plugins_folder(lab)), []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        # not the shell that has started it
        own = "slurm" in words and state in words and Path(words[0]).name != "sh"
        if own and (not action or action in words):
            running_now.append(process)
    return running_now


def kill_plugin(lab: Lab, action: str, chance: random.Random) -> bool:
    """Kill one of the plugins' processes, and return whether there was any."""
    processes = plugin_processes(lab, action)
    if processes:
        with suppress(psutil.NoSuchProcess):
            chance.choice(processes).kill()
    return bool(processes)


def torture(folder: Path, jobs: int, kills: int, seed: int) -> dict[str, JSON]:
    """Run the jobs under faults.

    :param folder: a fresh one
    :param jobs: how many in all
    :param kills: of the controller, of the service, and of the plugins' processes each
    :returns: the figures
    :raises Missed: if one of them is not as it should be
    """
    chance = random.Random(seed)
    folder.chmod(0o755)
    config = write_site_file(folder, f"unix:{folder / 'qpu.sock'}")
    options = Options(
        nodes=1,
        cpus=16,
        qpus=4,
        site=True,
        qrmi_config=str(config),
        extra=("PartitionName=closed Nodes=q1 State=DOWN", "KillWait=1"),
    )
    with running(folder / "lab", options) as lab:
        site = SiteUnderFaults(lab, folder, chance)
        site.prepare()
        try:
            return _tortured(site, jobs, kills, chance)
        finally:
            site.service.kill()


def _tortured(
    site: SiteUnderFaults, jobs: int, kills: int, chance: random.Random
) -> dict[str, JSON]:
    began = time.monotonic()
    waves = _waves(site, jobs, chance)
    strikes = ["controller", "service", "acquire", "watch"] * kills
    chance.shuffle(strikes)
    per_wave = -(-len(strikes) // len(waves))
    for number, wave in enumerate(waves):
        if number == len(waves) // 2:
            site.reserve()
            for job in wave:
                job.reserved = job.user == OWNER and job.possible
                job.words += [f"--reservation={RESERVATION}"] if job.reserved else []
        site.submit_all(wave)
        for _ in range(min(per_wave, len(strikes))):
            site.strike(strikes.pop())
        site.resume_node()
        site.submit_lost()
    possible = [job for job in site.jobs if job.possible]
    try:
        until(site.all_ran, "all to run", END_SECONDS)
    except TimeoutError:
        left = [job for job in possible if not site.ran(job)]
        raise Missed(_about(site, left)) from None
    seconds = time.monotonic() - began
    for user in USERS:
        site.lab.run("scancel", f"--user={user}")
    ended = time.monotonic()
    swept = _swept(site)
    return {
        "seconds": round(seconds, 1),
        "jobs": len(site.jobs) + site.refused.total(),
        "possible": len(possible),
        "ran": sum(map(site.ran, possible)),
        "impossible": len(site.jobs) - len(possible),
        "refused_by_sbatch": site.refused.total(),
        "faults": dict(site.faults),
        "swept_seconds": round(swept - ended, 1),
        **_leases(site),
    }


def _waves(site: SiteUnderFaults, count: int, chance: random.Random) -> list[list[Job]]:
    failed = site.lab.submit(
        "--uid=bin", "--chdir=/tmp", "--output=/dev/null", "--wrap=false"
    )
    users, kinds = list(USERS), list(IMPOSSIBLE)
    jobs = []
    for number in range(count):
        user = users[number % len(users)]
        if number % 5 == 0:
            # of all users in turn
            user = users[number // 5 % len(users)]
            kind = IMPOSSIBLE[kinds[number // 5 % len(kinds)]]
            words = [word.format(failed=failed) for word in kind]
        else:
            words = list(chance.choice(POSSIBLE))
        jobs.append(Job(user, words, number % 5 > 0))
    size = max(5, count // 5)
    return [jobs[first : first + size] for first in range(0, count, size)]


def _swept(site: SiteUnderFaults) -> float:
    """Wait until nothing is left, and return when."""

    def left() -> str:
        free, places = site.places()
        told: list[object] = []
        if free < places:
            told.append(f"{places - free} places")
        told += site.files()
        held = [one for one in site.service.leases() or [] if one["held"]]
        told += [f"lease of job {one['slurm_job_id']}" for one in held]
        processes = plugin_processes(site.lab)
        asking = [one for one in processes if "watch" not in one.cmdline()]
        told += [" ".join(one.cmdline()[:6]) for one in asking]
        return ", ".join(map(str, told))

    deadline = time.monotonic() + SWEPT_SECONDS
    while what := left():
        if time.monotonic() > deadline:
            raise Missed(f"left: {what}")
        time.sleep(0.5)
    return time.monotonic()


def _leases(site: SiteUnderFaults) -> dict[str, JSON]:
    """Compare the leases with the runs of the jobs.

    A service that is down takes no lease back, and grants none.
    """
    leases = site.service.leases() or []
    leases.sort(key=lambda lease: float(str(lease["opened"])))
    unused, others, first = 0, [0.0], dict[str, float]()
    idle = [(0.0, "no lease")]
    for lease in leases:
        opened, closed = float(str(lease["opened"])), float(str(lease["closed"]))
        job = str(lease["slurm_job_id"])
        first.setdefault(job, opened)
        without = [(opened, closed)]
        for run in site.runs(job):
            without = minus(without, run)
        unused += without == [(opened, closed)]
        without = minus(without, *site.down)
        idle += [
            (end - start, f"of job {job}, from {start:.1f} to {end:.1f}")
            for start, end in without
        ]
        if lease["user"] != OWNER:
            reserved = _within(without, site.reservation)
            others.append(sum(end - start for start, end in reserved))
    waits = [0.0]
    for one in site.jobs:
        if one.reserved and one.id in first:
            wait = [(one.submitted, first[one.id])]
            wait = minus(wait, *site.down)
            waits.append(sum(end - start for start, end in wait))
    longest, which = max(idle)
    if longest > LEASE_SECONDS:
        raise Missed(f"a lease was without nodes for {longest:.1f} s: {which}")
    return {
        "leases": len(leases),
        "leases_without_a_run": unused,
        "longest_lease_without_nodes_seconds": round(longest, 1),
        "others_leases_without_nodes_in_the_reservation_seconds": round(max(others), 1),
        "owners_jobs_in_the_reservation": sum(job.reserved for job in site.jobs),
        "owners_longest_wait_for_a_lease_seconds": round(max(waits), 1),
        "service_down_seconds": round(sum(end - at for at, end in site.down), 1),
    }


Interval: TypeAlias = "tuple[float, float]"


def minus(intervals: list[Interval], *others: Interval) -> list[Interval]:
    """Return what of intervals is in none of the others."""
    for low, high in others:
        cut = [(start, min(end, low)) for start, end in intervals]
        cut += [(max(start, high), end) for start, end in intervals]
        intervals = [(start, end) for start, end in cut if start < end]
    return intervals


def _within(intervals: list[Interval], other: Interval) -> list[Interval]:
    cut = [(max(start, other[0]), min(end, other[1])) for start, end in intervals]
    return [(start, end) for start, end in cut if start < end]


def _about(site: SiteUnderFaults, jobs: list[Job]) -> str:
    told = [f"{len(jobs)} jobs did not run; files {site.files()}"]
    told += [site.lab.run("scontrol", "show", "job", job.id).stdout for job in jobs[:3]]
    told += [site.lab.output("scontrol", "show", "burst")]
    if site.not_deleted:
        told += [f"the reservation stays: {site.not_deleted}"]
        told += [site.lab.output("squeue", "--all", "--format=%A %u %T %v %r %k")]
    return "\n".join(told)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="sfq-site-") as temporary:
        yield Path(temporary)


def main() -> None:
    """Print the figures, as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, help="a fresh folder, to look at afterwards"
    )
    args = parser.parse_args()
    if os.getuid() != 0:
        sys.exit("it needs root, for the jobs of several users")
    with _folder(args.keep) as folder:
        try:
            print(json.dumps(torture(folder, args.jobs, args.kills, args.seed)))
        except Missed as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
