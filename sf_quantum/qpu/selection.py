"""Selects the QPUs that a command uses, from a URL, a site's file or the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sf_quantum import qpu
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu, qrmi_config
from sf_quantum.qpu.environment import RESOURCES, listed, types_by_name
from sf_quantum.qpu.qrmi_config import Resource
from sf_quantum.qpu.sfq import service_variables
from sf_quantum.qpu.sfq.service_variables import URL

SFQ = "sfq"
DEFAULT_NAME = "qpu"


@dataclass(frozen=True)
class QpuSelection:
    """The options that select QPUs.

    :param names: names of the QPUs; empty for all QPUs of the environment
    :param url: URL of a QPU service, whose QPU gets the only name in ``names``, if any
    :param settings: configuration of a QPU of the type ``sfq``
    :param qrmi_config: path of a site's file
    """

    names: list[str]
    url: str | None = None
    settings: Mapping[str, JSON] | None = None
    qrmi_config: str | None = None

    def qpus(self, environment: Mapping[str, str]) -> list[Qpu]:
        """Make the clients, in the order of their names.

        :raises InputError: if a QPU is unknown, or its definition is incomplete
        """
        if len(set(self.names)) < len(self.names):
            raise InputError(f"--qpu: {','.join(self.names)}: name each QPU once")
        if self.url is not None:
            if len(self.names) > 1:
                raise InputError("--qpu: one URL is one QPU")
            return [self._make([*self.names, DEFAULT_NAME][0], {"url": self.url})]
        names = self.names or listed(environment, RESOURCES) or []
        if not names and self.qrmi_config is not None:
            available = ", ".join(qrmi_config.names(self.qrmi_config))
            raise InputError(f"no QPU: give --qpu; {self.qrmi_config} has {available}")
        if not names:
            raise InputError(
                "no QPU: give a URL (--url), or a name and a site's file (--qpu with "
                f"--qrmi-config), or let {RESOURCES[0]} name those of the environment"
            )
        return [self._named(name, environment) for name in sorted(names)]

    def all(self, environment: Mapping[str, str]) -> list[Qpu]:
        """Make the clients like :meth:`qpus`; without names, of all QPUs of a site's file."""
        if self.qrmi_config is None or self.names:
            return self.qpus(environment)
        names = sorted(qrmi_config.names(self.qrmi_config))
        return [self._named(name, environment) for name in names]

    def _named(self, name: str, environment: Mapping[str, str]) -> Qpu:
        """Make the client of a QPU from the site's file, or else from the environment."""
        if self.qrmi_config is not None:
            entry = qrmi_config.read(self.qrmi_config, name)
            if entry.type != SFQ:
                return client(entry.type, name, {"qrmiConfig": self.qrmi_config})
            config = service_variables.config(_complete(entry))
            with _located_errors(entry):
                return self._make(name, config)
        type_ = types_by_name(environment).get(name, SFQ)
        if type_ != SFQ:
            raise InputError(
                f"QPU {name}: the type {type_} is described by a site's file (--qrmi-config)"
            )
        variables = qrmi_config.unprefixed(name, environment)
        if not variables.get(URL):
            raise InputError(
                f"QPU {name}: {name}_{URL} is not set; name the file that describes "
                "the QPU (--qrmi-config, or qrmiConfig of a deployment), or set it"
            )
        return self._make(name, service_variables.config(variables))

    def _make(self, name: str, config: Mapping[str, JSON]) -> Qpu:
        settings = {
            k: value for k, value in (self.settings or {}).items() if value is not None
        }
        return qpu.load(SFQ).from_config(name, {**config, **settings})


def client(type_: str, name: str, config: Mapping[str, JSON]) -> Qpu:
    """Make the driver's side of a QPU of any kind.

    :param config: configuration of a deployment; unless the kind itself reads a site's file
        (``qrmiConfig``), the keys of an entry of the file are added; ``resource`` names the
        entry, by default ``name``
    :raises InputError: if the kind, a key or the file is wrong
    """
    kind, path = qpu.load(type_), config.get("qrmiConfig")
    if kind.reads_qrmi_config or not isinstance(path, str):
        return kind.from_config(name, config)
    entry = qrmi_config.read(path, str(config.get("resource", name)), type_)
    settings = {k: v for k, v in config.items() if k not in ("qrmiConfig", "resource")}
    if type_ == SFQ:
        variables = entry.environment if "url" in settings else _complete(entry)
        site = service_variables.config(variables)
    else:
        site = {**entry.environment}
    with _located_errors(entry):
        return kind.from_config(name, {**site, **settings})


def _complete(entry: Resource) -> Mapping[str, str]:
    """Return the variables of an entry of the type ``sfq``.

    :raises InputError: if the entry has no URL
    """
    if not entry.environment.get(URL):
        raise entry.missing(URL)
    return entry.environment


@contextmanager
def _located_errors(entry: Resource) -> Iterator[None]:
    """Name the file, and the variable in the file, in errors about a configuration."""
    try:
        yield
    except InputError as error:
        text, where = str(error), entry.where
        for variable, key in service_variables.CONFIG_KEYS.items():
            value = entry.environment.get(variable)
            if value and text.startswith((f"{key}: ", f"{value}: ")):
                where = f"{where}.environment.{variable}"
                text = text.removeprefix(f"{key}: ")
        raise InputError(f"{where}: {text}") from error
