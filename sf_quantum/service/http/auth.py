"""Who sends a request: nobody checked, a bearer token, or a MUNGE credential."""

from __future__ import annotations

import hashlib
import logging
import os
import pwd
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, StringConstraints
from starlette.requests import HTTPConnection

from sf_quantum import validation
from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.net import munge
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.identities import Identity

TOKEN_PREFIX = "sfq_"  # lets a scanner for leaked secrets know one
MUNGE_HEADER = "X-Munge-Cred"
# where D-Wave's clients put a token
TOKEN_HEADER = "X-Auth-Token"
BEARER_CHALLENGE = 'Bearer realm="sfq"'
MUNGE_CHALLENGE = f'Munge header="{MUNGE_HEADER}"'
_OUTCOME = "sfq.identity"
logger = logging.getLogger(__name__)


Authenticate: TypeAlias = Callable[[HTTPConnection], Identity]
# whether to authenticate a request may take long: it asks another process, or a disk
Blocks: TypeAlias = Callable[[HTTPConnection], bool]


class AuthError(Refused):
    """A request that is refused for what it says, or does not say, of its sender."""


class Unauthorized(AuthError):
    """No credential, or none that holds: 401, with ``WWW-Authenticate``.

    :param challenge: what would be right
    """

    def __init__(self, detail: str, field: str, challenge: str) -> None:
        super().__init__(401, detail, field, {"WWW-Authenticate": challenge})


class Forbidden(AuthError):
    """The sender is known and may not do this: 403."""

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(403, detail, field)


def nobody_checked(_: HTTPConnection) -> Identity:
    """Let everybody be the one local user, who may do everything."""
    return Identity("local", admin=True, root=True)


def never_blocks(_: HTTPConnection) -> bool:
    """Say of :func:`nobody_checked` that it takes no time."""
    return False


def once(authenticate: Authenticate) -> Authenticate:
    """Ask at most once per request, since a MUNGE credential holds only once.

    The outcome, good or bad, stays with the request.
    """

    def remembered(connection: HTTPConnection) -> Identity:
        outcome: Identity | AuthError | None = connection.scope.get(_OUTCOME)
        if outcome is None:
            try:
                outcome = authenticate(connection)
            except AuthError as error:
                outcome = error
            connection.scope[_OUTCOME] = outcome
        if isinstance(outcome, AuthError):
            raise outcome
        return outcome

    return remembered


class TokenEntry(validation.Section):
    """A line of the tokens file."""

    user: Annotated[str, StringConstraints(pattern=r"^[\w.@-]{1,64}$")]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(
        repr=False
    )
    admin: bool = False


class _TokensFile(validation.Section):
    tokens: list[TokenEntry]


class Tokens:
    """Bearer tokens, known by their hashes.

    The file is read again when it changes, so that a token can be added or taken back
    while the service runs. A change that cannot be read is logged, and changes nothing.

    :param path: a YAML list of :class:`TokenEntry`, which only its owner may change
    :param admins: names of users, whatever their tokens' entries say
    :raises InputError: if the file is missing, wrong or open to others
    """

    def __init__(self, path: Path, admins: Collection[str] = ()) -> None:
        self._path = path
        self._admins = frozenset(admins)
        self._version = _version(path)
        self._entries = _read_tokens(path)

    def __call__(self, connection: HTTPConnection) -> Identity:
        """:raises Unauthorized: if the request has no token that is known"""
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = connection.headers.get(TOKEN_HEADER, "")
        if not token:
            raise Unauthorized(
                "needs a bearer token", "Authorization", BEARER_CHALLENGE
            )
        self._read_again()
        entry = self._entries.get(digest(token.strip()))
        if entry is None:
            raise Unauthorized(
                "the bearer token is not known",
                "Authorization",
                f'{BEARER_CHALLENGE}, error="invalid_token"',
            )
        return Identity(entry.user, entry.admin or entry.user in self._admins)

    def blocks(self, _: HTTPConnection) -> bool:
        """Say whether the file is to be read again, which may take long."""
        return _version(self._path) != self._version

    def _read_again(self) -> None:
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._entries = _read_tokens(self._path)
        except InputError as error:
            logger.error("%s; the tokens read before still hold", error)


class Munge:
    """MUNGE credentials, each good for one request within its time.

    :param socket: of ``munged``; libmunge's own by default
    :param admins: names of users; root is an admin anyway
    :raises InputError: if libmunge is not installed
    :raises QpuError: if ``munged`` does not answer
    """

    def __init__(self, socket: Path | None, admins: Collection[str]) -> None:
        self._socket = str(socket) if socket else None
        self._admins = frozenset(admins)
        munge.check(self._socket)

    def __call__(self, connection: HTTPConnection) -> Identity:
        """:raises AuthError: if there is no credential, or none that holds"""
        credential = connection.headers.get(MUNGE_HEADER)
        if not credential:
            raise Unauthorized(
                "needs a MUNGE credential", MUNGE_HEADER, MUNGE_CHALLENGE
            )
        try:
            uid = munge.decode(credential, self._socket)
        except munge.CredentialRefused as error:
            raise Unauthorized(str(error), MUNGE_HEADER, MUNGE_CHALLENGE) from error
        except QuantumError as error:
            logger.error("%s", error)
            raise AuthError(503, "munged does not answer", MUNGE_HEADER) from error
        user = _user(uid)
        return Identity(user, admin=uid == 0 or user in self._admins, root=uid == 0)


def either(munge: Authenticate, tokens: Authenticate) -> Authenticate:
    """Take tokens from those whose client cannot make MUNGE credentials."""

    def authenticate(connection: HTTPConnection) -> Identity:
        return (tokens if by_token(connection) else munge)(connection)

    return authenticate


def by_token(connection: HTTPConnection) -> bool:
    """Say whether a request has a token, and no MUNGE credential."""
    headers = connection.headers
    has_token = "authorization" in headers or TOKEN_HEADER in headers
    return has_token and MUNGE_HEADER not in headers


def new_token() -> str:
    """Draw a token of 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def entry(user: str, token: str, *, admin: bool) -> dict[str, JSON]:
    """Make a line of the tokens file.

    :raises InputError: if the user's name cannot be one
    """
    content: dict[str, JSON] = {"user": user, "sha256": digest(token)}
    if admin:
        content["admin"] = True
    validation.validated(TokenEntry, content, lambda _, value: f"{value!r}")
    return content


def digest(token: str) -> str:
    """Hash a token as the tokens file keeps it.

    One SHA-256 is right here, and a password's slow hash is not: there is nothing to
    guess in 256 random bits, and this is paid on each request. Looking the digest up
    in a dictionary tells nothing by its time, since nobody can choose the digest's
    bytes without having the token.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def _read_tokens(path: Path) -> dict[str, TokenEntry]:
    content = validation.read_yaml(path, "tokens")
    validation.check_private(path)
    found = validation.validated(
        _TokensFile,
        {"tokens": content or []},
        lambda where, _: f"{path}: {validation.dotted(where).removeprefix('tokens')}",
    )
    return {entry.sha256: entry for entry in found.tokens}


def _version(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
