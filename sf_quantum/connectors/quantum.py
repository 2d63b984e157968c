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
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakValueDictionary

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.wrapper import get_inner_location
from streamflow.log_handler import logger

from sf_quantum import journal, qpu
from sf_quantum.connectors import hints, qpu_jobs
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.leases import (
    JobLease,
    LeaseFailure,
    LeasePool,
    QpuUnavailable,
)
from sf_quantum.connectors.steps import quantum_steps
from sf_quantum.connectors.wrapper import Invocation, LocationWrapper
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu, QpuStatus
from sf_quantum.qpu.leases import AcquireOptions
from sf_quantum.qpu.offline import QpuLoss, QpuWatch

# by deployment name; a driver process is one run, in which these are unique
_deployed: WeakValueDictionary[str, QuantumConnector] = WeakValueDictionary()


def deployed(name: str) -> QuantumConnector | None:
    """Find the connector of a deployment, once StreamFlow has made it."""
    return _deployed.get(name)


def variable(deployment: str) -> str:
    """Name the QPU of a deployment, so that shell variables can start with the name."""
    return re.sub(r"\W|^(?=\d)", "_", deployment, flags=re.ASCII)


@dataclass(eq=False)
class _LeasedJob:
    """A job that has a lease.

    :param location: the inner location
    :param file: on the location, tells the job about its QPU
    :param waited_seconds: how long the job waited for the lease
    :param loss: why the lease was taken from it
    """

    name: str
    location: ExecutionLocation
    file: str
    pool: LeasePool
    lease: JobLease
    waited_seconds: float
    loss: QpuLoss | None = None

    def own_jobs(self) -> Collection[Mapping[str, JSON]]:
        """List its QPU jobs; blocks."""
        return self.lease.jobs_of(self.name) or ()


class QuantumConnector(LocationWrapper, ABC):
    """Acquires a lease for each job, tells the job about it, and checks that it is used.

    While a job waits for its lease it holds nothing of the inner location, since the
    inner job is submitted afterwards.
    """

    #: the longest wait for a lease; ``None`` for as long as it takes
    lease_wait_seconds: float | None = None

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
        self.qpu = variable(deployment_name)
        # made by deploy(); it has a result when leases can be acquired
        self._access: asyncio.Future[LeasePool] | None = None
        self._leased: set[_LeasedJob] = set()
        _deployed[deployment_name] = self

    @classmethod
    @abstractmethod
    def undeployed_status(
        cls, name: str, config: Mapping[str, JSON], folder: Path
    ) -> QpuStatus:
        """Ask the QPU of a deployment that StreamFlow has not made yet; blocks.

        :param name: of the deployment
        :param config: of the deployment
        :param folder: where relative paths in it start
        :raises InputError: if the configuration is wrong
        :raises QpuError: if the QPU does not answer
        """

    def client(self) -> Qpu | None:
        """Give the driver's client of the QPU, once there is a service to ask.

        :raises QpuError: if there will never be one
        """
        access = self._access
        if access is None or not access.done() or access.cancelled():
            return None
        if (error := access.exception()) is not None:
            raise QpuError(str(error)) from error
        return access.result().qpu

    def _job_client(self, pool: LeasePool) -> Qpu:
        """The QPU as a job on the location reaches it."""
        return pool.qpu

    def _update(self, status: QpuStatus) -> None:
        """Take over what the QPU reports about itself."""
        return

    async def invoke(self, invocation: Invocation) -> tuple[str, int] | None:
        """Run a command, and a job under a lease.

        :raises WorkflowExecutionException: if there is no lease for the job, or it
            succeeded without using its QPU
        """
        if invocation.job_name is None:
            return await super().invoke(invocation)
        job_hints = hints.of(invocation.job_name)
        job = await self._lease(invocation, invocation.job_name, job_hints)
        watching = asyncio.create_task(self._watch(job, job_hints))
        file = shlex.quote(job.file)
        command = [f". {file} && rm -f {file} &&", *invocation.command]
        result = None
        try:
            with quantum_steps.running(job.name):
                await self._write_environment(job)
                result = await super().invoke(replace(invocation, command=command))
        finally:
            watching.cancel()
            undeployed = job not in self._leased
            succeeded = result is not None and result[1] == 0
            used = await self._settle(job, keep=succeeded)
        if undeployed:  # which ended the QPU job under this one
            raise asyncio.CancelledError
        if succeeded and not used:
            message = qpu_jobs.unused_message(job.name, self.qpu)
            if used is None:
                message = (
                    f"Job {job.name} succeeded but the service of QPU {self.qpu} ended "
                    "before it, so it is unknown whether its result comes from the QPU."
                )
            raise WorkflowExecutionException(message)
        if job.loss is not None and not succeeded:
            raise LeaseFailure(
                f"Job {job.name} lost its lease of QPU {self.qpu}: {job.loss}",
                job.loss.problem,
            )
        return result

    async def undeploy(self, external: bool) -> None:
        """Give the lease of every job back."""
        # each is given back whatever happens to the others
        async with AsyncExitStack() as stack:
            for job in list(self._leased):
                stack.push_async_callback(self._settle, job, keep=False)

    async def _lease(
        self, invocation: Invocation, name: str, job_hints: JobHints
    ) -> _LeasedJob:
        began = time.monotonic()
        if self._access is None:
            raise WorkflowExecutionException(f"QPU {self.qpu} is not deployed.")
        # one job's cancellation must not stop the service of the others
        pool = await asyncio.shield(self._access)
        lease = await self._acquire(pool, name, job_hints)
        job = _LeasedJob(
            name,
            get_inner_location(invocation.location),
            # seen in `ps` and in logs, so nothing of the lease is in the name
            posixpath.join(invocation.workdir or "/tmp", f".sfq-{uuid.uuid4().hex}"),
            pool,
            lease,
            time.monotonic() - began,
        )
        self._leased.add(job)
        return job

    async def _acquire(
        self, pool: LeasePool, job: str, job_hints: JobHints
    ) -> JobLease:
        wait_seconds = self.lease_wait_seconds
        if (left := job_hints.seconds_left) is not None:
            wait_seconds = min(left, wait_seconds or left)
        request = AcquireOptions(
            job,
            wait_seconds,
            hints=job_hints.lease_hints,
            purpose=qpu_jobs.purpose(job),
        )
        if not job_hints.has_alternative:
            return await pool.acquire(request)
        acquiring = asyncio.create_task(pool.acquire(request))
        watching = asyncio.create_task(pool.lost(QpuWatch(pool.qpu)))
        try:
            await asyncio.wait(
                (acquiring, watching), return_when=asyncio.FIRST_COMPLETED
            )
            if acquiring.done():
                return acquiring.result()
            loss = watching.result()
            raise LeaseFailure(
                f"Job {job} got no lease of QPU {self.qpu}: {loss}", loss.problem
            )
        except asyncio.CancelledError:
            if not acquiring.cancel():  # granted or refused at this very moment
                with suppress(LeaseFailure):
                    await pool.release_or_expire(acquiring.result())
            raise
        finally:
            acquiring.cancel()
            watching.cancel()

    async def _watch(self, job: _LeasedJob, job_hints: JobHints) -> None:
        """Release the lease, and so cancel its QPU jobs, once the job has to leave."""
        if job_hints.has_alternative:
            # the wait in the job queue and the wait for the lease are one
            left = job_hints.seconds_left
            job.loss = await job.pool.lost(QpuWatch(job.pool.qpu, job.own_jobs, left))
            await job.pool.release_or_expire(job.lease)

    async def _write_environment(self, job: _LeasedJob) -> None:
        """Tell the job about its QPU (Contract 3), in a file that only it can read.

        The content goes through a pipe: it is on no command line and in no log.
        """
        client = self._job_client(job.pool)
        variables = {
            **qpu.environment([(client, job.lease.token)]),
            "QRMI_JOB_ID": job.name,
            f"{client.name}_SFQ_JOB_KEY": qpu_jobs.job_key(job.name),
            # the purpose of a kept lease is that of its first job
            f"{client.name}_SFQ_PURPOSE": qpu_jobs.purpose(job.name),
        }
        lines = [
            f"export {key}={shlex.quote(value)}" for key, value in variables.items()
        ]
        lines.append('export QRMI_JOB_UID="$(id -u)"')
        script = f"umask 077; cat > {shlex.quote(job.file)}"
        writer = await self.connector.get_stream_writer(
            ["sh", "-c", shlex.quote(script)], job.location
        )
        async with writer as stream:
            await stream.write("\n".join([*lines, ""]).encode())

    async def _settle(self, job: _LeasedJob, *, keep: bool) -> bool | None:
        """End a job's use of its lease, once, and record its QPU jobs.

        :param keep: the lease may serve the next job
        :returns: whether there were any; ``None`` if that is unknown
        """
        if job not in self._leased:
            return None
        self._leased.remove(job)
        try:
            # a location that is gone must hide neither the job's own error nor the lease
            with suppress(Exception):
                await self.connector.run(
                    job.location, ["rm", "-f", shlex.quote(job.file)]
                )
        except BaseException:
            await self._close(job, keep=False)
            raise
        return await self._close(job, keep=keep)

    async def _close(self, job: _LeasedJob, *, keep: bool) -> bool | None:
        recorded = set(job.lease.owners)  # also those of this job's earlier attempts
        try:
            jobs = await job.pool.settle(job.lease, job.name, keep=keep)
        except QpuUnavailable as error:
            if logger.isEnabledFor(logging.WARNING):
                logger.warning(
                    f"The lease of job {job.name} was not given back: {error}"
                )
            return None
        if jobs is None:  # this kind of QPU keeps no account
            await self._record(job, [{}])
            return True
        await self._record(job, [j for j in jobs if str(j.get("id")) not in recorded])
        return bool(jobs)

    async def _record(self, job: _LeasedJob, jobs: list[dict[str, JSON]]) -> None:
        if journal.current() is None or not jobs:
            return
        try:
            status = await job.pool.status()
            self._update(status)
        except QpuUnavailable:
            status = None
        for one in jobs:
            qpu_jobs.record(
                job.name,
                self.qpu,
                one,
                technology=status.technology if status else None,
                calibration=status.calibration if status else None,
                lease_seconds=job.waited_seconds,
            )
