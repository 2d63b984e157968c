"""Plug-ins by name: the entry points of this package and of a site's own packages."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from sf_quantum.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """A group of entry points, each imported only when it is loaded.

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
        return {entry.name: entry for entry in entry_points(group=self._group)}


def unknown(kind: str, name: str, known: list[str]) -> str:
    """Return the message for an unknown name: the closest match and all known names.

    :param kind: the kind of thing that has the name, such as ``sampler``
    """
    close = get_close_matches(name, known, n=1)
    meant = f", did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {name!r}{meant} (known: {', '.join(sorted(known))})"
