"""The connector ``sfq.slurm``: StreamFlow's Slurm connector, with another way to run jobs."""

from __future__ import annotations

import asyncio
import math
import os
import posixpath
import shlex
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import (
    WorkflowException,
    WorkflowExecutionException,
)
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector.queue_manager import SlurmConnector as Stock
from streamflow.deployment.wrapper import get_inner_location

from sf_quantum import journal
from sf_quantum.connectors import exit_codes, guardian, hints
from sf_quantum.connectors.quantum.running_steps import quantum_steps
from sf_quantum.connectors.slurm import definitions, partition, refusals, scripts
from sf_quantum.connectors.slurm.allocation.elastic_rules import ElasticSettings
from sf_quantum.connectors.slurm.allocation.elastic_service import Elastic
from sf_quantum.connectors.slurm.allocation.per_step import run_alone
from sf_quantum.connectors.slurm.allocation.reserved import Reserved
from sf_quantum.connectors.slurm.allocation.step_job import StepJob
from sf_quantum.connectors.slurm.partition import (
    JobInQueue,
    NoForecast,
    PartitionQueue,
)
from sf_quantum.connectors.slurm.quantum import ServiceQpus
from sf_quantum.connectors.slurm.queue import SlurmQueue
from sf_quantum.connectors.slurm.refusals import SlurmRefusal
from sf_quantum.connectors.slurm.services import (
    AllocationSettings,
    PerStepSettings,
    ReservedSettings,
    SlurmService,
    read_settings,
)
from sf_quantum.connectors.slurm.transport import rest
from sf_quantum.connectors.slurm.transport.answers import JobOutcome, in_one_line
from sf_quantum.connectors.slurm.transport.controller import Commands
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.rest import Rest
from sf_quantum.connectors.slurm.transport.slurmrestd import (
    Settings,
)
from sf_quantum.connectors.slurm.transport.spool_shell import SpoolShell
from sf_quantum.connectors.wrapper import Invocation, InvokedConnector
from sf_quantum.files import JSON
from sf_quantum.slurm.partitions import DESCRIPTIONS_COMMAND, Partition, described


class SlurmConnector(InvokedConnector, Stock):
    """Runs jobs on the partitions of a cluster.

    The parameters are the configuration keys in ``schema.json``. Keys that are not listed
    below belong to StreamFlow's connector.

    :param allocation: strategy that requests and releases nodes
    :param orphanTimeout: seconds after which an allocation ends if it has no connection to its
        driver
    :param slurmrestd: settings with which jobs are submitted and followed over ``slurmrestd``
        instead of with Slurm's commands
    :param qrmiConfig: file with the QPU definitions, in the format of QRMI's SPANK plugin
    """

    schema = "slurm/schema.json"

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        connector: Connector,
        service: str | None,
        allocation: str | dict[str, JSON] = "per-step",
        orphanTimeout: float = 600,
        qrmiConfig: str | None = None,
        slurmrestd: dict[str, JSON] | None = None,
        **stock: JSON,
    ) -> None:
        initialise: Callable[..., None] = super().__init__
        initialise(deployment_name, config_dir, connector, service, **stock)
        self._settings = read_settings(allocation)
        self._orphan_seconds = orphanTimeout
        # The base class has created the services, as instances of `_service_class`.
        self._services = {
            name: service
            for name, service in self.services.items()
            if isinstance(service, SlurmService)
        }
        for name, slurm_service in self._services.items():
            slurm_service.name = name
        self._qpus = ServiceQpus(
            deployment_name, self._services.values(), self._absolute_path(qrmiConfig)
        )
        self._rest = (
            None if slurmrestd is None else Settings.read(slurmrestd, self._folder)
        )
        self._run = uuid.uuid4().hex[:12]
        self._queues: dict[str, SlurmQueue] = {}
        # strategies by settings and service name
        self._strategies: dict[tuple[AllocationSettings, str], Reserved | Elastic] = {}
        self._giving_back_lock = asyncio.Lock()

    @property
    def _service_class(self) -> type[SlurmService]:
        return SlurmService

    async def deploy(self, external: bool) -> None:
        """Start the guardian of this driver, and treat SIGTERM as Ctrl-C.

        :raises WorkflowDefinitionException: if a QPU or a reserved service is not defined, a
            key is not supported over slurmrestd, slurmrestd's token is missing, or clusters
            are named in a wrong place
        """
        self._qpus.check()
        check = partial(
            definitions.check,
            f"Deployment {self.deployment_name}",
            self._services,
            self._settings,
            self._template,
        )
        # In a thread, since the program that prints a token for slurmrestd may take long.
        await asyncio.to_thread(check, self._rest)
        guardian.current()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _interrupt)

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        locations = await super().get_available_locations(service)
        for location in locations.values():
            # With `local`, StreamFlow reads and links files without a command for each file.
            location.location.local = get_inner_location(location.location).local
        if self._inner_ssh_connector:
            # If a location has mounts, StreamFlow looks up its inner connector by name. It
            # does not find an inner connector that it has created itself, so mounts are
            # removed.
            for location in locations.values():
                location.location.mounts = {}
        return locations

    async def invoke(self, invocation: Invocation) -> tuple[str, int] | None:
        """Run a command on the login node or, if it has a job name, as a Slurm job.

        :raises WorkflowExecutionException: if Slurm refuses or ends the job, or after another
            error
        """
        location, name = invocation.location, invocation.job_name
        if name is None:
            inner = replace(invocation, location=get_inner_location(location))
            return await self.connector.run(**vars(inner))
        with _with_job_name(name):
            service = self._services.get(location.service or "", SlurmService())
            queue = self._queue(location, invocation.workdir)
            await self._qpus.prepare(queue, name)
            use, line = None, _command_line(invocation)
            if service.qpu:
                use = await self._qpus.lend(queue, name, service.qpu)
                line = use.command(await queue.argument(line))
            job = StepJob(
                name=name,
                service=service,
                body=self._body(invocation, line),
                workdir=invocation.workdir,
                stdin=_file(invocation.stdin),
                stdout=_file(invocation.stdout),
                stderr=_file(invocation.stderr),
                seconds=invocation.timeout,
            )
            run = await self._strategy(queue, job)
            with quantum_steps.running(name) if service.quantum else nullcontext():
                try:
                    outcome = await run(job)
                except SlurmRefusal as refusal:
                    # A refusal is not a failure of the QPU.
                    hints.refuse(name)
                    explained = await self._explain(refusal, queue, job)
                    is_final = refusals.is_final(str(explained))
                    if is_final and hints.of(name).is_bound_once:
                        raise refusals.FinalRefusal(str(explained)) from None
                    raise explained from None
            if use is not None:
                good = outcome.is_success(exit_codes.current())
                await self._qpus.settle(queue, use, good=good)
            if outcome.good:
                return outcome.output, 0
            message = f"Job {name}: {outcome.output}"
            # A status of 0 would be a success of the step.
            if not outcome.plain or outcome.exit_code == 0:
                raise WorkflowExecutionException(message)
            return message, outcome.exit_code

    async def _explain(
        self, refusal: SlurmRefusal, queue: SlurmQueue, job: StepJob
    ) -> SlurmRefusal:
        """Return a refusal with an explanation from the options of the refused services."""
        partitions: dict[str, Partition] = {}
        if self._rest is None and not job.service.clusters:
            output, _ = await queue.login.ask(DESCRIPTIONS_COMMAND)
            partitions = described(output)
        message = str(refusal)
        right: list[str] = []
        for service in refusal.services or (job.service,):
            options = dict(service.options)
            if job.time_limit and not refusal.services:
                options["time"] = f"{job.time_limit} (ToolTimeLimit)"
            text = refusals.explained(message, options, service.name, partitions)
            right += filter(None, [text.removeprefix(message).lstrip(":; ")])
        return SlurmRefusal(": ".join([message, *filter(None, ["; ".join(right)])]))

    async def partition_queue(
        self, service: str | None
    ) -> tuple[PartitionQueue, JobInQueue]:
        """Return the queue of a service's partition, and the request of the service's jobs.

        :raises NoForecast: if the wait cannot be predicted from the queue, or Slurm did not
            answer
        """
        slurm_service = self._services.get(service or "", SlurmService())
        if not isinstance(slurm_service.settings or self._settings, PerStepSettings):
            raise NoForecast("keeps allocations, which may be free")
        if self._rest is not None or slurm_service.clusters:
            raise NoForecast("cannot be predicted over slurmrestd or in other clusters")
        name = partition.named(slurm_service.options)
        for location in (await self.get_available_locations(service)).values():
            inner = get_inner_location(location.location)
            login = LoginNode(self.connector, inner, "/tmp", self._run)
            text, code = await login.ask(partition.command(name))
            if code != 0:
                raise NoForecast(f"cannot be predicted: {in_one_line(text)}")
            partition_queue = partition.read(text)
            return partition_queue, partition_queue.request(slurm_service)
        raise NoForecast("has no location")

    async def undeploy(self, external: bool) -> None:
        await self._give_back()
        await super().undeploy(external)

    async def _give_back(self) -> None:
        # The journal's scheduler and StreamFlow both call this, in any order.
        async with self._giving_back_lock:
            strategies, self._strategies = self._strategies, {}
            queues, self._queues = self._queues, {}
            # If closing one of them fails, the others are still closed.
            async with AsyncExitStack() as stack:
                for queue in queues.values():
                    stack.push_async_callback(queue.close)
                for strategy in strategies.values():
                    stack.push_async_callback(strategy.close)

    def _body(self, invocation: Invocation, line: str) -> str:
        """Return the job script: the template of the service with the command."""
        script: str = self.template_map.get_command(
            command=line,
            template=invocation.location.service,
            environment=invocation.environment,
            workdir=invocation.workdir,
        )
        return script

    def _template(self, service: str) -> str:
        """Return a service's job script without a command."""
        script: str = self.template_map.get_command(command="", template=service)
        return script

    async def _strategy(
        self, queue: SlurmQueue, job: StepJob
    ) -> Callable[[StepJob], Awaitable[JobOutcome]]:
        """Return the function that runs a service's jobs; allocations serve all folders."""
        settings = job.service.settings or self._settings
        key = (settings, job.service.name)
        match settings:
            case ReservedSettings() if job.service.name in settings.services:
                key = (settings, "")  # one allocation serves all services
                held = [self._services[name] for name in settings.services]
                qpus = {name for service in held for name in service.qpu}
                if qpus and key not in self._strategies:
                    # Slurm may acquire the QPUs' leases together with the nodes.
                    await self._qpus.online(queue, job.name, sorted(qpus))
                # Another job may have created the strategy in the meantime.
                if key not in self._strategies:
                    directives = {
                        name: scripts.directives(self._template(name))
                        for name in settings.services
                    }
                    self._strategies[key] = Reserved(queue, held, settings, directives)
            case ElasticSettings():
                if key not in self._strategies:
                    self._strategies[key] = Elastic(
                        queue, job.service, settings, scripts.directives(job.body)
                    )
            case _:
                return partial(run_alone, queue)
        return self._strategies[key].run

    def _queue(self, location: ExecutionLocation, workdir: str | None) -> SlurmQueue:
        """Return the queue whose spool is next to a work directory."""
        folder = posixpath.dirname(workdir) if workdir else "/tmp"
        if not self._queues and (record := journal.current()) is not None:
            record.before_end.append(self._give_back)
        if folder not in self._queues:
            spool = posixpath.join(folder, f".sfq-{self._run}")
            inner = get_inner_location(location)
            cancel = "" if self._rest is None else rest.CANCEL
            login = LoginNode(self.connector, inner, spool, self._run)
            # If the driver runs on the login node, no connection can be lost, so a shorter
            # time without a driver suffices.
            near = login.local and self._rest is None
            longest = scripts.GONE_SECONDS if near else math.inf
            orphan_seconds = min(self._orphan_seconds, longest)
            self._queues[folder] = SlurmQueue(
                SpoolShell(login, cancel),
                Commands(login) if self._rest is None else Rest(self._rest, login),
                self.deployment_name,
                self.pollingInterval,
                orphan_seconds,
            )
        return self._queues[folder]

    @property
    def _folder(self) -> Path:
        """The folder of the StreamFlow file."""
        folder = Path(self.config_dir)
        # With `lazy: false`, StreamFlow passes the path of its file instead of the folder.
        return folder.parent if folder.is_file() else folder

    def _absolute_path(self, path: str | None) -> str | None:
        """Return the absolute form of a path that is relative to the StreamFlow file."""
        if path is None:
            return None
        return str((self._folder / Path(path).expanduser()).absolute())


def _command_line(invocation: Invocation) -> str:
    """Return a job's command for the shell, with environment, work directory and files.

    Slurm, ``sfq lease`` and the template of the service run this line. It redirects the
    streams itself, so that their messages do not appear in the tool's files.
    """
    exports = [
        f"export {key}={shlex.quote(value)} &&"
        for variables in (invocation.location.environment, invocation.environment or {})
        for key, value in variables.items()
    ]
    words = [*exports, *invocation.command]
    folder = f"cd {invocation.workdir} && " if invocation.workdir else ""
    stdout, stderr = _file(invocation.stdout), _file(invocation.stderr)
    streams = f" {_redirection(stdout)}" if stdout else ""
    if invocation.stderr == invocation.stdout:
        streams += " 2>&1"
    elif stderr:
        streams += f" {_redirection(stderr, '2')}"
    return f"{folder}{' '.join(words)}{streams}"


def _redirection(file: str, descriptor: str = "") -> str:
    """Return the redirection of a stream to a file that is first emptied, then appended to.

    The tasks of an array share the file; Slurm opens such files in the same way.
    """
    name = shlex.quote(file)
    return f"{descriptor}>{name} {descriptor}>>{name}"


@contextmanager
def _with_job_name(job: str) -> Iterator[None]:
    """Convert unexpected exceptions into StreamFlow's exceptions, with the job's name."""
    try:
        yield
    except WorkflowException:
        raise
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise WorkflowExecutionException(f"Job {job}: {message}") from error


# name of the coroutine that StreamFlow runs with asyncio.run
_MAIN = "_async_run"


def _interrupt() -> None:
    """Act as on Ctrl-C, even if the driver was started with ``&``, and so ignores SIGINT.

    Such a driver lacks the handler of ``asyncio.run``, which cancels StreamFlow's task, waits
    for it, and only then raises ``KeyboardInterrupt``. Without this order of events, jobs that
    are being submitted would be forgotten.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for task in asyncio.all_tasks():
            if getattr(task.get_coro(), "__name__", "") == _MAIN:
                task.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGINT))
                task.cancel()
                return
    os.kill(os.getpid(), signal.SIGINT)


def _file(stream: int | str | None) -> str | None:
    """Return the file of a stream; ``None`` for the default. A pipe is rejected."""
    if stream == asyncio.subprocess.DEVNULL:
        return "/dev/null"
    if stream == asyncio.subprocess.PIPE:
        raise WorkflowExecutionException(
            "A Slurm job cannot have a pipe as its input or output."
        )
    return stream if isinstance(stream, str) else None
