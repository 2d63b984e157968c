"""The leases of a batch system's jobs: their keys, requests, lists and releases."""

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
    """The identity of a job; jobs of other batch systems and clusters may have the same id.

    :param scheduler: name of the batch system in messages
    :param cluster: name of the cluster; ``None`` for any cluster
    :param id: id, which contains neither ``-`` nor ``.``
    :param submitted: time of the submission in epoch seconds, since a later job may get the
        same id: a Slurm controller that is killed forgets the jobs and ids of its last
        seconds. Empty if unknown
    """

    scheduler: str
    cluster: str | None
    id: str
    submitted: str = ""

    def __str__(self) -> str:
        return f"{self.scheduler} job {self.id}"

    @property
    def key(self) -> str:
        """The key with which a repeated request for the job gets the same lease.

        In a Slurm federation, the job's siblings on other clusters have similar keys.
        """
        number = f"{self.id}.{self.submitted}" if self.submitted else self.id
        return f"{self.scheduler.lower()}-{self.cluster}-{number}"

    def has(self, key: str) -> bool:
        """Return whether a lease's key belongs to the job; keys of ``sfq lease`` never do.

        Times of submission are compared only if both are known.
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
    """Return whether two times of submission are known and differ."""
    return "" not in (submitted, other) and submitted != other


class ListedLease(NamedTuple):
    """A lease that occupies a vQPU.

    :param job: Slurm job in whose name the lease was acquired; 0 for none
    """

    job: int
    cluster: str
    user: str
    token: str
    key: str


def list_leases(client: SfqQpu) -> list[ListedLease]:
    """List the leases that are held.

    :param client: client of a user, who sees only their own leases, or of an admin, who sees
        all leases; users may have acquired leases in the name of other users' jobs
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

    :param job: the job; if its time of submission is known, only leases of this job, not of
        others with the same id, are released
    :param but: key of the lease that the job keeps
    """
    for lease in list_leases(client):
        named = str(lease.job), lease.cluster
        if named != (job.id, job.cluster) or lease.key == but:
            continue
        if not job.submitted or job.has(lease.key):
            with suppress(InputError):  # the lease has already ended
                client.release(lease.token)


def lease_request(
    job: BatchJob, class_: str | None, hints: LeaseHints
) -> AcquireOptions:
    """Make the request for a job's lease.

    :param class_: class of the lease; ``None`` for the service's default
    :param hints: hints of the job's user, such as bounds of the lease
    """
    return AcquireOptions(
        purpose=str(job),
        # a waiting job holds nothing, so it waits even if the QPU does not answer
        trouble_seconds=math.inf,
        hints=replace(hints, job_class=class_),
        # if the batch system loses the reply, a repeated request gets the same lease
        key=job.key,
    )


def without_nodes(qpu: str, reason: str) -> str:
    """Return the explanation for a job without nodes, whose lease goes to the next job.

    :param reason: the batch system's reason why the job has no nodes
    """
    return f"{qpu}: its lease had no nodes ({reason}), it asks again"
