"""Why Slurm refuses a job: the options of its service, and what its partition has.

Slurm's message names neither the option nor what would be right.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.files import JSON
from sf_quantum.slurm.partitions import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from sf_quantum.connectors.slurm.services import SlurmService

#: what sinfo(1) prints of a partition: its nodes of a kind in each line
FORMAT = "%P|%D|%c|%m|%G|%f|%l"
_NODES, _CPUS, _MEMORY, _GRES, _FEATURES, _TIME = range(1, 7)
_GRES_OPTIONS = "gres gpus gpusPerNode gpusPerSocket gpusPerTask"
_CPU_OPTIONS = (
    "ntasks ntasksPerNode ntasksPerCore ntasksPerSocket cpusPerTask coresPerSocket mincpus "
    "socketsPerNode threadsPerCore"
)
_MEMORY_OPTIONS = "mem memPerCpu memPerGpu"
_NODE_OPTIONS = "nodelist exclude nodefile"
# the columns that say what would be right for an option
_COLUMNS = {
    **dict.fromkeys(_GRES_OPTIONS.split(), _GRES),
    **dict.fromkeys(_CPU_OPTIONS.split(), _CPUS),
    **dict.fromkeys(_MEMORY_OPTIONS.split(), _MEMORY),
    **dict.fromkeys(("constraint", "batch", "clusterConstraint"), _FEATURES),
    **dict.fromkeys(("nodes",), _NODES),
    **dict.fromkeys(("time", "timeMin"), _TIME),
}
# messages of slurm_errno.c and of sbatch(1), and reasons of squeue(1) for which a job remains
# pending; the options that cause them
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
        # also of a time limit, before Slurm's scheduler has looked at the job
        "PartitionConfig|partition configuration": f"nodes time timeMin {_CPU_OPTIONS}",
        "node configuration|BadConstraints": f"constraint nodes {_NODE_OPTIONS} "
        f"{_GRES_OPTIONS} {_CPU_OPTIONS} {_MEMORY_OPTIONS} tmp",
    }.items()
}
# Words before and after the values of a column, and what is said without any values. The
# number of nodes has words of its own.
_WORDS = {
    _CPUS: ("", " CPUs per node", "no CPUs"),
    _MEMORY: ("", " MB per node", "no memory"),
    _GRES: ("gres ", "", "no gres"),
    _FEATURES: ("features ", "", "no features"),
    _TIME: ("a time limit of ", "", "no time limit"),
}
#: all options that may be named
OPTIONS = frozenset(name for names in _CAUSES.values() for name in names)
_NAMED = re.compile(r"(?:Invalid|unrecognized option '?)\s*--([a-z-]+)")
# reasons of squeue(1) that the options of the job cause, and not the state of the cluster
_PENDING = re.compile(
    "AccountNotAllowed|BadConstraints|InvalidAccount|InvalidQOS|QOSNotAllowed|"
    r"Partition(Config|NodeLimit|TimeLimit)|(Assoc|QOS)Max\w*PerJob(Limit)?"
)


class SlurmRefusal(WorkflowExecutionException):
    """Slurm does not take a job, or never starts it, because of its options.

    :param services: those of an allocation; empty if it is a job of its own
    """

    def __init__(self, message: str, services: Sequence[SlurmService] = ()) -> None:
        super().__init__(message)
        self.services = services


def is_refusal(reason: str) -> bool:
    """Whether a job that is pending for this reason asks for what it never gets."""
    return _PENDING.fullmatch(reason.strip("()").split(",")[0]) is not None


def command() -> str:
    """A shell command that prints what the partitions have, for :func:`read`."""
    form = shlex.quote(FORMAT)
    return f"timeout {TIMEOUT_SECONDS} sinfo --noheader --all --format={form}"


@dataclass(frozen=True)
class Partition:
    """What the nodes of a partition have.

    :param rows: the columns of :data:`FORMAT`, one row for each kind of node
    """

    name: str
    is_default: bool
    rows: tuple[tuple[str, ...], ...]

    def has(self, column: int) -> str:
        """What it has of one thing, in words."""
        found = dict.fromkeys(row[column] for row in self.rows)
        values = [value for value in found if value != "(null)"]
        text = " or ".join([*values, "none"] if len(values) < len(found) else values)
        if column == _NODES:
            count = sum(int(row[column]) for row in self.rows)
            return f"{count} node{'' if count == 1 else 's'}"
        before, after, nothing = _WORDS[column]
        return f"{before}{text}{after}" if values else nothing


def read(text: str) -> dict[str, Partition]:
    """Read what :func:`command` has printed; other lines are left out."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for line in text.splitlines():
        columns = tuple(line.strip().split("|"))
        if len(columns) == len(FORMAT.split("|")) and columns[_NODES].isdecimal():
            rows.setdefault(columns[0], []).append(columns)
    return {
        name.rstrip("*"): Partition(name.rstrip("*"), name.endswith("*"), tuple(own))
        for name, own in rows.items()
    }


def causes(message: str, options: Mapping[str, JSON]) -> dict[str, JSON]:
    """The options of a job that a message of Slurm is about."""
    given = {name: value for name, value in options.items() if value is not None}
    if named := _NAMED.search(message):
        first, *others = named[1].split("-")
        name = first + "".join(map(str.capitalize, others))
        return {name: given[name]} if name in given else {}
    found = [names for pattern, names in _CAUSES.items() if pattern.search(message)]
    for names in found:
        own: dict[str, JSON] = {name: given[name] for name in names if name in given}
        if own:
            return own
    return {}


def explained(
    message: str,
    options: Mapping[str, JSON],
    service: str,
    partitions: Mapping[str, Partition],
) -> str:
    """A message of Slurm with the options that it is about, and what would be right.

    :param options: of ``sbatch``, in camel case, by the service
    :param service: its name; empty for the deployment's default
    :param partitions: of the cluster; empty if they are not known
    """
    concerned = causes(message, options)
    texts = [f"`{name}: {value}`" for name, value in concerned.items()]
    where = f"service {service}" if service else "the service"
    parts = [message]
    if texts:
        parts = [f"{message}: see {' or '.join(texts)} of {where}"]
    parts += _right(concerned, options.get("partition"), partitions)
    return "; ".join(parts)


def _right(
    concerned: Iterable[str], partition: JSON, partitions: Mapping[str, Partition]
) -> Iterator[str]:
    """What would be right, as far as it is known."""
    if "partition" in concerned and partitions:
        yield f"the partitions are {', '.join(partitions)}"
        return
    default = (name for name, one in partitions.items() if one.is_default)
    own = partitions.get(str(partition or next(default, "")))
    columns = dict.fromkeys(_COLUMNS[name] for name in concerned if name in _COLUMNS)
    if own is not None and columns:
        yield f"partition {own.name} has {', '.join(map(own.has, columns))}"
