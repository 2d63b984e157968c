"""The request for a Slurm job's lease, and the variables that identify the job."""

from __future__ import annotations

from collections.abc import Sequence

from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu.environment import JOB_ID, JOB_UID
from sf_quantum.qpu.leasing.batch_jobs import BatchJob, lease_request
from sf_quantum.qpu.leasing.burst.classes import ClassRule, class_of
from sf_quantum.qpu.leasing.held_leases import AcquireOptions
from sf_quantum.slurm.squeue import JobDetails


def slurm_request(
    job: BatchJob,
    details: JobDetails,
    rules: Sequence[ClassRule],
    hints: LeaseHints,
) -> AcquireOptions:
    """Make the request for a job's lease.

    :param rules: rules that give jobs their class
    :param hints: hints of the job's user, such as bounds of the lease
    """
    class_ = class_of(rules, details.partitions, details.qos, details.priority)
    return lease_request(job, class_, hints)


def identity(job: int, cluster: str, details: JobDetails) -> dict[str, str]:
    """Make the variables with which a client identifies the job that requests a lease.

    :param cluster: name of the job's cluster
    """
    return {
        JOB_UID: details.uid,
        JOB_ID: str(job),
        "SLURM_JOB_ID": str(job),
        "SLURM_CLUSTER_NAME": cluster,
        "SLURM_JOB_PARTITION": details.partitions,
        "SLURM_JOB_ACCOUNT": details.account,
    }
