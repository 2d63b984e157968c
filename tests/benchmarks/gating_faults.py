"""Each way to hold nodes only with a QPU, while what it is made of is killed.

    python -m tests.benchmarks.gating_faults [--way plugins gate licenses lease flux pbs]
                                             [--kills 50] [--seed 1]

A user keeps some jobs in the queue of a lab, each of which needs a QPU: a service with a
vendor's QPU behind it. Meanwhile the batch system's controller, the service, the vendor and what the way
itself consists of are killed (SIGKILL) at random moments, each as often, and started again. The
user submits a job again if it has failed, or if a killed controller has forgotten it.

- ``plugins``: the burst buffer of ``deployments/slurm``; killed are what asks for leases and the
  watch on the controller's host
- ``gate``: held jobs, and ``sfq slurm gate``
- ``licenses``: licensed jobs that lease in their script, and ``sfq slurm licenses``
- ``lease``: ``sfq lease -- sbatch-leased.sh``; killed are all its processes, as with its login
  node, on which the other ways have none
- ``flux``: held jobs of a Flux instance, and ``sfq flux gate``; killed are all its brokers, as
  with the power of their machines
- ``pbs``: jobs of OpenPBS that request the QPU, and ``sfq pbs gate``; killed are also the
  scheduler, MOM, which runs the jobs on the node, and the communication daemon between them

In the end, each job has succeeded with samples, each failure had a reason, no lease is held, and
the vendor has no job that is not over. The figures are the longest times in which nodes were
allocated without a lease, or the other way around, without those in which the service was down.
It needs root for ``plugins``, whose jobs are another user's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from sf_quantum.files import JSON
from sf_quantum.service.store.store import Store
from tests.benchmarks.crashes import KilledService
from tests.benchmarks.slurm_site_faults import Interval, Missed, kill_plugin, minus
from tests.lab import Lab, running
from tests.support import flux_instance, pbs_lab
from tests.support.flux_instance import FluxInstance
from tests.support.folders import ROOT
from tests.support.lab_conf import Options
from tests.support.pbs_lab import PbsLab
from tests.support.service import example_bqm
from tests.support.service_process import SFQ
from tests.support.site_daemons import write_site_file
from tests.support.vendor import VendorProcess
from tests.support.waiting import until

SLURM_WAYS = ("plugins", "gate", "licenses", "lease")
WAYS = (*SLURM_WAYS, "flux", "pbs")
# Slurm takes no burst buffers from root.
USER, ACCOUNT = "daemon", "physics"
VQPUS = 2
OPEN = 4
# The longest pause between two strikes, and the longest until what was killed is started again.
PAUSE_SECONDS, AWAY_SECONDS = 3.0, 2.0
# The last jobs have this long to end after all strikes; Slurm defers jobs for up to two minutes.
END_SECONDS = 900.0
SWEPT_SECONDS = 120.0
SERVICE = "import sys; from sf_quantum.cli import main; sys.exit(main(sys.argv[2:]))"
# A lease whose holder is killed ends after this time.
IDLE_SECONDS = 10.0
# A job notes its start, its lease, and its end with the exit code of its program.
SCRIPT = """#!/bin/sh
run={runs}/{name}.${{SLURM_JOB_ID:-0$FLUX_JOB_ID$PBS_JOBID}}
echo start $(date +%s.%N) >>$run
{lease} sh -c 'echo lease $qpu_QRMI_JOB_ACQUISITION_TOKEN >>'$run';
  {sfq} solve --problem {problem} --reads 10 --output {runs}/{name}.json; code=$?
  sleep {seconds}; exit $code'
code=$?
echo end $(date +%s.%N) $code >>$run
exit $code
"""


@dataclass
class Run:
    """What a job has noted: times since the epoch."""

    started: float
    ended: float | None = None
    code: int | None = None
    lease: str | None = None


@dataclass
class Job:
    """A job of the user's.

    :param id: of its last submission, in the batch system; unknown to who submits by ``sfq lease``
    :param submitting: the user's process, where it waits for the job's end
    """

    name: str
    id: str = ""
    submitting: subprocess.Popen[bytes] | None = None
    submissions: int = 0
    done: bool = False


class Trial(ABC):
    """A batch system with one way, its jobs and its faults."""

    def __init__(self, way: str, folder: Path, seed: int) -> None:
        self.way, self._folder = way, folder
        self._draws = random.Random(seed)
        self._runs = folder / "runs"
        self._runs.mkdir()
        self._runs.chmod(0o777)
        self._problem = folder / "problem.json"
        self._problem.write_text(json.dumps({"bqm": example_bqm()}))
        self._daemon: subprocess.Popen[bytes] | None = None
        #: Options that select the QPU.
        self.qpu = f"--qrmi-config {folder / 'qrmi_config.json'} --qpu qpu"
        self.jobs: list[Job] = []
        self.kills: Counter[str] = Counter()
        #: why jobs were submitted again
        self.failures: Counter[str] = Counter()
        self.by_operator: Counter[str] = Counter()
        self.down: list[Interval] = []

    def serve(self, opened: ExitStack) -> None:
        """Start the vendor, the service and the daemon of the way."""
        (self._folder / "acme").mkdir()
        self.vendor = opened.enter_context(VendorProcess(self._folder / "acme"))
        device: dict[str, JSON] = {
            **{"type": "qpu", "qpu": "acme", "name": "one"},
            **{"config": self.vendor.config, "poll_seconds": 0.1},
            **{"refresh_seconds": 0.5, "late_seconds": 0.5},
        }
        leases: dict[str, JSON] = {"idle_seconds": IDLE_SECONDS}
        config: dict[str, JSON] = {"device": device, "vqpus": VQPUS, "leases": leases}
        environment = {"PYTHONPATH": self.vendor.site()}
        self.service = KilledService(
            self._folder, SERVICE, config, environment=environment
        )
        opened.callback(self.service.kill)
        self._start_service()
        if "daemon" in self.parts:
            self._start_daemon()
            opened.callback(self._kill_daemon)

    def _start_service(self) -> None:
        self.service.start()
        self.service.listens()
        Path(self.service.url.removeprefix("unix:")).chmod(0o666)

    def _start_daemon(self) -> None:
        words = [*SFQ, *self.daemon, "--state", str(self._folder / "state")]
        words += ["--qrmi-config", str(self._folder / "qrmi_config.json")]
        with open(self._folder / "daemon.log", "ab") as log:
            self._daemon = subprocess.Popen(
                [*words, "--qpu", "qpu"], env=self.environment, stdout=log, stderr=log
            )

    def _kill_daemon(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The variables by which commands reach the batch system."""

    @property
    def daemon(self) -> list[str]:
        """The arguments of ``sfq`` for the daemon."""
        return ["slurm", self.way]

    @abstractmethod
    def kill_controller(self) -> None:
        """Kill what schedules."""

    @abstractmethod
    def start_controller(self) -> None:
        """Start it again."""

    def kill_other(self, part: str) -> bool:
        """Kill another part, and return whether there was one."""
        raise NotImplementedError(part)

    @abstractmethod
    def operate(self) -> None:
        """Do what an operator has to do."""

    @abstractmethod
    def queued(self) -> set[str] | None:
        """Return the jobs that wait or run, if the controller answers."""

    @abstractmethod
    def queue(self, job: Job, script: Path, out: Path) -> None:
        """Submit a job."""

    @abstractmethod
    def fate(self, job: Job) -> str | None:
        """Return why a job that is not queued has not ended by itself, if that is known."""

    @abstractmethod
    def jobs_shown(self) -> str:
        """Return the queue, for the error."""

    @property
    def parts(self) -> list[str]:
        """What is killed."""
        own = {
            "plugins": ["acquire", "watch"],
            "lease": ["login node"],
            "pbs": ["daemon", "pbs_sched", "pbs_mom", "pbs_comm"],
        }
        return ["controller", "service", "vendor", *own.get(self.way, ["daemon"])]

    def strike(self, part: str) -> None:
        """Kill something at a random moment, and start it again."""
        self.go_on(self._draws.uniform(0, PAUSE_SECONDS))
        away = self._draws.uniform(0, AWAY_SECONDS)
        if part == "controller":
            self.kill_controller()
            time.sleep(away)
            self.start_controller()
        elif part == "service":
            killed = time.time()
            self.service.kill()
            time.sleep(away)
            self._start_service()
            self.down.append((killed, time.time()))
        elif part == "vendor":
            killed = time.time()
            self.vendor.kill()
            time.sleep(away)
            self.vendor.start()
            self.down.append((killed, time.time()))
        elif part == "daemon":
            self._kill_daemon()
            time.sleep(away)
            self._start_daemon()
        elif part == "login node":
            waiting = [job for job in self.jobs if job.submitting is not None]
            if not waiting:
                return
            _kill_tree(self._draws.choice(waiting).submitting)
        elif not self.kill_other(part):
            return
        self.kills[part] += 1

    def go_on(self, seconds: float, *, last: bool = False) -> bool:
        """Be the user for a time: submit jobs, and those again that have not succeeded.

        :param last: submit no new ones
        :returns: whether all have succeeded
        """
        end = time.monotonic() + seconds
        while True:
            self.operate()
            queued = self.queued()
            for job in self.jobs:
                if not job.done and (why := self._failure(job, queued)):
                    self.failures[why] += 1
                    self._submit(job)
            unfinished = sum(not job.done for job in self.jobs)
            if not last and unfinished < OPEN:
                self.jobs.append(Job(f"job{len(self.jobs)}"))
                self._submit(self.jobs[-1])
            if time.monotonic() > end or (last and not unfinished):
                return not unfinished
            time.sleep(0.2)

    def _submit(self, job: Job) -> None:
        job.submissions += 1
        sfq = SFQ[0]
        qpu = self.qpu
        lease = {
            "plugins": f"{sfq} lease --held --",
            "gate": f"{sfq} lease --held {qpu} --",
            "flux": f"{sfq} lease --held {qpu} --",
            "pbs": f"{sfq} lease --held {qpu} --",
            "licenses": f"{sfq} lease {qpu} --",
            "lease": f"{sfq} lease --held --",
        }[self.way]
        script = self._folder / f"{job.name}.sh"
        script.write_text(
            SCRIPT.format(
                runs=self._runs,
                name=f"{job.name}.{job.submissions}",
                lease=lease,
                sfq=sfq,
                problem=self._problem,
                seconds=self._draws.choice([0, 0.5, 2]),
            )
        )
        script.chmod(0o755)
        self.queue(job, script, self._runs / f"{job.name}.{job.submissions}.out")

    def _failure(self, job: Job, queued: set[str] | None) -> str | None:
        """Look how a job goes, and return why it is to be submitted again.

        :raises Missed: if it has succeeded without samples, or failed without a reason
        """
        name = f"{job.name}.{job.submissions}"
        if self.way == "lease":
            assert job.submitting
            if (code := job.submitting.poll()) is None:
                return None
            job.submitting = None
            said = (self._folder / f"{job.name}.log").read_text()
            if code == -signal.SIGKILL:
                return "its login node was killed"
            return self._ended(job, name, code, said)
        for run in self.runs(name):
            if run.ended is not None and run.code is not None:
                said = (self._runs / f"{name}.out").read_text()
                return self._ended(job, name, run.code, said)
        if queued is None or job.id in queued:
            return None
        # it has ended meanwhile
        if any(run.ended is not None for run in self.runs(name)):
            return None
        return self.fate(job)

    def _ended(self, job: Job, name: str, code: int, said: str) -> str | None:
        output = self._runs / f"{name}.json"
        if code == 0:
            if not output.exists() or not json.loads(output.read_text()):
                raise Missed(f"{name} has succeeded without samples: {said}")
            job.done = True
            return None
        lines = said.strip().splitlines()
        if not lines:
            raise Missed(f"{name} has failed with {code}, without a reason")
        return re.sub(r"\d[\d.]*", "N", f"{code}: {lines[-1]}")

    def runs(self, name: str) -> list[Run]:
        """What the runs of a submission have noted."""
        runs = list[Run]()
        for file in sorted(self._runs.glob(f"{name}.[0-9]*")):
            for line in file.read_text().splitlines():
                kind, *values = line.split()
                if kind == "start":
                    runs.append(Run(float(values[0])))
                elif kind == "lease" and values:
                    runs[-1].lease = values[0]
                elif kind == "end":
                    runs[-1].ended, runs[-1].code = float(values[0]), int(values[1])
        return runs

    def swept(self) -> float:
        """Wait until no lease is held, and return the seconds.

        :raises Missed: if one stays
        """
        began = time.monotonic()
        held: list[str] = []

        def none() -> bool:
            answer = self.service.ask("GET", "/v1/leases?closed=true")
            held[:] = [
                lease["id"] for lease in json.loads(answer.body) if lease["held"]
            ]
            return not held

        try:
            until(none, "no lease", SWEPT_SECONDS)
        except TimeoutError:
            raise Missed(f"leases are left: {held}") from None
        return time.monotonic() - began

    def figures(self) -> dict[str, JSON]:
        """Compare the leases with the runs of the jobs, after the service has ended."""
        store = Store(self.service.state / "service.sqlite")
        try:
            leases = {one.id: one for one in store.leases.latest(limit=1_000_000)}
            tags = {job.id: job.state for job in store.jobs.latest(limit=1_000_000)}
        finally:
            store.close()
        for tag, count in self.vendor.counts().items():
            if count.ran > 1 or count.phases[-1] not in ("done", "stopped"):
                raise Missed(f"the vendor has run {tag} as {count}")
        runs = [
            run
            for job in self.jobs
            for number in range(1, job.submissions + 1)
            for run in self.runs(f"{job.name}.{number}")
        ]
        bare, unused = [0.0], [0.0]
        for run in runs:
            if run.ended is not None and run.lease in leases:
                lease = leases[run.lease]
                held = (lease.opened, lease.closed or time.time())
                bare += _lengths(minus([(run.started, run.ended)], held, *self.down))
        for lease in leases.values():
            own = [
                (run.started, run.ended or run.started)
                for run in runs
                if run.lease == lease.id
            ]
            held = (lease.opened, lease.closed or time.time())
            unused += _lengths(minus([held], *own, *self.down))
        return {
            "way": self.way,
            "kills": dict(self.kills),
            "jobs": len(self.jobs),
            "submissions": sum(job.submissions for job in self.jobs),
            "again": dict(self.failures.most_common()),
            "by_operator": dict(self.by_operator),
            "leases": len(leases),
            "qpu_jobs": len(tags),
            "longest_nodes_without_lease_seconds": round(max(bare), 1),
            "longest_lease_without_nodes_seconds": round(max(unused), 1),
        }


class SlurmTrial(Trial):
    """A lab of Slurm."""

    def __init__(self, way: str, lab: Lab, folder: Path, seed: int) -> None:
        super().__init__(way, folder, seed)
        self._lab = lab

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self._lab.environment}

    def kill_controller(self) -> None:
        self._lab.kill_controller()

    def start_controller(self) -> None:
        self._lab.start_controller()

    def kill_other(self, part: str) -> bool:
        return kill_plugin(self._lab, part, self._draws)

    def operate(self) -> None:
        """Undo what Slurm does if a killed controller starts a job again that a node knows."""
        shown = self._lab.run("sinfo", "-h", "-n", "q1", "-o", "%T %E").stdout
        if "drain" in shown:
            self.by_operator["node drained"] += 1
            self._lab.run("scontrol", "update", "nodename=q1", "state=resume")
        shown = self._lab.run("squeue", "-h", "-o", "%A %r").stdout
        # so says a controller that is started again, and of the jobs that wait for a gate
        reasons = "launch failed requeued held"
        reasons += "" if self.way == "gate" else "|JobHeldUser"
        for job in re.findall(f"(?m)^(.*) (?:{reasons})$", shown):
            self.by_operator["job held"] += 1
            self._lab.run("scontrol", "release", job)

    def queued(self) -> set[str] | None:
        listed = self._lab.run("squeue", "-h", "-o", "%A")
        return {*listed.stdout.split()} if listed.returncode == 0 else None

    def queue(self, job: Job, script: Path, out: Path) -> None:
        words = [f"--output={out}", "--partition=quantum", "--time=5"]
        if self.way == "lease":
            command = [*SFQ, "lease", *self.qpu.split(), "--"]
            command += [str(ROOT / "deployments/slurm/sbatch-leased.sh"), *words]
            with open(self._folder / f"{job.name}.log", "wb") as log:
                job.submitting = subprocess.Popen(
                    [*command, str(script)],
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            return
        words += {
            "plugins": [
                *(f"--uid={USER}", f"--account={ACCOUNT}", "--qpu=qpu"),
                f"--chdir={self._runs}",
            ],
            "gate": ["--hold", "--comment=qpu=qpu"],
            "licenses": ["--licenses=qpu:1"],
        }[self.way]

        job.id = str(self._lab.submit(*words, str(script)))

    def fate(self, job: Job) -> str | None:
        shown = self._lab.run("scontrol", "-o", "show", "job", job.id)
        if "slurm_load_jobs" in shown.stderr and "Invalid job id" in shown.stderr:
            return "a killed controller has forgotten it"
        if state := re.search(r"JobState=(\w+) Reason=(\S+)", shown.stdout):
            return f"Slurm: {state[1]} {state[2]}"
        return None

    def jobs_shown(self) -> str:
        return self._lab.run("squeue", "-o", "%A %j %T %r").stdout


class FluxTrial(Trial):
    """An instance of Flux."""

    def __init__(self, instance: FluxInstance, folder: Path, seed: int) -> None:
        super().__init__("flux", folder, seed)
        self._instance = instance
        # lines of Flux's log on which the operator has acted
        self._refusals = set[str]()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self._instance.environment}

    @property
    def daemon(self) -> list[str]:
        return ["flux", "gate"]

    def kill_controller(self) -> None:
        self._instance.kill()

    def start_controller(self) -> None:
        self._instance.start()

    def operate(self) -> None:
        """Cancel a job that takes Flux's scheduler offline, and load the scheduler again.

        Flux records the resources of a job before the event of their allocation. If the
        brokers are killed in between, the restarted Flux refuses to allocate resources to
        the job, and allocates none to other jobs either (flux-core, issue 6059).
        """
        log = self._instance.run("dmesg").stdout
        for line in re.findall("(?m)^.* already allocated$", log):
            if line not in self._refusals and (job := re.search(r"id=(\S+)", line)):
                self._refusals.add(line)
                self.by_operator["job cancelled, scheduler loaded again"] += 1
                self._instance.run("cancel", job[1])
                self._instance.run("module", "reload", "sched-simple")

    def queued(self) -> set[str] | None:
        listed = self._instance.run("jobs", "--count=0", "-no", "{id.f58plain}")
        return {*listed.stdout.split()} if listed.returncode == 0 else None

    def queue(self, job: Job, script: Path, out: Path) -> None:
        words = ["--urgency=hold", "--setattr=sfq.qpu=qpu", "--time-limit=5m"]
        words.append(f"--output={out}")
        job.id = self._instance.output("submit", *words, str(script))

    def fate(self, job: Job) -> str | None:
        shown = self._instance.run("jobs", "-ano", "{result} {returncode}", job.id)
        if "unknown" in shown.stderr or not shown.stdout:
            return "a killed controller has forgotten it"
        return f"Flux: {shown.stdout.strip()}"

    def jobs_shown(self) -> str:
        # A job that is not held may still wait for nodes, or for the scheduler itself.
        shown = (("jobs", "-a"), ("resource", "status"), ("module", "list"), ("dmesg",))
        return "\n".join(self._instance.run(*words).stdout for words in shown)


class PbsTrial(Trial):
    """A lab of OpenPBS."""

    def __init__(self, lab: PbsLab, folder: Path, seed: int) -> None:
        super().__init__("pbs", folder, seed)
        self._lab = lab

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self._lab.environment}

    @property
    def daemon(self) -> list[str]:
        return ["pbs", "gate"]

    def kill_controller(self) -> None:
        self._lab.kill("pbs_server")

    def start_controller(self) -> None:
        self._lab.start("pbs_server")
        self._lab.wait_until_it_answers()

    def kill_other(self, part: str) -> bool:
        self._lab.kill(part)
        time.sleep(self._draws.uniform(0, AWAY_SECONDS))
        self._lab.start(part)
        return True

    def operate(self) -> None:
        """Release what PBS holds after too many attempts to start it."""
        for job in self._lab.run("qselect", "-h", "s").stdout.split():
            self.by_operator["job held"] += 1
            self._lab.run("qrls", "-h", "s", job)

    def queued(self) -> set[str] | None:
        listed = self._lab.run("qselect")
        ids = (id_.partition(".")[0] for id_ in listed.stdout.split())
        return {*ids} if listed.returncode == 0 else None

    def queue(self, job: Job, script: Path, out: Path) -> None:
        # MOM writes the output there immediately.
        output = ("-k", "doe", "-j", "oe", "-o", str(out), "-S", "/bin/sh")
        limits = ("-l", "qpu=qpu", "-l", "walltime=300")
        job.id = self._lab.submit(*output, *limits, str(script))

    def fate(self, job: Job) -> str | None:
        shown = self._lab.run("qstat", "-x", "-f", job.id)
        if "Unknown Job Id" in shown.stderr:
            return "a killed controller has forgotten it"
        if status := re.search(r"Exit_status = (\S+)", shown.stdout):
            return f"PBS: exit status {status[1]}"
        return None

    def jobs_shown(self) -> str:
        return self._lab.run("qstat", "-f").stdout


def _kill_tree(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a session's processes, as if their machine had lost its power."""
    assert process
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()


def _lengths(intervals: list[Interval]) -> Iterator[float]:
    return (end - start for start, end in intervals)


@contextmanager
def _trial(way: str, seed: int) -> Iterator[Trial]:
    # short paths: a socket's has at most 107 bytes
    with ExitStack() as opened:
        temporary = tempfile.TemporaryDirectory(prefix="sfq-gating-")
        folder = Path(opened.enter_context(temporary))
        folder.chmod(0o755)
        config = write_site_file(folder, f"unix:{folder / 's'}")
        if way in ("flux", "pbs"):
            if way == "flux":
                instance = opened.enter_context(flux_instance.running(folder))
                trial: Trial = FluxTrial(instance, folder, seed)
            else:
                lab_ = opened.enter_context(pbs_lab.running())
                trial = PbsTrial(lab_, folder, seed)
            trial.serve(opened)
            yield trial
            return
        options = Options(
            nodes=1,
            cpus=16,
            qpus=4,
            site=way == "plugins",
            licenses=f"qpu:{VQPUS}" if way == "licenses" else "",
            qrmi_config=str(config),
            extra=("KillWait=1",),
        )
        lab = opened.enter_context(running(folder / "lab", options))
        if options.site:
            lab.output("sacctmgr", "-i", "add", "user", USER, f"account={ACCOUNT}")
        trial = SlurmTrial(way, lab, folder, seed)
        trial.serve(opened)
        yield trial


def torture(way: str, kills: int, seed: int) -> dict[str, JSON]:
    """Run the jobs of one way under faults.

    :param kills: of each part
    :returns: the figures
    :raises Missed: if a job does not succeed, or something is left
    """
    with _trial(way, seed) as trial:
        began = time.monotonic()
        order = random.Random(seed)
        while left := [
            part for part in trial.parts for _ in range(kills - trial.kills[part])
        ]:
            trial.strike(order.choice(left))
        if not trial.go_on(END_SECONDS, last=True):
            unfinished = [job.name for job in trial.jobs if not job.done]
            raise Missed(f"not done: {unfinished}\n{trial.jobs_shown()}")
        swept = trial.swept()
        trial.service.kill()
        return {
            **trial.figures(),
            "swept_seconds": round(swept, 1),
            "seconds": round(time.monotonic() - began),
        }


def main() -> None:
    """Print the figures of each way, as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, nargs="+", default=SLURM_WAYS)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for way in args.way:
        try:
            print(json.dumps(torture(way, args.kills, args.seed)), flush=True)
        except Missed as error:
            sys.exit(f"{way}: {error}")


if __name__ == "__main__":
    main()
