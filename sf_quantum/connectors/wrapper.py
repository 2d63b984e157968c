"""Connectors that pass their calls to another connector: base classes, and an observer."""

from __future__ import annotations

import asyncio
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, MutableSequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import ClassVar, TypeAlias

from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import Connector, ExecutionLocation, Shell
from streamflow.core.exception import (
    WorkflowDefinitionException,
    WorkflowExecutionException,
)
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector.local import LocalConnector
from streamflow.deployment.connector.ssh import SSHConnector
from streamflow.deployment.future import FutureConnector
from streamflow.deployment.wrapper import (
    ConnectorWrapper,
    get_inner_location,
    get_inner_locations,
)

from sf_quantum.connectors import guardian

# size of the end of a command's errors that is read for a message
ERROR_BYTES = 4096
#: a command's output, if it is captured, and its exit status
Result: TypeAlias = tuple[str, int] | None
#: Function that is called at the end of a job's command with the job's name, the exit status
#: (``None`` if the connector could not run the command), and the output or the connector's
#: error. If the function raises an exception, this replaces the result.
Observer: TypeAlias = Callable[[str, int | None, str], None]


@dataclass(frozen=True)
class Invocation:
    """The arguments of one call of ``Connector.run``.

    :param job_name: name of the job; ``None`` for a command of StreamFlow itself
    """

    location: ExecutionLocation
    command: MutableSequence[str]
    environment: MutableMapping[str, str] | None = None
    workdir: str | None = None
    stdin: int | str | None = None
    stdout: int | str = asyncio.subprocess.STDOUT
    stderr: int | str = asyncio.subprocess.STDOUT
    capture_output: bool = False
    timeout: int | None = None
    job_name: str | None = None


class InvokedConnector(Connector, ABC):
    """Base of connectors that define :meth:`invoke` instead of ``run``."""

    #: path of the connector's JSON Schema, relative to this folder
    schema: ClassVar[str]

    @classmethod
    def get_schema(cls) -> str:
        return files(__package__).joinpath(cls.schema).read_text("utf-8")

    @abstractmethod
    async def invoke(self, invocation: Invocation) -> Result:
        """Run a command, as a job if it has a job's name."""

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
    ) -> Result:
        return await self.invoke(
            Invocation(
                location=location,
                command=command,
                environment=environment,
                workdir=workdir,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                capture_output=capture_output,
                timeout=timeout,
                job_name=job_name,
            )
        )


class LocationWrapper(InvokedConnector, ConnectorWrapper):
    """Base of connectors that show a single machine to StreamFlow as separate locations."""

    async def deploy(self, external: bool) -> None:
        """Check the inner deployment, and start the guardian of this driver.

        :raises WorkflowDefinitionException: if the inner deployment is neither local nor a
            single SSH host
        """
        problem = _problem(self.connector)
        if problem is not None:
            raise WorkflowDefinitionException(
                f"Deployment {self.deployment_name} cannot wrap "
                f"{self.connector.deployment_name}, which {problem}: let it wrap a `local` "
                "deployment or an `ssh` one with a single node and no "
                "dataTransferConnection."
            )
        guardian.current()

    async def invoke(self, invocation: Invocation) -> Result:
        inner = replace(invocation, location=get_inner_location(invocation.location))
        return await self.connector.run(**vars(inner))

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
    ) -> None:
        await self.connector.copy_local_to_remote(
            src, dst, get_inner_locations(locations), read_only
        )

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        await self.connector.copy_remote_to_local(
            src, dst, get_inner_location(location), read_only
        )

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
    ) -> None:
        if source_connector is None or source_connector is self:
            source_connector = None
            source_location = get_inner_location(source_location)
        await self.connector.copy_remote_to_remote(
            src,
            dst,
            get_inner_locations(locations),
            source_location,
            source_connector,
            read_only,
        )

    async def get_shell(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> Shell:
        return await self.connector.get_shell(command, get_inner_location(location))

    async def get_stream_reader(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        return await self.connector.get_stream_reader(
            command, get_inner_location(location)
        )

    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        return await self.connector.get_stream_writer(
            command, get_inner_location(location)
        )

    async def _inner(self) -> AvailableLocation:
        """Return the machine's location, which both kinds of inner connector cache."""
        locations = await self.connector.get_available_locations(service=self.service)
        return next(iter(locations.values()))

    def _location(
        self, name: str, slots: int, inner: AvailableLocation
    ) -> AvailableLocation:
        """Return a location on the machine that runs ``slots`` jobs concurrently."""
        location = AvailableLocation(
            name=name,
            deployment=self.deployment_name,
            hostname=inner.hostname,
            local=inner.local,
            slots=slots,
            stacked=False,
            wraps=inner,
        )
        # The paths are the same as on the machine, so that files are linked instead of copied.
        location.location.mounts = {"/": "/"}
        return location

    def _refuse_service(self, service: str | None) -> None:
        if service is not None:
            raise WorkflowDefinitionException(
                f"Deployment {self.deployment_name} has no service {service}: "
                "remove `service` from the target."
            )


def _problem(inner: Connector) -> str | None:
    """Return why a deployment cannot be wrapped, to follow "which" in a message."""
    if isinstance(inner, LocalConnector):
        return None
    if not isinstance(inner, SSHConnector):
        return "is neither local nor SSH"
    if isinstance(inner, FutureConnector):  # not deployed yet
        nodes = len(inner.parameters["nodes"])
        transfers_elsewhere = inner.parameters.get("dataTransferConnection")
    else:
        nodes = len(inner.nodes)
        transfers_elsewhere = inner.dataTransferConfig
    if nodes != 1:
        return f"has {nodes} SSH nodes"
    return "sends its data through another node" if transfers_elsewhere else None


class ObservedConnector(InvokedConnector, FutureConnector):
    """Passes every call to another connector, and reports the ends of jobs.

    The class is derived from StreamFlow's proxy for connectors, not from ``ConnectorWrapper``,
    for which StreamFlow's scheduler would expect a separate location.
    """

    def __init__(self, observed: Connector, observer: Observer) -> None:
        super().__init__(
            observed.deployment_name,
            observed.config_dir,
            type(observed),
            external=False,
            transferBufferSize=observed.transferBufferSize,
        )
        self._connector: Connector = observed
        self._observer = observer

    async def invoke(self, invocation: Invocation) -> Result:
        job = invocation.job_name
        try:
            result = await self._connector.run(**vars(invocation))
        except WorkflowExecutionException as error:
            if job is not None:
                self._observer(job, None, str(error))
            raise
        if job is not None and result is not None:
            output, status = result
            self._observer(
                job, status, output or await self._errors(invocation, status)
            )
        return result

    async def _errors(self, invocation: Invocation, status: int) -> str:
        """Return the end of a failed command's errors, if they were written to a file."""
        files = (invocation.stderr, invocation.stdout)
        file = next((stream for stream in files if isinstance(stream, str)), None)
        if status == 0 or file is None:
            return ""
        # If reading fails, this is ignored, as the job has already failed.
        with suppress(Exception):
            command = ["tail", "-c", str(ERROR_BYTES), shlex.quote(file)]
            read = await self._connector.run(
                invocation.location,
                command,
                workdir=invocation.workdir,
                capture_output=True,
            )
            return read[0] if read is not None and read[1] == 0 else ""
        return ""
