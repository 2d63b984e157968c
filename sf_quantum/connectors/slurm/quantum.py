"""The QPUs of a deployment's services: leases for jobs, and the record of their QPU jobs.

If ``sbatch`` has the option ``--qpu=``, from QRMI's SPANK plugin or from deployments/slurm,
Slurm acquires the leases: with the nodes, or before them. Otherwise ``sfq lease`` acquires
the leases on the node, around the job's command. In both cases ``sfq lease`` records the QPU
jobs in a file, the *account* (unrelated to Slurm's accounts).
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import shlex
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)

from sf_quantum import backoff, journal, structs
from sf_quantum.connectors import exit_codes, hints
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.quantum import job_marks, qpu_jobs
from sf_quantum.connectors.quantum.leases import (
    LeaseFailure,
    LeaseRefused,
    LeaseWait,
    failure,
    note_if_late,
)
from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.tracebacks import traceback_filter
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import parse_json
from sf_quantum.protocol.tasks import LeaseJob
from sf_quantum.qpu import NoLease, qrmi_config
from sf_quantum.qpu.environment import RESOURCES
from sf_quantum.qpu.leasing import account
from sf_quantum.qpu.leasing.account import CommandRun, LeaseUsage
from sf_quantum.qpu.leasing.held_leases import (
    TROUBLE_SECONDS,
    LeaseProblem,
    Patience,
    QpuLoss,
)
from sf_quantum.text import utc

# added to a job's longest wait, so that the login node can answer even if this is 0
ASK_SECONDS = 10.0
# name of the file of QPU definitions in the spool
DEFINITIONS = "qrmi_config.json"
# attempts to read account files, which a slow file system may show late
READ_ATTEMPTS = 10
# EX_NOINPUT of sysexits.h, and the shell's exit code for an unknown command
NO_FILE = 66
NO_COMMAND = 127
# sysexits.h: EX_TEMPFAIL
TRY_AGAIN = 75
# Hints that the QPU's service must not ignore.
_BINDING_HINTS = {"latestStart", "priority", "reservation"}
# The help text of sbatch also lists the options of SPANK plugins.
_HAS_PLUGIN = "sbatch --help | grep -Eq -e '--qpu([=[, ]|$)'"
# QRMI's plugin omits QPUs that it cannot acquire (spank_qrmi.c); without this check, the
# job would silently run without such a QPU.
_CHECK_SPANK = """\
have=",${{{own}-$SLURM_JOB_QPU_RESOURCES}},"
for qpu in {names}; do
  case $have in *",$qpu,"*) continue ;; esac
  echo "sfq: Slurm's SPANK plugin gave this job no lease of QPU $qpu" >&2
  exit {code}
done
if command -v sfq >/dev/null; then exec {lease}; fi
echo {unknown} >{file}
exec {command}"""


@dataclass(frozen=True)
class QpuUse:
    """A job's use of its QPUs.

    :param spank: whether Slurm acquires the leases (``--qpu=``)
    :param account: path prefix of the job's account files
    :param config: file with the QPU definitions on the cluster; ``None`` if the job's
        environment contains the definitions
    :param hints: hints for ``sfq lease`` on the node. With ``--qpu=``, only
        ``has_alternative`` is used: a job with another target leaves a QPU that goes offline
    :param waited: seconds that the job waited for its QPUs before its submission
    """

    job: str
    qpus: Sequence[str]
    spank: bool
    account: str
    config: str | None
    hints: JobHints = field(default_factory=JobHints)
    waited: float = 0.0

    def command(self, line: str) -> str:
        """Return a shell command that runs ``line`` with its leases, and writes an account."""
        marks = job_marks.marks(self.job, self.qpus)
        variables = [f"{key}={shlex.quote(value)}" for key, value in marks.items()]
        lease = f"env {' '.join(variables)} sfq lease --qpu {','.join(self.qpus)}"
        # each task of an array has its own account file
        file = f'{shlex.quote(self.account)}."$SLURM_JOB_ID"'
        command = f"/bin/sh -c {shlex.quote(line)}"
        rest = "--exit-if-offline " if self.hints.has_alternative else ""
        rest += f"--account {file} -- {command}"
        if not self.spank:
            reservation = self.hints.lease_hints.reservation
            options = {
                "qrmi-config": self.config and shlex.quote(self.config),
                "wait": self.hints.wait_seconds,
                "expected-seconds": self.hints.lease_hints.expected_seconds,
                "pattern": self.hints.lease_hints.pattern,
                "latest-start": utc(self.hints.latest_start) or None,
                "priority": self.hints.lease_hints.priority,
                "reservation": reservation and shlex.quote(reservation),
            }
            given = [f"--{k} {v} " for k, v in options.items() if v is not None]
            return f"{lease} {''.join(given)}{rest}"
        unknown = CommandRun(0, [LeaseUsage(name, None) for name in self.qpus])
        wrapped = _CHECK_SPANK.format(
            own=RESOURCES[0],
            names=" ".join(self.qpus),
            code=TRY_AGAIN,
            lease=f"{lease} --held {rest}",
            unknown=shlex.quote(account.dumps(unknown)),
            file=file,
            command=command,
        )
        return f"/bin/sh -c {shlex.quote(wrapped)}"


@dataclass(frozen=True)
class _QpuState:
    """The state of a QPU as ``sfq qpus`` prints it."""

    qpu: str
    state: str
    note: str

    @property
    def error(self) -> QpuError:
        """The error that a request for a lease would raise in this state."""
        if self.state == "offline":
            return NoLease(self.note or f"QPU {self.qpu} is offline")
        return QpuError(self.note)


@dataclass(frozen=True)
class _QpuStates:
    """The output of ``sfq qpus --json``."""

    qpus: list[_QpuState]


class ServiceQpus:
    """The QPUs that the services of a deployment use.

    :param config: file with the QPU definitions on the driver's host
    """

    def __init__(
        self, deployment: str, services: Iterable[SlurmService], config: str | None
    ) -> None:
        traceback_filter()
        self._deployment = deployment
        self._services = [service for service in services if service.qpu]
        self._config = config
        self._plugin_lock = asyncio.Lock()
        self._has_plugin: bool | None = None
        self._requests: dict[tuple[str, ...], asyncio.Task[list[_QpuState]]] = {}
        # By QPU that does not answer: when it was first found silent, on the monotonic clock.
        self._silent: dict[str, float] = {}
        # QPUs that have answered, which shows that the login node can reach them.
        self._reached: set[str] = set()
        self._warnings = journal.Warnings()
        # By QPU job: the workflow job that submitted it. Several workflow jobs may share the
        # lease of an allocation.
        self._owners: dict[str, str] = {}

    def check(self) -> None:
        """Check that the QPUs of the services are defined.

        :raises WorkflowDefinitionException: if a QPU is not defined, or the file is invalid
        """
        if self._config is None:
            return
        for service in self._services:
            for name in service.qpu:
                try:
                    qrmi_config.read(self._config, name)
                except InputError as error:
                    raise WorkflowDefinitionException(
                        f"Deployment {self._deployment}, service {service.name}, "
                        f"qpu: {error}"
                    ) from error

    async def prepare(self, queue: SlurmQueue, job: str) -> None:
        """Determine, once, whether ``sbatch`` has the option ``--qpu=``."""
        async with self._plugin_lock:
            if self._has_plugin is not None or not self._services:
                return
            _, code = await self._run(queue, job, _HAS_PLUGIN)
            self._has_plugin = code == 0
            for service in self._services:
                service.spank = self._has_plugin

    async def lend(self, queue: SlurmQueue, job: str, qpus: list[str]) -> QpuUse:
        """Wait until a job's QPUs are :meth:`online`; return how the job uses the QPUs."""
        job_hints = hints.of(job)
        waited = await self.online(queue, job, qpus)
        if self._has_plugin and (
            dropped := _BINDING_HINTS
            & {key for key, _ in job_hints.lease_hints.singly()}
        ):
            self._warnings.warn(
                f"Deployment {self._deployment}: {', '.join(sorted(dropped))}: not passed on "
                "to the QPU, since Slurm's --qpu= has no such option"
            )
        if job_hints.wait_seconds is not None:
            job_hints = replace(job_hints, wait_seconds=job_hints.seconds_left)
        spool = queue.login.spool
        return QpuUse(
            job=job,
            qpus=qpus,
            spank=bool(self._has_plugin),
            account=scripts.path(spool, uuid.uuid4().hex, "qpu"),
            config=posixpath.join(spool, DEFINITIONS) if self._config else None,
            hints=job_hints,
            waited=waited,
        )

    async def online(self, queue: SlurmQueue, job: str, qpus: Collection[str]) -> float:
        """Wait until no QPU is offline, with the limits of a wait for a lease.

        The wait for a QPU that has never answered is short: the nodes may be able to reach the
        QPU even if the login node cannot.

        :returns: seconds of waiting, without the first query on the login node
        :raises LeaseFailure: if a QPU was not available within the job's longest wait, or
            stopped answering, or is offline while the job has another target
        """
        job_hints = hints.of(job)
        wait = job_hints.seconds_left
        patience = TROUBLE_SECONDS if wait is None else wait
        limit = patience + ASK_SECONDS if job_hints.has_alternative else None
        try:
            async with asyncio.timeout(limit):
                return await self._await_online(queue, job, qpus, job_hints)
        except TimeoutError as error:
            raise WorkflowExecutionException(
                f"Job {job} is not submitted: the login node does not answer"
            ) from error

    async def _await_online(
        self, queue: SlurmQueue, job: str, qpus: Collection[str], job_hints: JobHints
    ) -> float:
        """Wait until no QPU is offline; see :meth:`online`."""
        patience = Patience(
            job_hints.seconds_left,
            TROUBLE_SECONDS,
            latest_start=job_hints.latest_start,
        )
        pauses = backoff.CLUSTER.pauses()
        wait, status, waited = None, "given-up", 0.0
        try:
            while True:
                began = time.monotonic()
                states = await self._states(queue, job, qpus)
                if (state := self._awaited_qpu(states)) is None:
                    status = "submitted"
                    return waited + (0.0 if wait is None else wait.seconds)
                if wait is not None and wait.qpu != state.qpu:
                    waited += wait.seconds
                    wait.over("submitted")
                    wait = None
                if wait is None:
                    wait = LeaseWait(state.qpu, job)
                if self._is_submitted_anyway(state, job_hints):
                    silent = time.monotonic() - self._silent[state.qpu]
                    end = "the job is submitted all the same"
                    wait.tell(str(state.error), TROUBLE_SECONDS - silent, end)
                else:
                    wait.tell(str(state.error), patience.seconds_left(state.error))
                self._check_wait(job, state, patience, began, job_hints)
                await asyncio.sleep(min(next(pauses), patience.deadline.left))
        finally:
            if wait is not None:
                wait.over(status)

    async def settle(self, queue: SlurmQueue, use: QpuUse, *, good: bool) -> None:
        """Write a job's QPU jobs into the journal.

        :param good: whether the job's exit status is a success
        :raises WorkflowExecutionException: if the exit status is a success, but the job did
            not use its QPU, or this is unknown
        :raises LeaseRefused: if the job failed because a QPU refused its user
        :raises LeaseFailure: if the job failed for this reason, but has another target
        """
        files = f"{shlex.quote(use.account)}.*"
        attempts = " ".join(map(str, range(READ_ATTEMPTS if good else 1)))
        text, _ = await self._run(
            queue,
            use.job,
            f"for n in {attempts}; do cat {files} 2>/dev/null && break; sleep 0.2; done; "
            f"rm -f {files}",
        )
        try:
            runs = [self._record_own_jobs(use, run) for run in account.loads(text)]
        except InputError as error:
            runs = []
            self._warnings.warn(f"Job {use.job}: {error}")
        waited_out = any(run.waited_out for run in runs)
        refusal = next(filter(None, (run.refusal for run in runs)), None)
        succeeded = [run for run in runs if _is_success(run)]
        # The tool may list the status with which `sfq lease` fails among its success codes.
        lacks_lease = not succeeded and (waited_out or refusal is not None)
        if waited_out and (lacks_lease or not good):
            hints.wait_out(use.job)
        if refusal and (lacks_lease or not good):
            kind = LeaseFailure if use.hints.has_alternative else LeaseRefused
            raise kind(f"Job {use.job} got no lease, or lost it: {refusal}")
        if good and lacks_lease:
            names = ", ".join(use.qpus)
            raise WorkflowExecutionException(
                f"Job {use.job} got no lease of QPU {names} in time"
            )
        if good:
            _check_used(use, succeeded)

    def _record_own_jobs(self, use: QpuUse, run: CommandRun) -> CommandRun:
        """Write a job's new QPU jobs into the journal; return the run with only these."""
        leases = []
        for lease in run.leases:
            of_job: list[LeaseJob] = []
            if lease.jobs is None:  # this type of QPU does not report its jobs
                _record(use, run, lease, LeaseJob())
            for qpu_job in lease.jobs or []:
                key = f"{lease.qpu} {qpu_job.id}"
                new = key not in self._owners
                if self._owners.setdefault(key, use.job) == use.job:
                    of_job.append(qpu_job)
                    if new or qpu_job.found:
                        _record(use, run, lease, qpu_job)
            leases.append(replace(lease, jobs=None if lease.jobs is None else of_job))
        return replace(run, leases=leases)

    async def _states(
        self, queue: SlurmQueue, job: str, qpus: Collection[str]
    ) -> list[_QpuState]:
        """Return the states of QPUs; empty if unknown. Concurrent jobs share one query."""
        key = (queue.login.spool, *qpus)
        if key not in self._requests:
            task = asyncio.create_task(self._request(queue, job, qpus))
            self._requests[key] = task
            task.add_done_callback(lambda _: self._requests.pop(key))
        return await asyncio.shield(self._requests[key])

    async def _request(
        self, queue: SlurmQueue, job: str, qpus: Collection[str]
    ) -> list[_QpuState]:
        """Run ``sfq qpus`` on the login node; first copy the QPU definitions if needed."""
        file = posixpath.join(queue.login.spool, DEFINITIONS)
        command = f"sfq qpus --json --qpu {','.join(qpus)}"
        if self._config:
            command = (
                f"[ -e {shlex.quote(file)} ] || exit {NO_FILE}; "
                f"{command} --qrmi-config {shlex.quote(file)}"
            )
        text, code = await self._run(queue, job, command)
        pauses = backoff.CLUSTER.pauses()
        while code == NO_FILE and self._config:
            await queue.start_watching()
            trouble = await self._copy_definitions(queue, file, self._config)
            text, code = await self._run(queue, job, command)
            if code == NO_FILE:
                self._warnings.warn(
                    f"Job {job} waits: {self._config} cannot be copied to "
                    f"{queue.login.name}, where jobs read it: {trouble}"
                )
                await asyncio.sleep(next(pauses))
        if (states := _read_states(text)) is None:
            error = " ".join(text.split())
            is_missing = code == NO_COMMAND
            self._warn_unknown(
                qpus, "sfq is not installed there" if is_missing else error
            )
        return states or []

    async def _run(self, queue: SlurmQueue, job: str, command: str) -> tuple[str, int]:
        """Run a command on the login node; retry while the node is unreachable."""
        pauses = backoff.CLUSTER.pauses()
        while True:
            try:
                return await queue.login.run(command)
            except WorkflowExecutionException as error:
                self._warnings.warn(f"Job {job} waits: {error}")
                await asyncio.sleep(next(pauses))

    async def _copy_definitions(self, queue: SlurmQueue, file: str, config: str) -> str:
        """Copy the QPU definitions, which may contain credentials, to the login node.

        :returns: the error to report if the file is missing afterwards
        """
        names = sorted({name for service in self._services for name in service.qpu})
        definitions = [asdict(qrmi_config.read(config, name)) for name in names]
        content = json.dumps({"resources": definitions}).encode()
        try:
            await queue.login.write(file, content)
        except WorkflowExecutionException as error:
            return str(error)
        return "the file arrived incomplete"

    def _awaited_qpu(self, states: list[_QpuState]) -> _QpuState | None:
        """Return the state of the first QPU for which a job has to wait, if any."""
        now = time.monotonic()
        for state in states:
            if state.state != "no answer":
                self._reached.add(state.qpu)
                self._silent.pop(state.qpu, None)
                if state.state == "offline":
                    return state
                if state.state != "online":
                    self._warn_unknown([state.qpu], state.note)
            elif self._is_awaited(state.qpu, now):
                return state
            else:
                self._warnings.warn(
                    f"Deployment {self._deployment}: jobs are submitted although "
                    f"{state.note}: the nodes may be able to reach it"
                )
        return None

    def _is_awaited(self, qpu: str, now: float) -> bool:
        """Return whether jobs wait for a QPU that does not answer."""
        since = self._silent.setdefault(qpu, now)
        return qpu in self._reached or now - since < TROUBLE_SECONDS

    def _is_submitted_anyway(self, state: _QpuState, job_hints: JobHints) -> bool:
        """Return whether a job will be submitted anyway, since the nodes may reach the QPU."""
        return state.qpu not in self._reached and job_hints.seconds_left is None

    def _check_wait(
        self,
        job: str,
        state: _QpuState,
        patience: Patience,
        began: float,
        job_hints: JobHints,
    ) -> None:
        """Raise the failure of a job that must not wait for its QPU any longer."""
        if job_hints.has_alternative and state.state == "offline":
            loss = QpuLoss(LeaseProblem.OFFLINE, state.qpu, state.note)
            raise failure(job, state.qpu, loss)
        if self._is_submitted_anyway(state, job_hints):
            return
        try:
            patience.check(state.error, began)
        except QpuError as error:
            note_if_late(job, error)
            raise failure(job, state.qpu, error) from error

    def _warn_unknown(self, qpus: Collection[str], why: str) -> None:
        self._warnings.warn(
            f"Deployment {self._deployment}: the login node cannot determine whether QPU "
            f"{', '.join(qpus)} is online, so jobs are submitted: {why}"
        )


def _read_states(text: str) -> list[_QpuState] | None:
    """Read the output of ``sfq qpus --json``, ignoring lines of other programs."""
    for line in text.splitlines():
        if line.startswith("{"):
            with suppress(ValueError):
                return structs.read(_QpuStates, parse_json(line)).qpus
    return None


def _is_success(run: CommandRun) -> bool:
    has_run = run.refusal is None and not run.waited_out
    return has_run and exit_codes.is_success(run.status)


def _check_used(use: QpuUse, runs: Sequence[CommandRun]) -> None:
    names = " or ".join(use.qpus)
    if any(run.used is False for run in runs):
        raise WorkflowExecutionException(qpu_jobs.unused_message(use.job, names))
    if not runs or any(run.used is None for run in runs):
        trouble = [
            lease.trouble for run in runs for lease in run.leases if lease.trouble
        ]
        raise WorkflowExecutionException(
            f"Job {use.job} succeeded, but whether its result came from "
            f"QPU {names} is unknown: {'; '.join(trouble) or 'sfq lease left no account'}"
        )


def _record(use: QpuUse, run: CommandRun, lease: LeaseUsage, qpu_job: LeaseJob) -> None:
    qpu_jobs.record(
        use.job,
        lease.qpu,
        qpu_job,
        technology=lease.technology,
        calibration=lease.calibration,
        lease_seconds=use.waited + run.waited,
    )
