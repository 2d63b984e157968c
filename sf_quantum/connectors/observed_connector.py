"""A connector that reports how jobs end, around any connector, StreamFlow's included."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, MutableSequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias, cast

from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import Connector, ExecutionLocation, Shell
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.wrapper import ConnectorWrapper

from sf_quantum.connectors.invocation import Invocation, InvocationConnector


@dataclass(frozen=True)
class JobEnd:
    """How a job's command ended.

    :param status: its exit status; ``None`` if the connector could not run it
    :param output: what it printed, or the connector's error
    """

    status: int | None
    output: str


#: called with a job's name when it ends; an exception it raises replaces the result
Observer: TypeAlias = Callable[[str, JobEnd], None]


class ObservedConnector(InvocationConnector):
    """Passes every call to another connector, and reports the ends of jobs.

    It is no ``ConnectorWrapper``, since StreamFlow's scheduler pairs each wrapper with a
    location of its own; :attr:`connector` is therefore what the other connector wraps.

    :param observer: called when a job ends
    """

    def __init__(self, observed: Connector, observer: Observer) -> None:
        super().__init__(
            observed.deployment_name, observed.config_dir, observed.transferBufferSize
        )
        self._observed = observed
        self._observer = observer

    @property
    def connector(self) -> Connector:
        """See the class."""
        return cast(ConnectorWrapper, self._observed).connector

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
    ) -> None:
        """See the class."""
        await self._observed.copy_local_to_remote(src, dst, locations, read_only)

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        """See the class."""
        await self._observed.copy_remote_to_local(src, dst, location, read_only)

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
    ) -> None:
        """See the class."""
        await self._observed.copy_remote_to_remote(
            src, dst, locations, source_location, source_connector, read_only
        )

    async def deploy(self, external: bool) -> None:
        """See the class."""
        await self._observed.deploy(external)

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        """See the class."""
        return await self._observed.get_available_locations(service)

    @classmethod
    def get_schema(cls) -> str:
        """Allow no configuration: a StreamFlow file cannot name this connector."""
        return "false"

    async def get_shell(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> Shell:
        """See the class."""
        return await self._observed.get_shell(command, location)

    async def get_stream_reader(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        """See the class."""
        return await self._observed.get_stream_reader(command, location)

    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        """See the class."""
        return await self._observed.get_stream_writer(command, location)

    async def invoke(self, invocation: Invocation) -> tuple[str, int] | None:
        """See the class."""
        job = invocation.job_name
        try:
            result = await invocation.on(self._observed)
        except WorkflowExecutionException as error:
            if job is not None:
                self._observer(job, JobEnd(None, str(error)))
            raise
        if job is not None and result is not None:
            self._observer(job, JobEnd(result[1], result[0]))
        return result

    async def undeploy(self, external: bool) -> None:
        """See the class."""
        await self._observed.undeploy(external)
