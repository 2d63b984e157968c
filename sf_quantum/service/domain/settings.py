"""A site's settings of leases, classes, shares and telemetry.

Each class is a section of the service's configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
)
from pydantic_core import core_schema

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import JobClass, UserClass
from sf_quantum.validation import Section, empty_mapping

# a project, or else a user who has none: ("project", name) or ("user", name)
Account: TypeAlias = tuple[str, str]

Count: TypeAlias = Annotated[int, Field(ge=1)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tenths: TypeAlias = Annotated[int, Field(ge=1, le=10)]
SharesByName: TypeAlias = Annotated[dict[str, Tenths], BeforeValidator(empty_mapping)]
Classified: TypeAlias = Annotated[dict[str, UserClass], BeforeValidator(empty_mapping)]


class LeaseSettings(Section):
    """Who may hold the QPU, and for how long.

    :param by: ``users``: everybody for themselves; ``root``: only root and admins acquire leases, also for others
    :param idle_seconds: a lease without a request and without a job that is pending or
        running ends after so long; ``None`` never ends it
    :param total_seconds: a lease ends after so long in any case
    :param wait_seconds: the longest wait that a request for a lease may ask for
    """

    by: Literal["users", "root"] = "users"
    # a client that died without releasing its lease would hold it for ever otherwise
    idle_seconds: Positive | None = 900.0
    total_seconds: Positive | None = None
    wait_seconds: NotNegative = 3600.0


class ClassLimits(Section):
    """The limits of a class; ``None`` sets none.

    :param shots: shots of a job, at most
    :param seconds: modelled QPU time of a job, at most
    :param jobs: jobs of one user, pending and running at once
    """

    shots: Count | None = None
    seconds: Positive | None = None
    jobs: Count | None = None


class ClassSettings(Section):
    """Which classes leases may have.

    :param default: class of a lease that names neither a class nor a known partition
    :param highest: the highest class of users who are not in ``users``
    :param users: the highest class that a user may use
    :param partitions: the class of a Slurm partition, which its leases do not exceed
    :param limits: limits of the jobs of a class; a class without any has none
    """

    default: UserClass = "development"
    highest: UserClass = "production"
    users: Classified = Field(default_factory=dict)
    partitions: Classified = Field(default_factory=dict)
    limits: Annotated[dict[UserClass, ClassLimits], BeforeValidator(empty_mapping)] = (
        Field(default_factory=dict)
    )

    def limits_of(self, job_class: JobClass) -> ClassLimits:
        """Return the limits of a class; the service's own class has none."""
        return (
            ClassLimits()
            if job_class == "quality"
            else self.limits.get(job_class, ClassLimits())
        )


class Shares(Section):
    """Shares of the QPU, in tenths, as ten licences or gres units of Slurm would give.

    They are parts of what the active ones share: of 5 and 3 tenths alone one gets 5/8.
    The unit and its meaning are those of paper 004, section 3.5.

    :param projects: tenths of a project
    :param users: tenths of a user within a project, or of one who has no project
    :param default: tenths of projects and users that are not named
    :param slurm_unit: the gres or licence of which a Slurm job's units are its share
    """

    projects: SharesByName = Field(default_factory=dict)
    users: SharesByName = Field(default_factory=dict)
    default: Tenths = 1
    slurm_unit: Annotated[str, Field(min_length=1)] | None = None

    def of(self, account: Account) -> int:
        """Return the share of a project or user, in tenths."""
        return self.named(account) or self.default

    def named(self, account: Account) -> int | None:
        """Return the share of one that the configuration names, in tenths."""
        kind, name = account
        return (self.projects if kind == "project" else self.users).get(name)


@dataclass(frozen=True)
class PolicyChoice:
    """The scheduling policy.

    :param type: the name of its entry point in the group ``sf_quantum.policies``
    :param options: the keys beside ``type``
    """

    type: str = "classes"
    options: Mapping[str, JSON] = field(default_factory=dict)


def _policy_schema(*_: type | GetCoreSchemaHandler) -> core_schema.CoreSchema:
    # pydantic would look into the options, whose type is recursive
    return core_schema.is_instance_schema(PolicyChoice)


class UserLimits(Section):
    """How much one user may take; of requests only where users are authenticated.

    :param jobs: jobs pending and running at once, of all classes; ``None`` sets no limit
    :param body_mib: the largest body of a request, in MiB
    :param requests_per_second: requests of a user in the long run
    :param burst: requests at once after a pause
    :param requests_at_once: requests that are being answered, those that wait for a job
        included
    """

    jobs: Count | None = None
    body_mib: Positive = 8
    requests_per_second: Positive = 100.0
    burst: Count = 200
    requests_at_once: Count = 64


class DriftSettings(Section):
    """When drift raises an alarm, in standard deviations of a single value.

    :param reference: half the smallest shift that is to be detected quickly
    :param threshold: what the sums must exceed; a higher one gives fewer false alarms
    """

    reference: NotNegative = 1.0
    threshold: Positive = 5.0


class QualitySettings(Section):
    """Quality jobs: a problem with a known optimum, run now and then.

    :param every_seconds: pause from the end of one to the start of the next; ``None`` runs none
    :param num_reads: reads of each quality job
    :param learn: how many jobs it takes to know the usual success
    """

    every_seconds: Positive | None = None
    num_reads: Annotated[int, Field(ge=1, le=100_000)] = 100
    learn: Annotated[int, Field(ge=3)] = 20


class MetricsSettings(Section):
    """Who may read ``/metrics``.

    :param public: whether it needs no credential; ``None``: where only this machine
        reaches it
    :param users: who may read it beside admins, where it needs one
    """

    public: bool | None = None
    users: list[str] = Field(default_factory=lambda: ["prometheus"])


class ServiceSettings(Section):
    """How the queue treats the device and its users.

    :param vqpus: leases held at once
    :param user_projects: the projects that a user may name in a lease; the first is the
        default
    :param retention_seconds: how long jobs keep their results after their end; ``None``
        keeps them for ever
    :param slurm_poll_seconds: interval of the queries to Slurm about jobs that hold leases
    """

    vqpus: Annotated[int, Field(ge=1, le=10_000)] = 1
    policy: Annotated[PolicyChoice, GetPydanticSchema(_policy_schema)] = PolicyChoice()
    shares: Shares = Shares()
    user_projects: Annotated[
        dict[str, Annotated[list[str], Field(min_length=1)]],
        BeforeValidator(empty_mapping),
    ] = Field(default_factory=dict)
    leases: LeaseSettings = LeaseSettings()
    classes: ClassSettings = ClassSettings()
    limits: UserLimits = UserLimits()
    drift: DriftSettings = DriftSettings()
    quality: QualitySettings = QualitySettings()
    metrics: MetricsSettings = MetricsSettings()
    retention_seconds: Positive | None = 7 * 24 * 3600.0
    slurm_poll_seconds: Positive = 15.0
