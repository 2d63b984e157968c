"""``sfq slurm``: what a site's Slurm asks for a job that needs a QPU (deployments/slurm)."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sf_quantum import qpu
from sf_quantum.cli.arguments import checked, seconds, sentence
from sf_quantum.cli.qpu import service, slurm_watch
from sf_quantum.cli.qpu.lease import CLASSES, add_bounds
from sf_quantum.cli.qpu.slurm_state import (
    STAGING,
    Asks,
    Entry,
    Folder,
    Held,
    Why,
    cannot_start,
    comment,
    is_asking,
    queue,
    slurm,
)
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import parse_json
from sf_quantum.protocol.values import number
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.leasing.held_leases import AcquireOptions, WaitCancelled, acquire
from sf_quantum.qpu.opening import bounds
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.slurm import config
from sf_quantum.slurm import queue as squeue
from sf_quantum.slurm.queue import JobDetails
from sf_quantum.threads import in_thread

# between two reports on a job's wait, and looks at whether Slurm could start it; the first
# one comes soon
REPORT_SECONDS = 10.0
FIRST_REPORT_SECONDS = 1.0
TICK_SECONDS = 0.3
# for which a job waits until those ahead of it in Slurm's queue have asked
ORDER_SECONDS = 10.0
ORDER_POLL_SECONDS = 0.2
# for which it believes Slurm's list of those
AHEAD_SECONDS = 2.0
# A job that had no nodes with its lease is last for this long, times its leases without the
# first. While it does not ask for longer than a minute, the service forgets its position.
STAND_BACK_SECONDS = 60.0
STAND_BACK_MOST = 480.0
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
    _add_can_start(acquiring)
    acquiring.add_argument(
        "--again",
        action="store_true",
        help="for a job that had a lease and no nodes, which Slurm holds meanwhile",
    )
    confirming = "check that a job can start: it has its lease, and the QPU is online"
    _add(actions, "confirm", confirming, _confirm)
    _add(actions, "release", "give a job's lease back, if it has one", _release)
    watching = _add(
        actions,
        "watch",
        "give back what jobs leave or cannot use, until slurmctld's host stops it",
        slurm_watch.run,
        job=False,
    )
    _add_can_start(watching)
    watching.add_argument(
        "--hold-seconds",
        type=seconds,
        default=30.0,
        metavar="S",
        help="after which the lease of a job without nodes goes to the next one "
        "(default %(default)g)",
    )
    watching.add_argument(
        "--asking",
        type=checked(slurm_watch.Places.parse, "such as qpu=8:4"),
        action="append",
        default=[],
        metavar="QPU=N:SHARE",
        help="the places of a QPU, and how many a user may have while others wait",
    )


def _add_can_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--can-start",
        metavar="PROGRAM",
        help="qpu-can-start; without it, every job is believed to be able to start",
    )


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
    *,
    job: bool = True,
) -> argparse.ArgumentParser:
    added = actions.add_parser(name, help=help_, description=sentence(help_))
    service.add_selection(added)
    if job:
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
    details = _details(args.job)
    job, cluster = {
        "QRMI_JOB_UID": details.uid,
        "QRMI_JOB_ID": str(args.job),
    }, _cluster()
    # what the clients of all kinds tell the QPU's service
    os.environ |= {
        **job,
        "SLURM_JOB_ID": str(args.job),
        "SLURM_CLUSTER_NAME": cluster,
        "SLURM_JOB_PARTITION": details.partitions,
        "SLURM_JOB_ACCOUNT": details.account,
    }
    client, folder = _client(args, user=details.user), Folder(args.state)
    folder.make()
    # of an earlier controller
    folder.end_asking(args.job)
    asking = _Asking(args, client, folder, details.name, threading.Event())
    # that a user's share is used up is told so
    signal.signal(signal.SIGUSR1, lambda *_: asking.recalled.set())
    asking.begin()
    while details.task.isdecimal() and _is_behind(details.array, int(details.task)):
        time.sleep(TASKS_SECONDS)
    hints = bounds(vars(args))
    if args.expected_seconds:
        hints["expectedSeconds"] = args.expected_seconds
    ranks = details.partitions, details.qos, details.priority
    if (class_ := _class(args.class_of, *ranks)) is not None:
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
    token = asking.ask(request)
    # without the credentials of the site
    (own,) = replace(service.selection(args), own=None).qpus({})
    asking.end({**qpu.environment([(own, token)]), **job})


class _Asking:
    """The wait of one job for its lease.

    :param id_: Slurm's name of the job
    :param recalled: set if the job's place is needed for another user
    """

    def __init__(
        self,
        args: argparse.Namespace,
        client: Qpu,
        folder: Folder,
        id_: str,
        recalled: threading.Event,
    ) -> None:
        self.recalled = recalled
        self._args = args
        self._client = client
        self._folder = folder
        self._id = id_
        self._began = time.time()
        self._reported = ""
        self._asks = Asks.LATER
        # jobs that are ahead in Slurm's queue, and when Slurm was asked
        self._ahead: list[int] = []
        self._listed = -math.inf

    def begin(self) -> None:
        """Write that the job asks, and give back a lease that it could not use."""
        earlier = self._folder.entry(self._args.job)
        if self._args.again and earlier is not None and earlier.token is not None:
            self._client.give_way(earlier.token)
        if not self._args.again:
            words = json.dumps(sys.argv[1:])
            self._folder.replace(f"{self._args.job}.command", words)
        # its release has something to do if this process is killed
        self._write(Asks.LATER)

    def ask(self, request: AcquireOptions) -> str:
        """Wait for the lease, while Slurm could start the job.

        :raises QpuError: if it could not; it is marked as held then
        """
        self._check()
        if self._args.again:
            self._stand_back()
        while True:
            if not self._args.again:
                self._wait_for_turn()
            if (token := self._ask(request)) is not None:
                return token

    def _ask(self, request: AcquireOptions) -> str | None:
        """Ask until there is a lease, or the QPU takes no requests but others are ahead."""
        stop, changed = threading.Event(), threading.Event()
        waiting = in_thread(
            lambda: acquire(self._client, request, stop, lambda _: changed.set())
        )
        looked, pause = time.monotonic(), FIRST_REPORT_SECONDS
        try:
            while not _is_done(waiting):
                self._heed()
                if not changed.is_set() and time.monotonic() - looked < pause:
                    continue
                changed.clear()
                self._write(self._look())
                looked, pause = time.monotonic(), REPORT_SECONDS
                if self._asks is Asks.CLOSED and self._is_behind_others():
                    stop.set()
            token = waiting.result()
            # nodes may have gone, or been reserved, while it waited
            self._check()
        except WaitCancelled:
            return None
        except _StepsBack:
            stop.set()
            with suppress(QuantumError):
                self._client.give_way(waiting.result())
            raise
        return token

    def _look(self) -> Asks:
        """Report on the wait, and check that Slurm could still start the job."""
        text, closed = _report(self._client)
        self._report(text)
        self._check()
        return Asks.CLOSED if closed else Asks.ASKED

    def end(self, variables: Mapping[str, str]) -> None:
        """Write the job's environment, and let Slurm start the job."""
        now = time.time()
        waited = now - self._began
        entry = Entry(variables, self._client.name, now, waited, asks=Asks.ASKED)
        self._folder.write(self._args.job, entry)
        if self._args.again:
            slurm("scontrol", "release", self._id)
            (self._folder.path / f"{self._args.job}.held").unlink(missing_ok=True)
        self._report("")

    def _write(self, asks: Asks) -> None:
        job, entry = self._args.job, self._folder.entry(self._args.job)
        self._asks = asks
        if entry is None or entry.pid != os.getpid() or entry.asks is not asks:
            own = (self._began, 0.0, os.getpid(), asks)
            self._folder.write(job, Entry({}, self._client.name, *own))

    def _report(self, text: str) -> None:
        if text != self._reported:
            comment(self._id, text)
            self._reported = text

    def _heed(self) -> None:
        if self.recalled.is_set():
            self._step_back(
                Why.SHARE, "others wait, and its user has more than a share"
            )

    def _check(self) -> None:
        """Check that Slurm could start the job."""
        try:
            reasons = cannot_start(self._args.can_start, [self._args.job])
        except QpuError:  # the controller is away
            return
        if (why := reasons.get(self._args.job)) is not None:
            self._step_back(Why.CANNOT, f"Slurm cannot start it: {why}")

    def _step_back(self, why: Why, text: str) -> None:
        job, text = self._args.job, f"{self._client.name}: {text}"
        before = self._folder.held(job)
        losses = 0 if before is None else before.losses
        self._folder.hold(job, Held(why, losses, text))
        self._report(text)
        if self._args.again:
            # Slurm's place is still the job's, which has to be given back some day
            self._folder.write(job, Entry({}, self._client.name, time.time()))
        else:
            self._folder.remove(job)
        raise _StepsBack(text)

    def _stand_back(self) -> None:
        """After a lease without nodes, let others go first, for longer every time."""
        held = self._folder.held(self._args.job)
        times = 0 if held is None else held.losses - 1
        until = time.monotonic() + min(times * STAND_BACK_SECONDS, STAND_BACK_MOST)
        while time.monotonic() < until and self._others_ask():
            time.sleep(TASKS_SECONDS)
            self._check()

    def _others_ask(self) -> bool:
        for job in self._folder.jobs() - self._folder.jobs(".held"):
            entry = self._folder.entry(job)
            if entry is not None and entry.qpu == self._client.name and entry.pid:
                return True
        return False

    def _wait_for_turn(self) -> None:
        """Let the jobs that are ahead in Slurm's queue ask first.

        Their processes may have started later, or have taken longer to start. While the QPU
        takes no requests, only the first one asks, since it has no queue then.
        """
        began = looked = time.monotonic()
        self._write(Asks.NOT_YET)
        while self._is_behind_others(time.monotonic() - began < ORDER_SECONDS):
            time.sleep(ORDER_POLL_SECONDS)
            self._heed()
            if time.monotonic() - looked >= REPORT_SECONDS or not self._reported:
                self._look()
                looked = time.monotonic()

    def _is_behind_others(self, patient: bool = False) -> bool:
        """Whether others ask in vain that are ahead of this job.

        :param patient: also those that have not asked yet, but will do so soon
        """
        for job in self._jobs_ahead(AHEAD_SECONDS if patient else REPORT_SECONDS):
            entry = self._folder.entry(job)
            if entry is None:
                blocks = patient
            else:
                waits = entry.asks in (Asks.NOT_YET, Asks.CLOSED)
                blocks = waits and is_asking(entry.pid, job)
            if blocks:
                return True
        return False

    def _jobs_ahead(self, seconds: float) -> list[int]:
        """List the jobs with a place that are ahead.

        :param seconds: how old the list may be
        """
        if time.monotonic() - self._listed < seconds:
            return self._ahead
        with suppress(QpuError):  # the controller may be away
            jobs = queue()
            if (own := jobs.get(self._args.job)) is None:
                return []
            # those that wait for a place may wait for this job's
            self._ahead = [
                job.id
                for job in jobs.values()
                if (job.pool, job.buffer) == (own.pool, STAGING) and job.rank < own.rank
            ]
            self._listed = time.monotonic()
        return self._ahead


class _StepsBack(QpuError):
    """The job asks for no lease now; it is marked as held."""


def _details(job: int) -> JobDetails:
    # the id of an array's last task also means the array, which has a line for each task
    form = squeue.DETAILS_FORMAT
    lines = slurm("squeue", "-h", "-j", str(job), "-o", form)
    if (details := squeue.job_details(lines, str(job))) is None:
        raise QpuError(f"squeue does not list job {job}")
    return details


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
    return config.cluster_name(slurm(*config.COMMAND)) or ""


def _is_behind(array: str, task: int) -> bool:
    """Whether an earlier task of an array is still to be started.

    Slurm would not start this one before, even if it had the lease that the other waits for.
    """
    try:
        pending = ("-r", "-t", "PENDING", "-j", array)
        lines = slurm("squeue", "-h", *pending, "-o", squeue.TASKS_FORMAT)
    except QpuError:  # the controller is away
        return True
    # one that is held has the priority 0
    return any(
        other.index < task and other.priority != "0" and other.reason not in _NOT_NEXT
        for other in squeue.tasks(lines)
    )


def _report(client: Qpu) -> tuple[str, bool]:
    """Say why a job waits, and whether the QPU takes no requests for leases."""
    try:
        status = client.status()
    except QuantumError:
        return f"{client.name}: does not answer", True
    if not status.online:
        return f"{client.name}: {status.reason or 'offline'}", True
    # how long their holders will need them, nobody knows
    return f"{client.name}: {status.leases} of {status.vqpus} leases are held", False


def _is_done(future: Future[str]) -> bool:
    """Whether a request has been answered, for which it waits a moment."""
    wait([future], TICK_SECONDS)
    return future.done()


def _confirm(args: argparse.Namespace) -> None:
    client, entry = _client(args), Folder(args.state).entry(args.job)
    if entry is None or entry.token is None:
        raise QpuError(f"job {args.job} has no lease")
    client.renew(entry.token)
    if not (status := client.status()).online:
        raise QpuError(f"QPU {client.name!r} is not online: {status.reason}")


def _release(args: argparse.Namespace) -> None:
    client, folder = _client(args), Folder(args.state)
    if folder.path.is_dir():
        folder.end_asking(args.job)
    entry = folder.entry(args.job)
    if entry is not None and entry.token is not None:
        client.release(entry.token)
        # Slurm's accounting has the job, whatever becomes of this
        with suppress(QuantumError):
            _account(args.job, client, entry.token, f"{entry.waited:.3f}")
    elif isinstance(client, SfqQpu):
        # Slurm has ended its request, which may have been granted meanwhile
        answer = client.service.send("GET", "/v1/leases", retry=True)
        own = str(args.job), _cluster()
        for lease in service.objects(parse_json(answer.body)):
            if (lease.get("slurm_job_id"), lease.get("slurm_cluster")) == own:
                client.release(str(lease["id"]))
    folder.remove(args.job)


def _client(args: argparse.Namespace, **options: str) -> Qpu:
    qpus = service.selection(args, **options).qpus({})
    if len(qpus) > 1:
        raise InputError(f"--qpu: name one of {', '.join(qpu.name for qpu in qpus)}")
    return qpus[0]


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
    slurm(*modify, "set", f"admincomment={comment}")
