"""Checks a service's configuration without starting the service, and reports all findings.

Some of the findings do not prevent the start of a service.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON, KeyPath, exists
from sf_quantum.service.config import (
    Configuration,
    Finding,
    Flags,
    conflicts_of,
    make_device,
    naming,
    policy_conflicts,
    read,
)
from sf_quantum.service.domain.jobs import RANKS
from sf_quantum.service.domain.settings import TENTHS
from sf_quantum.service.http import auth
from sf_quantum.service.http.tokens import read_tokens
from sf_quantum.service.run import check_certificate, socket_problem
from sf_quantum.service.scheduling import policies
from sf_quantum.service.state import DATABASE, check_state
from sf_quantum.service.store.file.database import REMEDY
from sf_quantum.service.store.schema import VERSION
from sf_quantum.validation import ValidationErrors, validated


def check(path: Path | None, values: Mapping[KeyPath, JSON], flags: Flags) -> None:
    """Check a configuration, and the files that it names, with the permissions of this user.

    See :func:`sf_quantum.service.config.load` for the parameters.

    :raises InputError: if there is no such file, or the file is not YAML
    :raises ValidationErrors: if there are findings; lists them all, each with its key or
        option
    """
    content = read(path, values, flags)
    name = naming(path, values, flags)
    lines: list[str] = []
    invalid_sections: set[int | str] = set()
    try:
        config = validated(Configuration, content, name)
    except ValidationErrors as error:
        lines = error.lines
        # the valid sections can still be checked
        invalid_sections = {key[0] for key in error.keys}
        valid = {
            key: value for key, value in content.items() if key not in invalid_sections
        }
        config = validated(Configuration, valid, name)
    for finding in _CHECKS:
        for key, value, why in finding(config):
            if not invalid_sections & {key[0], *_READ.get(finding, ())}:
                lines.append(f"{name(key, value)}: {why}")
    if lines:
        raise ValidationErrors(lines)


def _tokens(config: Configuration) -> Iterator[Finding]:
    path, key = config.auth.tokens, ("auth", "tokens")
    if path is None or config.auth.mode == "none":
        return
    try:
        users = {entry.user for entry in read_tokens(path).values()}
    except ValidationErrors as error:
        yield from ((key, None, line) for line in error.lines)
    except InputError as error:
        yield key, None, str(error)
    else:
        for index, user in enumerate(config.auth.admins):
            # admins need a token only in mode token; with MUNGE, an account suffices
            if config.auth.mode == "token" and user not in users:
                why = f"has no token in {path} (sfq token {user} --tokens {path})"
                yield ("auth", "admins", index), user, why


def _munge(config: Configuration) -> Iterator[Finding]:
    if config.auth.mode == "munge":
        try:
            auth.Munge(config.auth.munge, config.auth.admins)
        except QuantumError as error:
            yield ("auth", "mode"), "munge", str(error)


def _certificate(config: Configuration) -> Iterator[Finding]:
    try:
        check_certificate(config.listen)
    except InputError as error:
        yield ("listen", "certificate"), None, str(error)


def _socket(config: Configuration) -> Iterator[Finding]:
    if config.listen.socket is None:
        return
    path, key = config.listen.socket.absolute(), ("listen", "socket")
    if why := socket_problem(path):
        yield key, str(path), why
    # systemd creates a folder in /run when the service starts
    elif not path.parent.is_dir() and path.parent.parent != Path("/run"):
        yield key, str(path), f"there is no folder {path.parent}"


def _state(config: Configuration) -> Iterator[Finding]:
    path = config.state
    if path is None:
        return
    try:
        folder = path if exists(path) else path.absolute().parent
    except OSError as error:  # a folder above the state folder belongs to another user
        yield ("state",), str(path), f"cannot be read: {(error.strerror or '').lower()}"
        return
    if not folder.is_dir():
        yield ("state",), str(path), f"{folder} is not a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield ("state",), str(path), f"this user cannot write in {folder}"
    elif path.exists() and (why := _state_problem(path)):
        yield ("state",), None, why
    elif (database := path / DATABASE).exists() and (why := _unreadable(database)):
        yield ("state",), str(path), why


def _state_problem(path: Path) -> str | None:
    # root checks on behalf of the service's user, who owns the folder
    try:
        check_state(path, owner=None if os.geteuid() else path.stat().st_uid)
    except InputError as error:
        return str(error)
    return None


def _unreadable(database: Path) -> str | None:
    # Read the file's header (https://www.sqlite.org/fileformat.html), since a connection to
    # the database would create files next to it.
    try:
        with database.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        return f"{database.name} cannot be read: {error.strerror}"
    if header and not header.startswith(b"SQLite format 3\0"):
        return f"{database.name} is not a database; {REMEDY}"
    version = int.from_bytes(header[60:64], "big")
    pages = int.from_bytes(header[28:32], "big")
    # only without a write-ahead log: after the first start, the tables may still be there
    if not database.with_name(f"{database.name}-wal").exists():
        if version == 0 and pages > 1:
            return f"{database.name} is the database of another application; {REMEDY}"
        page_bytes = int.from_bytes(header[16:18], "big")
        # the value 1 stands for 65,536 bytes
        if database.stat().st_size < pages * (page_bytes if page_bytes > 1 else 65_536):
            return f"{database.name} is shorter than it was; {REMEDY}"
    if version > VERSION:
        return f"its version is {version}, this sf_quantum reads up to {VERSION}"
    return None


def _device(config: Configuration) -> Iterator[Finding]:
    try:
        make_device(config.device).close()
    except ValidationErrors as error:
        yield from ((("device",), None, line) for line in error.lines)
    except QuantumError as error:  # for example, a twin's original does not respond
        yield ("device",), None, str(error)


def _shares(config: Configuration) -> Iterator[Finding]:
    shares, projects_of = config.shares, config.user_projects
    if not policies.load(config.policy.type).uses_shares:
        return
    if shares.projects and "default" not in shares.model_fields_set:
        for user, projects in projects_of.items():
            for index, project in enumerate(projects):
                if project not in shares.projects:
                    why = "has no share in shares.projects, so it gets that of default"
                    yield ("user_projects", user, index), project, why
    without_project = [user for user in shares.users if user not in projects_of]
    total = sum(shares.projects.values()) + sum(
        shares.users[user] for user in without_project
    )
    if total > TENTHS:
        subject = "those of projects" + (
            " and of users without one" if without_project else ""
        )
        yield (
            "shares",
        ), None, f"{subject} add up to {total} tenths, more than {TENTHS}"
    for project in sorted({name for names in projects_of.values() for name in names}):
        total = sum(
            tenths
            for user, tenths in shares.users.items()
            if project in projects_of.get(user, ())
        )
        if total > TENTHS:
            why = f"those within {project} add up to {total} tenths, more than {TENTHS}"
            yield ("shares", "users"), None, why


def _classes(config: Configuration) -> Iterator[Finding]:
    classes = config.classes
    if RANKS[classes.default] < RANKS[classes.highest]:
        why = (
            f"is above classes.highest, {classes.highest}, so nobody gets it by default"
        )
        yield ("classes", "default"), classes.default, why


def _one_user(config: Configuration) -> Iterator[Finding]:
    """Yield settings that restrict users, which have no effect if every sender is an admin."""
    if config.auth.mode != "none":
        return
    why = "has no effect: with auth.mode none, all requests are of one user, an admin"
    if config.auth.admins:
        yield ("auth", "admins"), None, why
    if config.metrics.public is False:
        yield ("metrics", "public"), None, why
    if config.leases.by == "root":
        yield ("leases", "by"), "root", why


_CHECKS: tuple[Callable[[Configuration], Iterator[Finding]], ...] = (
    conflicts_of,
    policy_conflicts,
    _tokens,
    _munge,
    _certificate,
    _socket,
    _state,
    _device,
    _shares,
    _classes,
    _one_user,
)
# Sections that a check reads in addition to the section of the key in its findings. If one of
# them is invalid, the findings are omitted, since they would be about defaults.
_READ: Mapping[Callable[[Configuration], Iterator[Finding]], set[str]] = {
    conflicts_of: {"listen", "auth"},
    policy_conflicts: {"shares", "policy"},
    _shares: {"shares", "policy", "user_projects"},
    _one_user: {"auth"},
}
