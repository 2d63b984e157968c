"""The service in this process, for tests: no port, no child process."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import uvicorn.server

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client, Response
from sf_quantum.protocol.tasks import Kind, Result
from sf_quantum.samplers.problem import document
from sf_quantum.service.app import Service, build
from sf_quantum.service.device.emulator.computation import Computation
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.runners import installed
from sf_quantum.service.device.interface import Device
from sf_quantum.service.domain.jobs import Size
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.http.auth import LOCAL_USER, Authenticate
from sf_quantum.service.http.connections import Server
from sf_quantum.service.queue.job_queue import JobQueue
from sf_quantum.service.run import server_config, unix_socket
from sf_quantum.service.store.store import Store
from tests.support.devices import in_place_of
from tests.support.waiting import SECONDS, until


async def _sleep_less(seconds: float) -> None:
    """uvicorn looks ten times a second whether to stop, and then waits as long again."""
    await asyncio.sleep(seconds / 10)


vars(uvicorn.server)["asyncio"] = SimpleNamespace(
    **{**vars(asyncio), "sleep": _sleep_less}
)


def example_bqm() -> dict[str, JSON]:
    """Three variables, two of which exclude each other, serialized; optimum a = c = 1."""
    return document(
        ["a", "b", "c"], [-1.0, -0.5, -0.75], [(0, 1), (1, 2)], [2.0, 0.25], "BINARY"
    )


def emulated(queue: JobQueue) -> EmulatedDevice:
    """Return the device of a queue, which is an emulated one."""
    assert isinstance(queue.device, EmulatedDevice)
    return queue.device


def problem(name: str | None) -> dict[str, JSON]:
    """The example with a name, by which a runner knows it."""
    return {**example_bqm(), "info": {"name": name}}


class UntilInterrupted:
    """Runs each job until one of them is interrupted; from then on they end at once."""

    def __init__(self, kind: Kind = "problem") -> None:
        self._kind = kind
        self._interrupted = threading.Event()

    def check(self, content: JSON, *, qubits: int) -> Size:
        return Size()

    def run(self, computation: Computation, interrupted: Callable[[], bool]) -> Result:
        while not self._interrupted.wait(0.001):
            if interrupted():
                self._interrupted.set()
        return installed()[self._kind].run(computation, lambda: False)


class RunningService:
    """A service that runs, and a client of it without any logic of its own."""

    def __init__(self, url: str, service: Service) -> None:
        self.url = url
        self.queue = service.queue
        self.telemetry = service.telemetry
        self.traffic = service.guard.traffic

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, JSON] | bytes | None = None,
        *,
        lease: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send one request, under a lease if one is given."""
        under = {"X-SFQ-Lease": lease} if lease else {}
        client = Client(self.url, {**under, **(headers or {})})
        return client.request(method, path, body, timeout_seconds=SECONDS)

    def reconfigure(self, settings: ServiceSettings) -> None:
        """Take other settings, as after a reload of the configuration."""
        loop = until(lambda: self.queue._loop, "the service runs")
        loop.call_soon_threadsafe(self.queue.reconfigure, settings)

    def acquire(self) -> str:
        """Take a lease and return its id."""
        return str(self.ask("POST", "/v1/leases", {"job": "test"}).json()["id"])

    def until(self, lease: str, state: str, number: int = 0) -> str:
        """Wait until a job of a lease is in a state.

        :param number: which of the lease's jobs, counted from 0
        :returns: the job's id
        :raises TimeoutError: if it is not in time
        """

        def job() -> str | None:
            jobs = self.queue.store.jobs.latest(lease=lease)[number:]
            return jobs[0].id if jobs and jobs[0].state == state else None

        return until(job, f"job {number} is {state}")


@asynccontextmanager
async def running_queue(
    path: Path, device: Device, settings: ServiceSettings | None = None
) -> AsyncIterator[JobQueue]:
    """Run a queue in the caller's event loop.

    :param path: the folder of its state, to be found again by another queue
    """
    with in_place_of(device, path, _vendor) as device:
        store = Store(path / "service.sqlite")
        queue = JobQueue(store, device, settings)
        queue.start()
        try:
            yield queue
        finally:
            queue.request_stop()
            await queue.stopped()
            store.close()


@contextmanager
def running_service(
    device: Device | None = None,
    *,
    vqpus: int = 1,
    state: Path | None = None,
    settings: ServiceSettings | None = None,
    authenticate: Authenticate = LOCAL_USER,
    public_metrics: bool = True,
    certificate: Path | None = None,
    tcp: bool = False,
    dialects: Sequence[str] | None = None,
) -> Iterator[RunningService]:
    """Run the service in a thread, on a Unix socket in a temporary folder.

    :param device: by default an annealer that does not wait
    :param vqpus: of the default settings
    :param state: the SQLite file, to be found again by another service
    :param certificate: with its key, for TLS on the socket
    :param tcp: on a port of the loopback instead, for clients that know no socket
    :param dialects: names of the dialects beside ``/v1``; by default all
    """
    # a short path: pytest's own folders can be too long for a socket
    with tempfile.TemporaryDirectory(prefix="sfq-") as folder:
        short = Path(folder)
        store = state or short / "service.sqlite"
        with (
            in_place_of(
                device or EmulatedDevice(time_scale=0), short, _vendor
            ) as device,
            _running(
                device,
                short / "s",
                Store(store),
                settings or ServiceSettings(vqpus=vqpus),
                authenticate=authenticate,
                public_metrics=public_metrics,
                certificate=certificate,
                tcp=tcp,
                dialects=dialects,
            ) as running,
        ):
            yield running


@contextmanager
def _vendor(device: EmulatedDevice, folder: Path, tcp: bool) -> Iterator[str]:
    """Run the service of a vendor; its URL."""
    store, settings = Store(folder / "vendor.sqlite"), ServiceSettings()
    with _running(device, folder / "v", store, settings, tcp=tcp) as running:
        yield running.url


@contextmanager
def _running(
    device: Device,
    socket_path: Path,
    store: Store,
    settings: ServiceSettings,
    *,
    authenticate: Authenticate = LOCAL_USER,
    public_metrics: bool = True,
    certificate: Path | None = None,
    tcp: bool = False,
    dialects: Sequence[str] | None = None,
) -> Iterator[RunningService]:
    service = build(
        store,
        device,
        settings,
        authenticate=authenticate,
        public_metrics=public_metrics,
        dialects=dialects,
    )
    config = server_config(service.guard, certificate, certificate)
    # a test may be slow between two requests on a connection
    config.timeout_keep_alive = int(SECONDS)
    server = Server(config, settings.limits.connections)
    port = socket.create_server(("127.0.0.1", 0)) if tcp else None
    url = f"http://127.0.0.1:{port.getsockname()[1]}" if port else f"unix:{socket_path}"
    with closing(store), port or unix_socket(socket_path) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield RunningService(url, service)
        finally:
            service.queue.request_stop()
            server.should_exit = True
            thread.join()
