"""How many nodes the partitions of a site have, which bounds what it can grant."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping

TIMEOUT_SECONDS = 10.0
_COMMAND = ("sinfo", "--noheader", "--all", "--format=%R|%D")


def partition_nodes() -> Mapping[str, int]:
    """Ask the Slurm of this host; nothing if there is none, or it does not answer."""
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


def read(text: str) -> Mapping[str, int]:
    """Read lines of partitions and numbers of nodes; other lines, such as a banner, are no answer."""
    nodes: Counter[str] = Counter()
    for line in text.splitlines():
        name, bar, number = line.strip().rpartition("|")
        if bar and number.isascii() and number.isdigit():
            nodes[name] += int(number)
    return nodes


def fitting(
    counts: Mapping[str, int], each: Mapping[str, int], most: int
) -> dict[str, int] | None:
    """Lower numbers of components of an allocation until a partition has their nodes.

    The component that holds most loses one first, and none loses its last.

    :param counts: of components, by service
    :param each: nodes of one of them
    :param most: nodes of the partition
    :returns: ``None`` if one of each is too many
    """
    left = dict(counts)
    while sum(number * each[name] for name, number in left.items()) > most:
        several = [name for name, number in left.items() if number > 1]
        if not several:
            return None
        largest = max(several, key=lambda name: left[name] * each[name])
        left[largest] -= 1
    return left
