"""Ids of Slurm jobs: ``7``, and ``7;b`` if the cluster was named (``sbatch --parsable``).

Two clusters may have jobs with the same number, but not in a federation: there, a job's
number includes the cluster where the job was submitted. Such a job may run on any cluster of
the federation, so the cluster in its id is the latest one known, not part of its identity.
"""

from __future__ import annotations

import re

#: the maximum of MaxJobId in slurm.conf(5), above which the bits of the cluster begin
MAX_NUMBER = 0x03FFFFFF
#: an id, and a cluster name, in a regular expression
PATTERN = r"\d+(?:;[\w.-]*)?"
_ID = re.compile(PATTERN)
_CLUSTERS = re.compile(r"[\w.-]+(,[\w.-]+)*")


def are_clusters(text: str) -> bool:
    """Whether a text is the names of clusters, separated by commas, and not just ``all``."""
    return _CLUSTERS.fullmatch(text) is not None and text != "all"


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def number(job: str) -> str:
    """The id within its cluster."""
    return job.partition(";")[0]


def cluster(job: str) -> str:
    """The cluster, empty if none was named."""
    return job.partition(";")[2]


def of(number: str, cluster: str) -> str:
    return f"{number};{cluster}" if cluster else number


def is_federated(job: str) -> bool:
    return int(number(job).partition("+")[0]) > MAX_NUMBER


def found(job: str, clusters: str) -> str:
    """Return the id of a job from a script's output, which always includes the cluster.

    :param clusters: clusters named for the job, if any
    """
    return job.rstrip(";") if clusters or is_federated(job) else number(job)


def same(one: str, other: str) -> bool:
    """Whether two ids are of the same job."""
    if is_federated(one):
        return number(one) == number(other)
    return one == other


def component(job: str, group: int | None) -> str:
    """The id of a component of a heterogeneous job, as for ``scancel``: ``7+1;b``."""
    suffix = f"+{group}" if group else ""
    return of(f"{number(job)}{suffix}", cluster(job))


def words(job: str) -> str:
    """The id in a message: ``7 of cluster b``."""
    return " of cluster ".join(filter(None, job.split(";")))
