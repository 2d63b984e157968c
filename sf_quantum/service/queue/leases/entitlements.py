"""Who may use which class, project and share, and how much of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    CLASSES,
    RANKS,
    Identity,
    JobClass,
    Kind,
    Lease,
    LeaseRequest,
    Size,
)
from sf_quantum.service.domain.settings import TENTHS, ServiceSettings
from sf_quantum.service.queue.leases.slurm_jobs import OwnCluster

LEASE_HEADER = "X-SFQ-Lease"


def lease_user(settings: ServiceSettings, who: Identity, requested: str | None) -> str:
    """Return the user of a lease, who may have to be authorized.

    Only root and admins may request one for others.
    """
    powerful = who.admin or who.root
    if not powerful and settings.leases.by == "root":
        raise Refused(403, "only root and admins acquire leases of this QPU")
    if not powerful and requested not in (None, who.user):
        raise Refused(403, "only root and admins acquire leases for others", "user")
    user, known = requested or who.user, settings.leases.authorized_users
    if known and user not in known:
        raise Refused(403, f"user {user} is not authorized to use this QPU", "user")
    return user


def lease_class(
    settings: ServiceSettings, user: str, request: LeaseRequest
) -> JobClass:
    """Return the requested class, limited by those of the partition and the user.

    Of the partitions of a job that is pending, the one with the lowest class counts.
    """
    classes = settings.classes
    own = [classes.partitions.get(one) for one in (request.partition or "").split(",")]
    requested = [request.job_class] if request.job_class else own
    ranks = [RANKS[one or classes.default] for one in requested]
    ranks += [RANKS[one] for one in own if one]
    return CLASSES[max(*ranks, RANKS[classes.users.get(user, classes.highest)])]


def with_share(
    settings: ServiceSettings, user: str, request: LeaseRequest
) -> LeaseRequest:
    """Add the user's project, whose share the lease uses; refuse another's with 403."""
    projects = settings.user_projects.get(user, ())
    project = request.project
    if project is None:
        account = [name for name in projects if name == request.account]
        project = next(iter([*account, *projects]), None)
    elif project not in projects:
        known = ", ".join(projects) or "none"
        detail = f"{user} may not use project {project!r} (may: {known})"
        raise Refused(403, detail, "project")
    return replace(request, project=project)


async def completed(
    settings: ServiceSettings,
    own: OwnCluster,
    who: Identity,
    user: str,
    request: LeaseRequest,
) -> LeaseRequest:
    """Add the partition, account and share of the user's Slurm job to a request.

    The account is Slurm's, whatever the request says, if Slurm can be asked.
    """
    if request.tenths is not None and not (who.admin or who.root):
        raise Refused(403, "only root and admins set the share of a lease", "tenths")
    wanted = (
        (settings.classes.partitions and request.partition is None)
        or settings.user_projects
        or request.account is not None
        or (settings.shares.slurm_unit and request.tenths is None)
    )
    job = request.slurm_job_id
    if not wanted or job is None:
        return request
    if not await own.has(job, request.slurm_cluster, settings.slurm_cluster):
        return request
    slurm_job = await own.about(job, user)
    if slurm_job is None:
        return request
    units = slurm_job.units.get(settings.shares.slurm_unit or "")
    return replace(
        request,
        partition=request.partition or slurm_job.partition,
        account=slurm_job.account,
        tenths=request.tenths or (units and min(units, TENTHS)),
    )


def check_sizes(lease: Lease, kind: Kind, shots: int, size: Size) -> None:
    """Refuse a job that is larger than those of its lease may be with 422."""
    if lease.max_shots is not None and shots > lease.max_shots:
        detail = f"{shots} shots, the lease is for at most {lease.max_shots} per job"
        raise Refused(422, detail, "parameters.num_reads")
    if lease.max_qubits is not None and size.qubits > lease.max_qubits:
        what = "variables" if kind == "problem" else "qubits"
        detail = f"{size.qubits} {what}, the lease is for at most {lease.max_qubits}"
        raise Refused(422, detail, kind)


def check_run_seconds(most: float, expected: float) -> None:
    """Refuse a job that is expected to run for too long with 422."""
    if expected > most:
        expects = f"the job is expected to run for {expected:,.{0 if expected >= 10 else 2}f} s"
        detail = f"{expects}; at most {most:g} s are allowed (limits.run_seconds)"
        raise Refused(422, detail, "parameters.num_reads")


def check_budget(most: float, taken: float, seconds: float) -> None:
    """Refuse a job for which its lease has too few QPU seconds left with 422.

    :param most: the lease's
    :param taken: by its other jobs, as modelled if they are not over
    :param seconds: of the job, as modelled
    """
    # sums are not exact
    if taken + seconds > most * (1 + 1e-9):
        detail = (
            f"the job takes {seconds:.3g} s on the QPU, the lease has "
            f"{max(0.0, most - taken):.3g} s left of {most:g} s"
        )
        raise Refused(422, detail, LEASE_HEADER)


class JobCounts:
    """Counts each user's unfinished jobs and their payloads, and enforces the limits."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self._jobs: Counter[tuple[str, JobClass]] = Counter()
        self._bytes: Counter[str] = Counter()

    def take(self, user: str, job_class: JobClass, payload_bytes: int) -> None:
        self._jobs[user, job_class] += 1
        self._bytes[user] += payload_bytes

    def give_back(self, user: str, job_class: JobClass, payload_bytes: int) -> None:
        self._jobs[user, job_class] -= 1
        if not self._jobs[user, job_class]:
            del self._jobs[user, job_class]
        self._bytes[user] -= payload_bytes
        if not self._bytes[user]:
            del self._bytes[user]

    def check(
        self, lease: Lease, shots: int, seconds: float, payload_bytes: int
    ) -> None:
        """Refuse a job that is too large with 422, and one too many with 429."""
        user, job_class = lease.user, lease.job_class
        limits = self.settings.classes.limits_of(job_class)
        if limits.shots is not None and shots > limits.shots:
            detail = f"{shots} shots, a {job_class} job has at most {limits.shots}"
            raise Refused(422, detail, "parameters.num_reads")
        if limits.seconds is not None and seconds > limits.seconds:
            detail = (
                f"{shots} shots take {seconds:,.0f} s, a {job_class} job has at most "
                f"{limits.seconds:g} s"
            )
            raise Refused(422, detail, "parameters.num_reads")
        if limits.jobs is not None and self._jobs[user, job_class] >= limits.jobs:
            detail = f"the user has {limits.jobs} {job_class} jobs that are not over"
            raise Refused(429, detail, LEASE_HEADER, {"Retry-After": "1"})
        most = self.settings.limits.jobs
        if most is not None:
            jobs = sum(self._jobs[user, name] for name in CLASSES)
            if jobs >= most:
                detail = f"the user has {jobs} jobs that are not over"
                raise Refused(429, detail, LEASE_HEADER, {"Retry-After": "1"})
        self._check_bytes(user, payload_bytes)

    def _check_bytes(self, user: str, payload_bytes: int) -> None:
        most = self.settings.limits.pending_mib
        whole = (self._bytes[user] + payload_bytes) / 2**20
        if most is None or whole <= most:
            return
        if payload_bytes > most * 2**20:
            detail = (
                f"the payload has more than the {most:g} MiB that a user's may have"
            )
            raise Refused(413, detail)
        detail = (
            f"the user's jobs that are not over would have {whole:,.1f} MiB of payloads, "
            f"at most {most:g} MiB"
        )
        raise Refused(429, detail, LEASE_HEADER, {"Retry-After": "1"})
