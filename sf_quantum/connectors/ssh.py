"""What our connectors need of an SSH deployment and StreamFlow does not offer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamflow.deployment.connector.ssh import SSHConnector
from streamflow.deployment.future import FutureConnector


def problem(connector: SSHConnector) -> str | None:
    """Why a deployment is not one single machine.

    :param connector: the deployment, possibly not deployed yet
    :returns: the end of a sentence, or None if it is one machine
    """
    if isinstance(connector, FutureConnector):
        nodes = len(connector.parameters["nodes"])
        transfers_elsewhere = connector.parameters.get("dataTransferConnection")
    else:
        nodes = len(connector.nodes)
        transfers_elsewhere = connector.dataTransferConfig
    if nodes != 1:
        return f"has {nodes} SSH nodes"
    return "sends its data through another node" if transfers_elsewhere else None


@asynccontextmanager
async def forwarded(
    connector: SSHConnector, host: str, remote: str, local: str
) -> AsyncIterator[None]:
    """Reach a Unix socket of the host through a Unix socket of this machine.

    StreamFlow 0.2.0rc3 has no public way to its SSH connections. The one taken here is
    the one on which the host's service was started, so both end together.

    :param host: the location's name, as the connector knows it
    :param remote: path of the socket on the host
    :param local: path of the socket to make here
    """
    # a lazy deployment stands before the connector itself
    deployed: SSHConnector = getattr(connector, "_connector", connector)
    context = deployed.ssh_context_factories[host]._contexts[0]
    connection = await context.get_connection()
    listener = await connection.forward_local_path(local, remote)
    try:
        yield
    finally:
        listener.close()
        await listener.wait_closed()
