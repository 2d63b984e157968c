"""The request for a Slurm job's lease, as ``burst_buffer.lua`` has it acquired."""

from __future__ import annotations

from collections.abc import Sequence

from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu.leasing.batch_jobs import BatchJob, lease_request
from sf_quantum.qpu.leasing.burst.classes import ClassRule, class_of
from sf_quantum.qpu.leasing.held_leases import AcquireOptions
from sf_quantum.slurm.squeue import JobDetails


def slurm_request(
    job: int,
    cluster: str,
    details: JobDetails,
    rules: Sequence[ClassRule],
    hints: LeaseHints,
) -> AcquireOptions:
    """Make the request for a job's lease.

    :param rules: rules that give jobs their class
    :param hints: what the job's user says of it, such as bounds of the lease
    """
    class_ = class_of(rules, details.partitions, details.qos, details.priority)
    return lease_request(BatchJob("Slurm", cluster, str(job)), class_, hints)
