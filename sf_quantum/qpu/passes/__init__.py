"""Passes: what is done to circuits before a QPU runs them, and to their counts afterwards.

Error mitigation and compilation are passes: each turns one circuit into several, and their
counts into one result. A pass has an entry point in the group ``sf_quantum.passes``, by
whose name it is asked for; it knows the QPU by its description.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from sf_quantum.errors import InputError
from sf_quantum.qpu.jobs import Description
from sf_quantum.samplers import Registry

#: how often each bit string was read; after a pass, not necessarily whole numbers
Counts: TypeAlias = Mapping[str, float]
#: takes the counts of its circuits, and leaves the rest
Combine: TypeAlias = Callable[[Iterator[Counts]], Counts]
_registry: Registry[type[Pass]] = Registry("sf_quantum.passes", "pass")
#: the names of the installed passes, sorted
names = _registry.names
# a pass may send a circuit several times, and passes multiply
MOST_CIRCUITS = 1000


class Pass(ABC):
    """A pass for one QPU.

    :param described: the QPU as it is now
    :raises InputError: if the pass cannot be used with it
    """

    def __init__(self, described: Description) -> None:
        self.described = described

    def circuits(self, circuit: str) -> Sequence[str]:
        """Return what runs in place of a circuit, OpenQASM 3; by default the circuit."""
        return [circuit]

    @abstractmethod
    def counts(self, counts: Sequence[Counts]) -> Counts:
        """Combine the counts of :meth:`circuits`, in their order; their sum is kept."""


class Passes:
    """Passes in the order in which they are asked for: the first sees the program first.

    :param asked: names, separated by commas
    :raises InputError: for an unknown name, or a pass that cannot be used with the QPU
    """

    def __init__(self, asked: str, described: Description) -> None:
        self.names = [name.strip() for name in asked.split(",") if name.strip()]
        self._passes = [_registry.load(name)(described) for name in self.names]

    def expanded(self, circuit: str) -> tuple[list[str], Combine]:
        """Return what runs in place of a circuit, and what combines the counts.

        :raises InputError: if there are too many circuits
        """
        made, combine = _expanded(self._passes, circuit)
        if len(made) > MOST_CIRCUITS:
            detail = f"{len(made):,} circuits for one; at most {MOST_CIRCUITS:,}"
            raise InputError(f"mitigation {','.join(self.names)}: {detail}")
        return made, combine


def _expanded(passes: Sequence[Pass], circuit: str) -> tuple[list[str], Combine]:
    if not passes:
        return [circuit], next
    first, *rest = passes
    parts = [_expanded(rest, one) for one in first.circuits(circuit)]
    made = [text for texts, _ in parts for text in texts]
    return made, lambda counts: first.counts([combine(counts) for _, combine in parts])
