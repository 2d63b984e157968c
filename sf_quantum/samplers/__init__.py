"""How a QUBO is solved: the samplers installed here, one file and entry point each.

Beside what dimod asks of it a sampler may have ``problem()``, see :func:`obstacle`, and a
method ``check_parameters(**parameters)`` that refuses wrong values as ``sample`` does, so
that they are refused too where a presolve leaves it nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.samplers.registry import Registry
from sf_quantum.samplers.registry import unknown as unknown

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

GROUP = "sf_quantum.samplers"
_registry: Registry[type[Sampler]] = Registry(GROUP, "sampler")


def names() -> list[str]:
    """Name the samplers that are installed, ours and a site's own.

    :returns: the names, sorted; nothing is imported
    """
    return _registry.names()


def load(name: str) -> type[Sampler]:
    """Find a sampler by its name.

    :param name: the name of its entry point in the group ``sf_quantum.samplers``
    :returns: its class, a ``dimod.Sampler`` made without arguments
    :raises InputError: if no sampler has that name, or its package cannot be imported
    """
    return _registry.load(name)


def obstacle(name: str) -> str | None:
    """Say why a sampler cannot be used here, in a few words.

    A sampler may tell by a class method ``problem()`` without arguments, which should
    import nothing heavy; one that has none can be used if it can be loaded.

    :raises InputError: if no sampler has that name
    """
    try:
        sampler = load(name)
    except InputError as error:
        if name not in names():
            raise
        return str(error)
    tell = getattr(sampler, "problem", None)
    told = tell() if callable(tell) else None
    return told if told is None else str(told)
