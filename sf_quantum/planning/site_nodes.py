"""The number of an allocation's components that the partitions of a site can grant."""

from __future__ import annotations

from collections.abc import Mapping

from sf_quantum.slurm.components import Component, nodes_needed


def fitting(
    counts: Mapping[str, int], each: Mapping[str, Component], most: int
) -> dict[str, int] | None:
    """Lower the numbers of an allocation's components until their nodes fit a partition.

    The service whose components hold most nodes loses a component first; each service keeps
    at least one.

    :param counts: number of components, by service
    :param each: request of one component, by service
    :param most: number of nodes of the partition
    :returns: the lower numbers; ``None`` if even one component per service needs too many
        nodes
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
