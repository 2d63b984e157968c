"""The QPUs of a deployment's services: how a job gets its leases, and what it did with them.

Where QRMI's SPANK plugin is installed, Slurm takes the leases with the nodes (``--qpu=``);
where it is not, ``sfq lease`` takes them on the node, around the job's command.
"""

from __future__ import annotations

import asyncio
import json
import logging
import posixpath
import shlex
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)
from streamflow.log_handler import logger

from sf_quantum.backoff import Deadline
from sf_quantum.connectors import hints, qpu_jobs
from sf_quantum.connectors.slurm import script
from sf_quantum.connectors.slurm.leased import Use
from sf_quantum.connectors.slurm.login import reaching, run_on
from sf_quantum.connectors.slurm.options import Service
from sf_quantum.connectors.slurm.queue import Queue
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import account, qrmi_config
from sf_quantum.qpu.leases import TROUBLE_SECONDS

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
GROWTH = 1.6
# even a job that is not to wait asks: what an answer of the login node may take
ASK_SECONDS = 10.0
# how often an account is looked for that a slow file system may not show yet
LOOKS = 10
# sysexits.h: EX_NOINPUT, and the shell's own
NO_FILE = 66
NO_COMMAND = 127
# sbatch(1) lists the options of SPANK plugins with its own
_HAS_PLUGIN = "sbatch --help | grep -Eq -e '--qpu([=[, ]|$)'"


class Quantum:
    """The QPUs that the services of one deployment name.

    :param deployment: its name, for messages
    :param connector: of the inner deployment
    :param config: the file with the QPUs' definitions, on the driver's host
    """

    def __init__(
        self,
        deployment: str,
        connector: Connector,
        services: Mapping[str, Service],
        config: str | None,
    ) -> None:
        self._deployment = deployment
        self._connector = connector
        self._services = {name: s for name, s in services.items() if s.qpu}
        self._config = config
        self._plugin = asyncio.Lock()
        self._has_plugin: bool | None = None
        self._asking: dict[tuple[str, ...], asyncio.Task[list[_State] | None]] = {}
        self._silent: dict[str, float] = {}
        self._warned: set[str] = set()
        # whose a QPU job is, where jobs share an allocation's lease
        self._seen: dict[str, str] = {}

    def check(self) -> None:
        """Look whether the QPUs that the services name are defined.

        :raises WorkflowDefinitionException: if one is not, or the file is wrong
        """
        if self._config is None:
            return
        for service, about in self._services.items():
            for name in about.qpu:
                try:
                    qrmi_config.read(self._config, name)
                except InputError as error:
                    raise WorkflowDefinitionException(
                        f"Deployment {self._deployment}, service {service}, qpu: {error}"
                    ) from error

    async def prepare(self, location: ExecutionLocation, job: str) -> None:
        """Learn, once, whether Slurm has the plugin.

        :param location: the inner one
        :param job: the first to want to know
        """
        async with self._plugin:
            if self._has_plugin is not None or not self._services:
                return
            _, code = await self._run(location, job, _HAS_PLUGIN)
            self._has_plugin = code == 0
            for service in self._services.values():
                service.spank = self._has_plugin

    async def lend(
        self, queue: Queue, location: ExecutionLocation, job: str, qpus: list[str]
    ) -> Use:
        """Wait until a job's QPUs are online.

        :param location: the inner one
        :returns: how it gets them
        :raises WorkflowExecutionException: if it does not wait, as it can run elsewhere
        """
        began, wish = time.monotonic(), hints.of(job)
        await self.online(queue, location, job, qpus)
        waited = time.monotonic() - began
        if wish.wait_seconds is not None:
            wish = replace(wish, wait_seconds=max(0.0, wish.wait_seconds - waited))
        spool = queue.login.spool
        return Use(
            *(job, qpus, bool(self._has_plugin)),
            script.path(spool, uuid.uuid4().hex, "qpu"),
            _definitions(spool) if self._config else None,
            *(wish, waited),
        )

    async def online(
        self,
        queue: Queue,
        location: ExecutionLocation,
        job: str,
        qpus: Collection[str],
    ) -> None:
        """Wait as long as one of some QPUs says that it is offline.

        One that does not answer is waited for, too, but not longer than ``sfq lease``
        would: the nodes may reach it although the login node does not.

        :raises WorkflowExecutionException: if the job can run elsewhere, and one is
            offline, or has not answered for as long as the job is to wait
        """
        pause, waited, wish = FIRST_PAUSE_SECONDS, False, hints.of(job)
        asked, unsubmitted = (queue, location, job, qpus), f"Job {job} is not submitted"
        patience = TROUBLE_SECONDS if wish.wait_seconds is None else wish.wait_seconds
        bears = patience + ASK_SECONDS if wish.has_alternative else None
        deadline = Deadline(wish.wait_seconds)
        try:
            async with asyncio.timeout(bears):
                while state := self._hindrance(await self._ask(*asked)):
                    left = deadline.left
                    if wish.has_alternative and (state.state == "offline" or left <= 0):
                        raise WorkflowExecutionException(
                            f"{unsubmitted}: {state.words}"
                        )
                    if not waited and logger.isEnabledFor(logging.INFO):
                        logger.info(f"Job {job} waits: {state.words}")
                    waited = True
                    await asyncio.sleep(min(pause, left))
                    pause = min(pause * GROWTH, LONGEST_PAUSE_SECONDS)
        except TimeoutError as error:
            why = f"{unsubmitted}: the login node cannot be asked"
            raise WorkflowExecutionException(why) from error
        if waited and logger.isEnabledFor(logging.INFO):
            logger.info(f"Job {job} waits for its QPU no longer")

    async def settle(self, location: ExecutionLocation, use: Use, good: bool) -> None:
        """Keep account of a job's QPU jobs.

        :param location: the inner one
        :param good: the job ended well
        :raises WorkflowExecutionException: if it did, but without its QPU
        """
        files = f"{shlex.quote(use.account)}.*"
        looks = " ".join(map(str, range(LOOKS if good else 1)))
        text, _ = await self._run(
            location,
            use.job,
            f"for n in {looks}; do cat {files} 2>/dev/null && break; sleep 0.2; done; "
            f"rm -f {files}",
        )
        try:
            runs = [self._own(use, ran) for ran in account.loads(text)]
        except InputError as error:
            runs = []
            self._warn(f"Job {use.job}: {error}")
        if good:
            _check_used(use, [ran for ran in runs if ran.status == 0])

    def _own(self, use: Use, ran: account.CommandRun) -> account.CommandRun:
        """What is this job's own, new entries into the journal."""
        leases = []
        for lease in ran.leases:
            own: list[dict[str, JSON]] = []
            if lease.jobs is None:
                _record(use, ran, lease, {})  # its kind of QPU does not tell
            for qpu_job in lease.jobs or []:
                key = f"{lease.qpu} {qpu_job.get('id')}"
                new = key not in self._seen
                if self._seen.setdefault(key, use.job) == use.job:
                    own.append(qpu_job)
                    if new or qpu_job.get("found"):
                        _record(use, ran, lease, qpu_job)
            leases.append(replace(lease, jobs=None if lease.jobs is None else own))
        return replace(ran, leases=leases)

    async def _ask(
        self, queue: Queue, location: ExecutionLocation, job: str, qpus: Collection[str]
    ) -> list[_State] | None:
        """Ask QPUs how they are, once for all jobs that want to know it now."""
        key = (queue.login.spool, *qpus)
        if key not in self._asking:
            task = asyncio.create_task(self._states(queue, location, job, qpus))
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key))
        return await asyncio.shield(self._asking[key])

    async def _states(
        self, queue: Queue, location: ExecutionLocation, job: str, qpus: Collection[str]
    ) -> list[_State] | None:
        """Ask on the login node, where the QPUs' definitions are brought if need be.

        :returns: None if they cannot be asked there
        """
        file = _definitions(queue.login.spool)
        command = f"sfq qpus --json --qpu {','.join(qpus)}"
        if self._config:
            command = (
                f"[ -e {shlex.quote(file)} ] || exit {NO_FILE}; "
                f"{command} --qrmi-config {shlex.quote(file)}"
            )
        text, code = await self._run(location, job, command)
        pause = FIRST_PAUSE_SECONDS
        while code == NO_FILE and self._config:
            await queue.watched()
            trouble = await self._hand_over(location, file, self._config)
            text, code = await self._run(location, job, command)
            if code == NO_FILE:
                self._warn(
                    f"Job {job} waits: {self._config} cannot be brought to "
                    f"{location.name}, where jobs read it: {trouble}"
                )
                await asyncio.sleep(pause)
                pause = min(pause * GROWTH, LONGEST_PAUSE_SECONDS)
        if (found := _states(text)) is None:
            said = "there is no sfq" if code == NO_COMMAND else " ".join(text.split())
            self._warn_unasked(qpus, said)
        return found

    async def _run(
        self, location: ExecutionLocation, job: str, command: str
    ) -> tuple[str, int]:
        """Run a command on the login node, again while that cannot be reached.

        :param job: whose it is, for the message
        :returns: its output, stderr included, and its exit code
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await run_on(self._connector, location, command)
            except WorkflowExecutionException as error:
                self._warn(f"Job {job} waits: {error}")
                await asyncio.sleep(pause)
                pause = min(pause * GROWTH, LONGEST_PAUSE_SECONDS)

    async def _hand_over(
        self, location: ExecutionLocation, file: str, config: str
    ) -> str:
        """Bring the definitions, which may hold credentials, through a pipe.

        What is on a command line is seen in ``ps`` and in logs.

        :returns: why they may not be there now
        """
        names = sorted({name for s in self._services.values() for name in s.qpu})
        found = [qrmi_config.read(config, name) for name in names]
        entries: list[JSON] = [
            {"name": one.name, "type": one.type, "environment": {**one.environment}}
            for one in found
        ]
        target = shlex.quote(file)
        content = json.dumps({"resources": entries}).encode()
        # many may bring it at once, and others read it; a lost connection ends the input
        writing = (
            f"umask 077; t={target}.$$; cat >$t && [ $(wc -c <$t) -eq {len(content)} ] && "
            f"mv $t {target} || rm -f $t"
        )
        try:
            with reaching(location):
                writer = await self._connector.get_stream_writer(
                    ["sh", "-c", shlex.quote(writing)], location
                )
                async with writer as stream:
                    await stream.write(content)
        except WorkflowExecutionException as error:
            return str(error)
        return "it did not arrive whole"

    def _hindrance(self, told: list[_State] | None) -> _State | None:
        """The QPU that a job waits for, if it waits for one."""
        now = time.monotonic()
        for state in told or []:
            if state.state == "offline":
                return state
            if state.state != "no answer":
                self._silent.pop(state.qpu, None)
                if state.state != "online":
                    self._warn_unasked([state.qpu], state.note)
            elif now - self._silent.setdefault(state.qpu, now) < TROUBLE_SECONDS:
                return state
            else:
                self._warn(
                    f"Deployment {self._deployment}: jobs are submitted although "
                    f"{state.note}: the nodes may reach it"
                )
        return None

    def _warn_unasked(self, qpus: Collection[str], why: str) -> None:
        self._warn(
            f"Deployment {self._deployment}: whether QPU {', '.join(qpus)} is online "
            f"cannot be asked where sbatch is, so jobs are submitted: {why}"
        )

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            if logger.isEnabledFor(logging.WARNING):
                logger.warning(text)


@dataclass(frozen=True)
class _State:
    """How a QPU says it is; see ``sfq qpus``."""

    qpu: str
    state: str
    note: str

    @property
    def words(self) -> str:
        """How it is, if it is not online."""
        if self.state == "offline":
            return f"QPU {self.qpu} is offline ({self.note or 'no reason given'})"
        return self.note


def _states(text: str) -> list[_State] | None:
    """Read what ``sfq qpus --json`` printed, among what others may have said."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                return [
                    _State(str(one["qpu"]), str(one["state"]), str(one["note"]))
                    for one in json.loads(line)["qpus"]
                ]
            except (ValueError, KeyError, TypeError):
                continue
    return None


def _definitions(spool: str) -> str:
    return posixpath.join(spool, "qrmi_config.json")


def _check_used(use: Use, runs: Sequence[account.CommandRun]) -> None:
    names = " or ".join(use.qpus)
    if any(ran.used is False for ran in runs):
        raise WorkflowExecutionException(qpu_jobs.unused_message(use.job, names))
    if not runs or any(ran.used is None for ran in runs):
        told = [lease.trouble for ran in runs for lease in ran.leases if lease.trouble]
        raise WorkflowExecutionException(
            f"Job {use.job} ended well but nobody knows whether its result is that of "
            f"QPU {names}: {'; '.join(told) or 'sfq lease left no account'}"
        )


def _record(
    use: Use,
    ran: account.CommandRun,
    lease: account.LeaseUsage,
    qpu_job: dict[str, JSON],
) -> None:
    qpu_jobs.record(
        use.job,
        lease.qpu,
        qpu_job,
        technology=lease.technology,
        calibration=lease.calibration,
        lease_seconds=use.waited + ran.waited,
    )
