"""Names of remote files, as the shell of a remote host or a pod reads them.

StreamFlow 0.2.0rc3 does not quote names in these commands, or quotes them in a way in which a
shell expands ``$`` and backquotes: files with spaces in their names cannot be moved, and a name
such as ``$(...)``, which may be a value of an input, runs a command. :data:`REPLACEMENTS` are
for these functions and methods. They quote words for a shell, which reads the commands of all
connectors: in StreamFlow, those for Kubernetes are the only ones that open streams without one.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import shlex
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import Any

from streamflow.core import utils
from streamflow.core.data import StreamWrapper
from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.data.remotepath import RemoteStreamFlowPath
from streamflow.deployment.connector import base, container, kubernetes, queue_manager
from streamflow.deployment.connector import ssh as ssh_connector
from streamflow.deployment.connector.container import ContainerConnector
from streamflow.deployment.connector.kubernetes import KubernetesBaseConnector
from streamflow.deployment.wrapper import get_inner_location


async def _copy_remote_to_local(
    *, src: str, reader_command: Sequence[str], **options: Any
) -> None:
    await _fetch(src=src, reader_command=_quoted(*reader_command), **options)


async def _copy_remote_to_remote(
    *,
    src: str,
    reader_command: Sequence[str] | None = None,
    writer_command: Sequence[str] | None = None,
    **options: Any,
) -> None:
    reader = reader_command or ("tar", "chf", "-", "-C", *posixpath.split(src))
    # Without a writer's command, StreamFlow takes that of `_get_remote_to_remote_write_command`.
    writer = _quoted(*writer_command) if writer_command else None
    await _transfer(
        src=src, reader_command=_quoted(*reader), writer_command=writer, **options
    )


async def _copy_same_connector(*, src: str, dst: str, **options: Any) -> Any:
    return await _copy(src=shlex.quote(src), dst=shlex.quote(dst), **options)


async def _copy_between_volumes(
    self: ContainerConnector, *, src: str, dst: str, **options: Any
) -> None:
    await _copy_in_container(
        self, src=shlex.quote(src), dst=shlex.quote(dst), **options
    )


async def _get_container_writer(
    self: ContainerConnector, command: Sequence[str], location: ExecutionLocation
) -> AbstractAsyncContextManager[StreamWrapper]:
    # StreamFlow's own has a shell evaluate the words of `$(...)`, which have one space between
    # them, and of which patterns are names of files.
    inside = self._get_run_command(" ".join(command), location, interactive=True)
    return await self.connector.get_stream_writer(inside, get_inner_location(location))


async def _get_pod_reader(
    self: KubernetesBaseConnector, command: Sequence[str], location: ExecutionLocation
) -> AbstractAsyncContextManager[StreamWrapper]:
    # StreamFlow declares the words of this command as numbers.
    words: list[Any] = ["sh", "-c", " ".join(command)]
    return await _read_from_pod(self, words, location)


async def _get_pod_writer(
    self: KubernetesBaseConnector, command: Sequence[str], location: ExecutionLocation
) -> AbstractAsyncContextManager[StreamWrapper]:
    return await _write_to_pod(self, ["sh", "-c", " ".join(command)], location)


async def _get_local_to_remote_destination(
    dst_connector: Connector, dst_location: ExecutionLocation, src: str, dst: str
) -> str:
    if await _is_folder(dst_connector, dst_location, dst):
        return posixpath.join(dst, os.path.basename(src))
    return dst


async def _get_remote_to_remote_write_command(
    src_connector: Connector,
    src_location: ExecutionLocation,
    src: str,
    dst_connector: Connector,
    dst_locations: Sequence[ExecutionLocation],
    dst: str,
) -> list[str]:
    """Return the command that writes an archive of ``src`` to ``dst``."""
    unpack = ["tar", "xpf", "-"]
    if await _is_folder(dst_connector, dst_locations[0], dst):
        return [*unpack, "-C", shlex.quote(dst)]
    if posixpath.basename(src) == posixpath.basename(dst):
        return [*unpack, "-C", shlex.quote(posixpath.dirname(dst))]
    if not await _is_folder(src_connector, src_location, src):
        return [*unpack, "-O", "|", "tee", shlex.quote(dst), ">", "/dev/null"]
    make = _quoted("mkdir", "-p", dst)
    await asyncio.gather(*(dst_connector.run(one, make) for one in dst_locations))
    return [*unpack, "-C", shlex.quote(dst), "--strip-components", "1"]


async def _is_folder(
    connector: Connector, location: ExecutionLocation, path: str
) -> bool:
    """Whether a path is a folder of a location.

    :raises WorkflowExecutionException: if the location does not answer
    """
    output, status = await connector.run(
        location=location, command=_quoted("test", "-d", path), capture_output=True
    ) or ("", None)
    if status is None or status > 1:
        raise WorkflowExecutionException(output)
    return status == 0


async def _chmod(
    self: RemoteStreamFlowPath, mode: int, *, follow_symlinks: bool = True
) -> None:
    if (inner := await self._get_inner_path()) != self:
        await inner.chmod(mode, follow_symlinks=follow_symlinks)
        return
    options = [] if follow_symlinks else ["-h"]
    await _run(self, "chmod", *options, f"{mode:o}", str(self))


async def _mkdir(
    self: RemoteStreamFlowPath,
    mode: int = 0o777,
    parents: bool = False,
    exist_ok: bool = False,
) -> None:
    if (inner := await self._get_inner_path()) != self:
        await inner.mkdir(mode=mode, parents=parents, exist_ok=exist_ok)
        return
    options = ["-p"] if parents or exist_ok else []
    await _run(self, "mkdir", "-m", f"{mode:o}", *options, str(self))


async def _rmtree(self: RemoteStreamFlowPath) -> None:
    if (inner := await self._get_inner_path()) != self:
        await inner.rmtree()
        return
    await _run(self, "rm", "-rf", str(self))


async def _symlink_to(
    self: RemoteStreamFlowPath,
    target: str | os.PathLike[str],
    target_is_directory: bool = False,
) -> None:
    if (inner := await self._get_inner_path()) != self:
        await inner.symlink_to(target, target_is_directory=target_is_directory)
        return
    await _run(self, "ln", "-snf", str(target), str(self))


async def _hardlink_to(
    self: RemoteStreamFlowPath, target: str | os.PathLike[str]
) -> None:
    if (inner := await self._get_inner_path()) != self:
        await inner.hardlink_to(target)
        return
    await _run(self, "ln", "-nf", str(target), str(self))


async def _size(self: RemoteStreamFlowPath) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if (inner := await self._get_inner_path()) != self:
        return int(await inner.size())
    total = "awk '{sum += $5} END {printf \"%.0f\", sum}'"
    find = _quoted("find", "-L", str(self), "-type", "f", "-exec", "ls", "-ln", "{}")
    return int(await _output(self, [*find, r"\+", "|", total]) or 0)


async def _write_text(
    self: RemoteStreamFlowPath, data: str, **options: str | None
) -> int:
    if (inner := await self._get_inner_path()) != self:
        return int(await inner.write_text(data, **options))
    writer = await self.connector.get_stream_writer(
        command=["tee", shlex.quote(str(self)), ">", "/dev/null"],
        location=self.location,
    )
    async with writer as stream:
        await stream.write(data.encode())
    return len(data)


async def _run(path: RemoteStreamFlowPath, *words: str) -> None:
    await _output(path, _quoted(*words))


async def _output(path: RemoteStreamFlowPath, command: list[str]) -> str:
    """Run a command on a path's host.

    :raises WorkflowExecutionException: if it fails
    """
    output, status = await path.connector.run(
        location=path.location, command=command, capture_output=True
    ) or ("", None)
    if status != 0:
        raise WorkflowExecutionException(
            f"{status} Command '{' '.join(command)}' on location {path.location}: {output}"
        )
    return output.strip()


def _quoted(*words: str) -> list[str]:
    return [shlex.quote(word) for word in words]


_fetch = base.copy_remote_to_local
_transfer = base.copy_remote_to_remote
_copy = base.copy_same_connector
_copy_in_container = ContainerConnector._local_copy
_read_from_pod = KubernetesBaseConnector.get_stream_reader
_write_to_pod = KubernetesBaseConnector.get_stream_writer
#: class or module, name, and what replaces it there
REPLACEMENTS: tuple[tuple[type | ModuleType, str, Any], ...] = (
    *(
        (module, name, replacement)
        for name, replacement in (
            ("copy_remote_to_local", _copy_remote_to_local),
            ("copy_remote_to_remote", _copy_remote_to_remote),
            ("copy_same_connector", _copy_same_connector),
            ("get_local_to_remote_destination", _get_local_to_remote_destination),
            ("get_remote_to_remote_write_command", _get_remote_to_remote_write_command),
        )
        # Modules import these functions by name.
        for module in (utils, base, container, kubernetes, queue_manager, ssh_connector)
        if hasattr(module, name)
    ),
    (ContainerConnector, "_local_copy", _copy_between_volumes),
    (ContainerConnector, "get_stream_writer", _get_container_writer),
    (KubernetesBaseConnector, "get_stream_reader", _get_pod_reader),
    (KubernetesBaseConnector, "get_stream_writer", _get_pod_writer),
    (RemoteStreamFlowPath, "chmod", _chmod),
    (RemoteStreamFlowPath, "mkdir", _mkdir),
    (RemoteStreamFlowPath, "rmtree", _rmtree),
    (RemoteStreamFlowPath, "symlink_to", _symlink_to),
    (RemoteStreamFlowPath, "hardlink_to", _hardlink_to),
    (RemoteStreamFlowPath, "size", _size),
    (RemoteStreamFlowPath, "write_text", _write_text),
)
