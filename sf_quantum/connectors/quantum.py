"""A location with a QPU: each job runs under a lease, and has to use it."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import re
import shlex
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakValueDictionary

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.wrapper import get_inner_location
from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.connectors import hints, qpu_jobs
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.leases import (
    JobLease,
    LeaseFailure,
    LeasePool,
    LeaseRefused,
    QpuUnavailable,
    failure,
    note_if_late,
)
from sf_quantum.connectors.steps import quantum_steps
from sf_quantum.connectors.wrapper import Invocation, LocationWrapper, Result
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import LeaseJob
from sf_quantum.qpu import AuthenticationError, JobSize, Qpu, QpuStatus
from sf_quantum.qpu.environment import JOB_ID, JOB_UID, job_environment
from sf_quantum.qpu.leasing.held_leases import (
    AcquireOptions,
    LeaseProblem,
    QpuLoss,
    QpuWatch,
)
from sf_quantum.qpu.sdks import stock_clients
from sf_quantum.qpu.sfq.service_qpu import SfqQpu

# how a job starts whose clients of SDKs find the QPU by their own variables
FORWARDED = ("sfq", "lease", "--held", "--clients", "--")
# Pause between two requests for the ETA of a QPU job.
ETA_SECONDS = 2.0

# Connectors by deployment name, which is unique in a driver process: it is one run.
_deployed: WeakValueDictionary[str, QuantumConnector] = WeakValueDictionary()


def variable(deployment: str) -> str:
    """Derive the QPU's name from its deployment's; shell variables start with it."""
    return re.sub(r"\W|^(?=\d)", "_", deployment, flags=re.ASCII)


@dataclass(eq=False)
class _LeasedJob:
    """A job that has a lease, after a wait, and why it has to leave the QPU, if so.

    :param location: the inner location
    :param file: path there of the job's environment file
    """

    name: str
    location: ExecutionLocation
    file: str
    pool: LeasePool
    lease: JobLease
    waited_seconds: float
    loss: QpuLoss | None = None


class QuantumConnector(LocationWrapper, ABC):
    """Acquires a lease for each job, and checks that the job has used it.

    A job is submitted to the inner location once it has its lease, so a waiting job
    occupies nothing there.
    """

    #: the longest wait for a lease; ``None`` for as long as it takes
    lease_wait_seconds: float | None = None
    #: the number of vQPUs
    _slots = 1
    #: whether the clients of SDKs find the QPU by their own variables
    _clients = False

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
        # set by deploy(); done when leases can be acquired
        self._access: asyncio.Future[LeasePool] | None = None
        self._leased: set[_LeasedJob] = set()
        self._giving_back = asyncio.Lock()
        _deployed[deployment_name] = self

    @classmethod
    def status(
        cls,
        name: str,
        config: Mapping[str, JSON],
        folder: Path,
        size: JobSize | None = None,
    ) -> QpuStatus:
        """Ask for the status of a deployment's QPU, deployed or not; blocks.

        :param folder: the base of relative paths in the configuration
        :param size: size of a job whose cost is to be reported
        :raises InputError: if the configuration is wrong
        :raises QpuError: if the QPU does not answer, or its service did not start
        """
        connector = _deployed.get(name)
        access = connector._access if connector is not None else None
        if access is None or not access.done() or access.cancelled():
            return cls._undeployed_status(name, config, folder, size)
        if (error := access.exception()) is not None:
            raise QpuError(str(error)) from error
        pool = access.result()
        status = pool.qpu.sized(size).status()
        # a lease that is kept for the next job of this run is free for it
        return replace(status, leases=max(0, status.leases - pool.kept))

    @classmethod
    @abstractmethod
    def _undeployed_status(
        cls,
        name: str,
        config: Mapping[str, JSON],
        folder: Path,
        size: JobSize | None = None,
    ) -> QpuStatus: ...

    def _job_client(self, pool: LeasePool) -> Qpu:
        """The client of the QPU for a job on the location."""
        return pool.qpu

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        """List the inner locations, among which the vQPUs are divided as slots.

        :returns: locations with at least one slot
        :raises WorkflowExecutionException: if there is no inner location
        """
        self._refuse_service(service)
        locations = await self.connector.get_available_locations(service=self.service)
        inner = list(locations.values())
        if not inner:
            raise WorkflowExecutionException(
                f"Deployment {self.deployment_name}: deployment "
                f"{self.connector.deployment_name}, which it wraps, has no location to "
                "run jobs on."
            )
        if len(inner) == 1:
            name = self.deployment_name
            return {name: self._location(name, self._slots, inner[0])}
        share, rest = divmod(self._slots, len(inner))
        return {
            location.name: self._location(location.name, slots, location)
            for number, location in enumerate(inner)
            if (slots := share + (number < rest)) > 0
        }

    async def invoke(self, invocation: Invocation) -> Result:
        """Run a command; a job runs under a lease, and fails if it does not use it."""
        if invocation.job_name is None:
            return await super().invoke(invocation)
        job_hints = hints.of(invocation.job_name)
        job = await self._lease(invocation, invocation.job_name, job_hints)
        watching: list[asyncio.Task[None]] = []
        file = shlex.quote(job.file)
        program = [*(FORWARDED if self._clients else ()), *invocation.command]
        command = [f". {file} && rm -f {file} &&", *program]
        result = None
        try:
            with quantum_steps.running(job.name):
                await self._write_environment(job)
                running = asyncio.ensure_future(
                    super().invoke(replace(invocation, command=command))
                )
                watching = [
                    asyncio.create_task(self._watch(job, job_hints, running)),
                    asyncio.create_task(_report_eta(job)),
                ]
                result = await running
        except asyncio.CancelledError:
            if not _is_hopeless(job, job_hints):
                raise
        finally:
            for task in watching:
                task.cancel()
            undeployed = job not in self._leased
            succeeded = result is not None and result[1] == 0
            used = await self._settle(job, keep=succeeded)
        if undeployed:  # undeploying cancelled the job's QPU jobs
            raise asyncio.CancelledError
        if job.loss is not None and (not succeeded or used is None):
            kind = LeaseRefused if _is_hopeless(job, job_hints) else LeaseFailure
            if job.loss.problem is LeaseProblem.QUEUE_WAIT:
                hints.wait_out(job.name)
            raise kind(f"Job {job.name} lost its lease of QPU {self.qpu}: {job.loss}")
        if succeeded and not used:
            message = qpu_jobs.unused_message(job.name, self.qpu)
            if used is None:
                message = (
                    f"Job {job.name} succeeded but the service of QPU {self.qpu} ended "
                    "before it, so it is unknown whether its result comes from the QPU."
                )
            raise WorkflowExecutionException(message)
        return result

    async def undeploy(self, external: bool) -> None:
        await self._give_back()

    async def _give_back(self) -> None:
        """Give every lease back, at the end of the run or of the deployment.

        The two come at the same time; the later call waits for the earlier one.
        """
        async with self._giving_back, AsyncExitStack() as stack:
            # each one, whatever happens to the others
            for job in list(self._leased):
                stack.push_async_callback(self._settle, job, keep=False)

    async def _lease(
        self, invocation: Invocation, name: str, job_hints: JobHints
    ) -> _LeasedJob:
        if self._access is None:
            raise WorkflowExecutionException(f"QPU {self.qpu} is not deployed.")
        # cancelling one job must not stop the service that the others use
        pool = await self._started(name, self._access)
        try:
            lease = await self._acquire(pool, name, job_hints)
        except LeaseFailure as error:
            # the cause of one that leaves a QPU that is offline is none
            note_if_late(name, error.__cause__)
            raise
        job = _LeasedJob(
            name,
            get_inner_location(invocation.location),
            # visible in `ps` and in logs, so the name has no part of the token
            posixpath.join(invocation.workdir or "/tmp", f".sfq-{uuid.uuid4().hex}"),
            pool,
            lease,
            lease.waited_seconds,
        )
        self._leased.add(job)
        record = journal.current()
        if record is not None and self._give_back not in record.before_end:
            record.before_end.append(self._give_back)
        return job

    async def _started(self, job: str, access: asyncio.Future[LeasePool]) -> LeasePool:
        """Wait until the QPU can be used, which is not a wait for a lease."""
        began = time.monotonic()
        if access.done():
            return access.result()
        qpu_jobs.record_start(job, self.qpu, "waiting", 0.0)
        try:
            return await asyncio.shield(access)
        finally:
            seconds = time.monotonic() - began
            qpu_jobs.record_start(job, self.qpu, "started", seconds)

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
        watching = asyncio.create_task(pool.lost(QpuWatch(pool.qpu).look))
        try:
            await asyncio.wait(
                (acquiring, watching), return_when=asyncio.FIRST_COMPLETED
            )
            if acquiring.done():
                return acquiring.result()
            raise failure(job, self.qpu, watching.result())
        except LeaseRefused as error:  # another target may take the job
            raise LeaseFailure(str(error)) from error
        except asyncio.CancelledError:
            if not acquiring.cancel():  # it has just been granted or refused
                with suppress(LeaseFailure, LeaseRefused):
                    await pool.release_or_expire(acquiring.result())
            raise
        finally:
            acquiring.cancel()
            watching.cancel()

    async def _watch(
        self, job: _LeasedJob, job_hints: JobHints, running: asyncio.Future[Result]
    ) -> None:
        """Once a job has to leave, give its lease back, which cancels its QPU jobs."""
        # the waits for the lease and in the job queue share one limit
        watch = QpuWatch(
            job.pool.qpu,
            lambda: job.lease.jobs_of(job.name) or (),
            job_hints.seconds_left,
        )
        elsewhere = job_hints.has_alternative

        def look() -> QpuLoss | None:
            return job.lease.refusal or (watch.look() if elsewhere else None)

        job.loss = await job.pool.lost(look)
        if job.loss.problem is not LeaseProblem.REFUSED:
            await job.pool.release_or_expire(job.lease)
        elif not elsewhere:  # else it ends at its next request, as after other losses
            running.cancel()

    async def _write_environment(self, job: _LeasedJob) -> None:
        """Write the variables of the job's QPU into a file that only its user can read.

        They go through a pipe, so they are on no command line and in no log.
        """
        client = self._job_client(job.pool)
        variables = {
            **job_environment([(client, job.lease.token)]),
            JOB_ID: job.name,
            f"{client.name}_SFQ_JOB_KEY": qpu_jobs.job_key(job.name),
            # a kept lease has the purpose of its first job
            f"{client.name}_SFQ_PURPOSE": qpu_jobs.purpose(job.name),
        }
        lines = [
            f"export {key}={shlex.quote(value)}" for key, value in variables.items()
        ]
        lines.append(f'export {JOB_UID}="$(id -u)"')
        if not self._clients and self._slots == 1 and isinstance(client, SfqQpu):
            lines += _checks(client)
        script = f"umask 077; cat > {shlex.quote(job.file)}"
        writer = await self.connector.get_stream_writer(
            ["sh", "-c", shlex.quote(script)], job.location
        )
        async with writer as stream:
            await stream.write("\n".join([*lines, ""]).encode())

    async def _settle(self, job: _LeasedJob, *, keep: bool) -> bool | None:
        """End a job's use of its lease, once, and record its QPU jobs.

        :returns: whether there were any; ``None`` if that is unknown
        """
        if job not in self._leased:
            return None
        self._leased.remove(job)
        try:
            # if the location is gone, the job's error is still reported, and the lease
            # still given back
            with suppress(Exception):
                await self.connector.run(
                    job.location, ["rm", "-f", shlex.quote(job.file)]
                )
        except BaseException:
            await self._close(job, keep=False)
            raise
        return await self._close(job, keep=keep)

    async def _close(self, job: _LeasedJob, *, keep: bool) -> bool | None:
        recorded = set(job.lease.owners)  # includes this job's earlier attempts
        try:
            jobs = await job.pool.settle(job.lease, job.name, keep=keep)
        except QpuUnavailable as error:
            if isinstance(error.__cause__, AuthenticationError):
                job.loss = QpuLoss(LeaseProblem.REFUSED, self.qpu, str(error))
            elif logger.isEnabledFor(logging.WARNING):
                logger.warning(
                    f"The lease of job {job.name} was not given back: {error}"
                )
            return None
        # this kind of QPU may not report them
        reported = [LeaseJob()] if jobs is None else jobs
        await self._record(job, [one for one in reported if one.id not in recorded])
        return bool(reported)

    async def _record(self, job: _LeasedJob, jobs: list[LeaseJob]) -> None:
        if journal.current() is None or not jobs:
            return
        try:
            status = await job.pool.status()
            self._slots = max(1, status.vqpus)
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


def _checks(client: SfqQpu) -> Iterator[str]:
    """Lines of a shell that refuse to wait for the lease that the job itself holds."""
    remedy = "write clients: true in the deployment's config"
    url = shlex.quote(client.service.url.rstrip("/"))
    for key in stock_clients.ADDRESSES:
        why = shlex.quote(stock_clients.unleased(key, client.name, remedy))
        yield f'case "${{{key}-}}/" in {url}/*) echo {why} >&2; exit 2;; esac'


async def _report_eta(job: _LeasedJob) -> None:
    """Report when the QPU begins the first of a job's QPU jobs, as its ETA changes.

    Afterwards as well, since the QPU job may be pre-empted.
    """
    while quantum_steps.listeners:
        with suppress(QpuUnavailable):
            jobs = await job.pool.jobs_of(job.lease, job.name)
            if jobs and (seconds := _begins(jobs[0])) is not None:
                quantum_steps.begins(job.name, seconds)
        await asyncio.sleep(ETA_SECONDS)


def _begins(qpu_job: LeaseJob) -> float | None:
    """Seconds until a QPU job begins; None if its QPU does not tell."""
    if qpu_job.state == "Queued":
        return qpu_job.eta_seconds
    return None if qpu_job.started is None else qpu_job.started - time.time()


def _is_hopeless(job: _LeasedJob, job_hints: JobHints) -> bool:
    """Whether the QPU refuses the job's user, and no other target can run it."""
    refused = job.loss is not None and job.loss.problem is LeaseProblem.REFUSED
    return refused and not job_hints.has_alternative
