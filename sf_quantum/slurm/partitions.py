"""Partitions and their numbers of nodes, as ``sinfo`` prints them."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass

from sf_quantum.slurm.counts import count

# Slurm's commands block while the controller is down
TIMEOUT_SECONDS = 5.0
#: the value of ``--format`` for :func:`processors`
PROCESSORS_FORMAT = "%C|%c|%h"
_COMMAND = ("sinfo", "--noheader", "--all", "--format=%R|%D")


def partition_nodes() -> dict[str, int]:
    """Ask the Slurm of this host for the nodes of each partition.

    :returns: nothing if there is no Slurm, or it does not answer
    """
    try:
        sinfo = subprocess.run(
            _COMMAND,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return read(sinfo.stdout) if sinfo.returncode == 0 else {}


def read(text: str) -> dict[str, int]:
    """Read lines of partitions and numbers of nodes; a partition has a line for each state.

    Other lines, such as a banner, are left out.
    """
    nodes: Counter[str] = Counter()
    for line in text.splitlines():
        name, bar, number = line.strip().rpartition("|")
        if bar and (found := count(number)) is not None:
            nodes[name] += found
    return dict(nodes)


@dataclass(frozen=True)
class Processors:
    """Processors of a partition's nodes of one kind.

    :param idle: those without a job
    :param per_node: processors of the smallest node
    :param shared: ``EXCLUSIVE`` if each job gets whole nodes, sinfo(1)
    """

    idle: int
    per_node: int
    shared: str


def processors(line: str) -> Processors:
    """Read a line of ``sinfo`` with :data:`PROCESSORS_FORMAT`.

    :raises ValueError: if it is none
    """
    # processors are allocated/idle/other/total; nodes that differ have "4+" each
    states, per_node, shared = line.split("|")
    _, idle_processors, _, _ = states.split("/")
    idle, smallest = count(idle_processors), count(per_node.rstrip("+"))
    if idle is None or smallest is None:
        raise ValueError(line)
    return Processors(idle, max(1, smallest), shared)
