"""Settings of the queue; each class is a section of the configuration file."""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, GetPydanticSchema
from pydantic_core import core_schema

from sf_quantum.files import JSON
from sf_quantum.protocol.leases import MAX_PRIORITY
from sf_quantum.service.domain.jobs import JobClass, UserClass
from sf_quantum.validation import Section, empty_mapping

# a project, or a user without a project: ("project", name) or ("user", name)
Account: TypeAlias = tuple[str, str]

T = TypeVar("T")
Count: TypeAlias = Annotated[int, Field(ge=1)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Longest time after which a lease ends, about 300 years: the end must be a valid date.
MAX_SECONDS = 1e10
Lasting: TypeAlias = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
# the whole QPU in tenths, the unit of shares
TENTHS = 10
Priority: TypeAlias = Annotated[int, Field(ge=0, le=MAX_PRIORITY)]
Share: TypeAlias = Annotated[int, Field(ge=1, le=TENTHS)]
ByName: TypeAlias = Annotated[dict[str, T], BeforeValidator(empty_mapping)]


def _with_user_names(users: JSON) -> JSON:
    """Accept uids as numbers or text, like warden, and add the names of these users."""
    if not isinstance(users, list):
        return users
    names: list[JSON] = [str(user) if type(user) is int else user for user in users]
    for user in [*names]:
        if isinstance(user, str) and (name := _name_of(user)):
            names.append(name)
    return names


def _name_of(user: str) -> str | None:
    """Return the name of a user of this host by uid; ``None`` if no user has this uid."""
    if re.fullmatch(r"[0-9]+", user):
        with suppress(KeyError, OverflowError, ValueError):
            return pwd.getpwuid(int(user)).pw_name
    return None


def _by_user_name(settings: JSON) -> JSON:
    """Replace uids, which are allowed as keys as in warden, with the names of the users.

    :raises ValueError: if a user occurs both by name and by uid
    """
    content = empty_mapping(settings)
    if not isinstance(content, dict):
        return content
    by_name: dict[str, JSON] = {}
    for key, value in content.items():
        name = _name_of(str(key)) or str(key)
        if name in by_name:
            raise ValueError(f"{name} is there twice, by name and by uid")
        by_name[name] = value
    return by_name


#: names or uids of users
Users: TypeAlias = Annotated[list[str], BeforeValidator(_with_user_names)]
ByUser: TypeAlias = Annotated[dict[str, T], BeforeValidator(_by_user_name)]


class LeaseSettings(Section):
    """Who may hold leases, and for how long.

    :param by: ``users``: users acquire leases for themselves; ``root``: only root and
        admins acquire leases, also for other users
    :param idle_seconds: time after which a lease without requests and without pending or
        running jobs ends; ``None``: never. Clients renew a lease after a third of this
        time, but at most once a second
    :param total_seconds: time after which a lease ends in any case; ``None``: never
    :param wait_seconds: the longest wait that a request for a lease may specify
    :param authorized_users: names or uids of the users who may have leases; empty: all
    """

    by: Literal["users", "root"] = "users"
    # otherwise the lease of a client that died would never end
    idle_seconds: Lasting | None = 900.0
    total_seconds: Lasting | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 3600.0
    authorized_users: Users = Field(default_factory=list)


class ClassLimits(Section):
    """The limits of a class; ``None`` sets no limit.

    :param shots: maximum shots of each circuit or problem of a job
    :param seconds: maximum modelled QPU time per job
    :param jobs: maximum number of pending and running jobs per user
    """

    shots: Count | None = None
    seconds: Positive | None = None
    jobs: Count | None = None


class ClassSettings(Section):
    """The classes that leases may have.

    From the highest to the lowest, they are ``production``, ``test`` and ``development``.

    :param default: class of a lease whose request names neither a class nor a partition of
        ``partitions``
    :param highest: highest class of users who are not in ``users``
    :param users: highest class of each user, by name or uid
    :param partitions: highest class of each Slurm partition
    :param priorities: highest priority of the requests of each user, by name or uid, within
        a class; 0 for users who are not named, any for admins
    :param limits: limits of the jobs of each class
    """

    default: UserClass = "development"
    highest: UserClass = "production"
    users: ByUser[UserClass] = Field(default_factory=dict)
    partitions: ByName[UserClass] = Field(default_factory=dict)
    priorities: ByUser[Priority] = Field(default_factory=dict)
    limits: Annotated[dict[UserClass, ClassLimits], BeforeValidator(empty_mapping)] = (
        Field(default_factory=dict)
    )

    def limits_of(self, job_class: JobClass) -> ClassLimits:
        """Return the limits of a class; quality jobs have no limits."""
        no_limits = ClassLimits()
        if job_class == "quality":
            return no_limits
        return self.limits.get(job_class, no_limits)


class Shares(Section):
    """Shares of the QPU, in tenths.

    They follow section 3.5 of "Towards a user-centric HPC-QC environment" (Wennersteen et al.
    2025). Shares are relative to the shares of all active projects and users: of two projects
    with 5 and 3 tenths, the first gets 5/8 of the QPU.

    :param projects: shares of projects
    :param users: shares of users, by name or uid; the share of a user with a project is a
        share within the project
    :param default: share of projects and users that the configuration does not name
    :param slurm_unit: Slurm gres or licence that sets the share of a Slurm job's lease: one
        tenth for each unit that the job has, up to ten
    """

    projects: ByName[Share] = Field(default_factory=dict)
    users: ByUser[Share] = Field(default_factory=dict)
    default: Share = 1
    slurm_unit: Annotated[str, Field(min_length=1)] | None = None

    def of(self, account: Account) -> int:
        """Return the share of a project or user, in tenths."""
        return self.named(account) or self.default

    def named(self, account: Account) -> int | None:
        """Return the configured share, in tenths; ``None`` if the account is not named."""
        kind, name = account
        return (self.projects if kind == "project" else self.users).get(name)


@dataclass(frozen=True)
class PolicyChoice:
    """The scheduling policy.

    :param type: name of the entry point in the group ``sf_quantum.policies``
    :param options: all keys but ``type``
    """

    type: str = "classes"
    options: Mapping[str, JSON] = field(default_factory=dict)


class UserLimits(Section):
    """Limits of each user; rates of requests are limited only with authentication.

    :param jobs: maximum number of pending and running jobs of all classes; ``None`` sets
        no limit
    :param run_seconds: maximum expected time of a job from its start to its end: on the
        device, including the computation of an emulated device; ``None`` sets no limit
    :param leases: maximum number of held and waiting leases
    :param pending_mib: maximum size of the payloads of pending and running jobs, in MiB;
        ``None`` sets no limit
    :param kept_mib: size of the payloads and results of ended jobs, in MiB, above which the
        oldest of these jobs are deleted before the retention time; ``None``: never
    :param body_mib: maximum size of the body of a submission in MiB, before and after
        decompression. A SAPI request may always be as large as 20 problems with all qubits
        and couplers. Requests other than submissions may have at most 64 KiB
    :param requests_per_second: sustained rate of requests
    :param burst: number of requests that may exceed the sustained rate
    :param requests_at_once: maximum number of concurrent requests, including requests that
        wait for a job
    :param connections: maximum number of open connections per address, or per user of a
        Unix socket, including connections in their TLS handshake; beyond this number, a new
        connection replaces the connection that has waited longest for a request
    """

    jobs: Count | None = 10_000
    run_seconds: Positive | None = None
    leases: Count = 100
    pending_mib: Positive | None = 512
    kept_mib: Positive | None = 1024
    body_mib: Positive = 8
    requests_per_second: Positive = 100.0
    burst: Count = 200
    requests_at_once: Count = 64
    connections: Count = 256


class DriftSettings(Section):
    """Sensitivity of the drift alarm.

    Both keys are in units of the standard deviation of a single observation.

    :param reference: half of the smallest shift that is to be detected quickly
    :param threshold: limit of the cumulative sums (CUSUM); a higher limit gives fewer false
        alarms
    """

    reference: NotNegative = 1.0
    threshold: Positive = 5.0


class QualitySettings(Section):
    """Quality jobs, which run a problem with a known optimum periodically.

    :param every_seconds: pause between quality jobs; ``None`` runs none
    :param num_reads: reads per quality job
    :param learn: number of jobs that establish the baseline
    """

    every_seconds: Positive | None = None
    num_reads: Annotated[int, Field(ge=1, le=100_000)] = 100
    learn: Annotated[int, Field(ge=3)] = 20


class MetricsSettings(Section):
    """Who may read ``/metrics``.

    :param public: whether the metrics can be read without a credential; ``None``: only if no
        other machine can reach the service
    :param users: names or uids of users who may read the metrics, in addition to admins
    """

    public: bool | None = None
    users: Users = Field(default_factory=lambda: ["prometheus"])


class ServiceSettings(Section):
    """Settings of the queue.

    :param vqpus: number of leases that can be held concurrently
    :param user_projects: projects that each user, by name or uid, may name in a lease; the
        first is the default
    :param repeatable_users: names or uids of users whose jobs may run twice if it is unknown
        whether they have run, unless a submission states otherwise; submissions through the
        APIs of D-Wave (SAPI), Pasqal (warden) and IQM cannot state otherwise
    :param retention_seconds: time for which results are kept after the end of a job;
        ``None``: without limit
    :param service_deaths: a job fails once the service has died this many times during the
        job, or the vendor has ended the job this many times
    :param slice_seconds: time on the device of each slice of a long job; a pre-empting job
        may run between two slices; ``None``: jobs are not sliced
    :param slurm_poll_seconds: interval of polling Slurm for the jobs that hold leases
    :param slurm_cluster: name of the cluster whose Slurm is polled; ``None``: Slurm's own
        ``ClusterName``. Jobs of other clusters are not polled; their leases end by the idle
        limit
    """

    vqpus: Annotated[int, Field(ge=1, le=10_000)] = 1
    policy: Annotated[
        PolicyChoice,
        # pydantic cannot build a schema of the options' recursive type
        GetPydanticSchema(lambda *_: core_schema.is_instance_schema(PolicyChoice)),
    ] = PolicyChoice()
    shares: Shares = Shares()
    user_projects: ByUser[Annotated[list[str], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    leases: LeaseSettings = LeaseSettings()
    classes: ClassSettings = ClassSettings()
    limits: UserLimits = UserLimits()
    drift: DriftSettings = DriftSettings()
    quality: QualitySettings = QualitySettings()
    metrics: MetricsSettings = MetricsSettings()
    repeatable_users: Users = Field(default_factory=list)
    retention_seconds: Positive | None = 7 * 24 * 3600.0
    service_deaths: Count = 3
    slice_seconds: Positive | None = 60.0
    slurm_poll_seconds: Positive = 15.0
    slurm_cluster: Annotated[str, Field(pattern=r"^[\w.-]+$")] | None = None
