"""``qrmi_config.json``: the QPUs of a site, in the file its SPANK plugin reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sf_quantum import samplers
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, read_json

KIND = "QRMI configuration"


@dataclass(frozen=True)
class Resource:
    """One entry of the file.

    :param environment: what its client is told, keys without the name in front; may
        hold credentials, so it is not shown
    """

    name: str
    type: str
    environment: dict[str, str]

    def __repr__(self) -> str:
        """Show what is no secret."""
        return f"Resource({self.name!r}, {self.type!r})"


def names(path: str) -> list[str]:
    """Name the resources of the file.

    :raises InputError: if the file is wrong
    """
    return [*_entries(path)]


def read(path: str, name: str) -> Resource:
    """Take a resource out of the file.

    Entries of other names are only looked at for their names: what a site writes about
    machines we do not know is its own affair.

    :raises InputError: if the file or the entry is wrong, or there is no such entry
    """
    known = _entries(path)
    if name not in known:
        raise InputError(f"{path}: {samplers.unknown('resource', name, [*known])}")
    where, entry = known[name]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError(
            f"{where}.name: {name!r}: use letters, digits and underscores only, "
            "since it starts the names of environment variables"
        )
    return Resource(name, _text(entry, "type", where), _environment(entry, where))


def _entries(path: str) -> dict[str, tuple[str, dict[str, JSON]]]:
    entries = read_json(path, KIND).get("resources")
    if not isinstance(entries, list):
        raise InputError(f"{path}: resources: expected a list")
    known = {}
    for index, entry in enumerate(entries):
        where = f"{path}: resources[{index}]"
        if not isinstance(entry, dict):
            raise InputError(f"{where}: expected an object")
        known[_text(entry, "name", where)] = (where, entry)
    return known


def _text(entry: dict[str, JSON], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}.{key}: expected a text")
    return value


def _environment(entry: dict[str, JSON], where: str) -> dict[str, str]:
    values = entry.get("environment", {})
    if not isinstance(values, dict):
        raise InputError(f"{where}.environment: expected an object")
    environment = {}
    for key, value in values.items():
        # the value stays out of the text: it may be a credential
        if not isinstance(value, str):
            raise InputError(f"{where}.environment.{key}: expected a text")
        if not re.fullmatch(r"[A-Za-z0-9_]+", key):
            detail = "use letters, digits and underscores only"
            raise InputError(f"{where}.environment: {key!r}: {detail}")
        environment[key] = value
    return environment
