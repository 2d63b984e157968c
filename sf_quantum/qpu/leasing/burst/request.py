"""What is asked of the QPU's service for a job of a site's Slurm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping, parse_json
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.environment import JOB_ID, JOB_UID, job_environment, job_ids
from sf_quantum.qpu.leasing.burst.classes import ClassRule, class_of
from sf_quantum.qpu.leasing.held_leases import AcquireOptions
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.slurm.squeue import JobDetails


def slurm_identity(job: int, cluster: str, details: JobDetails) -> dict[str, str]:
    """Make the variables by which a client says whose job requests a lease.

    :param cluster: name of the cluster that the job is on
    """
    return {
        JOB_UID: details.uid,
        JOB_ID: str(job),
        "SLURM_JOB_ID": str(job),
        "SLURM_CLUSTER_NAME": cluster,
        "SLURM_JOB_PARTITION": details.partitions,
        "SLURM_JOB_ACCOUNT": details.account,
    }


def lease_key(job: int, cluster: str) -> str:
    """Make the key by which a repeated request for a job gets the same lease.

    Other clusters have jobs with the same id, and a federation's each have a sibling of it.
    """
    return f"slurm-{cluster}-{job}"


class HeldLease(NamedTuple):
    """A lease that occupies a vQPU.

    :param job: the Slurm job in whose name it was acquired; 0 for none
    """

    job: int
    cluster: str
    user: str
    token: str
    key: str

    def is_through_sfq_slurm(self, cluster: str) -> bool:
        """Return whether ``sfq slurm`` requested it; a job's own ``sfq lease`` has another key."""
        return self.key == lease_key(self.job, cluster)


def list_leases(client: SfqQpu) -> list[HeldLease]:
    """List the leases that are held.

    :param client: sees the leases of its user, or all of them if that is an admin; users
        may have acquired leases in the name of other users' jobs
    """
    answer = client.service.send("GET", "/v1/leases", retry=True)
    leases = []
    for lease in map(mapping, listing(parse_json(answer.body))):
        job, *texts = (
            str(lease.get(key) or "")
            for key in ("slurm_job_id", "slurm_cluster", "user", "id", "key")
        )
        leases.append(HeldLease(int(job) if job.isdecimal() else 0, *texts))
    return leases


def job_leases(client: SfqQpu) -> list[HeldLease]:
    """List the leases of :func:`list_leases` that are those of Slurm jobs."""
    return [lease for lease in list_leases(client) if lease.job]


def held_environment(
    clients: Iterable[Qpu], variables: Mapping[str, str]
) -> dict[str, str]:
    """Find the leases that ``sfq slurm gate`` holds for this Slurm job.

    :param variables: the job's environment; the tasks of an array share a lease
    :returns: the variables of the job's QPUs
    :raises InputError: if there is no lease
    """
    job = variables.get("SLURM_ARRAY_JOB_ID") or variables.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        raise InputError("SLURM_JOB_ID is not set: leases are looked up in a Slurm job")
    cluster = variables.get("SLURM_CLUSTER_NAME", "")
    user = variables.get("SLURM_JOB_USER")
    held: list[tuple[Qpu, str]] = []
    for client in clients:
        if isinstance(client, SfqQpu):
            held += [
                (client, lease.token)
                for lease in job_leases(client)
                if lease.is_through_sfq_slurm(cluster)
                and (lease.job, lease.user) == (int(job), user or lease.user)
            ][:1]
    if not held:
        raise InputError(
            f"Slurm job {job} has no lease: was it released before its lease was granted?"
        )
    return {**job_environment(held), **job_ids("", variables)}


def lease_request(
    job: int,
    cluster: str,
    details: JobDetails,
    hints: Mapping[str, JSON],
    rules: Sequence[ClassRule],
) -> AcquireOptions:
    """Make the request for a job's lease.

    :param cluster: name of the cluster that the job is on
    :param hints: what the job's user says of it, such as bounds of the lease
    :param rules: the site's, for the class of the lease
    """
    class_ = class_of(rules, details.partitions, details.qos, details.priority)
    return AcquireOptions(
        purpose=f"Slurm job {job}",
        # however long the QPU is away, the job waits and holds nothing
        trouble_seconds=math.inf,
        hints={**hints, **({} if class_ is None else {"class": class_})},
        # the same lease again if Slurm has lost the first answer
        key=lease_key(job, cluster),
    )
