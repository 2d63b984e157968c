"""What a site decides about leases, classes and limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import JobClass

# a project, or else a user who has none: ("project", name) or ("user", name)
Account: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class DriftSettings:
    """When a drift is one, in standard deviations of a single value.

    :param reference: k, half the smallest shift that is to be found quickly
    :param threshold: h, what the sums must exceed
    """

    reference: float = 1.0
    threshold: float = 5.0


@dataclass(frozen=True)
class Shares:
    """Shares in tenths, as ten licences or gres units of Slurm would give them.

    They are parts of what the active ones share: of 5 and 3 tenths alone one gets 5/8.
    The unit and its meaning are those of paper 004, section 3.5.

    :param default: of projects and users that are not named
    """

    projects: Mapping[str, int] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    default: int = 1

    def of(self, account: Account) -> int:
        """Tell the tenths of a project or user."""
        return self.named(account) or self.default

    def named(self, account: Account) -> int | None:
        """Tell the tenths of one that the configuration names."""
        kind, name = account
        return (self.projects if kind == "project" else self.users).get(name)


@dataclass(frozen=True)
class ClassLimits:
    """What a job of a class may be; ``None`` sets no limit.

    :param shots: per job
    :param seconds: of modelled QPU time per job
    :param jobs: of one user, waiting and running at once
    """

    shots: int | None = None
    seconds: float | None = None
    jobs: int | None = None


@dataclass(frozen=True)
class PolicyChoice:
    """Which policy says who is next.

    :param type: the name of its entry point in the group ``sf_quantum.policies``
    :param options: what it takes beside that
    """

    type: str = "classes"
    options: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True)
class ServiceSettings:
    """How the service deals with its users.

    :param vqpus: leases held at once
    :param lease_idle_seconds: a lease without a request and without a job that is not
        over ends after so long; ``None`` never ends it
    :param lease_total_seconds: a lease ends after so long in any case
    :param lease_wait_seconds: the longest wait for a lease that may be asked for
    :param users_may_lease: else only root and admins acquire leases, also for others
    :param default_class: of a lease that names neither a class nor a known partition
    :param highest_class: what users may use who are not in ``user_classes``
    :param user_classes: the highest class a user may use
    :param partition_classes: the class of a Slurm partition, which its leases do not
        exceed
    :param user_jobs: jobs of one user, waiting and running at once, of all classes
    :param retention_seconds: how long jobs that are over keep their results; ``None``
        keeps them for ever
    :param slurm_poll_seconds: how often Slurm is asked after the jobs that hold leases
    :param drift: when the device's drift is one
    :param policy: which says what runs next
    :param shares: for policies that use them
    :param slurm_unit: the gres or licence of which a Slurm job's units are its tenths
    :param user_projects: the projects a user may name in a lease; the first is taken if
        none is named
    """

    vqpus: int = 1
    lease_idle_seconds: float | None = 900.0
    lease_total_seconds: float | None = None
    lease_wait_seconds: float = 3600.0
    users_may_lease: bool = True
    default_class: JobClass = "development"
    highest_class: JobClass = "production"
    user_classes: Mapping[str, JobClass] = field(default_factory=dict)
    partition_classes: Mapping[str, JobClass] = field(default_factory=dict)
    limits: Mapping[JobClass, ClassLimits] = field(default_factory=dict)
    user_jobs: int | None = None
    retention_seconds: float | None = 7 * 24 * 3600.0
    slurm_poll_seconds: float = 15.0
    drift: DriftSettings = field(default_factory=DriftSettings)
    policy: PolicyChoice = field(default_factory=PolicyChoice)
    shares: Shares = field(default_factory=Shares)
    slurm_unit: str | None = None
    user_projects: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class QualitySettings:
    """How often the device is looked at.

    :param every_seconds: from one job's end to the next
    :param num_reads: of each
    :param learn: how many jobs tell what is usual, at least
    """

    every_seconds: float
    num_reads: int = 100
    learn: int = 20


@dataclass(frozen=True)
class TelemetrySettings:
    """What a site decides about its telemetry.

    :param public: whether ``/metrics`` asks for no credential
    :param users: who may read it beside admins, where it does
    :param quality: ``None`` runs no quality jobs
    """

    public: bool = True
    users: Collection[str] = ("prometheus",)
    quality: QualitySettings | None = None
