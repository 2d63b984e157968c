"""The base of our connectors: locations of their own over one machine's location."""

from __future__ import annotations

from collections.abc import MutableSequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import Connector, ExecutionLocation, Shell
from streamflow.core.exception import WorkflowDefinitionException
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
from sf_quantum.connectors.invocation import Invocation, InvocationConnector


class LocationWrapper(InvocationConnector, ConnectorWrapper):
    """Locations that StreamFlow counts separately though all work on one machine.

    Every call is passed to the inner connector, with the inner location.
    """

    async def deploy(self, external: bool) -> None:
        """Check the inner deployment and start the guardian of this driver.

        :raises WorkflowDefinitionException: if the inner deployment is neither local nor
            one SSH host
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

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
    ) -> None:
        """See the class."""
        await self.connector.copy_local_to_remote(
            src, dst, get_inner_locations(locations), read_only
        )

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        """See the class."""
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
        """See the class; a source of this connector's own is on the same machine."""
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
        """See the class."""
        return await self.connector.get_shell(command, get_inner_location(location))

    async def get_stream_reader(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        """See the class."""
        return await self.connector.get_stream_reader(
            command, get_inner_location(location)
        )

    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        """See the class."""
        return await self.connector.get_stream_writer(
            command, get_inner_location(location)
        )

    async def invoke(self, invocation: Invocation) -> tuple[str, int] | None:
        """See the class."""
        inner = get_inner_location(invocation.location)
        return await replace(invocation, location=inner).on(self.connector)

    async def _inner(self) -> AvailableLocation:
        """The machine's one location; both kinds of connector keep it after a first look."""
        locations = await self.connector.get_available_locations(service=self.service)
        return next(iter(locations.values()))

    def _location(
        self, name: str, slots: int, inner: AvailableLocation
    ) -> AvailableLocation:
        """Make a location on the machine that runs so many jobs at once."""
        location = AvailableLocation(
            name=name,
            deployment=self.deployment_name,
            hostname=inner.hostname,
            slots=slots,
            stacked=False,
            wraps=inner,
        )
        # paths are those of the machine, so its files are linked and not copied
        location.location.mounts = {"/": "/"}
        return location

    def _refuse_service(self, service: str | None) -> None:
        if service is not None:
            raise WorkflowDefinitionException(
                f"Deployment {self.deployment_name} has no service {service}: "
                "remove `service` from the target."
            )


def _problem(inner: Connector) -> str | None:
    """Why a deployment cannot be wrapped: the end of a sentence, or ``None``."""
    if isinstance(inner, LocalConnector):
        return None
    if not isinstance(inner, SSHConnector):
        return "is neither local nor SSH"
    if isinstance(inner, FutureConnector):  # it is not deployed yet
        nodes = len(inner.parameters["nodes"])
        transfers_elsewhere = inner.parameters.get("dataTransferConnection")
    else:
        nodes = len(inner.nodes)
        transfers_elsewhere = inner.dataTransferConfig
    if nodes != 1:
        return f"has {nodes} SSH nodes"
    return "sends its data through another node" if transfers_elsewhere else None
