"""A local server of a job's QPU for the SDKs' own clients: Ocean's, IQM's and QRMI's.

These clients support neither leases nor Unix sockets, and most of them do not support MUNGE.
A forwarder on the job's machine accepts their requests on loopback TCP, and sends them to the
QPU's service with the job's lease and credential. Other users of the machine can also connect
to the forwarder. So the clients authenticate with a secret of the forwarder, or with a MUNGE
credential of the forwarder's user.

QRMI leaves out resources of types that it does not know, such as ``sfq``. So the job's QPU is
listed a second time for QRMI, with a type that QRMI knows.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from typing import ClassVar

from sf_quantum.errors import QuantumError
from sf_quantum.net import munge
from sf_quantum.net.bounded_answers import content_length
from sf_quantum.net.local_server import LocalServer, TimedHandler
from sf_quantum.qpu import QpuStatus
from sf_quantum.qpu.environment import RESOURCES, TOKEN, TYPES, listed
from sf_quantum.qpu.sfq.credentials import Credentials
from sf_quantum.qpu.sfq.service_client import ServiceClient
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.qpu.vendors.variables import (
    DWAVE_ENDPOINT,
    DWAVE_TOKEN,
    IQM_ENDPOINT,
    IQM_TOKEN,
    WARDEN_URL,
)

# by technology: path of the client's API at the service, and variables for URL and credential
CLIENTS: Mapping[str, tuple[str, str, str]] = {
    "annealer": ("/sapi/v2", DWAVE_ENDPOINT, DWAVE_TOKEN),
    "superconducting": ("", "IQM_SERVER_URL", "IQM_TOKEN"),
}
# by technology: QRMI's type, and the variables for URL and credential, without the prefix of
# the QPU's name; warden has no variable for a credential, since it uses MUNGE
QRMI: Mapping[str, tuple[str, str, str | None]] = {
    "superconducting": ("iqm-server", IQM_ENDPOINT, IQM_TOKEN),
    "neutral-atom": ("pasqal-local", WARDEN_URL, None),
}
MUNGE_HEADER = "X-Munge-Cred"
# public requests of the API of Pasqal's warden, which QRMI sends without a credential
PUBLIC = (("GET", "/accessible"), ("GET", "/qpu/specs"))
# Largest body of a request, the same as a service accepts.
MOST_BYTES = 256 * 1024 * 1024
# Time limit of a forwarded request.
SECONDS = 120.0
# Largest number of concurrent requests without a credential. The service accepts them, but if
# it is slow, more of them would displace the job's own requests.
MOST_PUBLIC = 4
# Headers that belong to a connection, not to a request, or that this forwarder sets itself.
_OWN = {
    "authorization",
    "connection",
    "content-length",
    "date",
    "host",
    "keep-alive",
    "server",
    "transfer-encoding",
    "x-auth-token",
    "x-munge-cred",
    "x-sfq-lease",
}


#: Variables with the service's address, for clients that acquire a lease if they have none.
ADDRESSES = tuple(address for _, address, _ in CLIENTS.values())


def is_at(service: str, address: str) -> bool:
    """Return whether a client's address is the address of a QPU's service."""
    return f"{address}/".startswith(f"{service.rstrip('/')}/")


def unleased(variable: str, name: str, remedy: str) -> str:
    """Explain why a client cannot use a QPU whose only lease is held by the client's own job.

    :param variable: variable with the client's address
    """
    return (
        f"{variable} is the service of QPU {name!r}, whose only lease is this job's own: "
        f"the client does not know it, and would wait for its end; {remedy}"
    )


@contextmanager
def variables(
    qpu: SfqQpu, status: QpuStatus, environment: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Forward requests during the block; yield the variables of the technology's clients.

    :param qpu: job's side of the QPU, with its lease
    :param environment: environment of the job, whose lists of QPUs are extended
    """
    technology = status.technology
    if technology not in CLIENTS and technology not in QRMI:
        yield {}
        return
    secret = secrets.token_hex(16)
    attributes = {
        "service": qpu.service,
        "anonymous": ServiceClient(qpu.service.url, qpu.name, Credentials()),
        "credentials": (secret.encode(), f"Bearer {secret}".encode()),
        "public": threading.Semaphore(MOST_PUBLIC),
    }
    handler = type("Handler", (_Handler,), attributes)
    with LocalServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            where = f"http://127.0.0.1:{server.server_address[1]}"
            client_variables = {}
            if technology in CLIENTS:
                path, url, credential = CLIENTS[technology]
                client_variables = {url: f"{where}{path}", credential: secret}
            yield {
                **client_variables,
                **_qrmi(qpu.name, status, where, secret, environment),
            }
        finally:
            server.shutdown()


def _qrmi(
    name: str,
    status: QpuStatus,
    where: str,
    secret: str,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """Make QRMI's variables, with which its client reaches the forwarder."""
    if status.technology not in QRMI:
        return {}
    type_, url, credential = QRMI[status.technology]
    # from an IQM Server, QRMI requests the quantum computer that has the resource's name
    resource = name if credential is None else status.name
    settings = {
        url: where,
        TOKEN: environment.get(f"{name}_{TOKEN}", ""),
        **({} if credential is None else {credential: secret}),
    }
    return {
        **{
            keys[0]: ",".join([*(listed(environment, keys) or ()), more])
            for keys, more in ((RESOURCES, resource), (TYPES, type_))
        },
        **{f"{resource}_{key}": value for key, value in settings.items()},
    }


class _Handler(TimedHandler):
    server: LocalServer
    service: ClassVar[ServiceClient]
    # Client for requests without a credential; it sends neither the job's lease nor its
    # credential.
    anonymous: ClassVar[ServiceClient]
    credentials: ClassVar[tuple[bytes, bytes]]
    # slots of requests without a credential
    public: ClassVar[threading.Semaphore]
    protocol_version = "HTTP/1.1"
    timeout = SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: standard error belongs to the job."""

    def _forward(self) -> None:
        """Forward a request of the job, or a public request."""
        is_known, public = self._is_known(), (self.command, self.path) in PUBLIC
        if is_known:
            self.server.trust(self.connection)
        elif not public or "Content-Length" in self.headers:
            return self.send_error(401)
        elif not self.public.acquire(blocking=False):
            return self.send_error(503, "other strangers' requests are under way")
        try:
            return self._exchange(self.service if is_known else self.anonymous)
        finally:
            if not is_known:
                self.public.release()

    def _exchange(self, service: ServiceClient) -> None:
        """Send a request to the service, and pass on its answer."""
        if not self.path.isascii():
            return self.send_error(400)
        length = content_length(self.headers["Content-Length"])
        if "Transfer-Encoding" in self.headers or length is None:
            return self.send_error(411)
        if length > MOST_BYTES:
            return self.send_error(413)
        body = self.rfile.read(length) or None
        try:
            status, headers, answer = service.exchange(
                self.command, self.path, body, _forwarded_headers(self.headers), SECONDS
            )
        except QuantumError as error:
            return self.send_error(502, explain=str(error))
        self.send_response(status)
        for name, value in _forwarded_headers(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)
        return None

    def _is_known(self) -> bool:
        if credential := self.headers[MUNGE_HEADER]:
            try:
                return munge.decode(credential) == os.geteuid()
            except (munge.CredentialRefused, QuantumError):
                return False
        given = self.headers["X-Auth-Token"] or self.headers["Authorization"] or ""
        matches = (secrets.compare_digest(given.encode(), c) for c in self.credentials)
        return any(matches)

    do_DELETE = do_GET = do_HEAD = do_PATCH = do_POST = do_PUT = _forward


def _forwarded_headers(headers: Message) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OWN}
