"""A connector that reports how the jobs of any other connector end."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.wrapper import ConnectorWrapper

from sf_quantum.connectors.wrapper import ForwardingConnector, Invocation


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


class ObservedConnector(ForwardingConnector):
    """Passes every call to another connector, and reports the ends of jobs.

    It is not a ``ConnectorWrapper``, since StreamFlow's scheduler pairs each wrapper with a
    location of its own; :attr:`connector` is what the observed connector wraps.

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

    def _target(self) -> Connector:
        return self._observed

    async def deploy(self, external: bool) -> None:
        await self._observed.deploy(external)

    async def undeploy(self, external: bool) -> None:
        await self._observed.undeploy(external)

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        return await self._observed.get_available_locations(service)

    @classmethod
    def get_schema(cls) -> str:
        """Allow no configuration: a StreamFlow file cannot name this connector."""
        return "false"

    async def invoke(self, invocation: Invocation) -> tuple[str, int] | None:
        job = invocation.job_name
        try:
            result = await super().invoke(invocation)
        except WorkflowExecutionException as error:
            if job is not None:
                self._observer(job, JobEnd(None, str(error)))
            raise
        if job is not None and result is not None:
            self._observer(job, JobEnd(result[1], result[0]))
        return result
