"""``sfq.nodes``: several locations on one machine, each for one job at a time.

StreamFlow's scheduler treats any number of plain ``local`` deployments as a single location.
It counts the locations of ``sfq.nodes`` separately, so each job of a scatter runs on a
separate node. ``schemas/nodes.json`` defines valid names of nodes.
"""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence

from streamflow.core.deployment import Connector
from streamflow.core.scheduling import AvailableLocation

from sf_quantum.connectors.wrapper import LocationWrapper


class NodesConnector(LocationWrapper):
    """Has one location per name of a node, each for one job at a time."""

    schema = "schemas/nodes.json"

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        connector: Connector,
        service: str | None,
        names: MutableSequence[str],
        transferBufferSize: int = 2**16,
    ) -> None:
        super().__init__(
            deployment_name, config_dir, connector, service, transferBufferSize
        )
        self.names = names

    async def get_available_locations(
        self, service: str | None = None
    ) -> MutableMapping[str, AvailableLocation]:
        self._refuse_service(service)
        inner = await self._inner()
        return {name: self._location(name, 1, inner) for name in self.names}
