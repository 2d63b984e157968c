"""The components of a heterogeneous job, and the nodes without which it never starts.

Slurm chooses nodes for one component after the other: as many of its range as are free.
A component with a range may so leave too few for a later one, and the whole job then stays
pending, on idle nodes as well (tried with Slurm 22.05).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sf_quantum.files import JSON

_NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class Component(NamedTuple):
    """What one component requests of its partition.

    :param min_nodes: minimum number of nodes
    :param max_nodes: maximum number of nodes, equal to the minimum unless it is a range
    :param quantum: whether the component is for a QPU
    """

    min_nodes: int
    max_nodes: int
    quantum: bool = False

    @classmethod
    def read(cls, nodes: JSON, *, quantum: bool = False) -> Component:
        """Read the option ``nodes``; one node unless it is a plain number or a range."""
        match = _NODES.fullmatch(str(nodes))
        if match is None:
            return cls(1, 1, quantum)
        minimum = int(match[1])
        return cls(minimum, max(minimum, int(match[2] or minimum)), quantum)

    @property
    def place(self) -> tuple[bool, bool]:
        """Where it stands in its job, as a key for sorting.

        The first component cannot be given back before the others, so it is a classical one.
        """
        return self.quantum, self.min_nodes < self.max_nodes


def nodes_needed(components: Iterable[tuple[Component, int]]) -> int:
    """Count the nodes that a partition must have for components.

    All but the last one in the order of their job take the most of their ranges.

    :param components: each with its number
    """
    counted = [(component, number) for component, number in components if number > 0]
    if not counted:
        return 0
    last, _ = sorted(counted, key=lambda one: one[0].place)[-1]
    spared = last.max_nodes - last.min_nodes
    return sum(number * component.max_nodes for component, number in counted) - spared
