"""Finds the lease that a gate holds for a job, from within the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sf_quantum.errors import InputError
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.environment import job_environment, job_ids
from sf_quantum.qpu.leasing.batch_jobs import list_leases
from sf_quantum.qpu.leasing.gating import flux, pbs, slurm
from sf_quantum.qpu.sfq.service_qpu import SfqQpu

# The variable with which each batch system names the job, and the function that reads it.
_SCHEDULERS = {
    "FLUX_JOB_ID": flux.job_of,
    "FLUX_ENCLOSING_ID": flux.enclosing_job_of,
    "PBS_JOBID": pbs.job_of,
    "SLURM_JOB_ID": slurm.job_of,
}


def held_environment(
    clients: Iterable[Qpu], variables: Mapping[str, str]
) -> dict[str, str]:
    """Find the leases that a gate holds for this job.

    :param variables: the job's environment
    :returns: the variables of the job's QPUs
    :raises InputError: if the job has no lease, or several leases of a QPU
    """
    named = [job for read in _SCHEDULERS.values() if (job := read(variables))]
    if not named:
        raise InputError(
            f"{' or '.join(_SCHEDULERS)} is not set: leases are looked up in a batch job"
        )
    jobs = " or ".join(str(job) for job, _ in named)
    held: list[tuple[Qpu, str]] = []
    for client in clients:
        if not isinstance(client, SfqQpu):
            continue
        tokens = [
            lease.token
            for lease in list_leases(client)
            for job, user in named
            if job.has(lease.key) and lease.user == (user or lease.user)
        ]
        if len(tokens) > 1:
            raise InputError(
                f"{jobs} has {len(tokens)} leases of QPU {client.name!r}: end those of other "
                "instances (sfq leases end)"
            )
        held += [(client, token) for token in tokens]
    if not held:
        raise InputError(
            f"{jobs} has no lease: was it released before its lease was granted?"
        )
    return {**job_environment(held), **job_ids(named[0][0].id, variables)}
