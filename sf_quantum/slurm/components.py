"""The components of a heterogeneous job, and the number of nodes that it needs to start.

Slurm chooses nodes for one component at a time. A component with a range of nodes gets as
many free nodes as its range allows, so too few may be left for a later component. The job
then stays pending even if all nodes are idle (tried with Slurm 22.05).
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
    :param max_nodes: maximum number of nodes; equal to the minimum if there is no range
    :param quantum: whether the component is for a QPU
    """

    min_nodes: int
    max_nodes: int
    quantum: bool = False

    @classmethod
    def read(cls, nodes: JSON, *, quantum: bool = False) -> Component:
        """Read the option ``nodes``, a number or a range; any other text is read as 1."""
        match = _NODES.fullmatch(str(nodes))
        if match is None:
            return cls(1, 1, quantum)
        minimum = int(match[1])
        return cls(minimum, max(minimum, int(match[2] or minimum)), quantum)

    @property
    def place(self) -> tuple[bool, bool]:
        """Position of the component in the job, as a sort key.

        The first component cannot be released before the others, so a classical component is
        first.
        """
        return self.quantum, self.min_nodes < self.max_nodes


def nodes_needed(components: Iterable[tuple[Component, int]]) -> int:
    """Return the number of nodes that a partition must have for a job's components in it.

    All components except the last one get the maximum of their ranges.

    :param components: pairs of a component and the number of such components
    """
    counted = [(component, number) for component, number in components if number > 0]
    if not counted:
        return 0
    last, _ = sorted(counted, key=lambda pair: pair[0].place)[-1]
    saved = last.max_nodes - last.min_nodes
    return sum(number * component.max_nodes for component, number in counted) - saved
