"""Passes: transformations of circuits before a QPU runs them, and of their counts afterwards.

A pass mitigates errors or compiles: it replaces a circuit with one or more circuits, and
combines their counts to one result. ``readout`` corrects errors of measurements, ``zne``
extrapolates to zero noise. Users request a pass by the name of its entry point in the group
``sf_quantum.passes``. The pass gets a description of the QPU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeAlias

from sf_quantum.errors import InputError
from sf_quantum.protocol.descriptions import Description
from sf_quantum.registry import Registry

#: number of reads of each bit string; after a pass not necessarily whole, and possibly
#: negative after a pass that yields quasi-probabilities
Counts: TypeAlias = Mapping[str, float]
#: function that takes the counts of its circuits from the iterator, and leaves the rest
Combine: TypeAlias = Callable[[Iterator[Counts]], Counts]
_registry: Registry[type[Pass]] = Registry("sf_quantum.passes", "pass")
#: the names of the installed passes, sorted
names = _registry.names
# largest number of circuits that replace one circuit: each pass may multiply their number
MOST_CIRCUITS = 1000


class Pass(ABC):
    """A pass for one QPU.

    :cvar quasi: whether counts may become negative: the pass then mitigates expectation
        values, and not single shots
    :param described: current description of the QPU
    :raises InputError: if the pass cannot be used with the QPU
    """

    quasi: ClassVar[bool] = False

    def __init__(self, described: Description) -> None:
        self.described = described

    def circuits(self, circuit: str) -> Sequence[str]:
        """Return the circuits that replace a circuit, in OpenQASM 3; by default the same."""
        return [circuit]

    @abstractmethod
    def counts(self, counts: Sequence[Counts]) -> Counts:
        """Combine the counts of :meth:`circuits`, in order; the number of shots is kept."""


class Passes:
    """Passes in the requested order: the first pass transforms the program first.

    :param asked: names of passes, separated by commas
    :raises InputError: if a name is unknown, a pass cannot be used with the QPU, or a
        pass would get negative counts
    """

    def __init__(self, asked: str, described: Description) -> None:
        self.names = [name.strip() for name in asked.split(",") if name.strip()]
        classes = [_registry.load(name) for name in self.names]
        for name, one in zip(self.names[1:], classes[1:], strict=True):
            if one.quasi:
                text = f"mitigation {asked}: {name} must be the first, since its counts"
                raise InputError(f"{text} may be negative")
        self._passes = [one(described) for one in classes]

    def check_shots(self) -> None:
        """Check that the passes mitigate single shots, and not only expectation values.

        :raises InputError: if the counts of a pass may be negative; the message names
            the pass
        """
        if self._passes and self._passes[0].quasi:
            raise InputError(
                f"mitigation {self.names[0]}: it mitigates expectation values, which "
                "single shots are not"
            )

    def expanded(self, circuit: str) -> tuple[list[str], Combine]:
        """Return the circuits that replace a circuit, and a function to combine their counts.

        :raises InputError: if there are too many circuits
        """
        circuits, combine = _expanded(self._passes, circuit)
        if len(circuits) > MOST_CIRCUITS:
            detail = f"{len(circuits):,} circuits for one; at most {MOST_CIRCUITS:,}"
            raise InputError(f"mitigation {','.join(self.names)}: {detail}")
        return circuits, combine


def whole(counts: Counts) -> dict[str, int]:
    """Round counts to whole numbers with the same sum."""
    rounded = {bits: math.floor(n) for bits, n in counts.items()}
    missing = round(sum(counts.values())) - sum(rounded.values())
    by_rest = sorted(counts, key=lambda bits: rounded[bits] - counts[bits])
    for bits in by_rest[:missing]:
        rounded[bits] += 1
    return {bits: n for bits, n in rounded.items() if n}


def _expanded(passes: Sequence[Pass], circuit: str) -> tuple[list[str], Combine]:
    if not passes:
        return [circuit], next
    first, *rest = passes
    parts = [_expanded(rest, one) for one in first.circuits(circuit)]
    circuits = [text for texts, _ in parts for text in texts]
    return circuits, lambda counts: first.counts(
        [combine(counts) for _, combine in parts]
    )
