"""Reads the configuration of a QPU from deployments and sites' files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, cannot_read
from sf_quantum.text import unknown


def check_name(name: str, label: str) -> None:
    """Reject a QPU's name that cannot be the beginning of a shell variable's name."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError(
            f"{label} {name!r}: use letters, digits and underscores only, "
            "since it starts the names of environment variables"
        )


def check_keys(config: Mapping[str, JSON], valid_keys: Collection[str]) -> None:
    """Reject an unknown key of a configuration, and suggest a similar one."""
    for key in config:
        if key not in valid_keys:
            raise InputError(unknown("key", key, [*valid_keys]))


def config_text(config: Mapping[str, JSON], key: str) -> str | None:
    """Read an optional text of a configuration."""
    value = config.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise InputError(f"{key}: expected text")
    return value


def config_required(name: str, config: Mapping[str, JSON], key: str) -> str:
    """Read a required text of a QPU's configuration."""
    if (value := config_text(config, key)) is None:
        raise InputError(f"{key}: missing in the configuration of QPU {name!r}")
    return value


def token_fault(path: Path) -> str:
    """Return why a file's token cannot be in a header; empty if valid or unreadable."""
    try:
        token = read_token(str(path))
    except InputError:  # a missing or empty file is reported when the QPU is used
        return ""
    if token.startswith("\ufeff"):
        return "begins with a byte order mark"
    return "" if token.isprintable() else "not one line of text"


def read_token(path: str) -> str:
    """Read a credential from a file, which must not be empty."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, "token", error) from error
    if not token:
        raise InputError(f"{path}: empty; expected a token")
    return token
