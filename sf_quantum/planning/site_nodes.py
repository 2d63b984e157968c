"""How many components of an allocation the partitions of a site can grant."""

from __future__ import annotations

from collections.abc import Mapping

from sf_quantum.slurm.components import Component, nodes_needed


def fitting(
    counts: Mapping[str, int], each: Mapping[str, Component], most: int
) -> dict[str, int] | None:
    """Lower numbers of components of an allocation until a partition has their nodes.

    The component that holds most loses one first, and none loses its last.

    :param counts: number of components, by service
    :param each: what one component requests, by service
    :param most: number of nodes of the partition
    :returns: the lower numbers; ``None`` if one component of each service needs too
        many nodes
    """
    left = dict(counts)
    while needed(left, each) > most:
        several = [name for name, number in left.items() if number > 1]
        if not several:
            return None
        largest = max(several, key=lambda name: left[name] * each[name].max_nodes)
        left[largest] -= 1
    return left


def needed(counts: Mapping[str, int], each: Mapping[str, Component]) -> int:
    """Count the nodes that components of an allocation need in their partition."""
    return nodes_needed((each[name], number) for name, number in counts.items())
