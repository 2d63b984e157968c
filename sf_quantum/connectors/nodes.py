"""``sfq.nodes``: several one-job locations over one machine.

StreamFlow's scheduler treats any number of plain ``local`` deployments as one location. The
locations of ``sfq.nodes`` are counted separately, so scattered jobs each run on their own
node. ``schemas/nodes.json`` defines valid names of nodes.
"""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence

from streamflow.core.deployment import Connector
from streamflow.core.scheduling import AvailableLocation

from sf_quantum.connectors.wrapper import LocationWrapper


class NodesConnector(LocationWrapper):
    """One location per name of a node, each running one job at a time."""

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
