"""The base of our connectors: locations of their own over one machine's location."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, MutableSequence
from contextlib import AbstractAsyncContextManager

from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import Connector, ExecutionLocation, Shell
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector.local import LocalConnector
from streamflow.deployment.connector.ssh import SSHConnector
from streamflow.deployment.wrapper import (
    ConnectorWrapper,
    get_inner_location,
    get_inner_locations,
)

from sf_quantum.connectors import guardian, ssh


class LocationWrapper(ConnectorWrapper):
    """Locations that StreamFlow counts as its own and that all work on one machine."""

    async def deploy(self, external: bool) -> None:
        """Refuse what cannot be wrapped, and have what this driver starts guarded.

        :raises WorkflowDefinitionException: if the inner deployment is neither local nor
            one SSH host
        """
        self._check_inner()
        guardian.current()

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
    ) -> None:
        """Copy to the machine."""
        await self.connector.copy_local_to_remote(
            src, dst, get_inner_locations(locations), read_only
        )

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        """Copy from the machine."""
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
        """Copy to the machine, within it if the source is a location of ours."""
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
        """Open a shell on the machine."""
        return await self.connector.get_shell(command, get_inner_location(location))

    async def get_stream_reader(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        """Read what a command on the machine prints."""
        return await self.connector.get_stream_reader(
            command, get_inner_location(location)
        )

    async def get_stream_writer(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> AbstractAsyncContextManager[StreamWrapper]:
        """Write to a command on the machine."""
        return await self.connector.get_stream_writer(
            command, get_inner_location(location)
        )

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
        """Run a command on the machine."""
        return await self.connector.run(
            location=get_inner_location(location),
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

    async def _inner(self) -> AvailableLocation:
        """The one location of the machine; both kinds of machine keep it after a first look."""
        locations = await self.connector.get_available_locations(service=self.service)
        return next(iter(locations.values()))

    def _location(
        self, name: str, slots: int, inner: AvailableLocation
    ) -> AvailableLocation:
        """A location of ours on the machine.

        :param slots: how many jobs it runs at once
        """
        location = AvailableLocation(
            name=name,
            deployment=self.deployment_name,
            hostname=inner.hostname,
            slots=slots,
            stacked=False,
            wraps=inner,
        )
        # the machine's paths are ours: its files are linked, not copied
        location.location.mounts = {"/": "/"}
        return location

    def _refuse_service(self, service: str | None) -> None:
        if service is not None:
            raise WorkflowDefinitionException(
                f"Deployment {self.deployment_name} has no service {service}: "
                "remove `service` from the target."
            )

    def _check_inner(self) -> None:
        inner = self.connector
        if isinstance(inner, SSHConnector):
            problem = ssh.problem(inner)
        elif isinstance(inner, LocalConnector):
            problem = None
        else:
            problem = "is neither local nor SSH"
        if problem is not None:
            raise WorkflowDefinitionException(
                f"Deployment {self.deployment_name} cannot wrap {inner.deployment_name}, "
                f"which {problem}: let it wrap a `local` deployment or an `ssh` one "
                "with a single node and no dataTransferConnection."
            )
