"""A location with a QPU: each job runs under a lease, and must use the QPU."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation

from sf_quantum.connectors import exit_codes, hints
from sf_quantum.connectors.quantum import job_marks, qpu_jobs
from sf_quantum.connectors.quantum.leased_jobs import (
    LeasedJob,
    LeasedJobs,
    is_hopeless,
    report_eta,
)
from sf_quantum.connectors.quantum.leases import (
    LeaseFailure,
    LeasePool,
    LeaseRefused,
)
from sf_quantum.connectors.quantum.running_steps import quantum_steps
from sf_quantum.connectors.wrapper import Invocation, LocationWrapper, Result
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu import JobSize, Qpu, QpuStatus
from sf_quantum.qpu.environment import JOB_UID
from sf_quantum.qpu.leasing.held_leases import (
    LeaseProblem,
)
from sf_quantum.qpu.sdks import stock_clients
from sf_quantum.qpu.sfq.service_qpu import SfqQpu

# prefix of a job's command if clients of vendors' SDKs are to find the QPU in their own
# variables
FORWARDED = ("sfq", "lease", "--held", "--clients", "--")

# Connectors by deployment name, which is unique, as a driver process has one run at a time.
_deployed: WeakValueDictionary[str, QuantumConnector] = WeakValueDictionary()


def variable(deployment: str) -> str:
    """Return the name of a deployment's QPU, with which shell variables begin."""
    return re.sub(r"\W|^(?=\d)", "_", deployment, flags=re.ASCII)


class QuantumConnector(LocationWrapper, ABC):
    """Acquires a lease for each job, and checks that the job has used the QPU.

    A job is started on the inner location only when it has its lease, so that a waiting job
    occupies nothing there.
    """

    #: longest wait for a lease; ``None`` for no limit
    lease_wait_seconds: float | None = None
    #: default hints for the leases of jobs, see :meth:`.Qpu.with_hints`
    lease_hints: LeaseHints = LeaseHints()
    #: number of vQPUs
    _slots = 1
    #: whether clients of vendors' SDKs find the QPU in their own variables
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
        # deploy() sets the future, which is done when leases can be acquired
        self._access: asyncio.Future[LeasePool] | None = None
        self._jobs = LeasedJobs(self.qpu, connector, self._resize)
        _deployed[deployment_name] = self

    @classmethod
    def status(
        cls,
        name: str,
        config: Mapping[str, JSON],
        folder: Path,
        size: JobSize | None = None,
    ) -> QpuStatus:
        """Query the status of a deployment's QPU, deployed or not; the call blocks.

        :param folder: base of relative paths in the configuration
        :param size: size of the job for which the QPU's service is to estimate times
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
        status = pool.qpu.with_job_size(size).status()
        # a lease that is kept for the next job of this run counts as free
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

    def _resize(self, vqpus: int) -> None:
        self._slots = max(1, vqpus)

    def _job_client(self, pool: LeasePool) -> Qpu:
        """Return the client of the QPU for a job on the location."""
        return pool.qpu

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        """List the inner locations, with the vQPUs divided among them as slots.

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
        """Run a command; a job runs under a lease, and fails if it does not use the QPU."""
        if invocation.job_name is None:
            return await super().invoke(invocation)
        job_hints = hints.completed(invocation.job_name, self.lease_hints)
        pool = await self._started(invocation.job_name)
        job = await self._jobs.lease(
            pool, invocation, job_hints, self.lease_wait_seconds
        )
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
                    asyncio.create_task(self._jobs.watch(job, job_hints, running)),
                    asyncio.create_task(report_eta(job)),
                ]
                result = await running
        except asyncio.CancelledError:
            if not is_hopeless(job, job_hints):
                raise
        finally:
            for task in watching:
                task.cancel()
            undeployed = job not in self._jobs
            succeeded = result is not None and exit_codes.is_success(result[1])
            used = await self._jobs.settle(job, keep=succeeded)
        if undeployed:  # undeploy() has released the lease and cancelled the QPU jobs
            raise asyncio.CancelledError
        if job.loss is not None and (not succeeded or used is None):
            kind = LeaseRefused if is_hopeless(job, job_hints) else LeaseFailure
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
        await self._jobs.give_back()

    async def _started(self, job: str) -> LeasePool:
        """Wait until the QPU can be used; the wait for a lease comes later."""
        if (access := self._access) is None:
            raise WorkflowExecutionException(f"QPU {self.qpu} is not deployed.")
        began = time.monotonic()
        if access.done():
            return access.result()
        qpu_jobs.record_start(job, self.qpu, "waiting", 0.0)
        try:
            # Shielded, since the cancellation of a job must not stop a service that other jobs
            # use.
            return await asyncio.shield(access)
        finally:
            seconds = time.monotonic() - began
            qpu_jobs.record_start(job, self.qpu, "started", seconds)

    async def _write_environment(self, job: LeasedJob) -> None:
        """Write the variables of the job's QPU into a file that only the user can read.

        The variables are sent through a pipe, so that no command line and no log has them.
        """
        client = self._job_client(job.pool)
        variables = job_marks.of_lease(job.name, client, job.lease.token)
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


def _checks(client: SfqQpu) -> Iterator[str]:
    """Yield shell lines that fail if an SDK's client would wait for the job's own lease."""
    remedy = "write clients: true in the deployment's config"
    url = shlex.quote(client.service.url.rstrip("/"))
    for key in stock_clients.ADDRESSES:
        why = shlex.quote(stock_clients.unleased(key, client.name, remedy))
        yield f'case "${{{key}-}}/" in {url}/*) echo {why} >&2; exit 2;; esac'
