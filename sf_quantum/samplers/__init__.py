"""How a QUBO is solved: the samplers installed here, one file and entry point each.

Beside what dimod asks of it a sampler may have ``problem()``, see :func:`obstacle`, and a
method ``check_parameters(**parameters)`` that refuses wrong values as ``sample`` does, so
that they are refused too where a presolve leaves it nothing to do.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, cast

from sf_quantum.errors import InputError

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

GROUP = "sf_quantum.samplers"


def names() -> list[str]:
    """Name the samplers that are installed, ours and a site's own.

    :returns: the names, sorted; nothing is imported
    """
    return sorted(_registered())


def load(name: str) -> type[Sampler]:
    """Find a sampler by its name.

    :param name: the name of its entry point in the group ``sf_quantum.samplers``
    :returns: its class, a ``dimod.Sampler`` made without arguments
    :raises InputError: if no sampler has that name, or its package cannot be imported
    """
    registered = _registered()
    if name not in registered:
        raise InputError(unknown("sampler", name, [*registered]))
    try:
        return cast("type[Sampler]", registered[name].load())
    except (ImportError, AttributeError) as error:
        raise InputError(f"sampler {name!r} cannot be loaded: {error}") from error


def obstacle(name: str) -> str | None:
    """Say why a sampler cannot be used here, in a few words.

    A sampler may tell by a class method ``problem()`` without arguments, which should
    import nothing heavy; one that has none can be used if it can be loaded.

    :raises InputError: if no sampler has that name
    """
    try:
        sampler = load(name)
    except InputError as error:
        if name not in _registered():
            raise
        return str(error)
    tell = getattr(sampler, "problem", None)
    told = tell() if callable(tell) else None
    return told if told is None else str(told)


def unknown(kind: str, name: str, known: list[str]) -> str:
    """Say that a name is not known, which are, and which was perhaps meant.

    :param kind: what the name should name, in one word
    :returns: one line
    """
    close = get_close_matches(name, known, n=1)
    meant = f", did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {name!r}{meant} (known: {', '.join(sorted(known))})"


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
