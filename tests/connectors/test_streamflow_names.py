"""Names of files arrive as they are on the hosts of StreamFlow's own connectors."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import WSMsgType
from kubernetes_asyncio.client import CoreV1Api
from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector import connector_classes
from streamflow.deployment.connector.base import BaseConnector
from streamflow.deployment.connector.container import (
    ContainerConnector,
    ContainerInstance,
)
from streamflow.deployment.connector.kubernetes import (
    STREAM_CLOSE,
    KubernetesBaseConnector,
)
from streamflow.deployment.connector.local import LocalConnector
from streamflow.deployment.connector.queue_manager import QueueManagerConnector
from streamflow.deployment.wrapper import ConnectorWrapper

from sf_quantum.connectors import streamflow_names

pytestmark = pytest.mark.process

NAME = "a  b $(true) `true` it's \u00e9 & $HOME"


class _Exec:
    """What a Kubernetes API server does: it starts the words of a command without a shell."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.closed = False

    async def __aenter__(self) -> _Exec:
        self._process: Process = await asyncio.create_subprocess_exec(
            *self.command, stdin=PIPE, stdout=PIPE
        )
        return self

    async def receive(self) -> Any:
        assert self._process.stdout is not None
        if data := await self._process.stdout.read(65536):
            return SimpleNamespace(type=WSMsgType.BINARY, data=b"\x01" + data)
        status = "Failure" if await self._process.wait() else "Success"
        data = b"\x03" + json.dumps({"status": status}).encode()
        return SimpleNamespace(type=WSMsgType.CLOSED, data=data)

    async def send_bytes(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if data.startswith(STREAM_CLOSE):
            self._process.stdin.close()
            return
        self._process.stdin.write(data[1:])
        await self._process.stdin.drain()

    async def close(self) -> None:
        self.closed = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()


def _in_pods(connector: KubernetesBaseConnector) -> KubernetesBaseConnector:
    async def run(*, command: list[str], **_: Any) -> _Exec:
        return _Exec(command)

    async def read(**_: Any) -> Any:
        box = SimpleNamespace(name="box", volume_mounts=[])
        return SimpleNamespace(spec=SimpleNamespace(containers=[box]))

    api = SimpleNamespace(connect_get_namespaced_pod_exec=run, read_namespaced_pod=read)
    connector.client = connector.client_ws = cast(CoreV1Api, api)
    return connector


def _make(kind: str, folder: Path) -> tuple[Connector, list[ExecutionLocation]]:
    """Return a connector of StreamFlow, and two locations of it that are this machine."""
    made: Callable[..., Any] = connector_classes[kind]
    if issubclass(connector_classes[kind], KubernetesBaseConnector):
        needed: dict[str, Any] = (
            {"files": []} if kind == "kubernetes" else {"chart": "c"}
        )
        pods = _in_pods(made("pods", str(folder), **needed))
        return pods, [ExecutionLocation(f"{n}:box", "pods") for n in ("one", "two")]
    if issubclass(connector_classes[kind], QueueManagerConnector):
        inner, wrapped = _make("kubernetes", folder)
        fronts = [ExecutionLocation(one.name, "queue", wraps=one) for one in wrapped]
        return made("queue", str(folder), inner, None), fronts
    host = AvailableLocation("host", "host", "localhost", local=True)
    needed = {"files": ["f"]} if kind == "docker-compose" else {"image": "i"}
    local = LocalConnector("host", str(folder))
    boxes: ContainerConnector = made("boxes", str(folder), local, None, **needed)
    boxes._inner_location = host
    names = ("one", "two")
    boxes._instances.update(
        {name: ContainerInstance("", 1.0, False, 1.0, {}) for name in names}
    )
    return boxes, [ExecutionLocation(n, "boxes", wraps=host.location) for n in names]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, method in streamflow_names.REPLACEMENTS:
        monkeypatch.setattr(owner, name, method)


@pytest.fixture(autouse=True)
def _containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs ``docker`` and ``singularity`` whose containers are this machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "singularity"):
        program = programs / name
        program.write_text(
            "#!/bin/sh\n"
            "shift; while case $1 in -*) ;; *) break;; esac; do shift; done; shift\n"
            'exec "$@"\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


# test_streamflow_outputs.py moves files of hosts that are reached over SSH.
@pytest.mark.parametrize("kind", sorted({*connector_classes} - {"local", "ssh"}))
async def test_files_are_copied_whatever_their_names(kind: str, tmp_path: Path) -> None:
    connector, (one, two) = _make(kind, tmp_path)
    folders = [tmp_path / name / NAME for name in ("from", "fetched", "sent", "moved")]
    source, fetched, sent, moved = (folder / NAME for folder in folders)
    for folder in folders:
        folder.mkdir(parents=True)
    source.write_text("content")
    renamed = moved.with_name(f"{NAME} 2")
    copied = moved.with_name(f"{NAME} 3")
    try:
        await connector.copy_remote_to_local(str(source), str(fetched), one)
        await connector.copy_local_to_remote(str(source), str(sent), [one])
        for target, location in ((moved, two), (renamed, two), (copied, one)):
            await connector.copy_remote_to_remote(
                str(source), str(target), [location], one
            )
    finally:
        await _close(connector)
    for copy in (fetched, sent, moved, renamed, copied):
        assert copy.read_text() == "content", copy


async def test_files_of_volumes_are_copied_whatever_their_names(tmp_path: Path) -> None:
    connector, (location, _) = _make("docker", tmp_path)
    assert isinstance(connector, ContainerConnector)
    source, copy = tmp_path / NAME, tmp_path / f"{NAME} 2"
    source.write_text("content")
    try:
        await connector._local_copy(
            src=str(source), dst=str(copy), location=location, read_only=False
        )
    finally:
        await _close(connector)
    assert copy.read_text() == "content"


async def _close(connector: Connector) -> None:
    """End the shells of the innermost connector."""
    while isinstance(connector, ConnectorWrapper):
        connector = connector.connector
    assert isinstance(connector, BaseConnector)
    await BaseConnector.undeploy(connector, False)
