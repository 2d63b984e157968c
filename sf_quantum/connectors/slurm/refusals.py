"""Explanations of Slurm's refusals: the options at fault, and the limits of the partition.

Slurm's own message names neither the option nor a valid value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.tracebacks import OneLineException
from sf_quantum.files import JSON
from sf_quantum.slurm.partitions import Partition
from sf_quantum.text import plural

if TYPE_CHECKING:
    from sf_quantum.connectors.slurm.services import SlurmService

# options with a common cause of refusals
_GRES_OPTIONS = "gres gpus gpusPerNode gpusPerSocket gpusPerTask"
_CPU_OPTIONS = (
    "ntasks ntasksPerNode ntasksPerCore ntasksPerSocket cpusPerTask coresPerSocket mincpus "
    "socketsPerNode threadsPerCore"
)
_MEMORY_OPTIONS = "mem memPerCpu memPerGpu"
_NODE_OPTIONS = "nodelist exclude nodefile"
# By option: the field of NodeKind with the option's valid values.
_FIELDS = {
    **dict.fromkeys(_GRES_OPTIONS.split(), "gres"),
    **dict.fromkeys(_CPU_OPTIONS.split(), "cpus"),
    **dict.fromkeys(_MEMORY_OPTIONS.split(), "memory"),
    **dict.fromkeys(("constraint", "batch", "clusterConstraint"), "features"),
    **dict.fromkeys(("nodes",), "nodes"),
    **dict.fromkeys(("time", "timeMin"), "time_limit"),
}
# By pattern: the options that may cause a message of slurm_errno.c or sbatch(1), or a reason
# in squeue(1) for which a job remains pending.
_CAUSES = {
    re.compile(pattern, re.IGNORECASE): options.split()
    for pattern, options in {
        r"generic resource|\bgres\b": _GRES_OPTIONS,
        "feature specification": "constraint batch clusterConstraint",
        "partition specified|partition name": "partition",
        "account|QOSNotAllowed": "account partition qos",
        r"\bqos\b|(Assoc|QOS)\w+PerJob|InvalidQOS": "qos account time nodes "
        f"{_CPU_OPTIONS} {_GRES_OPTIONS} {_MEMORY_OPTIONS}",
        "reservation": "reservation",
        "license": "licenses",
        "node name specified": _NODE_OPTIONS,
        "memory specification|memory required": _MEMORY_OPTIONS,
        "time ?limit": "time timeMin",
        "node count": "nodes",
        "PartitionNodeLimit|processors requested": f"nodes {_CPU_OPTIONS}",
        # Slurm also reports this for a time limit, before its scheduler has considered the job
        "PartitionConfig|partition configuration": f"nodes time timeMin {_CPU_OPTIONS}",
        "node configuration|BadConstraints": f"constraint nodes {_NODE_OPTIONS} "
        f"{_GRES_OPTIONS} {_CPU_OPTIONS} {_MEMORY_OPTIONS} tmp",
    }.items()
}
# By field: text before and after the values, and text if there are none. The number of nodes
# is formatted separately.
_WORDS = {
    "cpus": ("", " CPUs per node", "no CPUs"),
    "memory": ("", " MB per node", "no memory"),
    "gres": ("gres ", "", "no gres"),
    "features": ("features ", "", "no features"),
    "time_limit": ("a time limit of ", "", "no time limit"),
}
#: all options that an explanation may name
OPTIONS = frozenset(name for names in _CAUSES.values() for name in names)
_NAMED = re.compile(r"(?:Invalid|unrecognized option '?)\s*--([a-z-]+)")
# reasons of squeue(1) that are due to the job's options, not to the state of the cluster
_PENDING = re.compile(
    "AccountNotAllowed|BadConstraints|InvalidAccount|InvalidQOS|QOSNotAllowed|"
    r"Partition(Config|NodeLimit|TimeLimit)|(Assoc|QOS)Max\w*PerJob(Limit)?"
)

# Messages of slurm_errno.c about resources that the cluster's configuration lacks; nodes that
# are down do not cause these messages. Licences are left out, as sites may change them at any
# time.
_FINAL = re.compile(
    r"Invalid (node name|feature|partition name|generic resource \(gres\)) spec|"
    "(Memory specification|CPU count per node) can not be satisfied|"
    "Requested node configuration is not available",
    re.IGNORECASE,
)


class SlurmRefusal(WorkflowExecutionException):
    """Slurm does not accept a job, or never starts it, because of the job's options.

    :param services: services of a refused allocation; empty for a single job
    """

    def __init__(self, message: str, services: Sequence[SlurmService] = ()) -> None:
        super().__init__(message)
        self.services = services


class FinalRefusal(SlurmRefusal, OneLineException):
    """Slurm would refuse every attempt of a job in the same way, so a retry is pointless."""


def is_final(message: str) -> bool:
    """Return whether sbatch(1) refuses a job because the cluster lacks requested resources."""
    return _FINAL.search(message) is not None


def is_refusal(reason: str) -> bool:
    """Return whether a job that is pending for this reason will never start."""
    return _PENDING.fullmatch(reason.strip("()").split(",")[0]) is not None


def _describe_values(partition: Partition, field: str) -> str:
    """Describe the values of a field that a partition's nodes have."""
    if field == "nodes":
        return plural(partition.nodes, "node")
    texts = dict.fromkeys(str(getattr(kind, field)) for kind in partition.kinds)
    values = [value for value in texts if value != "(null)"]
    text = " or ".join([*values, "none"] if len(values) < len(texts) else values)
    before, after, nothing = _WORDS[field]
    return f"{before}{text}{after}" if values else nothing


def causes(message: str, options: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the options of a job to which a message of Slurm refers."""
    given = {name: value for name, value in options.items() if value is not None}
    if named := _NAMED.search(message):
        first, *others = named[1].split("-")
        name = first + "".join(map(str.capitalize, others))
        return {name: given[name]} if name in given else {}
    matching = [names for pattern, names in _CAUSES.items() if pattern.search(message)]
    for names in matching:
        concerned: dict[str, JSON] = {
            name: given[name] for name in names if name in given
        }
        if concerned:
            return concerned
    return {}


def explained(
    message: str,
    options: Mapping[str, JSON],
    service: str,
    partitions: Mapping[str, Partition],
) -> str:
    """Return a message of Slurm, with the options to which it refers and valid values.

    :param options: the service's options of ``sbatch``, in camel case
    :param service: name of the service; empty for the deployment's default
    :param partitions: partitions of the cluster; empty if unknown
    """
    concerned = causes(message, options)
    texts = [f"`{name}: {value}`" for name, value in concerned.items()]
    where = f"service {service}" if service else "the service"
    parts = [message]
    if texts:
        parts = [f"{message}: see {' or '.join(texts)} of {where}"]
    parts += _valid_values(concerned, options.get("partition"), partitions)
    return "; ".join(parts)


def _valid_values(
    concerned: Iterable[str], partition: JSON, partitions: Mapping[str, Partition]
) -> Iterator[str]:
    """Yield texts with the valid values that are known."""
    if "partition" in concerned and partitions:
        yield f"the partitions are {', '.join(partitions)}"
        return
    default = (name for name, partition in partitions.items() if partition.is_default)
    chosen = partitions.get(str(partition or next(default, "")))
    fields = dict.fromkeys(_FIELDS[name] for name in concerned if name in _FIELDS)
    if chosen is not None and fields:
        limits = ", ".join(_describe_values(chosen, field) for field in fields)
        yield f"partition {chosen.name} has {limits}"
