"""What a site decides about leases, classes and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sf_quantum.service.records import JobClass


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
