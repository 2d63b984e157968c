"""The process of the service: socket, state folder, start, reload and stop."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import signal
import socket
import sqlite3
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import uvicorn

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.net.transport import SOCKET_PATH_BYTES
from sf_quantum.service.app import Service, build
from sf_quantum.service.config import Auth, Configuration, Listen
from sf_quantum.service.config_reload import merged
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.http import auth
from sf_quantum.service.http.connections import Server, raise_limit
from sf_quantum.service.http.guard import Guard
from sf_quantum.service.http.tokens import MungeOrTokens, Tokens
from sf_quantum.service.state import store_in
from sf_quantum.text import one_line
from sf_quantum.threads import in_thread
from sf_quantum.validation import check_private

# maximum time to respond to open requests when the service stops
STOP_SECONDS = 1
# maximum time to release the device's lease at its vendor when the service stops
CLOSE_SECONDS = 5
# time after which Python switches between threads
SWITCH_SECONDS = 5e-4
# number of the option in glibc's malloc.h, and size from which a memory block has its own
# mapping
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1024 * 1024
logger = logging.getLogger(__name__)


def serve(
    config: Configuration,
    device: Device,
    ready: Callable[[str], None],
    *,
    load: Callable[[], Configuration] | None = None,
    until_eof: bool = False,
) -> None:
    """Run the service until it is stopped.

    :param device: device of the configuration; closed at the end
    :param ready: called with the service's URL once the service responds there
    :param load: reads the configuration again after SIGHUP; ``None``: the service cannot
        reload it
    :param until_eof: whether to stop at the end of standard input, and to remove all files
    :raises InputError: if the service cannot listen at its address, or another service does
    :raises QuantumError: if the queue breaks while the service runs
    """
    authenticate = _authenticate(config.auth)
    check_certificate(config.listen)
    raise_limit()
    give_memory_back()
    # by default, the event loop would wait 5 ms for a computing thread at each event
    sys.setswitchinterval(SWITCH_SECONDS)
    with ExitStack() as stack:
        if config.listen.socket is None:
            # before the state folder is created, which is not needed if the port is in use
            listener, url = stack.enter_context(_tcp_listener(config.listen))
        store = stack.enter_context(store_in(config.state, until_eof))
        stack.callback(_close, device)
        if config.listen.socket is not None:
            # after the state folder is locked: otherwise, the previous service process, while
            # it ends, could remove this socket
            listener, url = stack.enter_context(
                _unix_listener(config.listen.socket.absolute(), config.auth)
            )
        if isinstance(device, EmulatedDevice):
            process_pool.start(device.warm_kinds)  # early: imports take seconds
        service = build(
            store,
            device,
            config,
            authenticate=authenticate,
            limits=config.request_limits(),
            public_metrics=config.public_metrics,
            names=config.names,
            dialects=config.dialects,
        )
        server = _Server(service, config, lambda: ready(url), load)
        # Exclude all present objects from garbage collection, since they stay: otherwise, each
        # collection would search them for about 50 ms, while all requests wait.
        gc.freeze()
        with asyncio.Runner(loop_factory=_new_loop()) as runner:
            runner.run(server.serve_until_stopped(listener, until_eof))
        if (error := service.queue.broken) is not None:
            raise QuantumError(f"the queue broke: {error}")


def give_memory_back() -> None:
    """Return freed memory blocks of 1 MiB and more to the system immediately.

    Otherwise, after the first such block, glibc would keep freed blocks of up to 32 MiB for
    each thread (mallopt(3)). After large responses of a vendor, hundreds of megabytes would
    stay allocated.
    """
    with suppress(AttributeError):  # a C library other than glibc has no mallopt
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def _close(device: Device) -> None:
    """Close the device, but wait only briefly for a vendor that does not respond."""
    try:
        in_thread(device.close).result(CLOSE_SECONDS)
    except TimeoutError:
        text = (
            "%s is not closed in %g s; its vendor's lease may be kept until it expires"
        )
        logger.warning(text, device.name, CLOSE_SECONDS)


def _authenticate(section: Auth) -> auth.Authenticate:
    tokens = Tokens(section.tokens, section.admins) if section.tokens else None
    if section.mode == "munge":
        munge = auth.Munge(section.munge, section.admins)
        return MungeOrTokens(munge, tokens) if tokens else munge
    if section.mode == "token" and tokens:
        return tokens
    return auth.LOCAL_USER


def server_config(
    guard: Guard,
    certificate: Path | None = None,
    key: Path | None = None,
) -> uvicorn.Config:
    """Configure the server of a service, with TLS if there is a certificate."""
    return uvicorn.Config(
        guard,
        access_log=False,  # paths contain ids of leases, which are secrets
        lifespan="on",
        log_config=None,
        proxy_headers=False,  # any client could forge them
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        timeout_graceful_shutdown=STOP_SECONDS,
        ws="none",
    )


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def check_certificate(listen: Listen) -> None:
    """Check certificate and key early, since uvicorn would fail with a traceback."""
    if listen.certificate is None or listen.key is None:
        return
    check_private(listen.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # with an empty password, so that OpenSSL does not prompt for that of an encrypted key
        context.load_cert_chain(listen.certificate, listen.key, password="")
    except OSError as error:  # ssl.SSLError is an OSError
        why = error.strerror or str(error)
        files = f"{listen.certificate} with the key {listen.key}"
        raise InputError(f"{files}: cannot be used for TLS: {why}") from error


class _Server(Server):
    """The server of a service; reports when it is ready, and handles signals."""

    def __init__(
        self,
        service: Service,
        config: Configuration,
        ready: Callable[[], None],
        load: Callable[[], Configuration] | None,
    ) -> None:
        listen = config.listen
        super().__init__(
            server_config(service.guard, listen.certificate, listen.key),
            config.limits.connections,
        )
        self._service = service
        self._configuration = config
        self._load = load
        self._watchdog: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._drain_seconds = config.drain_seconds
        self._ready = ready

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        # signals are handled below: uvicorn would raise a signal again after its shutdown,
        # before the socket and the state folder are removed
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        notify("READY=1")
        self._ready()

    async def serve_until_stopped(
        self, listener: socket.socket, until_eof: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        queue = self._service.queue
        try:
            queue.start()  # not in the lifespan, where an error shows a traceback
        except sqlite3.Error as error:
            raise InputError(f"{queue.store.path}: {error}") from error
        # the service ends with its queue
        ended = loop.create_task(queue.finished())
        ended.add_done_callback(lambda _: self._stop())
        loop.add_signal_handler(signal.SIGTERM, self._drain)
        loop.add_signal_handler(signal.SIGINT, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._begin_reload)
        if (microseconds := os.environ.get("WATCHDOG_USEC", "")).isdecimal():
            self._watchdog = loop.create_task(_feed_watchdog(int(microseconds) / 1e6))
        if until_eof:
            _call_at_eof(lambda: loop.call_soon_threadsafe(self._stop))
        await self.serve([listener])

    def _stop(self) -> None:
        # the queue stops first, so that waiting requests get responses before the connections
        # are closed
        self._service.queue.request_stop()
        self.should_exit = True

    def _begin_reload(self) -> None:
        self._reloading = asyncio.create_task(self._reload(self._reloading))

    async def _reload(self, before: asyncio.Task[None] | None) -> None:
        """Read the configuration again; if it is invalid, the old configuration remains.

        :param before: task of the previous reload, which must end first; it may have read
            the files before their last change
        """
        if before is not None:
            await asyncio.wait([before])
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        outcome = await self._reloaded()
        # `systemctl status` shows the outcome
        notify(f"READY=1\nSTATUS={outcome}")

    async def _reloaded(self) -> str:
        try:
            config, needing_restart, authenticate = await asyncio.to_thread(
                self._read_again
            )
            listen = config.listen
            if self.config.ssl is not None and listen.certificate is not None:
                # from now on, new connections use the new certificate
                self.config.ssl.load_cert_chain(listen.certificate, listen.key)
        except (QuantumError, OSError) as error:
            why = one_line(str(error))
            logger.error(message := f"the configuration is not reloaded: {why}")
            return message
        self._service.guard.configure(authenticate, config.request_limits())
        self._service.telemetry.public_metrics = config.public_metrics
        self._service.queue.reconfigure(config)
        self._limits.most = config.limits.connections
        self._configuration = config
        outcome, level = "reloaded the configuration", logging.INFO
        if needing_restart:
            level = logging.WARNING
            needs = "changed, but needs a restart of the service"
            outcome = f"reloaded; {', '.join(needing_restart)} {needs}"
        logger.log(level, outcome)
        return outcome

    def _read_again(self) -> tuple[Configuration, list[str], auth.Authenticate]:
        if self._load is None:
            raise InputError("there is none")
        config, needing_restart = merged(self._configuration, self._load())
        check_certificate(config.listen)
        return config, needing_restart, _authenticate(config.auth)

    def _drain(self) -> None:
        """Give the running job time to finish; a second signal stops immediately."""
        if self._service.guard.draining:
            self._stop()
            return
        self._service.guard.draining = True
        notify("STOPPING=1")
        self._service.queue.request_stop(self._drain_seconds)


async def _feed_watchdog(seconds: float) -> None:
    """Notify systemd that the event loop runs, twice per watchdog timeout.

    :param seconds: watchdog timeout: systemd kills the service after this time without a
        notification
    """
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(seconds / 2)


def notify(state: str) -> None:
    """Send a state to systemd, for units of ``Type=notify``."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    # systemd writes @ for the zero byte of an abstract socket
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("cannot notify systemd of %s: %s", state, error)


def _call_at_eof(stop: Callable[[], asyncio.Handle]) -> None:
    def read() -> None:
        with suppress(OSError):
            while os.read(0, 65536):
                pass
        with suppress(RuntimeError):  # the loop is closed
            stop()

    # in a thread, since an event loop cannot watch a plain file
    threading.Thread(target=read, name="stdin", daemon=True).start()


@contextmanager
def _tcp_listener(listen: Listen) -> Iterator[tuple[socket.socket, str]]:
    with _tcp(listen.host, listen.port) as listener:
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        scheme = "https" if listen.certificate else "http"
        yield listener, f"{scheme}://{host}:{port}"


@contextmanager
def _unix_listener(path: Path, section: Auth) -> Iterator[tuple[socket.socket, str]]:
    # with authentication, all users may connect
    mode = 0o600 if section.mode == "none" else 0o666
    with unix_socket(path, mode) as listener:
        yield listener, f"unix:{path}"


def _tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        # without the address, which Python adds to the message
        why = (error.strerror or str(error)).partition(" (while ")[0].lower()
        if error.errno == errno.EADDRINUSE:
            why += "; choose another --port"
        raise InputError(f"{host}:{port}: cannot listen there: {why}") from error
    # Without this option, each response would wait 40 ms for the client's delayed
    # acknowledgement. Connections inherit the option from the listener. asyncio would set it
    # only for sockets whose protocol is set, which create_server() does not do.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextmanager
def unix_socket(path: Path, mode: int = 0o600) -> Iterator[socket.socket]:
    """Listen on a Unix socket; replaces a stale socket, and removes the socket at the end.

    :param mode: permissions of the socket; by default only its owner may use it
    :raises InputError: if the path is too long, in use or not writable
    """
    if why := socket_problem(path):
        raise InputError(f"{path}: {why}")
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(str(path))
            # before listen(), so that no client can connect with other permissions
            os.chmod(path, mode)
            listener.listen(128)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise InputError(f"{path}: cannot listen there: {why}") from error
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def socket_problem(path: Path) -> str | None:
    """Return why a path cannot be a Unix socket; an existing socket is no reason."""
    if (length := len(os.fsencode(path))) > SOCKET_PATH_BYTES:
        return f"{length} bytes, a socket's path has at most {SOCKET_PATH_BYTES}"
    with suppress(OSError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return "exists and is not a socket"
    return None


def _remove_stale(path: Path) -> None:
    if not os.path.lexists(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        code = probe.connect_ex(str(path))
    if code not in (errno.ECONNREFUSED, errno.ENOENT):
        raise InputError(f"{path}: another service listens there")
    path.unlink(missing_ok=True)
    logger.warning("%s: replaced a stale socket", path)
