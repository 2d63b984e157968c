"""What is asked of the QPU's service for a job of a site's Slurm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sf_quantum.files import JSON
from sf_quantum.qpu.environment import JOB_ID, JOB_UID
from sf_quantum.qpu.leasing.burst.classes import ClassRule, class_of
from sf_quantum.qpu.leasing.held_leases import AcquireOptions
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
        # the same lease again if Slurm has lost the first answer; other clusters have jobs
        # with the same id, and a federation's each have a sibling of it
        key=f"slurm-{cluster}-{job}",
    )
