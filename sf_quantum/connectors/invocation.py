"""StreamFlow's ``Connector.run``, whose ten parameters are spelled out here alone."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import MutableMapping, MutableSequence
from dataclasses import dataclass

from streamflow.core.deployment import Connector, ExecutionLocation


@dataclass(frozen=True)
class Invocation:
    """The arguments of one call of ``Connector.run``.

    :param job_name: of a job; ``None`` for StreamFlow's own housekeeping
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

    async def on(self, connector: Connector) -> tuple[str, int] | None:
        """Run it on another connector."""
        return await connector.run(**vars(self))


class InvocationConnector(Connector, ABC):
    """A connector that receives the arguments of ``run`` as one value."""

    @abstractmethod
    async def invoke(self, invocation: Invocation) -> tuple[str, int] | None:
        """Run a command.

        :returns: its output, if that is captured, and its exit status
        """

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
        """Run a command, see :meth:`invoke`."""
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
