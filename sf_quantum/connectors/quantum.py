"""A location with a QPU: each job runs there under a lease, and must have used it."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import re
import shlex
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum import journal, qpu
from sf_quantum.connectors import accounts, watch, wishes
from sf_quantum.connectors.leases import Lease, Leases, ServiceGone
from sf_quantum.connectors.phases import phases
from sf_quantum.connectors.wrapper import LocationWrapper
from sf_quantum.files import JSON
from sf_quantum.qpu import OVER, Qpu, QpuStatus, waiting

# by the deployments' names: a driver process is one run, in which they are unique
_deployed: WeakValueDictionary[str, QuantumConnector] = WeakValueDictionary()


def deployed(name: str) -> QuantumConnector | None:
    """The connector of a deployment, once StreamFlow has made it."""
    return _deployed.get(name)


class QuantumConnector(LocationWrapper, ABC):
    """Gives each job a lease, tells it in a file, and sees that the job uses it.

    While a job waits for its lease nothing of the inner location is held: the inner job
    is submitted after.
    """

    # how long a job waits for its lease: as long as it takes
    patience_seconds: float | None = None
    # how long a lease is kept for the next job
    keep_seconds: float = 0.0

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        connector: Connector,
        service: str | None,
        transferBufferSize: int,
    ) -> None:
        super().__init__(
            deployment_name, config_dir, connector, service, transferBufferSize
        )
        # shell variables start with the QPU's name
        self.qpu = variable(deployment_name)
        self._lent: dict[str, _Loan] = {}
        self._kept: list[_Kept] = []
        self._closing: set[asyncio.Task[None]] = set()
        _deployed[deployment_name] = self

    @classmethod
    @abstractmethod
    def foresee(
        cls, name: str, config: Mapping[str, JSON], folder: Path
    ) -> Callable[[], QpuStatus]:
        """How to ask the QPU of a deployment that StreamFlow has not made yet.

        :param name: of the deployment
        :param config: its configuration
        :param folder: where relative paths in it start
        :returns: blocks, and raises what :meth:`sf_quantum.qpu.Qpu.status` does
        :raises InputError: if the configuration is wrong
        """

    @abstractmethod
    def client(self) -> Qpu | None:
        """The driver's side of the QPU, once there is one that can be asked.

        :raises QpuError: if there will never be one
        """

    @abstractmethod
    async def _open(self) -> Leases:
        """Give access to the QPU, as soon as there is any.

        :raises WorkflowExecutionException: if it cannot be had
        """

    @abstractmethod
    def _job_side(self) -> Qpu:
        """The QPU as the job is to reach it."""

    def _learn(self, status: QpuStatus) -> None:
        """Take note of how the QPU is."""
        return

    async def run(
        self,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        stdin: int | str | None = None,
        stdout: int | str = asyncio.subprocess.STDOUT,
        stderr: int | str = asyncio.subprocess.STDOUT,
        capture_output: bool = False,
        timeout: int | None = None,  # noqa: ASYNC109 - StreamFlow's signature
        job_name: str | None = None,
    ) -> tuple[str, int] | None:
        """Run a command, and a job under a lease.

        :raises WorkflowExecutionException: if there is no lease for it, or the job
            succeeded without its QPU
        """
        if job_name is None:
            return await super().run(
                location,
                command,
                environment,
                workdir,
                stdin,
                stdout,
                stderr,
                capture_output,
                timeout,
            )
        wish = wishes.of(job_name)
        loan = await self._lend(job_name, location, workdir or "/tmp", wish)
        file = shlex.quote(loan.file)
        result = None
        watching = asyncio.create_task(self._watch(loan, wish))
        try:
            with phases.quantum(job_name):
                await self._hand_over(loan)
                result = await super().run(
                    location,
                    [f". {file} && rm -f {file} &&", *command],
                    environment,
                    workdir,
                    stdin,
                    stdout,
                    stderr,
                    capture_output,
                    timeout,
                    job_name,
                )
        finally:
            watching.cancel()
            taken_away = loan.file not in self._lent
            succeeded = result is not None and result[1] == 0
            used = await self._take_back(loan, keep=succeeded)
        if taken_away:  # by undeploy, which ended the QPU job under this one
            raise asyncio.CancelledError
        if loan.lost and not succeeded:
            raise WorkflowExecutionException(
                f"QPU {self.qpu} was taken from job {job_name}: {loan.lost}"
            )
        if succeeded and not used:
            raise WorkflowExecutionException(self._unused(job_name, used))
        return result

    async def undeploy(self, external: bool) -> None:
        """Give every lease back."""
        # each is given back whatever becomes of the others
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._let_all_go)
            for loan in list(self._lent.values()):
                stack.push_async_callback(self._take_back, loan, keep=False)

    async def _lend(
        self, job: str, location: ExecutionLocation, folder: str, wish: wishes.Wish
    ) -> _Loan:
        began = time.monotonic()
        leases = await self._open()
        lease = await self._kept_lease(leases) or await self._acquire(leases, job, wish)
        # its name is seen in `ps` and in logs: nothing of the lease is in it
        file = posixpath.join(folder, f".sfq-{uuid.uuid4().hex}")
        waited = time.monotonic() - began
        loan = _Loan(leases, lease, job, location, file, waited)
        self._lent[file] = loan
        return loan

    async def _acquire(self, leases: Leases, job: str, wish: wishes.Wish) -> Lease:
        patience = self.patience_seconds
        if (left := wish.left) is not None:
            patience = min(left, patience or left)
        request = waiting.Request(
            *(job, uuid.uuid4().hex, patience),
            hints=dict(wish.hints),
            purpose=accounts.purpose(job),
        )
        if not wish.elsewhere:
            return await leases.acquire(request)
        getting = asyncio.create_task(leases.acquire(request))
        watching = asyncio.create_task(watch.until_offline(leases))
        try:
            await asyncio.wait((getting, watching), return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            raise WorkflowExecutionException(
                f"QPU {self.qpu} gives job {job} no lease: {watching.result()}"
            )
        finally:
            getting.cancel()
            watching.cancel()

    async def _watch(self, loan: _Loan, wish: wishes.Wish) -> None:
        """Take the lease, and its QPU jobs with it, from a job that is to go elsewhere."""
        if wish.elsewhere:
            leases, lease = loan.leases, loan.lease
            # what is left of it once there is a lease: the wait is one
            loan.lost = await watch.until_lost(leases, lease, loan.job, wish.left)
            with suppress(ServiceGone):
                await leases.release(lease)

    async def _hand_over(self, loan: _Loan) -> None:
        """Tell the job about its QPU (Contract 3), in a file that only it can read.

        Its content goes through a pipe: not on a command line, nor in any log.
        """
        told = self._job_side()
        variables = qpu.environment([(told, loan.lease.token)])
        variables["QRMI_JOB_ID"] = loan.job
        variables[f"{told.name}_SFQ_JOB_KEY"] = accounts.job_key(loan.job)
        # a lease that was kept says what its first job was
        variables[f"{told.name}_SFQ_PURPOSE"] = accounts.purpose(loan.job)
        lines = [
            f"export {key}={shlex.quote(value)}" for key, value in variables.items()
        ]
        lines.append('export QRMI_JOB_UID="$(id -u)"')
        script = f"umask 077; cat > {shlex.quote(loan.file)}"
        writer = await self.get_stream_writer(
            ["sh", "-c", shlex.quote(script)], loan.location
        )
        async with writer as stream:
            await stream.write("\n".join([*lines, ""]).encode())

    async def _take_back(self, loan: _Loan, *, keep: bool) -> bool | None:
        """End a job's use of its lease, once, and keep account of its QPU jobs.

        :param keep: the lease may serve the next job, if leases are kept at all
        :returns: whether it had any; None if the QPU cannot tell any more
        """
        if self._lent.pop(loan.file, None) is None:
            return None
        try:
            # a location that is gone must hide neither the job's own error nor the lease
            with suppress(Exception):
                await super().run(loan.location, ["rm", "-f", shlex.quote(loan.file)])
        except BaseException:
            await self._close(loan, keep=False)
            raise
        return await self._close(loan, keep=keep)

    async def _close(self, loan: _Loan, *, keep: bool) -> bool | None:
        recorded = set(loan.lease.seen)  # of this job as well, if it is run again
        try:
            jobs = await self._settle(loan, keep)
        except ServiceGone as error:
            if logger.isEnabledFor(logging.WARNING):
                logger.warning(f"Lease of job {loan.job} was not given back: {error}")
            return None
        if jobs is None:
            await self._record(loan, [{}])  # its kind of QPU does not tell
            return True
        if new := [job for job in jobs if str(job.get("id")) not in recorded]:
            await self._record(loan, new)
        return bool(jobs)

    async def _settle(self, loan: _Loan, keep: bool) -> list[dict[str, JSON]] | None:
        """Give a lease back, or keep it unless its job left something on the QPU."""
        leases, lease = loan.leases, loan.lease
        if keep and self.keep_seconds > 0:
            try:
                jobs = await leases.jobs(lease, loan.job)
            except BaseException:
                await leases.release(lease)
                raise
            if all(job.get("state") in OVER for job in jobs or []):
                lease.seen |= {str(job.get("id")): loan.job for job in jobs or []}
                self._keep(leases, lease)
                return jobs
        await leases.release(lease)
        return await leases.jobs(lease, loan.job)

    def _keep(self, leases: Leases, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.keep_seconds, self._expire, lease)
        self._kept.append(_Kept(leases, lease, timer))

    async def _kept_lease(self, leases: Leases) -> Lease | None:
        while self._kept:
            kept = self._kept.pop()
            kept.timer.cancel()
            try:
                held = await leases.is_held(kept.lease)
            except BaseException:
                self._keep(leases, kept.lease)
                raise
            if held:
                return kept.lease
            await _let_go(kept)
        return None

    async def _let_all_go(self) -> None:
        while self._kept:
            kept = self._kept.pop()
            kept.timer.cancel()
            await _let_go(kept)
        for task in list(self._closing):
            await task

    def _expire(self, lease: Lease) -> None:
        kept = next(kept for kept in self._kept if kept.lease is lease)
        self._kept.remove(kept)
        task = asyncio.create_task(_let_go(kept))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _record(self, loan: _Loan, qpu_jobs: list[dict[str, JSON]]) -> None:
        record = journal.current()
        if record is None:
            return
        try:
            status = await loan.leases.status()
            self._learn(status)
        except ServiceGone:
            status = None
        for qpu_job in qpu_jobs:
            record.write(
                "qpu",
                job=loan.job,
                qpu=self.qpu,
                # just after the samples were taken
                technology=status.technology if status else None,
                calibration=status.calibration if status else None,
                lease_seconds=loan.waited,
                **accounts.account(qpu_job),
            )

    def _unused(self, job: str, used: bool | None) -> str:
        if used is None:
            return (
                f"Job {job} ended well but the service of QPU {self.qpu} ended before it, "
                "so nobody knows whether its result is the QPU's."
            )
        return accounts.unused(job, self.qpu)


@dataclass(eq=False)
class _Loan:
    """A lease, the job that has it and the file that tells the job.

    :param waited: how many seconds the job waited for it
    :param lost: why it was taken from the job, if it was
    """

    leases: Leases
    lease: Lease
    job: str
    location: ExecutionLocation
    file: str
    waited: float
    lost: str = ""


@dataclass(frozen=True)
class _Kept:
    """A lease that no job has, until its time is over."""

    leases: Leases
    lease: Lease
    timer: asyncio.TimerHandle


def variable(deployment: str) -> str:
    """What the QPU of a deployment is called in the names of shell variables."""
    return re.sub(r"\W|^(?=\d)", "_", deployment, flags=re.ASCII)


async def _let_go(kept: _Kept) -> None:
    with suppress(ServiceGone):  # it runs out by itself, or the guardian tries again
        await kept.leases.release(kept.lease)
