"""Authentication of requests: by bearer token, by MUNGE credential, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import pwd
import secrets
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, StringConstraints
from starlette.requests import HTTPConnection

from sf_quantum import validation, yaml
from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.net import munge
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Identity

TOKEN_PREFIX = "sfq_"  # scanners for leaked secrets look for a prefix
MUNGE_HEADER = "X-Munge-Cred"
# the header in which D-Wave's clients send a token
TOKEN_HEADER = "X-Auth-Token"
BEARER_CHALLENGE = 'Bearer realm="sfq"'
MUNGE_CHALLENGE = f'Munge header="{MUNGE_HEADER}"'
_IDENTITY = "sfq.identity"
logger = logging.getLogger(__name__)

Authenticate: TypeAlias = Callable[[HTTPConnection], Awaitable[Identity]]


class AuthError(Refused):
    """A request that is refused because of its credential, or for lack of one."""


class Unauthorized(AuthError):
    """No credential, or an invalid one: 401, with the challenge for the client."""

    def __init__(self, detail: str, field: str, challenge: str) -> None:
        super().__init__(401, detail, field, {"WWW-Authenticate": challenge})


class FixedIdentity:
    """Attributes every request to one user, without a check."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    async def __call__(self, _: HTTPConnection) -> Identity:
        return self._identity


#: what a service without authentication uses
LOCAL_USER = FixedIdentity(Identity("local", admin=True, root=True))


def set_sender(connection: HTTPConnection, sender: Identity | AuthError) -> None:
    """Keep the outcome with the request: a MUNGE credential is valid only once."""
    connection.scope[_IDENTITY] = sender


def get_sender(connection: HTTPConnection) -> Identity:
    """Read what :func:`set_sender` kept; raise it if authentication failed."""
    sender: Identity | AuthError = connection.scope[_IDENTITY]
    if isinstance(sender, AuthError):
        raise sender
    return sender


class TokenEntry(validation.Section):
    """An entry of the tokens file."""

    user: Annotated[str, StringConstraints(pattern=r"^[\w.@-]{1,64}$")]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(
        repr=False
    )
    admin: bool = False


class _TokensFile(validation.Section):
    tokens: list[TokenEntry]


class Tokens:
    """Bearer tokens, which the tokens file lists by their hashes.

    The file is read again when it changes, so that tokens can be added and revoked
    while the service runs. A file that cannot be read any more admits nobody.

    :param path: a YAML list of :class:`TokenEntry`, writable by its owner only
    :param admins: users who are admins regardless of their entries
    :raises InputError: if the file is missing, invalid or accessible to others
    """

    def __init__(self, path: Path, admins: Collection[str] = ()) -> None:
        self._path = path
        self._admins = frozenset(admins)
        self._version = _version(path)
        self._entries = read_tokens(path)
        self._problem: str | None = None

    async def __call__(self, connection: HTTPConnection) -> Identity:
        """:raises AuthError: if the request has no token, or an unknown one"""
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = connection.headers.get(TOKEN_HEADER, "")
        if not token:
            detail = "needs a bearer token"
            raise Unauthorized(detail, "Authorization", BEARER_CHALLENGE)
        if await self.problem():
            # not 401, which clients take as final: the token may be good
            detail = "the tokens cannot be read; ask an admin"
            raise AuthError(503, detail, "Authorization")
        entry = self._entries.get(digest(token.strip()))
        if entry is None:
            challenge = f'{BEARER_CHALLENGE}, error="invalid_token"'
            raise Unauthorized("unknown bearer token", "Authorization", challenge)
        return Identity(entry.user, entry.admin or entry.user in self._admins)

    async def problem(self) -> str | None:
        """Return why nobody is admitted; ``None`` if the file can be read."""
        if _version(self._path) != self._version:
            await asyncio.to_thread(self._read_again)
        return self._problem

    def _read_again(self) -> None:
        self._version = _version(self._path)
        try:
            self._entries = read_tokens(self._path)
            # only now: until then, other requests would be checked by older entries
            self._problem = None
        except InputError as error:
            # a token that was taken back may be among those read before
            self._problem = f"the tokens cannot be read: {error}"
            logger.error(
                "%s; nobody is admitted by a token until it can be read", error
            )


class Munge:
    """MUNGE credentials, each valid for one request within its lifetime.

    :param socket: path of ``munged``'s socket; libmunge's default if ``None``
    :param admins: users who are admins; root always is
    :raises InputError: if libmunge is not installed
    :raises QpuError: if ``munged`` does not answer
    """

    def __init__(self, socket: Path | None, admins: Collection[str]) -> None:
        self._socket = str(socket) if socket else None
        self._admins = frozenset(admins)
        munge.check(self._socket)

    async def __call__(self, connection: HTTPConnection) -> Identity:
        """:raises AuthError: if the request has no credential, or an invalid one"""
        credential = connection.headers.get(MUNGE_HEADER)
        if not credential:
            detail = "needs a MUNGE credential"
            raise Unauthorized(detail, MUNGE_HEADER, MUNGE_CHALLENGE)
        try:
            uid = await asyncio.to_thread(munge.decode, credential, self._socket)
        except munge.CredentialRefused as error:
            raise Unauthorized(str(error), MUNGE_HEADER, MUNGE_CHALLENGE) from error
        except QuantumError as error:
            # why is logged with the request
            raise AuthError(503, "munged does not answer", MUNGE_HEADER) from error
        user = _user(uid)
        return Identity(user, admin=uid == 0 or user in self._admins, root=uid == 0)


class MungeOrTokens:
    """Accepts tokens from clients that cannot create MUNGE credentials."""

    def __init__(self, munge: Authenticate, tokens: Tokens) -> None:
        self._munge = munge
        self.tokens = tokens

    async def __call__(self, connection: HTTPConnection) -> Identity:
        headers = connection.headers
        has_token = "authorization" in headers or TOKEN_HEADER in headers
        if has_token and MUNGE_HEADER not in headers:
            return await self.tokens(connection)
        return await self._munge(connection)


async def problem(authenticate: Authenticate) -> str | None:
    """Return what is wrong with the credentials that users have; ``None`` if nothing."""
    tokens = authenticate
    if isinstance(authenticate, MungeOrTokens):
        tokens = authenticate.tokens
    return await tokens.problem() if isinstance(tokens, Tokens) else None


def new_token() -> str:
    """Create a token of 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def entry(user: str, token: str, *, admin: bool) -> dict[str, JSON]:
    """Create an entry of the tokens file.

    :raises InputError: if the user's name is not valid
    """
    content: dict[str, JSON] = {"user": user, "sha256": digest(token)}
    if admin:
        content["admin"] = True
    validation.validated(TokenEntry, content, lambda _, value: f"{value!r}")
    return content


def digest(token: str) -> str:
    """Hash a token as the tokens file stores it.

    256 random bits cannot be guessed, so the slow hash of a password is not needed. The
    time of the lookup in a dictionary reveals nothing, since nobody can choose the
    bytes of the digest without having the token.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(path: Path) -> dict[str, TokenEntry]:
    """Read a tokens file.

    :returns: its entries by the hashes of their tokens
    :raises InputError: if the file is missing, invalid or accessible to others
    """
    content = yaml.read(path, "tokens")
    validation.check_private(path)
    file = validation.validated(
        _TokensFile,
        {"tokens": content or []},
        # the file is a list
        lambda where, _: ": ".join(
            filter(None, (str(path), validation.dotted(where).removeprefix("tokens")))
        ),
    )
    return {entry.sha256: entry for entry in file.tokens}


def _version(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
