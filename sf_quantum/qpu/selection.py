"""Which QPUs a command is to reach: by a URL, a site's file or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sf_quantum import qpu
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import RESOURCES, TYPES, Qpu, qrmi_config, words

SFQ = "sfq"
DEFAULT_NAME = "qpu"
# of our own kind: what the environment, or an entry of a site's file, calls its keys
_VARIABLES = {"SFQ_URL": "url", "SFQ_TOKEN_FILE": "tokenFile", "SFQ_MUNGE": "munge"}


@dataclass(frozen=True)
class Selection:
    """What was asked for.

    :param names: of the QPUs; none takes all that the environment names
    :param url: of our service, whose one QPU gets the one name
    :param own: keys of the configuration that only our own kind has
    :param qrmi_config: a site's file
    """

    names: list[str]
    url: str | None = None
    own: Mapping[str, JSON] | None = None
    qrmi_config: str | None = None

    def qpus(self, environment: Mapping[str, str]) -> list[Qpu]:
        """Make the clients, in the order of their names.

        :raises InputError: if a QPU is not known, or is known in halves
        """
        if len(set(self.names)) < len(self.names):
            raise InputError(f"--qpu: {','.join(self.names)}: name each QPU once")
        if self.url is not None:
            return [self._at_url(self.url)]
        names = self.names or words(environment, RESOURCES) or []
        if not names:
            raise InputError(
                "no QPU: give --url, or --qpu with --qrmi-config, or let "
                f"{RESOURCES[0]} name those of the environment"
            )
        return [self._named(name, environment) for name in sorted(names)]

    def all(self, environment: Mapping[str, str]) -> list[Qpu]:
        """As :meth:`qpus`, where a site's file alone means all that are in it.

        :raises InputError: see :meth:`qpus`
        """
        if self.qrmi_config is None or self.names:
            return self.qpus(environment)
        names = sorted(qrmi_config.names(self.qrmi_config))
        return [self._named(name, environment) for name in names]

    def _at_url(self, url: str) -> Qpu:
        if len(self.names) > 1:
            raise InputError("--qpu: one URL is one QPU")
        name = self.names[0] if self.names else DEFAULT_NAME
        return qpu.load(SFQ).from_config(name, {"url": url, **self._own})

    def _named(self, name: str, environment: Mapping[str, str]) -> Qpu:
        if self.qrmi_config is not None:
            found = qrmi_config.read(self.qrmi_config, name)
            if found.type == SFQ:
                return self._ours(name, found.environment)
            return client(found.type, name, {"qrmiConfig": self.qrmi_config})
        prefix = f"{name}_"
        type_ = _types(environment).get(name, SFQ)
        if type_ != SFQ:
            raise InputError(
                f"--qpu {name}: QPUs of type {type_} are described by --qrmi-config"
            )
        return self._ours(
            name,
            {
                key.removeprefix(prefix): value
                for key, value in environment.items()
                if key.startswith(prefix)
            },
        )

    def _ours(self, name: str, variables: Mapping[str, str]) -> Qpu:
        if not variables.get("SFQ_URL"):
            raise InputError(
                f"--qpu {name}: {name}_SFQ_URL is not set; name the file that describes "
                "the QPU (--qrmi-config, or qrmiConfig of a deployment), or set it"
            )
        return qpu.load(SFQ).from_config(name, {**_config(variables), **self._own})

    @property
    def _own(self) -> dict[str, JSON]:
        return {
            key: value for key, value in (self.own or {}).items() if value is not None
        }


def client(type_: str, name: str, config: Mapping[str, JSON]) -> Qpu:
    """Make the driver's side of a QPU of any kind, by itself or from a site's file.

    :param config: of a deployment; an entry of its ``qrmiConfig``, ``resource`` or else
        ``name``, gives the keys that a kind has which does not read such files
    :raises InputError: if the kind, a key or the file is wrong
    """
    kind, path = qpu.load(type_), config.get("qrmiConfig")
    if kind.reads_qrmi_config or not isinstance(path, str):
        return kind.from_config(name, config)
    found = qrmi_config.read(path, str(config.get("resource", name)))
    told = _config(found.environment) if type_ == SFQ else {**found.environment}
    own = {k: v for k, v in config.items() if k not in ("qrmiConfig", "resource")}
    try:
        if found.type != type_:
            raise InputError(f"it is of type {found.type!r}, not {type_!r}")
        return kind.from_config(name, {**told, **own})
    except InputError as error:
        raise InputError(f"{path}: {found.name}: {error}") from error


def _config(variables: Mapping[str, str]) -> dict[str, JSON]:
    """The configuration of our own kind, from its variables."""
    config: dict[str, JSON] = {
        key: variables[variable]
        for variable, key in _VARIABLES.items()
        if variables.get(variable)
    }
    if config.get("munge") in ("0", "1"):
        config["munge"] = config["munge"] == "1"
    return config


def _types(environment: Mapping[str, str]) -> dict[str, str]:
    names, types = words(environment, RESOURCES), words(environment, TYPES)
    return dict(zip(names or [], types or [], strict=False))
