"""Plug-ins by name: samplers, QPUs, devices, passes and policies."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Generic, TypeVar

from sf_quantum.errors import InputError
from sf_quantum.text import unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Plug-ins by name: entry points of this package and of a site's own packages.

    A plug-in is imported only when it is loaded.

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

        :raises InputError: if there is no such entry, or its package cannot be imported
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
        entries = _installed(self._group, tuple(map(_state, sys.path)))
        return {entry.name: entry for entry in entries}


def _state(path: str) -> tuple[str, int]:
    """Return a folder of packages, and when a package was last installed or removed there."""
    try:
        return path, os.stat(path or ".").st_mtime_ns
    except OSError:  # Python also accepts a missing folder
        return path, 0


@lru_cache(maxsize=32)
def _installed(group: str, paths: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Read the files of all packages: cached, as this takes as long as some requests."""
    return entry_points(group=group)
