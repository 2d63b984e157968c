"""A connector whose jobs' ends are told to somebody, on any connector, stock ones too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, MutableSequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias, cast

from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import Connector, ExecutionLocation, Shell
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.wrapper import ConnectorWrapper


@dataclass(frozen=True)
class Ending:
    """How a job's command ended.

    :param status: its exit status; None if the connector could not run it
    :param output: what it printed, or what the connector says
    """

    status: int | None
    output: str


#: told of a job's end; what it raises takes the place of the end
Observer: TypeAlias = Callable[[str, Ending], None]


class Observed(Connector):
    """Everything is left to the real connector.

    :param observer: called when a job ends
    """

    def __init__(self, real: Connector, observer: Observer) -> None:
        super().__init__(real.deployment_name, real.config_dir, real.transferBufferSize)
        self._real = real
        self._observer = observer

    @property
    def connector(self) -> Connector:
        """What the real connector wraps, where it does: the scheduler goes down there."""
        return cast(ConnectorWrapper, self._real).connector

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
    ) -> None:
        """Copy to the locations."""
        await self._real.copy_local_to_remote(src, dst, locations, read_only)

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        """Copy from the location."""
        await self._real.copy_remote_to_local(src, dst, location, read_only)

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
    ) -> None:
        """Copy between locations."""
        await self._real.copy_remote_to_remote(
            src, dst, locations, source_location, source_connector, read_only
        )

    async def deploy(self, external: bool) -> None:
        """Deploy the real one."""
        await self._real.deploy(external)

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        """The real one's locations."""
        return await self._real.get_available_locations(service)

    @classmethod
    def get_schema(cls) -> str:
        """It is not configured: nothing is allowed."""
        return "false"

    async def get_shell(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> Shell:
        """Open a shell on the location."""
        return await self._real.get_shell(command, location)

    async def get_stream_reader(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        """Read what a command prints."""
        return await self._real.get_stream_reader(command, location)

    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        """Write to a command."""
        return await self._real.get_stream_writer(command, location)

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
        """Run a command, and tell how a job ended."""
        try:
            result = await self._real.run(
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
        except WorkflowExecutionException as error:
            if job_name is not None:
                self._observer(job_name, Ending(None, str(error)))
            raise
        if job_name is not None and result is not None:
            self._observer(job_name, Ending(result[1], result[0]))
        return result

    async def undeploy(self, external: bool) -> None:
        """Undeploy the real one."""
        await self._real.undeploy(external)
