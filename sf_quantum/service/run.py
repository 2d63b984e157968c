"""The service as a process: its socket, its state folder, its start and its end."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.qpu.transport import SOCKET_PATH_BYTES, is_loopback
from sf_quantum.service.app import create_app
from sf_quantum.service.device import Device
from sf_quantum.service.queue import JobQueue
from sf_quantum.service.store import Store

STOP_SECONDS = 2
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How the service is run.

    :param socket: path of the Unix socket; ``None`` listens on ``host`` and ``port``
    :param port: 0 takes any free one
    :param state: folder of what must survive; ``None`` takes one that does not
    :param until_eof: stop when standard input closes, and leave nothing behind
    """

    device: Device
    vqpus: int = 1
    socket: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    state: Path | None = None
    until_eof: bool = False


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Run the service until it is told to stop.

    :param ready: called with the service's URL once it answers there
    :raises InputError: if it cannot listen there, or another service does
    :raises QuantumError: if the queue breaks while it runs
    """
    with ExitStack() as stack:
        folder = stack.enter_context(state_folder(settings.state, settings.until_eof))
        listener, url = stack.enter_context(_listener(settings))
        store = Store(folder / "service.sqlite")
        stack.callback(store.close)
        queue = JobQueue(store, settings.device, settings.vqpus)
        asyncio.run(_serve(queue, listener, lambda: ready(url), settings.until_eof))
        if queue.broken is not None:
            raise QuantumError(f"the queue broke: {queue.broken}")


class _Server(uvicorn.Server):
    """Says where it listens; leaves the signals to us.

    uvicorn's own handling raises the signal again when all is done, before the socket
    and the state folder could be removed.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


async def _serve(
    queue: JobQueue,
    listener: socket.socket,
    ready: Callable[[], None],
    until_eof: bool,
) -> None:
    loop = asyncio.get_running_loop()
    server = _Server(
        uvicorn.Config(
            create_app(queue),
            access_log=False,  # paths hold lease tokens
            lifespan="on",
            log_config=None,
            log_level="warning",
            loop="asyncio",
            timeout_graceful_shutdown=STOP_SECONDS,
            ws="none",
        ),
        ready,
    )

    def stop() -> None:
        # the jobs first: those who wait for them get their answer before the
        # connections close
        queue.request_stop()
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    queue.on_end = stop
    if until_eof:
        _call_at_eof(lambda: loop.call_soon_threadsafe(stop))
    await server.serve([listener])


def _call_at_eof(stop: Callable[[], asyncio.Handle]) -> None:
    def read() -> None:
        with suppress(OSError):
            while os.read(0, 65536):
                pass
        with suppress(RuntimeError):  # the loop is closed: stopped already
            stop()

    # a thread, since an event loop cannot watch a plain file
    threading.Thread(target=read, name="stdin", daemon=True).start()


@contextmanager
def state_folder(path: Path | None, ephemeral: bool) -> Iterator[Path]:
    """Make or take over a state folder, for one service at a time.

    :param path: made, readable for its owner only, if it is not there; ``None`` makes
        a temporary one and removes it
    :param ephemeral: remove the folder in the end if it was made here
    :raises InputError: if it cannot be used, or another service uses it
    """
    made = path is None
    if path is None:
        path = Path(tempfile.mkdtemp(prefix="sfq-"))
        ephemeral = True
    try:
        if not path.exists():
            path.mkdir(mode=0o700)
            made = True
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(
            f"{path}: cannot hold the state: {(error.strerror or '').lower()}"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise InputError(f"{path}: another service uses this state folder") from error
    try:
        yield path
    finally:
        if made and ephemeral:
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


@contextmanager
def _listener(settings: Settings) -> Iterator[tuple[socket.socket, str]]:
    if settings.socket is None:
        with _tcp(settings.host, settings.port) as listener:
            host, port = listener.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            yield listener, f"http://{host}:{port}"
        return
    path = settings.socket.absolute()
    with unix_socket(path) as listener:
        yield listener, f"unix:{path}"


def _tcp(host: str, port: int) -> socket.socket:
    if not is_loopback(host):
        raise InputError(
            f"--host {host}: only loopback addresses and Unix sockets are served, "
            "until TLS and authentication are there"
        )
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port}: expected 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot listen on {host}:{port}: {why}") from error


@contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket that only its owner may use, and remove it in the end.

    A socket that nobody listens on any more is replaced.

    :raises InputError: if the path is too long, taken or not writable
    """
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES:
        raise InputError(
            f"{path}: {length} bytes, a socket's path has at most {SOCKET_PATH_BYTES}"
        )
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        # nobody can connect before listen(), so the mode is right from the first moment
        os.chmod(path, 0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise InputError(
            f"{path}: cannot listen there: {(error.strerror or str(error)).lower()}"
        ) from error
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError(f"{path}: exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        code = probe.connect_ex(str(path))
    if code not in (errno.ECONNREFUSED, errno.ENOENT):
        raise InputError(f"{path}: another service listens there")
    path.unlink(missing_ok=True)
    logger.warning("%s: replaced a socket that nobody listened on", path)
