"""Bearer tokens, and the file that lists the tokens' hashes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, StringConstraints
from starlette.requests import HTTPConnection

from sf_quantum import validation, yaml
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import (
    MUNGE_HEADER,
    TOKEN_HEADER,
    Authenticate,
    AuthError,
    Unauthorized,
)

TOKEN_PREFIX = "sfq_"  # scanners for leaked secrets search for a prefix
BEARER_CHALLENGE = 'Bearer realm="sfq"'
logger = logging.getLogger(__name__)


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
    """Bearer tokens, whose hashes are in the tokens file.

    The file is read again when it changes, so that tokens can be added and revoked
    while the service runs. If the file can no longer be read, or is empty, no token is
    accepted; :meth:`users` still returns the previous users.

    :param path: path of the tokens file, a YAML list of :class:`TokenEntry`
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
        """Return the sender of a request.

        :raises AuthError: if the request has no token, or an unknown token
        """
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = connection.headers.get(TOKEN_HEADER, "")
        if not token:
            detail = "needs a bearer token"
            raise Unauthorized(detail, "Authorization", BEARER_CHALLENGE)
        if await self.problem():
            # not 401, which clients treat as final: the token may be valid
            problem = (
                "tokens file is empty" if self._is_empty else "tokens cannot be read"
            )
            raise AuthError(503, f"the {problem}; ask an admin", "Authorization")
        entry = self._entries.get(digest(token.strip()))
        if entry is None:
            challenge = f'{BEARER_CHALLENGE}, error="invalid_token"'
            raise Unauthorized("unknown bearer token", "Authorization", challenge)
        return Identity(entry.user, entry.admin or entry.user in self._admins)

    async def problem(self) -> str | None:
        """Return why no token is accepted; ``None`` if the file can be read."""
        if _version(self._path) != self._version:
            await asyncio.to_thread(self._read_again)
        return self._problem

    async def users(self) -> frozenset[str]:
        """Return the users who have a token, from the last file that could be read."""
        await self.problem()
        return frozenset(entry.user for entry in self._entries.values())

    @property
    def _is_empty(self) -> bool:
        return self._version is not None and self._version.size == 0

    def _read_again(self) -> None:
        self._version = _version(self._path)
        try:
            self._entries = read_tokens(self._path)
            # cleared last, so that no concurrent request is checked with the old entries
            self._problem = None
        except InputError as error:
            # the previous entries may include a token that was revoked
            self._problem = f"the tokens cannot be read: {error}"
            logger.error(
                "%s; nobody is admitted by a token until it can be read", error
            )


class MungeOrTokens:
    """Accepts tokens from clients that cannot create MUNGE credentials."""

    def __init__(self, munge: Authenticate, tokens: Tokens) -> None:
        self._munge = munge
        self._tokens = tokens

    async def __call__(self, connection: HTTPConnection) -> Identity:
        headers = connection.headers
        has_token = "authorization" in headers or TOKEN_HEADER in headers
        if has_token and MUNGE_HEADER not in headers:
            return await self._tokens(connection)
        return await self._munge(connection)

    async def problem(self) -> str | None:
        """Return why no token is accepted; ``None`` if the file can be read."""
        return await self._tokens.problem()

    async def users(self) -> None:
        """Return ``None``, since users without a token are admitted with MUNGE."""


def new_token() -> str:
    """Create a token of 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_entry(user: str, token: str, *, admin: bool) -> dict[str, JSON]:
    """Create an entry of the tokens file.

    :raises InputError: if the user's name is not valid
    """
    content: dict[str, JSON] = {"user": user, "sha256": digest(token)}
    if admin:
        content["admin"] = True
    validation.validated(TokenEntry, content, lambda _, value: f"{value!r}")
    return content


def digest(token: str) -> str:
    """Hash a token for the tokens file.

    256 random bits cannot be guessed, so a slow password hash is not needed. The time of
    the look-up in a dictionary reveals nothing, since nobody can choose a token with given
    bytes of its digest.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(path: Path) -> dict[str, TokenEntry]:
    """Read a tokens file.

    :returns: the entries by the hashes of their tokens
    :raises InputError: if the file is missing, empty, invalid or accessible to others
    """
    content = yaml.read(path, "tokens")
    validation.check_private(path)
    if content is None:  # an accident rather than the revocation of all tokens
        raise InputError(
            f"{path}: is empty; expected a list of tokens, [] if there is none"
        )
    file = validation.validated(
        _TokensFile,
        {"tokens": content},
        # the file is a list, without the key "tokens"
        lambda where, _: ": ".join(
            filter(None, (str(path), validation.dotted(where).removeprefix("tokens")))
        ),
    )
    entries: dict[str, TokenEntry] = {}
    for number, entry in enumerate(file.tokens):
        first = entries.setdefault(entry.sha256, entry)
        if first != entry:
            users = f"{first.user} and {entry.user}"
            if first.user == entry.user:
                users = f"{entry.user} as an admin and as another user"
            raise InputError(
                f"{path}: [{number}].sha256: one token is that of {users}; make another "
                f"with sfq token {entry.user}"
            )
    return entries


class _Version(NamedTuple):
    """Properties of a file that change when the file is replaced or written."""

    inode: int
    modified_ns: int
    size: int
    mode: int


def _version(path: Path) -> _Version | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _Version(status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode)
