"""The connector ``sfq.slurm``: StreamFlow's own, but for how it runs jobs."""

from __future__ import annotations

import asyncio
import os
import posixpath
import shlex
import signal
import uuid
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowException,
    WorkflowExecutionException,
)
from streamflow.core.scheduling import AvailableLocation
from streamflow.core.utils import create_command
from streamflow.deployment.connector.queue_manager import SlurmConnector as Stock
from streamflow.deployment.wrapper import ConnectorWrapper, get_inner_location

from sf_quantum import journal
from sf_quantum.connectors import guardian
from sf_quantum.connectors.slurm import elastic, script
from sf_quantum.connectors.slurm.jobs import Job, PerStep, Result, Strategy
from sf_quantum.connectors.slurm.leased import Use
from sf_quantum.connectors.slurm.login import Login
from sf_quantum.connectors.slurm.options import Service
from sf_quantum.connectors.slurm.policy import (
    EachStep,
    Elastic,
    Policy,
    Reserve,
    policy,
)
from sf_quantum.connectors.slurm.quantum import Quantum
from sf_quantum.connectors.slurm.queue import Queue
from sf_quantum.connectors.slurm.reserved import Reserved
from sf_quantum.connectors.steps import quantum_steps
from sf_quantum.files import JSON


class SlurmConnector(Stock):
    """Runs jobs on a cluster's partitions (Contract 6).

    The parameters are the configuration's; see ``schemas/slurm.json``. Those not named
    here are StreamFlow's.

    :param allocation: how nodes are taken and given back
    :param orphanTimeout: seconds after which an allocation ends itself when the
        connection to its driver is lost
    :param qrmiConfig: the QPUs' definitions, in the format of QRMI's SPANK plugin
    """

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        connector: Connector,
        service: str | None,
        allocation: str | dict[str, JSON] = "per-step",
        orphanTimeout: float = 600,
        qrmiConfig: str | None = None,
        **stock: JSON,
    ) -> None:
        initialise: Callable[..., None] = super().__init__
        initialise(deployment_name, config_dir, connector, service, **stock)
        self._policy = policy(allocation)
        self._orphan_seconds = orphanTimeout
        # StreamFlow made them, as our class
        self._services = {
            name: service
            for name, service in self.services.items()
            if isinstance(service, Service)
        }
        self._quantum = Quantum(
            deployment_name, connector, self._services, self._absolute(qrmiConfig)
        )
        self._run = uuid.uuid4().hex[:12]
        self._queues: dict[str, Queue] = {}
        self._strategies: dict[tuple[Policy, str, str | None], Strategy] = {}
        self._giving_back = asyncio.Lock()

    @property
    def _service_class(self) -> type[Service]:
        return Service

    @classmethod
    def get_schema(cls) -> str:
        """What ``config`` may hold.

        :returns: the JSON Schema
        """
        return (
            files("sf_quantum.connectors")
            .joinpath("schemas/slurm.json")
            .read_text("utf-8")
        )

    async def deploy(self, external: bool) -> None:
        """Have what this driver starts guarded, and take SIGTERM as Ctrl-C.

        :raises WorkflowDefinitionException: if a service names a QPU that is not defined,
            or nodes of an unknown service are to be reserved
        """
        self._quantum.check()
        self._check_reserved()
        guardian.current()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _interrupt)

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        """The one place of the cluster.

        :param service: one of the deployment's
        """
        found = await super().get_available_locations(service)
        if self._inner_ssh_connector:
            # StreamFlow made the connector and does not find it again, for what is mounted
            for place in found.values():
                place.location.mounts = {}
        return found

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
        """Run a command on the login node, and a job where Slurm puts it.

        :raises WorkflowExecutionException: if Slurm refuses the job, or ends it, or what
            nobody has foreseen happens to it
        """
        if job_name is None:
            return await ConnectorWrapper.run(
                self,
                get_inner_location(location),
                command,
                environment,
                workdir,
                stdin,
                stdout,
                stderr,
                capture_output,
                timeout,
            )
        with _told(job_name):
            service = self._services.get(location.service or "", Service())
            inner = get_inner_location(location)
            queue = await self._queue(location, workdir)
            await self._quantum.prepare(inner, job_name)
            use = None
            if service.qpu:
                use = await self._quantum.lend(queue, inner, job_name, service.qpu)
            body = self._body(location, command, environment, workdir, use)
            job = Job(
                *(job_name, service, location.service, body, workdir),
                stdin=_file(stdin),
                stdout=_file(stdout),
                stderr=_file(stderr) if stderr != stdout else None,
                seconds=timeout,
            )
            strategy = await self._strategy(location, job)
            with quantum_steps.running(job_name) if service.quantum else nullcontext():
                done = await strategy.run(job)
            if use is not None:
                await self._quantum.settle(inner, use, done.outcome.good)
            return _answer(job_name, done)

    async def undeploy(self, external: bool) -> None:
        """End every job and allocation."""
        await self._give_back()
        await super().undeploy(external)

    async def _give_back(self) -> None:
        # asked for by the scheduler and by StreamFlow, in any order
        async with self._giving_back:
            strategies, self._strategies = self._strategies, {}
            queues, self._queues = self._queues, {}
            # each is ended whatever becomes of the others
            async with AsyncExitStack() as stack:
                for queue in queues.values():
                    stack.push_async_callback(queue.close)
                for strategy in strategies.values():
                    stack.push_async_callback(strategy.close)

    def _check_reserved(self) -> None:
        policies = [self._policy, *(s.policy for s in self._services.values())]
        for wanted in policies:
            for name in wanted.services if isinstance(wanted, Reserve) else ():
                if name not in self._services:
                    raise WorkflowDefinitionException(
                        f"Deployment {self.deployment_name}: `reserve` names service "
                        f"{name}, which it does not have; "
                        f"it has {', '.join(self._services) or 'none'}."
                    )

    def _body(
        self,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None,
        workdir: str | None,
        use: Use | None,
    ) -> str:
        """The job script: the service's template around the command."""
        exports = [
            f"export {key}={shlex.quote(value)} &&"
            for variables in (location.environment, environment or {})
            for key, value in variables.items()
        ]
        line = create_command(type(self).__name__, [*exports, *command], None, workdir)
        if use is not None:
            line = use.command(line)
        script: str = self.template_map.get_command(
            command=line,
            template=location.service,
            environment=environment,
            workdir=workdir,
        )
        return script

    async def _strategy(self, location: ExecutionLocation, job: Job) -> Strategy:
        """The way in which a job's service takes its nodes."""
        queue = await self._queue(location, job.workdir)
        wanted = job.service.policy or self._policy
        if isinstance(wanted, Reserve) and job.service_name not in wanted.services:
            wanted = EachStep()
        # allocations serve jobs wherever these work
        spool = queue.login.spool if isinstance(wanted, EachStep) else ""
        # and one that is reserved every service that has it
        service = None if isinstance(wanted, Reserve) else job.service_name
        key = (wanted, spool, service)
        if key not in self._strategies and isinstance(wanted, Reserve):
            # its nodes may come with the QPUs' leases
            qpus = {name for s in wanted.services for name in self._services[s].qpu}
            if qpus:
                inner = get_inner_location(location)
                await self._quantum.online(queue, inner, job.name, sorted(qpus))
        if key not in self._strategies:
            self._strategies[key] = self._new_strategy(queue, wanted, job)
        return self._strategies[key]

    def _new_strategy(self, queue: Queue, wanted: Policy, job: Job) -> Strategy:
        # on the driver's own machine there is no connection that could be lost
        orphan = self._orphan_seconds
        if queue.login.local:
            orphan = min(orphan, script.GONE_SECONDS)
        match wanted:
            case Elastic():
                return elastic.Elastic(
                    *(self.deployment_name, queue, job.service_name, job.service),
                    *(wanted, job.body, orphan, quantum_steps),
                )
            case Reserve():
                return Reserved(
                    *(self.deployment_name, queue, self._services, wanted),
                    *(self._template, orphan, quantum_steps),
                )
            case EachStep():
                return PerStep(self.deployment_name, queue, quantum_steps)

    def _template(self, service: str) -> str:
        """A service's job script, around nothing."""
        script: str = self.template_map.get_command(command="", template=service)
        return script

    async def _queue(self, location: ExecutionLocation, workdir: str | None) -> Queue:
        """The queue as jobs with this work directory see it."""
        folder = posixpath.dirname(workdir) if workdir else "/tmp"
        if not self._queues and (record := journal.current()) is not None:
            record.before_end.append(self._give_back)
        if folder not in self._queues:
            login = Login(
                *(self.connector, get_inner_location(location)),
                posixpath.join(folder, f".sfq-{self._run}"),
                self._run,
            )
            self._queues[folder] = Queue(login, self._run, self.pollingInterval)
        return self._queues[folder]

    def _absolute(self, path: str | None) -> str | None:
        """A path beside the StreamFlow file."""
        if path is None:
            return None
        folder = Path(self.config_dir)
        if folder.is_file():  # as StreamFlow gives it where `lazy` is false
            folder = folder.parent
        return str((folder / Path(path).expanduser()).absolute())


@contextmanager
def _told(job: str) -> Iterator[None]:
    """Have whatever is raised be an error of StreamFlow's that names the job."""
    try:
        yield
    except WorkflowException:
        raise
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise WorkflowExecutionException(f"Job {job}: {words}") from error


def _answer(job: str, done: Result) -> tuple[str, int]:
    """What StreamFlow gets.

    :raises WorkflowExecutionException: if Slurm ended the job
    """
    if done.outcome.good:
        return done.output, 0
    if not done.outcome.plain:
        raise WorkflowExecutionException(f"Job {job}: {done.output}")
    return f"Job {job}: {done.output}", done.outcome.exit_code


def _interrupt() -> None:
    """Stop as Ctrl-C does, which a shell lets programs ignore that it starts with ``&``."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


def _file(stream: int | str | None) -> str | None:
    """The file that a stream is.

    :returns: None if Slurm is to choose
    :raises WorkflowExecutionException: if it is a pipe
    """
    if stream == asyncio.subprocess.DEVNULL:
        return "/dev/null"
    if stream == asyncio.subprocess.PIPE:
        raise WorkflowExecutionException("A Slurm job cannot be piped to.")
    return stream if isinstance(stream, str) else None
