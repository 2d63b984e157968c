"""Partitions and the resources of their nodes, as ``sinfo`` prints them."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from sf_quantum.errors import QuantumError
from sf_quantum.slurm.counts import count

# Slurm's commands block while the controller is down.
TIMEOUT_SECONDS = 5
#: the value of ``--format`` for :func:`processors`
PROCESSORS_FORMAT = "%C|%c|%h"
# Largest number of nodes read from a range in a list; no cluster has more.
MAX_NODES = 65536
# exit codes: of timeout(1) at its time limit, and of COMMAND if ``sbatch`` is missing
_TIMED_OUT, _NO_SLURM = 124, 127
#: format of sinfo for :func:`described`: a line per kind of node with partition, number of
#: nodes, CPUs, memory, gres, features, time limit and node names
DESCRIPTIONS_FORMAT = "%P|%D|%c|%m|%G|%f|%l|%N"
#: the shell command whose output :func:`described` reads
DESCRIPTIONS_COMMAND = (
    f"timeout {TIMEOUT_SECONDS} sinfo --noheader --all '--format={DESCRIPTIONS_FORMAT}'"
)
#: the shell command whose output :func:`listed` reads
COMMAND = (
    f"{DESCRIPTIONS_COMMAND} || "
    f"{{ code=$?; command -v sbatch >/dev/null || exit {_NO_SLURM}; exit $code; }}"
)
# part of the messages of Slurm's commands if slurm.conf is missing or unreadable
_NO_CONFIGURATION = re.compile("configuration (source|file)|cannot stat file")
_PREFIX = re.compile("^(sinfo: )?((error|fatal): )?")


class SilentSlurm(QuantumError):
    """Slurm has not listed its partitions; the text is the reason.

    :param is_missing: whether Slurm is not installed or configured on this host, so that
        jobs cannot be submitted later either
    """

    def __init__(self, why: str, *, is_missing: bool = False) -> None:
        super().__init__(why)
        self.is_missing = is_missing


def of_this_host() -> dict[str, Partition]:
    """Query this host's Slurm for its partitions.

    :raises SilentSlurm: if there is no Slurm, or it does not answer
    """
    sinfo = subprocess.run(
        ["/bin/sh", "-c", COMMAND],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    return listed(sinfo.stdout, sinfo.stderr, sinfo.returncode)


def listed(output: str, errors: str, code: int) -> dict[str, Partition]:
    """Read the output of :data:`COMMAND`.

    :raises SilentSlurm: if the command failed, or named no partition
    """
    if code == _NO_SLURM:
        raise SilentSlurm("sbatch is not on the PATH", is_missing=True)
    if code == 0 and (partitions := described(output)):
        return partitions
    message = _message(errors)
    why = f"sinfo: {message or 'it named no partition'}"
    if code == _TIMED_OUT:
        why = f"sinfo did not answer within {TIMEOUT_SECONDS} s"
        why = f"{why}: {message}" if message else why
    is_missing = _NO_CONFIGURATION.search(message) is not None
    raise SilentSlurm(why, is_missing=is_missing)


def _message(errors: str) -> str:
    """Return the first and the last error of ``sinfo``: the cause and the consequence.

    Lines from other programs, such as a login node's profile, are left out unless there are
    no others; then the last line is returned.
    """
    lines = [" ".join(line.split()) for line in errors.splitlines() if line.strip()]
    lines = [line for line in lines if line.startswith("sinfo: ")] or lines[-1:]
    texts = [_PREFIX.sub("", line) for line in lines]
    return "; ".join(dict.fromkeys([*texts[:1], *texts[-1:]]))


@dataclass(frozen=True)
class Processors:
    """Processors of a partition's nodes of one kind.

    :param idle: number of processors without a job
    :param per_node: number of processors of the smallest node
    :param shared: ``EXCLUSIVE`` if each job gets whole nodes; see ``%h`` in sinfo(1)
    """

    idle: int
    per_node: int
    shared: str


def processors(line: str) -> Processors:
    """Read a line of ``sinfo`` with :data:`PROCESSORS_FORMAT`.

    :raises ValueError: if the line is malformed
    """
    # The first column is allocated/idle/other/total. The second is "4+" if the nodes differ
    # and the smallest node has 4 processors.
    states, per_node, shared = line.split("|")
    _, idle_processors, _, _ = states.split("/")
    idle, smallest = count(idle_processors), count(per_node.rstrip("+"))
    if idle is None or smallest is None:
        raise ValueError(line)
    return Processors(idle, max(1, smallest), shared)


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one kind in a partition.

    Texts are as ``sinfo`` prints them, or empty if the data has another source.

    :param memory: memory per node in MB
    """

    nodes: int
    cpus: str = ""
    memory: str = ""
    gres: str = ""
    features: str = ""
    time_limit: str = ""
    names: str = ""


def hosts(text: str) -> set[str]:
    """Return the names in a node list such as ``c[01-03,7],q1``; omit malformed parts."""
    names: set[str] = set()
    for item in re.findall(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+", text):
        # plain text and ranges alternate
        parts = re.split(r"\[([^]]*)\]", item)
        choices = [
            [*_numbers(part)] if index % 2 else [part]
            for index, part in enumerate(parts)
        ]
        names |= {"".join(choice) for choice in itertools.product(*choices)}
    return names


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers in a list of ranges, with the leading zeros of each range."""
    for part in ranges.split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip(), re.ASCII):
            first, last = int(match[1]), int(match[2] or match[1])
            # A mistyped range may have billions of nodes; the first MAX_NODES + 1 show the
            # mistake.
            for number in range(first, min(last, first + MAX_NODES) + 1):
                yield f"{number:0{len(match[1])}}"


@dataclass(frozen=True)
class Partition:
    """A partition and its kinds of nodes.

    :param is_default: whether jobs that name no partition are submitted to it
    """

    name: str
    is_default: bool
    kinds: tuple[NodeKind, ...]

    @property
    def nodes(self) -> int:
        """The number of nodes in the partition."""
        return sum(kind.nodes for kind in self.kinds)


def described(text: str) -> dict[str, Partition]:
    """Read the partitions in the output of :data:`DESCRIPTIONS_COMMAND`; skip other lines."""
    kinds: dict[str, list[NodeKind]] = {}
    for line in text.splitlines():
        columns = line.strip().split("|")
        if len(columns) != len(DESCRIPTIONS_FORMAT.split("|")):
            continue
        name, number, *texts = columns
        if (nodes := count(number)) is not None:
            kinds.setdefault(name, []).append(NodeKind(nodes, *texts))
    return {
        name.rstrip("*"): Partition(name.rstrip("*"), name.endswith("*"), tuple(all_))
        for name, all_ in kinds.items()
    }
