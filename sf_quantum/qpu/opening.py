"""Opens a QPU for a block of a program: acquires a lease, and releases it in any case."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TypedDict, Unpack

from sf_quantum import qpu
from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON, socket_in
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.environment import (
    RESOURCES,
    TOKEN,
    job_environment,
    listed,
    types_by_name,
)
from sf_quantum.qpu.leasing.held_leases import AcquireOptions, LeaseSet
from sf_quantum.qpu.selection import SFQ, QpuSelection
from sf_quantum.qpu.sfq import service_variables
from sf_quantum.text import unknown
from sf_quantum.threads import in_thread

logger = logging.getLogger(__name__)

# Maximum time for releasing a lease when the interpreter exits.
EXIT_SECONDS = 10.0
# Names of the options that set bounds of a lease.
_BOUNDS = ("max_qpu_seconds", "max_shots", "max_qubits")


class LeaseOptions(TypedDict, total=False):
    """The options of a request for a lease, the same as in ``sfq lease``.

    ``wait_seconds``
        longest wait (default: no limit, but two minutes for a QPU that does not answer)
    ``class_``
        ``production``, ``test`` or ``development``
    ``project``
        project whose share of the QPU is used
    ``expected_seconds``, ``pattern``
        hints: seconds on the QPU, and ``qc-heavy``, ``cc-heavy`` or ``balanced``
    ``latest_start``
        latest time of the grant, in seconds since the epoch; the request fails afterwards
    ``priority``, ``reservation``
        rank among the waiting requests of the class, the highest first, and the name of a
        reservation; a QPU that does not support or grant these rejects the request
    ``max_qpu_seconds``, ``max_shots``, ``max_qubits``
        bounds: QPU seconds of all jobs together, shots and qubits of each job
    ``purpose``
        purpose of the lease, for usage reports (default: the program's name)
    """

    wait_seconds: float | None
    class_: str | None
    project: str | None
    expected_seconds: float | None
    pattern: str | None
    latest_start: float | None
    priority: int | None
    reservation: str | None
    max_qpu_seconds: float | None
    max_shots: int | None
    max_qubits: int | None
    purpose: str | None


def open_qpu(
    name: str | None = None,
    *,
    url: str | None = None,
    qrmi_config: str | Path | None = None,
    token_file: str | Path | None = None,
    munge: bool | str | None = None,
    **options: Unpack[LeaseOptions],
) -> AbstractContextManager[Qpu]:
    """Open a QPU: ``with open_qpu(url="unix:/run/qpu.sock") as qpu:``.

    On a quantum location and under ``sfq lease``, the QPU of the environment is opened with
    the lease that is already held, and the options are ignored. So the same program runs in
    a notebook and as a step.
    Otherwise a lease is acquired when the block begins, renewed while the block runs, and
    released when it ends: after its last line, or with an exception, Ctrl-C, or the end of the
    interpreter. (The lease of a killed process expires by itself.)

    :param name: name of the QPU, in the environment or the site's file
    :param url: URL of a QPU service: ``unix:PATH``, ``http://127.0.0.1:PORT``,
        ``https://...``
    :param qrmi_config: a site's ``qrmi_config.json``
    :param token_file: file with the bearer token that the service requires
    :param munge: ``True``, or munged's socket, to send MUNGE credentials
    :param options: see :class:`LeaseOptions`
    :returns: a context manager that yields the QPU (:class:`~sf_quantum.qpu.Qpu`) on the
        job's side, with ``sampler()``, ``backend()``, ``pulser_backend(sequence)``,
        ``device(wires)``...
    :raises InputError: if the QPU or an option is unknown, or, when the block begins, if the
        QPU rejects the request
    :raises QpuError: when the block begins, if no lease was free in time, or the QPU does
        not answer
    """
    for option in options:
        if option not in LeaseOptions.__annotations__:
            raise InputError(unknown("option", option, [*LeaseOptions.__annotations__]))
    if url is None and qrmi_config is None and (held := _held(name)) is not None:
        return nullcontext(held)
    if not (name or url or qrmi_config or listed(os.environ, RESOURCES)):
        raise InputError(
            "no QPU: the environment has none; give url=, or name= with qrmi_config=. A "
            "program that also runs on classical nodes asks from_environment() of "
            "sf_quantum.qpu.environment, which is None there"
        )
    settings: dict[str, JSON] = {
        "tokenFile": str(Path(token_file).absolute()) if token_file else None,
        "munge": munge,
        "class": options.get("class_"),
        "project": options.get("project"),
    }
    site = None if qrmi_config is None else str(qrmi_config)
    url = url and socket_in(url)
    clients = QpuSelection([name] if name else [], url, settings, site).qpus(os.environ)
    if len(clients) > 1:
        raise InputError(f"name one of the QPUs {', '.join(c.name for c in clients)}")
    check_leasable(clients, options)
    program = Path(sys.argv[0]).name or "python"
    return _OpenQpu(clients[0], request(clients, options, program))


class _OpenQpu(AbstractContextManager[Qpu]):
    """Holds a lease while the block runs."""

    def __init__(self, client: Qpu, request: AcquireOptions) -> None:
        self._client = client
        self._request = request
        self._process = os.getpid()
        self._leases = LeaseSet([])
        self._open = False
        self._closed: Future[None] | None = None

    def __enter__(self) -> Qpu:
        if self._open:
            raise InputError("the QPU is open already; open_qpu() gives another lease")
        self._open, self._closed = True, None
        self._leases = LeaseSet(
            [self._client], lambda *wait: logger.warning("%s", waiting(*wait))
        )
        atexit.register(self._close_at_exit)
        stop = threading.Event()
        # A thread acquires the leases, so that Ctrl-C at the wrong moment does not lose a
        # lease.
        acquired = in_thread(lambda: self._leases.acquire(self._request, stop))
        try:
            acquired.result()
            variables = {**os.environ, **job_environment(self._leases.tokens())}
            return type(self._client).from_environment(self._client.name, variables)
        except BaseException:
            stop.set()
            _await(acquired)
            self._close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._open, self._closed = False, in_thread(self._leases.close)
        self._closed.result()
        # if Ctrl-C ends this wait, _close_at_exit() waits instead
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        if os.getpid() != self._process:
            return  # a forked process does not own the lease
        if self._closed is None:
            self._leases.close()
        else:
            wait([self._closed], EXIT_SECONDS)


def _await(call: Future[None]) -> None:
    """Wait for a call that was stopped, even if the user presses Ctrl-C again."""
    while not call.done():
        with suppress(KeyboardInterrupt):
            wait([call])


def _held(name: str | None) -> Qpu | None:
    """Return the QPU whose lease is in the environment, or ``None`` without such a lease."""
    names = [name] if name else listed(os.environ, RESOURCES) or []
    if not any(f"{qpu_name}_{TOKEN}" in os.environ for qpu_name in names):
        return None
    if len(names) > 1:
        raise InputError(f"name one of the QPUs {', '.join(names)}")
    type_ = types_by_name(os.environ).get(names[0], SFQ)
    return qpu.load(type_).from_environment(names[0], os.environ)


def hints(options: LeaseOptions) -> LeaseHints:
    """Get the hints and bounds of a lease."""
    return LeaseHints(
        expected_seconds=options.get("expected_seconds"),
        pattern=options.get("pattern"),
        latest_start=options.get("latest_start"),
        priority=options.get("priority"),
        reservation=options.get("reservation"),
        max_qpu_seconds=options.get("max_qpu_seconds"),
        max_shots=options.get("max_shots"),
        max_qubits=options.get("max_qubits"),
    )


def check_leasable(qpus: Iterable[Qpu], options: LeaseOptions) -> None:
    """Reject QPUs whose kind cannot be used here, or cannot have the requested bounds.

    :raises InputError: if a QPU is rejected; the message is about the first such QPU
    """
    names = ", ".join(_BOUNDS)
    is_bounded = any(options.get(name) is not None for name in _BOUNDS)
    for client in qpus:
        if (problem := client.problem()) is not None:
            raise InputError(f"QPU {client.name!r}: {problem}")
        if is_bounded and client.type != SFQ:
            raise InputError(
                f"QPU {client.name!r} has the type {client.type}, whose leases have no "
                f"bounds: {names.replace('_', '-')} are for the type {SFQ}"
            )


def request(qpus: Sequence[Qpu], options: LeaseOptions, program: str) -> AcquireOptions:
    """Make the request for the leases of a program.

    :param options: :class:`LeaseOptions`; other options are ignored
    :param program: purpose of the leases, unless the options or the environment set one
    """
    purposes = [options.get("purpose")]
    purposes += [
        os.environ.get(f"{client.name}_{service_variables.PURPOSE}") for client in qpus
    ]
    return AcquireOptions(
        wait_seconds=options.get("wait_seconds"),
        hints=hints(options),
        purpose=next((str(one) for one in purposes if one), program),
    )


def waiting(client: Qpu, reason: QpuError, left: float) -> str:
    """Describe the wait for a lease, with the waiting time of jobs if the QPU reports it.

    :param left: seconds after which the request is given up
    """
    about = ""
    with suppress(QuantumError):
        eta = client.status().eta_seconds or 0.0
        # Without an ETA of jobs, leases may still have to wait.
        about = f", whose jobs wait about {eta:.0f} s" if eta >= 0.5 else ""
    end = "" if math.isinf(left) else f"; given up in {left:.0f} s"
    return f"waiting for a lease of QPU {client.name}{about} ({reason}){end}"
