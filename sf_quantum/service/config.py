"""The service's configuration: one YAML file, checked whole before anything starts.

``deployments/qpu-service.yml`` shows every key with its meaning and its default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    Strict,
)
from pydantic_core import core_schema

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.net.transport import is_loopback
from sf_quantum.samplers import unknown
from sf_quantum.service.device.emulated import Device, Faults
from sf_quantum.service.device.operations import check_bounds
from sf_quantum.service.device.technologies import TECHNOLOGIES
from sf_quantum.service.device.topology import TOPOLOGIES
from sf_quantum.service.domain.jobs import AskedClass
from sf_quantum.service.domain.settings import (
    ClassLimits,
    DriftSettings,
    PolicyChoice,
    QualitySettings,
    ServiceSettings,
    Shares,
    TelemetrySettings,
)
from sf_quantum.service.http.limits import Limits
from sf_quantum.service.scheduling.policies import load as load_policy
from sf_quantum.service.scheduling.policies import make as make_policy
from sf_quantum.validation import (
    Section,
    Where,
    Wrong,
    dotted,
    empty_mapping,
    read_yaml,
    validated,
)

MIB = 1024 * 1024
File: TypeAlias = Annotated[Path, Strict(False)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Classified: TypeAlias = Annotated[dict[str, AskedClass], BeforeValidator(empty_mapping)]
# what a value came from, if not from the file: ("listen", "port") -> "--port"
Flags: TypeAlias = Mapping[Where, str]


def _technology(name: str) -> str:
    if name not in TECHNOLOGIES:
        raise ValueError(unknown("technology", name, [*TECHNOLOGIES]))
    return name


def _topology(name: str) -> str:
    if name not in TOPOLOGIES:
        raise ValueError(unknown("topology", name, [*TOPOLOGIES]))
    return name


def _bounds(bounds: dict[str, list[float]]) -> dict[str, list[float]]:
    check_bounds(bounds)
    return bounds


class Listen(Section):
    """Where the service is reached."""

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
    """How users are told apart."""

    mode: Literal["none", "token", "munge"] = "none"
    tokens: File | None = None
    munge: File | None = None
    admins: list[str] = Field(default_factory=list)


class FaultsSection(Section):
    """What goes wrong on purpose."""

    fail: Probability = 0.0
    slow: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    offline: Probability = 0.0
    calibration: Probability = 0.0
    drift: Probability = 0.0


class DeviceSection(Section):
    """The device, an emulated one."""

    name: Annotated[str, Field(min_length=1)] = "emulator"
    technology: Annotated[str, AfterValidator(_technology)] = "annealer"
    qubits: Count = 5000
    shots: Count | None = None
    out_of_service: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    topology: Annotated[str, AfterValidator(_topology)] = "pegasus"
    time_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    calibration_seconds: Seconds | None = None
    seed: int | None = None
    faults: FaultsSection = FaultsSection()
    cost_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    bounds: Annotated[dict[str, list[float]], AfterValidator(_bounds)] = Field(
        default_factory=dict
    )

    def make(self) -> Device:
        """Make the device."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values["faults"] = Faults(**self.faults.model_dump())
        values["out_of_service"] = frozenset(self.out_of_service)
        return Device(**values)


class Leases(Section):
    """Who may hold the QPU, and for how long."""

    by: Literal["users", "root"] = "users"
    # who died without giving a lease back would hold it for ever otherwise
    idle_seconds: Seconds | None = 900.0
    total_seconds: Seconds | None = None
    wait_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3600.0


class ClassSection(Section):
    """What a job of a class may be."""

    shots: Count | None = None
    seconds: Seconds | None = None
    jobs: Count | None = None


Tenths: TypeAlias = Annotated[
    dict[str, Annotated[int, Field(ge=1, le=10)]], BeforeValidator(empty_mapping)
]


class SharesSection(Section):
    """How much of the QPU is whose, in tenths."""

    projects: Tenths = Field(default_factory=dict)
    users: Tenths = Field(default_factory=dict)
    default: Annotated[int, Field(ge=1, le=10)] = 1
    slurm_unit: Annotated[str, Field(min_length=1)] | None = None

    def make(self) -> Shares:
        """Tell the policy."""
        return Shares(self.projects, self.users, self.default)


def _policy(content: JSON) -> PolicyChoice:
    """Read the name of a policy, or a mapping with its options, and try it."""
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
        make_policy(name, options, Shares())
    except InputError as error:
        raise ValueError(str(error)) from error
    return PolicyChoice(name, options)


def _by_policy(*_: type | GetCoreSchemaHandler) -> core_schema.CoreSchema:
    """pydantic would look into the options, which are any JSON."""
    return core_schema.no_info_plain_validator_function(_policy)


class Classes(Section):
    """Who goes first."""

    default: AskedClass = "development"
    highest: AskedClass = "production"
    users: Classified = Field(default_factory=dict)
    partitions: Classified = Field(default_factory=dict)
    limits: Annotated[
        dict[AskedClass, ClassSection], BeforeValidator(empty_mapping)
    ] = Field(default_factory=dict)


class LimitsSection(Section):
    """How much one user may take."""

    jobs: Count | None = None
    body_mib: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8
    requests_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    burst: Count = 200
    requests_at_once: Count = 64


class Drift(Section):
    """When a drift of the device is one; see :class:`DriftSettings`."""

    reference: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    threshold: Seconds = 5.0


class Quality(Section):
    """How often the device is given a problem with a known optimum."""

    every_seconds: Seconds | None = None
    num_reads: Annotated[int, Field(ge=1, le=100_000)] = 100
    learn: Annotated[int, Field(ge=3)] = 20


class Metrics(Section):
    """Who may read ``/metrics``."""

    public: bool | None = None
    users: list[str] = Field(default_factory=lambda: ["prometheus"])


class Configuration(Section):
    """Everything that a site decides."""

    listen: Listen = Listen()
    state: File | None = None
    auth: Auth = Auth()
    device: DeviceSection = DeviceSection()
    vqpus: Annotated[int, Field(ge=1, le=10_000)] = 1
    policy: Annotated[PolicyChoice, GetPydanticSchema(_by_policy)] = PolicyChoice()
    shares: SharesSection = SharesSection()
    user_projects: Annotated[
        dict[str, Annotated[list[str], Field(min_length=1)]],
        BeforeValidator(empty_mapping),
    ] = Field(default_factory=dict)
    leases: Leases = Leases()
    classes: Classes = Classes()
    limits: LimitsSection = LimitsSection()
    drift: Drift = Drift()
    quality: Quality = Quality()
    metrics: Metrics = Metrics()
    retention_seconds: Seconds | None = 7 * 24 * 3600.0
    slurm_poll_seconds: Seconds = 15.0
    drain_seconds: Annotated[float, Field(ge=0, le=3)] = 2.0

    def settings(self) -> ServiceSettings:
        """Tell the queue what it must know."""
        return ServiceSettings(
            vqpus=self.vqpus,
            lease_idle_seconds=self.leases.idle_seconds,
            lease_total_seconds=self.leases.total_seconds,
            lease_wait_seconds=self.leases.wait_seconds,
            users_may_lease=self.leases.by == "users",
            default_class=self.classes.default,
            highest_class=self.classes.highest,
            user_classes=self.classes.users,
            partition_classes=self.classes.partitions,
            limits={
                name: ClassLimits(**section.model_dump())
                for name, section in self.classes.limits.items()
            },
            user_jobs=self.limits.jobs,
            retention_seconds=self.retention_seconds,
            slurm_poll_seconds=self.slurm_poll_seconds,
            drift=DriftSettings(**self.drift.model_dump()),
            policy=self.policy,
            shares=self.shares.make(),
            slurm_unit=self.shares.slurm_unit,
            user_projects=self.user_projects,
        )

    def telemetry(self) -> TelemetrySettings:
        """Tell who may read the metrics, and how often the device is looked at.

        Unless the file says so, they are public where only this machine reaches them.
        """
        public, quality = self.metrics.public, self.quality
        return TelemetrySettings(
            public=not self.listen.public if public is None else public,
            users=frozenset(self.metrics.users),
            quality=(
                None
                if quality.every_seconds is None
                else QualitySettings(
                    quality.every_seconds, quality.num_reads, quality.learn
                )
            ),
        )

    def request_limits(self) -> Limits:
        """Tell what one sender may take of the service.

        Where nobody is checked all are one user, whom no share has to be kept from.
        """
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
    """Read the configuration, and check it.

    :param path: the file; without one everything is as its defaults say
    :param values: by their places, which take the place of those in the file
    :param flags: how those who gave these values call them
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
            return  # wrong in the file, which the check will say
        content = inner
    content[last] = value


def _rules(config: Configuration) -> Iterator[tuple[tuple[Where, JSON], str]]:
    """What no key can say for itself."""
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
    if (
        config.shares != SharesSection()
        and not load_policy(config.policy.type).uses_shares
    ):
        words = f"policy {config.policy.type} uses no shares: take fair-share"
        yield (("shares",), None), words
    if listen.socket is not None and tls:
        yield (("listen", "certificate"), None), "a Unix socket does not use TLS"
    if auth.mode == "token" and auth.tokens is None:
        yield (
            (("auth", "mode"), "token"),
            "needs auth.tokens, the tokens file (sfq token makes one)",
        )
