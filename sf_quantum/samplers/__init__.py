"""How a QUBO is solved: the installed samplers, one module and entry point each.

Beside dimod's interface, a sampler may offer a class method ``problem()`` (see
:func:`obstacle`) and a method ``check_parameters(**parameters)`` that raises what
``sample`` would raise for wrong values. :class:`~.presolve.Presolve` calls it, because a
problem that the presolve solves completely never reaches ``sample``.
"""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import TYPE_CHECKING, Generic, TypeVar

from sf_quantum.errors import InputError

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

T = TypeVar("T")


class Registry(Generic[T]):
    """Plug-ins by name: entry points of this package and of a site's own packages.

    Each is imported only when it is loaded.

    :param group: the group's name
    :param kind: what messages call an entry, such as ``sampler``
    """

    def __init__(self, group: str, kind: str) -> None:
        self._group = group
        self._kind = kind

    def names(self) -> list[str]:
        """List the installed names, sorted."""
        return sorted(self._registered())

    def load(self, name: str) -> T:
        """Load the entry of a name.

        :raises InputError: if there is none, or its package cannot be imported
        """
        registered = self._registered()
        if name not in registered:
            raise InputError(unknown(self._kind, name, [*registered]))
        try:
            loaded: T = registered[name].load()
        except (ImportError, AttributeError) as error:
            message = f"{self._kind} {name!r} cannot be loaded: {error}"
            raise InputError(message) from error
        return loaded

    def _registered(self) -> dict[str, EntryPoint]:
        found = _installed(self._group, tuple(map(_state, sys.path)))
        return {entry.name: entry for entry in found}


def _state(path: str) -> tuple[str, int]:
    """A folder of packages, and when one was last installed there or removed."""
    try:
        return path, os.stat(path or ".").st_mtime_ns
    except OSError:  # as Python has it, too, it need not be there
        return path, 0


@lru_cache(maxsize=32)
def _installed(group: str, paths: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Read the files of all packages, which takes as long as some requests."""
    return entry_points(group=group)


_registry: Registry[type[Sampler]] = Registry("sf_quantum.samplers", "sampler")


def names() -> list[str]:
    """List the names of all installed samplers, sorted, without importing them."""
    return _registry.names()


def load(name: str) -> type[Sampler]:
    """Load a sampler's class, a ``dimod.Sampler`` that is constructed without arguments.

    :param name: the name of its entry point in the group ``sf_quantum.samplers``
    :raises InputError: if there is no such sampler, or its package cannot be imported
    """
    return _registry.load(name)


def obstacle(name: str) -> str | None:
    """Explain in a few words why a sampler cannot be used here; ``None`` if it can.

    The explanation comes from the sampler's class method ``problem()``, which should
    import nothing heavy. A sampler without that method is usable if it can be loaded.

    :raises InputError: if there is no such sampler
    """
    try:
        sampler = load(name)
    except InputError as error:
        if name not in names():
            raise
        return str(error)
    problem = getattr(sampler, "problem", None)
    obstacle = problem() if callable(problem) else None
    return None if obstacle is None else str(obstacle)


def unknown(kind: str, name: str, known: list[str]) -> str:
    """Return the message for an unknown name: the closest match and all known names.

    :param kind: the kind of thing that has the name, such as ``sampler``
    """
    close = get_close_matches(name, known, n=1)
    meant = f", did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {name!r}{meant} (known: {', '.join(sorted(known))})"
