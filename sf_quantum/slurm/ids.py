"""Ids of Slurm jobs: ``7``, or ``7;b`` if cluster ``b`` was named (``sbatch --parsable``).

Two clusters may have jobs with the same number, but not in a federation: there, a job's
number includes the cluster where the job was submitted. A federated job may run on any
cluster of the federation, so the cluster in its id is the latest known cluster, and does not
identify the job.
"""

from __future__ import annotations

import re

#: the maximum of MaxJobId in slurm.conf(5); in larger numbers, the higher bits are a cluster
MAX_NUMBER = 0x03FFFFFF
#: a regular expression for an id, which may have a cluster name
PATTERN = r"\d+(?:;[\w.-]*)?"
_ID = re.compile(PATTERN)
_CLUSTERS = re.compile(r"[\w.-]+(,[\w.-]+)*")


def are_clusters(text: str) -> bool:
    """Return whether a text is a comma-separated list of cluster names, other than ``all``."""
    return _CLUSTERS.fullmatch(text) is not None and text != "all"


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def number(job: str) -> str:
    """Return a job's id without its cluster."""
    return job.partition(";")[0]


def cluster(job: str) -> str:
    """Return the cluster in a job's id; empty if the id has none."""
    return job.partition(";")[2]


def of(number: str, cluster: str) -> str:
    return f"{number};{cluster}" if cluster else number


def is_federated(job: str) -> bool:
    return int(number(job).partition("+")[0]) > MAX_NUMBER


def found(job: str, clusters: str) -> str:
    """Return the id of a job that a script printed; the script always adds the cluster.

    :param clusters: value of ``--clusters`` for the job; empty if clusters were not named
    """
    return job.rstrip(";") if clusters or is_federated(job) else number(job)


def same(one: str, other: str) -> bool:
    """Return whether two ids belong to the same job."""
    if is_federated(one):
        return number(one) == number(other)
    return one == other


def component(job: str, group: int | None) -> str:
    """Return the id of a component of a heterogeneous job, in scancel's format: ``7+1;b``."""
    suffix = f"+{group}" if group else ""
    return of(f"{number(job)}{suffix}", cluster(job))


def words(job: str) -> str:
    """Format an id for a message: ``7 of cluster b``."""
    return " of cluster ".join(filter(None, job.split(";")))
