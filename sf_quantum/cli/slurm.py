"""``sfq slurm``: what a site's Slurm asks for a job that needs a QPU (deployments/slurm)."""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sf_quantum import qpu
from sf_quantum.cli import service
from sf_quantum.cli.arguments import checked, seconds, sentence
from sf_quantum.cli.lease import CLASSES, add_bounds
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import parse_json
from sf_quantum.qpu import RESOURCES, TOKEN, Qpu, listed
from sf_quantum.qpu.jobs import number
from sf_quantum.qpu.leases import AcquireOptions, acquire
from sf_quantum.qpu.opening import bounds
from sf_quantum.qpu.sfq import SfqQpu
from sf_quantum.threads import in_thread

# between two reports on a job's wait, the first of which comes soon
REPORT_SECONDS = 15.0
FIRST_REPORT_SECONDS = 1.0
SLURM_SECONDS = 60.0
# a line for each task of an array, which the id of its last task also means
_COLUMNS = "%A|%i|%F|%K|%u|%U|%P|%a|%q|%Q"
# of a job that Slurm passes over
_NOT_NEXT = ("Dependency", "BeginTime")
TASKS_SECONDS = 2.0


@dataclass(frozen=True)
class ClassRule:
    """Which class in the service jobs of a QOS, of a partition, or of a priority have."""

    what: str
    value: str
    job_class: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rule such as ``qos:urgent=production``.

        :raises ValueError: if it is none
        """
        found = re.fullmatch(r"(qos|partition|priority):([^=]+)=(\w+)", text)
        if found is None or found[3] not in CLASSES:
            raise ValueError(text)
        if found[1] == "priority":
            int(found[2])
        return cls(*found.groups())

    def fits(self, partition: str, qos: str, priority: str) -> bool:
        """Whether it is about a job."""
        if self.what == "priority":
            return int(priority) >= int(self.value)
        return self.value == (qos if self.what == "qos" else partition)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each action."""
    parser.epilog = (
        "For burst_buffer.lua on the host of slurmctld. The QPU service has to know "
        "SlurmUser as root or as an admin, since the leases are those of the jobs' users."
    )
    actions = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    acquiring = _add(
        actions, "acquire", "wait for a lease, for the user of a job", _acquire
    )
    acquiring.add_argument(
        "--expected-seconds",
        type=seconds,
        metavar="S",
        help="a hint: seconds on the QPU that the job will use, without waits",
    )
    add_bounds(acquiring)
    acquiring.add_argument(
        "--class-of",
        type=checked(ClassRule.parse, "such as qos:urgent=production"),
        action="append",
        default=[],
        metavar="RULE",
        help="the class of the lease: qos:NAME=CLASS, partition:NAME=CLASS, or "
        "priority:N=CLASS from the priority N on; the first rule that fits the job counts",
    )
    confirming = "check that a job can start: it has its lease, and the QPU is online"
    _add(actions, "confirm", confirming, _confirm)
    _add(actions, "release", "give a job's lease back, if it has one", _release)


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    # Slurm ends so what it has started for a job
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args.action(args)
    return 0


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help_: str,
    action: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    added = actions.add_parser(name, help=help_, description=sentence(help_))
    service.add_selection(added)
    added.add_argument("job", type=int, metavar="JOB", help="the id of the job")
    added.add_argument(
        "--state",
        required=True,
        type=Path,
        metavar="DIR",
        help="the folder of the environments of jobs that have leases",
    )
    added.set_defaults(action=action, parser=added)
    return added


def _acquire(args: argparse.Namespace) -> None:
    id_, array, task, user, uid, partition, account, *ranks = _about(args.job)
    job, cluster = {"QRMI_JOB_UID": uid, "QRMI_JOB_ID": str(args.job)}, _cluster()
    # what the clients of all kinds tell the QPU's service
    os.environ |= {
        **job,
        "SLURM_JOB_ID": str(args.job),
        "SLURM_CLUSTER_NAME": cluster,
        "SLURM_JOB_PARTITION": partition,
        "SLURM_JOB_ACCOUNT": account,
    }
    client = _client(args, user=user)
    # of a job that asks, whose release has something to do if this process is killed
    _write(_file(args), {})
    while task.isdecimal() and _is_behind(array, int(task)):
        time.sleep(TASKS_SECONDS)
    hints = bounds(vars(args))
    if args.expected_seconds:
        hints["expectedSeconds"] = args.expected_seconds
    if (class_ := _class(args.class_of, partition, *ranks)) is not None:
        hints["class"] = class_
    request = AcquireOptions(
        purpose=f"Slurm job {args.job}",
        # however long the QPU is away, the job waits and holds nothing
        trouble_seconds=math.inf,
        hints=hints,
        # the same lease again if Slurm has lost the first answer; other clusters have jobs
        # with the same id, and a federation's each have a sibling of it
        key=f"slurm-{cluster}-{args.job}",
    )
    began = time.monotonic()
    waiting, pause = in_thread(lambda: acquire(client, request)), FIRST_REPORT_SECONDS
    reported = ""
    while True:
        try:
            token = waiting.result(pause)
            break
        except TimeoutError:
            if (report := _report(client)) != reported:
                _comment(id_, reported := report)
            pause = REPORT_SECONDS
    # without the credentials of the site
    (own,) = replace(service.selection(args), own=None).qpus({})
    variables = {**qpu.environment([(own, token)]), **job}
    _write(_file(args), variables, time.monotonic() - began)
    if reported:
        _comment(id_, "")


def _about(job: int) -> list[str]:
    told = _slurm("squeue", "-h", "-j", str(job), "-o", _COLUMNS)
    for line in told.splitlines():
        number, *columns = line.split("|")
        if number == str(job) and len(columns) == _COLUMNS.count("|"):
            return columns
    raise QpuError(f"squeue does not list job {job}")


def _class(
    rules: Sequence[ClassRule], partitions: str, qos: str, priority: str
) -> str | None:
    """Return the class that the rules give a job: the lowest of those in its partitions.

    :param partitions: of a pending job, each that it may run in; Slurm also takes those
        whose QOS or accounts would not let it start there
    """
    given = set()
    for partition in partitions.split(","):
        fitting = (rule for rule in rules if rule.fits(partition, qos, priority))
        given.add(next((rule.job_class for rule in fitting), None))
    if given == {None}:
        return None
    return max((class_ or CLASSES[-1] for class_ in given), key=CLASSES.index)


def _cluster() -> str:
    told = _slurm("scontrol", "show", "config")
    found = re.search(r"^ClusterName *= *(\S+)", told, re.MULTILINE)
    return found[1] if found else ""


def _is_behind(array: str, task: int) -> bool:
    """Whether an earlier task of an array is still to be started.

    Slurm would not start this one before, even if it had the lease that the other waits for.
    """
    try:
        told = _slurm(
            "squeue", "-h", "-r", "-t", "PENDING", "-j", array, "-o", "%K|%Q|%r"
        )
    except QpuError:  # the controller is away
        return True
    for line in told.splitlines():
        other, priority, reason = line.split("|", 2)
        # one that is held has the priority 0
        if int(other) < task and priority != "0" and reason not in _NOT_NEXT:
            return True
    return False


def _report(client: Qpu) -> str:
    """Say why a job waits."""
    try:
        status = client.status()
    except QuantumError:
        return f"{client.name}: does not answer"
    if not status.online:
        return f"{client.name}: {status.reason or 'offline'}"
    jobs = status.position if status.position is not None else status.queue_length
    about = ""
    if (eta := status.eta_seconds) is not None:
        about = f", about {eta / 60:.0f} min" if eta >= 90 else f", about {eta:.0f} s"
    return (
        f"{client.name}: {status.leases} of {status.vqpus} leases are held, {jobs} jobs "
        f"ahead{about}"
    )


def _confirm(args: argparse.Namespace) -> None:
    client, (token, _) = _client(args), _lease(args)
    if token is None:
        raise QpuError(f"job {args.job} has no lease")
    client.renew(token)
    if not (status := client.status()).online:
        raise QpuError(f"QPU {client.name!r} is not online: {status.reason}")


def _release(args: argparse.Namespace) -> None:
    client, (token, waited) = _client(args), _lease(args)
    if token is not None:
        client.release(token)
        # Slurm's accounting has the job, whatever becomes of this
        with suppress(QuantumError):
            _account(args.job, client, token, waited)
    elif isinstance(client, SfqQpu):
        # Slurm has ended its request, which may have been granted meanwhile
        answer = client.service.send("GET", "/v1/leases", retry=True)
        own = str(args.job), _cluster()
        for lease in service.objects(parse_json(answer.body)):
            if (lease.get("slurm_job_id"), lease.get("slurm_cluster")) == own:
                client.release(str(lease["id"]))
    _file(args).unlink(missing_ok=True)


def _client(args: argparse.Namespace, **options: str) -> Qpu:
    qpus = service.selection(args, **options).qpus({})
    if len(qpus) > 1:
        raise InputError(f"--qpu: name one of {', '.join(qpu.name for qpu in qpus)}")
    return qpus[0]


def _file(args: argparse.Namespace) -> Path:
    return Path(args.state, str(args.job))


def _lease(args: argparse.Namespace) -> tuple[str | None, str]:
    """Read the lease of a job, and how many seconds it waited for that."""
    try:
        first, *lines = _file(args).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None, "0"
    variables = dict(line.split("=", 1) for line in lines)
    (name,) = listed(variables, RESOURCES) or ["none"]
    return variables.get(f"{name}_{TOKEN}"), first.split()[-1]


def _account(job: int, client: Qpu, token: str, waited: str) -> None:
    """Write what the QPU did for a job to Slurm's accounting, if it has any.

    The controller takes no comment on a job that has ended.
    """
    jobs = client.jobs(token)
    if jobs is None:
        return

    def total(key: str) -> float:
        return sum(number(job.get(key)) or 0.0 for job in jobs)

    def time_of(choose: Callable[[list[float]], float], key: str) -> str:
        times = [time for job in jobs if (time := number(job.get(key))) is not None]
        if not times:
            return "none"
        moment = datetime.fromtimestamp(choose(times), UTC)
        return moment.isoformat(timespec="seconds")

    figures = {
        "resource_id": client.name,
        "resource_type": client.type,
        "timestamps.created": time_of(min, "submitted"),
        "timestamps.running": time_of(min, "started"),
        "timestamps.finished": time_of(max, "ended"),
        "jobs": str(len(jobs)),
        "qpu_seconds": f"{total('qpu_seconds'):.6f}",
        "lease_wait_seconds": waited,
        "queued_seconds": f"{total('queued_seconds'):.3f}",
        "lost_attempts": f"{total('attempt') - len(jobs):.0f}",
        "lost_qpu_seconds": f"{total('lost_qpu_seconds'):.6f}",
    }
    # sacctmgr would change quotation marks, as those of JSON
    comment = " ".join(f"{key}={value}" for key, value in figures.items())
    modify = ("sacctmgr", "--immediate", "modify", "job", "where", f"jobid={job}")
    _slurm(*modify, "set", f"admincomment={comment}")


def _write(path: Path, variables: dict[str, str], waited: float = 0.0) -> None:
    """Write a job's environment, for nobody else to read.

    Before it, when the job had its lease, and how long it waited for it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"# {time.time():.0f} {waited:.3f}"]
    lines += [f"{key}={' '.join(value.split())}" for key, value in variables.items()]
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    part.touch(0o600)
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.rename(path)


def _comment(job: str, text: str) -> None:
    # nothing of the wait depends on it
    with suppress(QpuError):
        _slurm("scontrol", "update", f"JobId={job}", f"AdminComment={text}")


def _slurm(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SLURM_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QpuError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise QpuError(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
