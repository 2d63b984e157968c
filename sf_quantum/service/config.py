"""The service's configuration: one YAML file, checked as a whole before anything starts.

``deployments/qpu-service.yml`` shows every key with its meaning and its default.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema, Strict
from pydantic_core import core_schema

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.net.transport import is_loopback
from sf_quantum.service.device.emulated import DeviceSettings
from sf_quantum.service.domain.settings import PolicyChoice, ServiceSettings, Shares
from sf_quantum.service.http.limits import Limits
from sf_quantum.service.scheduling.policies import load as load_policy
from sf_quantum.service.scheduling.policies import make as make_policy
from sf_quantum.validation import (
    Section,
    Where,
    Wrong,
    dotted,
    read_yaml,
    validated,
)

MIB = 1024 * 1024
File: TypeAlias = Annotated[Path, Strict(False)]
# command-line options by key: ("listen", "port") -> "--port"
Flags: TypeAlias = Mapping[Where, str]


class Listen(Section):
    """Where the service is reached.

    :param socket: path of a Unix socket, instead of host and port; without
        authentication it is for its owner only
    :param host: address to listen at; one that other machines reach needs TLS and authentication
    :param port: 0 takes any free one
    :param certificate: TLS, PEM, with its chain
    :param key: private key of the certificate, PEM, closed to others
    """

    socket: File | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    certificate: File | None = None
    key: File | None = None

    @property
    def public(self) -> bool:
        """Whether other machines may reach it."""
        return self.socket is None and not is_loopback(self.host)


class Auth(Section):
    """How users are authenticated.

    :param mode: ``none``: everybody is one user; ``token``: bearer tokens; ``munge``:
        MUNGE credentials
    :param tokens: the file that ``sfq token`` writes: of mode ``token``, or beside
        ``munge`` for clients that have no MUNGE
    :param munge: path of munged's socket, if it is not the usual one
    :param admins: users who see and cancel all jobs and operate the device; root is one
        under MUNGE
    """

    mode: Literal["none", "token", "munge"] = "none"
    tokens: File | None = None
    munge: File | None = None
    admins: list[str] = Field(default_factory=list)


def _policy(content: JSON) -> PolicyChoice:
    """Read a policy's name, or a mapping with its options, and check it."""
    if content is None:
        return PolicyChoice()
    options = {"type": content} if isinstance(content, str) else content
    if not isinstance(options, dict):
        raise ValueError("expected the name of a policy, or keys and values")
    options = {**options}
    name = options.pop("type", None)
    if not isinstance(name, str):
        raise ValueError("expected the policy's name as type")
    try:
        make_policy(name, options, Shares(), time.time)
    except InputError as error:
        raise ValueError(str(error)) from error
    return PolicyChoice(name, options)


def _by_policy(*_: type | GetCoreSchemaHandler) -> core_schema.CoreSchema:
    # pydantic would look into the options, whose type is recursive
    return core_schema.no_info_plain_validator_function(_policy)


class ProcessSettings(Section):
    """The process: where it listens and keeps its state, and its device.

    :param state: folder of jobs, results and leases; without it they end with the service
    """

    listen: Listen = Listen()
    state: File | None = None
    auth: Auth = Auth()
    device: DeviceSettings = DeviceSettings()


class Configuration(ServiceSettings, ProcessSettings):
    """Everything that a site decides.

    :param policy: the scheduling policy: its name, or a mapping with its ``type`` and
        options
    :param drain_seconds: how long the running job has to end after SIGTERM
    """

    policy: Annotated[PolicyChoice, GetPydanticSchema(_by_policy)] = PolicyChoice()
    drain_seconds: Annotated[float, Field(ge=0, le=3)] = 2.0

    @property
    def public_metrics(self) -> bool:
        """Whether ``/metrics`` needs no credential.

        By default so where only this machine reaches it.
        """
        public = self.metrics.public
        return not self.listen.public if public is None else public

    def request_limits(self) -> Limits:
        """Return the limits of a user's requests; without authentication only the size."""
        body_bytes = int(self.limits.body_mib * MIB)
        if self.auth.mode == "none":
            return Limits(body_bytes)
        return Limits(
            body_bytes,
            self.limits.requests_per_second,
            self.limits.burst,
            self.limits.requests_at_once,
        )


def load(
    path: Path | None, values: Mapping[Where, JSON], flags: Flags
) -> Configuration:
    """Read and check the configuration.

    :param path: the file; ``None`` takes the defaults
    :param values: override those of the file, by key
    :param flags: the names of these values in errors, by key
    :raises InputError: if there is no such file, or it is not YAML
    :raises Wrong: with every error, each named by its key or its flag
    """
    content = read_yaml(path, "configuration") if path is not None else {}
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys and values")
    for where, value in values.items():
        _put(content, where, value)

    def name(where: Where, value: JSON) -> str:
        shown = f" {value}" if isinstance(value, str | int | float) else ""
        for length in range(len(where), 0, -1):
            if where[:length] in values:
                rest = dotted(where[length:])
                return flags[where[:length]] + (f": {rest}" if rest else shown)
        place = ": ".join(part for part in (str(path or ""), dotted(where)) if part)
        return place + shown

    checked = validated(Configuration, content, name)
    if wrong := [f"{name(*place)}: {words}" for place, words in _rules(checked)]:
        raise Wrong(wrong)
    return checked


def _put(content: dict[str, JSON], where: Where, value: JSON) -> None:
    *above, last = map(str, where)
    for key in above:
        inner = content.get(key)
        if inner is None:
            inner = content[key] = {}
        if not isinstance(inner, dict):
            return  # the check of the file reports it
        content = inner
    content[last] = value


def _rules(config: Configuration) -> Iterator[tuple[tuple[Where, JSON], str]]:
    """Check rules of more than one key."""
    listen, auth = config.listen, config.auth
    tls = listen.certificate is not None and listen.key is not None
    if listen.public and not (tls and auth.mode != "none"):
        yield (
            (("listen", "host"), listen.host),
            "other machines reach this address, so it needs a certificate, its key "
            "and authentication (token or munge)",
        )
    for name, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(listen, name) and not getattr(listen, other):
            yield (("listen", name), None), f"needs listen.{other} beside it"
    if listen.socket is not None:
        for name in ("host", "port"):
            if name in listen.model_fields_set:
                words = "the service listens at listen.socket: leave one of them out"
                yield (("listen", name), getattr(listen, name)), words
    if config.shares != Shares() and not load_policy(config.policy.type).uses_shares:
        words = f"policy {config.policy.type} uses no shares: take fair-share"
        yield (("shares",), None), words
    if listen.socket is not None and tls:
        yield (("listen", "certificate"), None), "a Unix socket does not use TLS"
    if auth.mode == "token" and auth.tokens is None:
        yield (
            (("auth", "mode"), "token"),
            "needs auth.tokens, the tokens file (sfq token makes one)",
        )
