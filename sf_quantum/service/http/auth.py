"""Authentication of requests: with bearer tokens, with MUNGE credentials, or none."""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from starlette.requests import HTTPConnection

from sf_quantum.errors import QuantumError
from sf_quantum.net import munge
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity

MUNGE_HEADER = "X-Munge-Cred"
# header in which D-Wave's clients send a token
TOKEN_HEADER = "X-Auth-Token"
MUNGE_CHALLENGE = f'Munge header="{MUNGE_HEADER}"'
_IDENTITY = "sfq.identity"

Authenticate: TypeAlias = Callable[[HTTPConnection], Awaitable[Identity]]


class AuthError(Refused):
    """A request is refused: its credential is missing, invalid, or cannot be checked."""


class Unauthorized(AuthError):
    """The credential is missing or invalid: 401, with the challenge for the client."""

    def __init__(self, detail: str, field: str, challenge: str) -> None:
        super().__init__(401, detail, field, {"WWW-Authenticate": challenge})


@runtime_checkable
class _Credentials(Protocol):
    async def problem(self) -> str | None: ...

    async def users(self) -> frozenset[str] | None: ...


async def problem(authenticate: Authenticate) -> str | None:
    """Return why credentials cannot be checked; ``None`` if they can be checked."""
    if isinstance(authenticate, _Credentials):
        return await authenticate.problem()
    return None


async def users(authenticate: Authenticate) -> frozenset[str] | None:
    """Return the users who have a token; ``None`` if other users are also admitted."""
    if isinstance(authenticate, _Credentials):
        return await authenticate.users()
    return None


class FixedIdentity:
    """Attributes every request to one user, without any check."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    async def __call__(self, _: HTTPConnection) -> Identity:
        return self._identity


#: sender of all requests to a service without authentication
LOCAL_USER = FixedIdentity(Identity("local", admin=True, root=True))


def set_sender(connection: HTTPConnection, sender: Identity | AuthError) -> None:
    """Store the sender in the request, since a MUNGE credential is valid only once."""
    connection.scope[_IDENTITY] = sender


def get_sender(connection: HTTPConnection) -> Identity:
    """Return the sender that :func:`set_sender` stored; raise an error stored instead."""
    sender: Identity | AuthError = connection.scope[_IDENTITY]
    if isinstance(sender, AuthError):
        raise sender
    return sender


class Munge:
    """Authentication with MUNGE credentials, each valid for one request.

    :param socket: path of ``munged``'s socket; ``None``: libmunge's default
    :param admins: users who are admins, in addition to root
    :raises InputError: if libmunge is not installed
    :raises QpuError: if ``munged`` does not respond
    """

    def __init__(self, socket: Path | None, admins: Collection[str]) -> None:
        self._socket = str(socket) if socket else None
        self._admins = frozenset(admins)
        munge.check(self._socket)

    async def __call__(self, connection: HTTPConnection) -> Identity:
        """Return the sender of a request.

        :raises AuthError: if the credential is missing, invalid, or cannot be checked
        """
        credential = connection.headers.get(MUNGE_HEADER)
        if not credential:
            detail = "needs a MUNGE credential"
            raise Unauthorized(detail, MUNGE_HEADER, MUNGE_CHALLENGE)
        try:
            uid = await asyncio.to_thread(munge.decode, credential, self._socket)
        except munge.CredentialRefused as error:
            raise Unauthorized(str(error), MUNGE_HEADER, MUNGE_CHALLENGE) from error
        except QuantumError as error:
            # the log of requests shows the reason
            raise AuthError(503, "munged does not answer", MUNGE_HEADER) from error
        user = _user(uid)
        return Identity(user, admin=uid == 0 or user in self._admins, root=uid == 0)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
