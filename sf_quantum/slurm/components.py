"""The components of a heterogeneous job, and the nodes without which it never starts.

Slurm chooses nodes for one component at a time: as many of the component's range as are
free. A component with a range may thus leave too few nodes for a later one, and the whole
job then stays pending, even if all nodes are idle (tried with Slurm 22.05).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sf_quantum.files import JSON

_NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class Component(NamedTuple):
    """The nodes that one component requests from its partition.

    :param min_nodes: minimum number of nodes
    :param max_nodes: maximum number of nodes, equal to the minimum without a range
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
        """Position in the job, as a sort key.

        The first component cannot be released before the others, so it is a classical one.
        """
        return self.quantum, self.min_nodes < self.max_nodes


def nodes_needed(components: Iterable[tuple[Component, int]]) -> int:
    """Count the nodes that a partition must have for components.

    All but the last component of the job get the maximum of their ranges.

    :param components: pairs of a component and its count
    """
    counted = [(component, number) for component, number in components if number > 0]
    if not counted:
        return 0
    last, _ = sorted(counted, key=lambda one: one[0].place)[-1]
    spared = last.max_nodes - last.min_nodes
    return sum(number * component.max_nodes for component, number in counted) - spared
