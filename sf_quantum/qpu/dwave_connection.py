"""How D-Wave's client is told where to go: by a configuration, or by the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sf_quantum import samplers
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, cannot_read
from sf_quantum.qpu import qrmi_config

KEYS = ("url", "tokenFile", "resource", "qrmiConfig")
# what the client reads, and what we call it
VARIABLES = {
    "DWAVE_API_ENDPOINT": "endpoint",
    "DWAVE_API_TOKEN": "token",
    "DWAVE_API_SOLVER": "solver",
}


def configured(name: str, config: Mapping[str, JSON], type_: str) -> dict[str, str]:
    """Read a deployment's configuration.

    :returns: ``endpoint``, ``token`` and perhaps ``solver``
    :raises InputError: if a key is unknown, missing or wrong
    """
    given = {key: _text(key, value) for key, value in config.items()}
    if "qrmiConfig" in given:
        path = given["qrmiConfig"]
        entry = qrmi_config.read(path, given.get("resource", name))
        if entry.type != type_:
            detail = f"is of type {entry.type!r}, not {type_!r}"
            raise InputError(f"{path}: resource {entry.name!r} {detail}")
        return _connection(name, entry.environment)
    for key in ("url", "tokenFile"):
        if key not in given:
            raise InputError(f"{key}: missing in the configuration of QPU {name!r}")
    connection = {"endpoint": given["url"], "token": _read_token(given["tokenFile"])}
    if "resource" in given:
        connection["solver"] = given["resource"]
    return connection


def told(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Read a job's environment, also as QRMI's SPANK plugin names the variables.

    :returns: as :func:`configured`
    :raises InputError: if a variable is missing
    """
    found = {
        variable: value
        for variable in VARIABLES
        for key in (variable, f"{name}_{variable}")
        if (value := environment.get(key))
    }
    return _connection(name, found)


def variables(connection: Mapping[str, str]) -> dict[str, str]:
    """Write what D-Wave's client reads by itself."""
    return {
        variable: connection[key]
        for variable, key in VARIABLES.items()
        if key in connection
    }


def options(connection: Mapping[str, str]) -> dict[str, JSON]:
    """Write what D-Wave's client is made with; nothing comes from its own files."""
    whole: dict[str, JSON] = {"config_file": False, "client": "qpu", **connection}
    text = connection.get("solver", "")
    if not text.lstrip().startswith("{"):  # a name, and no features
        return {**whole, "solver": {"name": text}} if text else whole
    try:
        return {**whole, "solver": json.loads(text)}
    except ValueError as error:
        raise InputError("DWAVE_API_SOLVER: not a name and not JSON") from error


def _connection(name: str, told: Mapping[str, str]) -> dict[str, str]:
    for variable in ("DWAVE_API_ENDPOINT", "DWAVE_API_TOKEN"):
        if not told.get(variable):
            raise InputError(f"{variable} is not set for QPU {name!r}")
    return {VARIABLES[key]: told[key] for key in VARIABLES if key in told}


def _text(key: str, value: JSON) -> str:
    if key not in KEYS:
        raise InputError(samplers.unknown("key", key, [*KEYS]))
    if not isinstance(value, str) or not value:
        raise InputError(f"{key}: expected a text")
    return value


def _read_token(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, "token", error) from error
    if not token:
        raise InputError(f"{path}: empty; expected a token")
    return token
