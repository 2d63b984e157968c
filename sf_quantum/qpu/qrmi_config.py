"""``qrmi_config.json``: the QPUs of a site, in the file that QRMI's SPANK plugin reads.

The class of a type, in ``vendors`` or ``sfq``, lists the variables of the type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, read_json
from sf_quantum.qpu.configuration import check_name
from sf_quantum.qpu.sfq import service_variables
from sf_quantum.text import unknown

# smallest similarity of a misspelt key to the right one, from 0 to 1
_NEAR = 0.8


@dataclass(frozen=True)
class Resource:
    """One entry of the file.

    :param environment: variables of the QPU's client, without the prefix of the QPU's name;
        not in the ``repr``, since values may be credentials
    :param where: location of the entry, such as ``qrmi_config.json: resources[0]``
    """

    name: str
    type: str
    environment: dict[str, str] = field(repr=False)
    where: str = ""

    def missing(self, variable: str) -> InputError:
        """Return the error for a missing variable, with any key that may be a misspelling."""
        meant = near(variable, self.environment)
        hint = f"{meant!r} is there instead" if meant else "add it"
        return InputError(f"{self.where}.environment.{variable}: missing; {hint}")


def near(key: str, others: Iterable[str]) -> str | None:
    """Return another key that may be a misspelt or prefixed ``key``, or ``None``."""
    names = {other.lower(): other for other in others if other != key}
    prefixed = [name for name in names if name.endswith(f"_{key.lower()}")]
    close = get_close_matches(key.lower(), names, 1, _NEAR)
    return next((names[name] for name in (*prefixed, *close)), None)


def names(path: str) -> list[str]:
    """List the names of the file's resources."""
    return [*_entries(path)]


def read(path: str, name: str, type_: str | None = None) -> Resource:
    """Read one resource of the file.

    Only the names of the other entries are checked, since their kinds may be unknown.

    :param type_: the expected type, if any
    :raises InputError: if the file or the entry is wrong, or there is no such entry
    """
    entries = _entries(path)
    if name not in entries:
        raise InputError(f"{path}: {unknown('resource', name, [*entries])}")
    where, entry = entries[name]
    check_name(name, f"{where}.name:")
    environment = _environment(entry, where)
    environment = service_variables.resolved(environment, Path(path).parent)
    resource = Resource(name, _text(entry, "type", where), environment, where)
    if type_ not in (None, resource.type):
        message = f"resource {name!r} is of type {resource.type!r}, not {type_!r}"
        raise InputError(f"{path}: {message}")
    return resource


def unprefixed(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Read the variables of one QPU from an environment, without the prefix of its name."""
    prefix = f"{name}_"
    return {
        key.removeprefix(prefix): value
        for key, value in environment.items()
        if key.startswith(prefix)
    }


def _entries(path: str) -> dict[str, tuple[str, dict[str, JSON]]]:
    content = read_json(path, "QRMI configuration")
    entries = content.get("resources")
    if entries is None and (meant := near("resources", content)):
        raise InputError(f"{path}: resources: missing; {meant!r} is there instead")
    if not isinstance(entries, list):
        raise InputError(f"{path}: resources: expected a list")
    by_name = {}
    for index, entry in enumerate(entries):
        where = f"{path}: resources[{index}]"
        if not isinstance(entry, dict):
            raise InputError(f"{where}: expected an object")
        by_name[_text(entry, "name", where)] = (where, entry)
    return by_name


def _text(entry: dict[str, JSON], key: str, where: str) -> str:
    value = entry.get(key)
    if key not in entry and (meant := near(key, entry)):
        raise InputError(f"{where}.{key}: missing; {meant!r} is there instead")
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}.{key}: expected text")
    return value


def _environment(entry: dict[str, JSON], where: str) -> dict[str, str]:
    values = entry.get("environment", {})
    if "environment" not in entry and (meant := near("environment", entry)):
        raise InputError(f"{where}.environment: missing; {meant!r} is there instead")
    if not isinstance(values, dict):
        raise InputError(f"{where}.environment: expected an object")
    environment = {}
    for key, value in values.items():
        # messages omit the value, which may be a credential
        if not isinstance(value, str):
            raise InputError(f"{where}.environment.{key}: expected text")
        if not re.fullmatch(r"[A-Za-z0-9_]+", key):
            detail = "use letters, digits and underscores only"
            raise InputError(f"{where}.environment: {key!r}: {detail}")
        environment[key] = value
    return environment
