"""The leases of jobs of a batch system: how they are requested, and found again."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from sf_quantum.errors import InputError
from sf_quantum.files import listing, mapping, parse_json
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu.leasing.held_leases import AcquireOptions
from sf_quantum.qpu.sfq.service_qpu import SfqQpu


class BatchJob(NamedTuple):
    """The identity of a job: other batch systems and clusters have jobs with the same id.

    :param scheduler: name of the batch system in messages
    :param cluster: name of the cluster; ``None``: any
    :param id: id, which contains neither ``-`` nor ``.``
    :param submitted: epoch seconds of its submission, where another job may have the same id
        later: a controller of Slurm that is killed forgets the jobs and ids of its last
        seconds. Empty if it is unknown
    """

    scheduler: str
    cluster: str | None
    id: str
    submitted: str = ""

    def __str__(self) -> str:
        return f"{self.scheduler} job {self.id}"

    @property
    def key(self) -> str:
        """The key by which a repeated request for the job gets the same lease.

        The jobs of a federation's clusters each have a sibling of it.
        """
        number = f"{self.id}.{self.submitted}" if self.submitted else self.id
        return f"{self.scheduler.lower()}-{self.cluster}-{number}"

    def has(self, key: str) -> bool:
        """Return whether the key of a lease is the job's; ``sfq lease`` makes other keys.

        Two times of submission differ only if both are known.
        """
        prefix, _, number = key.rpartition("-")
        job, _, submitted = number.partition(".")
        if job != self.id or differ(self.submitted, submitted):
            return False
        scheduler = self.scheduler.lower()
        if self.cluster is None:
            return prefix.startswith(f"{scheduler}-")
        return prefix == f"{scheduler}-{self.cluster}"


def differ(submitted: str, other: str) -> bool:
    """Return whether two times of submission are known, and are those of two jobs."""
    return "" not in (submitted, other) and submitted != other


class ListedLease(NamedTuple):
    """A lease that occupies a vQPU.

    :param job: the Slurm job in whose name it was acquired; 0 for none
    """

    job: int
    cluster: str
    user: str
    token: str
    key: str


def list_leases(client: SfqQpu) -> list[ListedLease]:
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
        leases.append(ListedLease(int(job) if job.isdecimal() else 0, *texts))
    return leases


def release_leases(client: SfqQpu, job: BatchJob, but: str | None = None) -> None:
    """Release the leases that were acquired in the name of a Slurm job.

    :param job: with a time of submission, the job of this time only
    :param but: key of the lease that the job keeps
    """
    for lease in list_leases(client):
        named = str(lease.job), lease.cluster
        if named != (job.id, job.cluster) or lease.key == but:
            continue
        if not job.submitted or job.has(lease.key):
            with suppress(InputError):  # The lease has ended.
                client.release(lease.token)


def lease_request(
    job: BatchJob, class_: str | None, hints: LeaseHints
) -> AcquireOptions:
    """Make the request for a job's lease.

    :param class_: class of the lease; ``None``: the service's default
    :param hints: what the job's user says of it, such as bounds of the lease
    """
    return AcquireOptions(
        purpose=str(job),
        # however long the QPU is away, the job waits and holds nothing
        trouble_seconds=math.inf,
        hints=replace(hints, job_class=class_),
        # the same lease again if the batch system has lost the first answer
        key=job.key,
    )


def without_nodes(qpu: str, reason: str) -> str:
    """Return the explanation for a job whose lease goes to the next one.

    :param reason: the batch system's, for which the job has no nodes
    """
    return f"{qpu}: its lease had no nodes ({reason}), it asks again"
