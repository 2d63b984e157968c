"""The service's configuration: one YAML file, validated before the service starts.

``deployments/qpu-service.yml`` documents every key and its default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    Strict,
    StringConstraints,
)
from pydantic_core import core_schema

from sf_quantum import yaml
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath
from sf_quantum.net.transport import is_loopback
from sf_quantum.service import device as devices
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.photons import photonic
from sf_quantum.service.device.emulator.settings import PHOTONIC, DeviceSettings
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.device.vendor.settings import QpuSettings
from sf_quantum.service.dialects import dialect
from sf_quantum.service.domain.settings import (
    PolicyChoice,
    ServiceSettings,
    Shares,
    Users,
)
from sf_quantum.service.http.guard import Limits
from sf_quantum.service.scheduling import policies
from sf_quantum.text import unknown
from sf_quantum.validation import (
    Section,
    ValidationErrors,
    dotted,
    empty_mapping,
    validated,
)


def _check_path(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("expected a path without null bytes")
    return path


File: TypeAlias = Annotated[Path, Strict(False), AfterValidator(_check_path)]
# command-line options by the keys that they override: ("listen", "port") -> "--port"
Flags: TypeAlias = Mapping[KeyPath, str]
# a function that names a key and its value in messages
Naming: TypeAlias = Callable[[KeyPath, JSON], str]
# an error of the configuration: key, value and message
Finding: TypeAlias = tuple[KeyPath, JSON, str]


class Listen(Section):
    """The address that the service listens on.

    :param socket: path of a Unix socket to listen on, instead of host and port; without
        authentication, only the socket's owner can connect
    :param host: address to listen on; an address that other machines can reach needs TLS
        and authentication
    :param port: TCP port; 0 selects a free port
    :param certificate: TLS certificate with its chain, PEM
    :param key: private key of the certificate, PEM; must not be readable by others
    :param names: host names for which the service responds, in addition to ``localhost`` and
        ``host``; names are checked only on TCP without authentication, since any web page in
        a user's browser could connect there
    """

    socket: File | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    certificate: File | None = None
    key: File | None = None
    names: list[Annotated[str, StringConstraints(pattern=r"^[a-z0-9.:-]+$")]] = Field(
        default_factory=list
    )

    @property
    def public(self) -> bool:
        """Whether other machines can reach the address."""
        return self.socket is None and not is_loopback(self.host)


class Auth(Section):
    """How users are authenticated.

    :param mode: ``none``: all requests are from one user; ``token``: bearer tokens;
        ``munge``: MUNGE credentials
    :param tokens: tokens file that ``sfq token`` writes; required by mode ``token``,
        optional with ``munge`` for clients without MUNGE
    :param munge: path of munged's socket; ``None``: the default path
    :param admins: names or uids of users who can see and cancel all jobs and operate the
        device; with MUNGE, root is also an admin
    """

    mode: Literal["none", "token", "munge"] = "none"
    tokens: File | None = None
    munge: File | None = None
    admins: Users = Field(default_factory=list)


def _read_policy(content: JSON) -> PolicyChoice:
    if content is None:
        return PolicyChoice()
    if not isinstance(content, str | dict):
        raise ValueError("expected the name of a policy, or keys and values")
    options = {"type": content} if isinstance(content, str) else {**content}
    name = options.pop("type", None)
    if not isinstance(name, str):
        raise ValueError("expected the name of a policy as type")
    try:
        policies.make(name, options, Shares(), time.time)
    except InputError as error:
        raise ValueError(str(error)) from error
    return PolicyChoice(name, options)


def _policy_schema(*_: type | GetCoreSchemaHandler) -> core_schema.CoreSchema:
    # a plain validator: pydantic cannot build a schema of the options' recursive type
    return core_schema.no_info_plain_validator_function(_read_policy)


# keys of an emulated device that a twin does not accept: it has its original's values
ORIGINALS = {"technology", "qubits", "shots", "out_of_service", "topology"}


class OwnDevice(Section):
    """The configuration of a twin, or of a site's own device.

    :param type: name of the entry point in the group ``sf_quantum.devices``; the device
        defines the other keys
    """

    model_config = ConfigDict(extra="allow")

    type: str


_SECTIONS: Mapping[str, type[Section]] = {
    "emulated": DeviceSettings,
    "qpu": QpuSettings,
}


def _validate_device(content: JSON | Section) -> JSON | Section:
    """Validate the section ``device`` with the model of the device's type."""
    if isinstance(content, Section):
        return content
    content = empty_mapping(content)
    type_ = content.get("type", "emulated") if isinstance(content, dict) else "emulated"
    if not isinstance(type_, str):
        raise ValueError("expected the type of a device as type")
    if type_ not in _SECTIONS and type_ not in devices.names():
        raise ValueError(unknown("device type", type_, devices.names()))
    return _SECTIONS.get(type_, OwnDevice).model_validate(content)


DeviceChoice: TypeAlias = DeviceSettings | QpuSettings | OwnDevice


def make_device(settings: DeviceChoice) -> Device:
    """Create the device of a configuration.

    :raises InputError: if the device cannot be created from its keys
    """
    if isinstance(settings, DeviceSettings):
        if settings.technology == PHOTONIC and (
            problem := photonic.installation_problem()
        ):
            raise InputError(problem)  # the device would refuse all jobs
        return EmulatedDevice(**dict(settings))
    if isinstance(settings, QpuSettings):
        return QpuDevice(settings)
    kind = devices.load(settings.type)
    return kind.from_config(settings.model_extra or {})


def _check_dialects(names: list[str] | None) -> list[str] | None:
    try:
        for name in names or []:
            dialect.load(name)
    except InputError as error:
        raise ValueError(str(error)) from error
    return names


class ProcessSettings(Section):
    """The service's address, state directory, authentication, device and dialects.

    :param state: directory of jobs, results and leases; ``None``: they are lost when the
        service ends
    :param device: device that the service drives
    :param dialects: APIs in addition to the service's own, such as ``[sapi, iqm]``, by the
        names of their entry points in the group ``sf_quantum.dialects``; null: all installed
        dialects
    """

    listen: Listen = Listen()
    state: File | None = None
    auth: Auth = Auth()
    device: Annotated[DeviceChoice, BeforeValidator(_validate_device)] = (
        DeviceSettings()
    )
    dialects: Annotated[list[str] | None, AfterValidator(_check_dialects)] = None


class Configuration(ServiceSettings, ProcessSettings):
    """The configuration file.

    :param policy: the scheduling policy: its name, or a mapping with its ``type`` and
        options
    :param drain_seconds: time that the running job has to finish after SIGTERM
    """

    policy: Annotated[PolicyChoice, GetPydanticSchema(_policy_schema)] = PolicyChoice()
    drain_seconds: Annotated[float, Field(ge=0, le=3)] = 2.0

    @property
    def public_metrics(self) -> bool:
        """Whether ``/metrics`` can be read without a credential.

        By default, it can if only this machine can reach the service.
        """
        public = self.metrics.public
        return not self.listen.public if public is None else public

    @property
    def names(self) -> frozenset[str] | None:
        """The host names for which the service responds; ``None`` if names are not checked."""
        if self.auth.mode != "none" or self.listen.socket is not None:
            return None
        loopback = ("localhost", "127.0.0.1", "::1")
        return frozenset((*loopback, self.listen.host, *self.listen.names))

    def request_limits(self) -> Limits:
        """Return the limits of each user's requests.

        Without authentication, neither the rate nor the concurrency is limited.
        """
        user, body_bytes = self.limits, int(self.limits.body_mib * 2**20)
        if self.auth.mode == "none":
            return Limits(body_bytes)
        rate, at_once = user.requests_per_second, user.requests_at_once
        return Limits(body_bytes, rate, user.burst, at_once)


def load(
    path: Path | None, values: Mapping[KeyPath, JSON], flags: Flags
) -> Configuration:
    """Read and validate the configuration.

    :param path: path of the file; ``None``: the defaults are used
    :param values: values that override the values in the file, by key
    :param flags: command-line options that set these values, by key, for error messages
    :raises InputError: if there is no such file, or the file is not YAML
    :raises ValidationErrors: if the configuration is invalid; lists all errors, each with
        its key or option
    """
    content = read(path, values, flags)
    name = naming(path, values, flags)
    config = validated(Configuration, content, name)
    if conflicts := [*conflicts_of(config), *policy_conflicts(config)]:
        lines = [f"{name(key, value)}: {why}" for key, value, why in conflicts]
        raise ValidationErrors(lines)
    return config


def read(
    path: Path | None, values: Mapping[KeyPath, JSON], flags: Flags
) -> dict[str, JSON]:
    """Read the configuration without validating it; see :func:`load` for the parameters.

    :raises InputError: if there is no such file, the file is not YAML, or an option does
        not apply to the device
    """
    content = empty_mapping(None if path is None else yaml.read(path, "configuration"))
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys and values")
    section = values.get(("device",), content.get("device"))
    type_ = section.get("type", "emulated") if isinstance(section, dict) else "emulated"
    for key, value in values.items():
        why = _not_applicable(type_, key[1], path) if key[:-1] == ("device",) else None
        if why is not None:
            raise InputError(f"{flags[key]} {why}")
        _override(content, key, value)
    return content


def _not_applicable(type_: JSON, key: int | str, path: Path | None) -> str | None:
    """Return why a key of emulated devices does not apply to a device of this type."""
    if type_ == "emulated" or key == "name":
        return None
    if type_ != "twin":
        return f"is for the emulated device; that of {path} has type {type_!r}"
    return "conflicts: a twin has that of its original" if key in ORIGINALS else None


def naming(path: Path | None, values: Mapping[KeyPath, JSON], flags: Flags) -> Naming:
    """Return a function that names a key and its value in messages.

    A key is named by the command-line option that sets it, or else by file and key.
    """

    def name(key: KeyPath, value: JSON) -> str:
        suffix = f" {value}" if isinstance(value, str | int | float) else ""
        for length in range(len(key), 0, -1):
            if key[:length] in values:
                rest = dotted(key[length:])
                return flags[key[:length]] + (f": {rest}" if rest else suffix)
        parts = (str(path or ""), dotted(key))
        return ": ".join(part for part in parts if part) + suffix

    return name


def _override(content: dict[str, JSON], path: KeyPath, value: JSON) -> None:
    *parents, last = map(str, path)
    for key in parents:
        section = content[key] = empty_mapping(content.get(key))
        if not isinstance(section, dict):
            return  # the section is not a mapping; the validation reports this
        content = section
    content[last] = value


def conflicts_of(config: Configuration) -> Iterator[Finding]:
    """Yield errors that involve several keys of ``listen`` and ``auth``."""
    listen, auth = config.listen, config.auth
    tls = listen.certificate is not None and listen.key is not None
    if listen.public and not (tls and auth.mode != "none"):
        needed = "a certificate, its key and authentication (token or munge)"
        message = f"other machines reach this address, so it needs {needed}"
        yield ("listen", "host"), listen.host, message
    for name, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(listen, name) and not getattr(listen, other):
            yield ("listen", name), None, f"needs listen.{other}"
    if listen.names and config.names is None:
        message = "checked only without authentication on TCP"
        yield ("listen", "names"), None, message
    if listen.socket is not None:
        for name in ("host", "port"):
            if name in listen.model_fields_set:
                message = "conflicts with listen.socket: leave one of them out"
                yield ("listen", name), getattr(listen, name), message
        if tls:
            yield ("listen", "certificate"), None, "a Unix socket does not use TLS"
    yield from _mode_conflicts(auth)


def _mode_conflicts(auth: Auth) -> Iterator[Finding]:
    if auth.mode == "token" and auth.tokens is None:
        message = "needs auth.tokens (--tokens), the tokens file that sfq token makes"
        yield ("auth", "mode"), "token", message
    for name, modes in (("tokens", ("token", "munge")), ("munge", ("munge",))):
        if getattr(auth, name) is not None and auth.mode not in modes:
            message = f"mode {auth.mode} does not use it: remove it, or set auth.mode to {modes[0]}"
            yield ("auth", name), None, message


def policy_conflicts(config: Configuration) -> Iterator[Finding]:
    """Yield errors that involve the policy and another key."""
    if config.shares != Shares() and not policies.load(config.policy.type).uses_shares:
        message = f"policy {config.policy.type} uses no shares; fair-share does"
        yield ("shares",), None, message
