"""Who may have a lease, and with which class, project and share."""

from __future__ import annotations

from dataclasses import replace

from sf_quantum.protocol.leases import MAX_PRIORITY
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    CLASSES,
    RANKS,
    Identity,
    JobClass,
    LeaseRequest,
)
from sf_quantum.service.domain.settings import TENTHS, ServiceSettings
from sf_quantum.service.queue.leases.slurm_jobs import OwnCluster


def lease_user(settings: ServiceSettings, who: Identity, requested: str | None) -> str:
    """Return the user of a lease; refuse with 403 if the user may not have a lease.

    Only root and admins may request a lease for others.
    """
    privileged = who.admin or who.root
    if not privileged and settings.leases.by == "root":
        raise Refused(403, "only root and admins acquire leases of this QPU")
    if not privileged and requested not in (None, who.user):
        raise Refused(403, "only root and admins acquire leases for others", "user")
    user, authorized = requested or who.user, settings.leases.authorized_users
    if authorized and user not in authorized:
        raise Refused(403, f"user {user} is not authorized to use this QPU", "user")
    return user


def lease_class(
    settings: ServiceSettings, user: str, request: LeaseRequest
) -> JobClass:
    """Return the requested class, limited by the classes of the partition and the user.

    If a pending Slurm job lists several partitions, the lowest of their classes applies.
    """
    classes = settings.classes
    partition_classes = [
        classes.partitions.get(name) for name in (request.partition or "").split(",")
    ]
    requested = [request.job_class] if request.job_class else partition_classes
    ranks = [RANKS[name or classes.default] for name in requested]
    ranks += [RANKS[name] for name in partition_classes if name]
    return CLASSES[max(*ranks, RANKS[classes.users.get(user, classes.highest)])]


def check_priority(
    settings: ServiceSettings, who: Identity, user: str, request: LeaseRequest
) -> None:
    """Refuse a higher priority than the user may request, with 403."""
    highest = MAX_PRIORITY if who.admin else settings.classes.priorities.get(user, 0)
    if request.priority > highest:
        detail = f"{user} may request priorities up to {highest}"
        raise Refused(403, detail, "priority")


def with_share(
    settings: ServiceSettings, user: str, request: LeaseRequest
) -> LeaseRequest:
    """Add the project whose share the lease uses; refuse other users' projects with 403."""
    projects = settings.user_projects.get(user, ())
    project = request.project
    if project is None:
        account = [name for name in projects if name == request.account]
        project = next(iter([*account, *projects]), None)
    elif project not in projects:
        allowed = ", ".join(projects) or "none"
        detail = f"{user} may not use project {project!r} (may: {allowed})"
        raise Refused(403, detail, "project")
    return replace(request, project=project)


async def completed(
    settings: ServiceSettings,
    cluster: OwnCluster,
    who: Identity,
    user: str,
    request: LeaseRequest,
) -> LeaseRequest:
    """Add the partition, account and share of the user's Slurm job to a request.

    If Slurm can be queried, the job's account replaces the account in the request.
    """
    if request.tenths is not None and not (who.admin or who.root):
        raise Refused(403, "only root and admins set the share of a lease", "tenths")
    needs_slurm = (
        (settings.classes.partitions and request.partition is None)
        or settings.user_projects
        or request.account is not None
        or (settings.shares.slurm_unit and request.tenths is None)
    )
    job = request.slurm_job_id
    if not needs_slurm or job is None:
        return request
    if not await cluster.has(job, request.slurm_cluster, settings.slurm_cluster):
        return request
    slurm_job = await cluster.about(job, user, request.key)
    if slurm_job is None:
        return request
    units = slurm_job.units.get(settings.shares.slurm_unit or "")
    return replace(
        request,
        partition=request.partition or slurm_job.partition,
        account=slurm_job.account,
        tenths=request.tenths or (units and min(units, TENTHS)),
    )
