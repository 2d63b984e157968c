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

    :param group: name of the entry points' group
    :param kind: noun for an entry in messages, such as ``sampler``
    """

    def __init__(self, group: str, kind: str) -> None:
        self._group = group
        self._kind = kind

    def names(self) -> list[str]:
        """List the installed names, sorted."""
        return sorted(self._registered())

    def load(self, name: str) -> T:
        """Load the plug-in with a name.

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
        entries = _installed(self._group, tuple(map(_folder_state, sys.path)))
        return {entry.name: entry for entry in entries}


def _folder_state(path: str) -> tuple[str, int]:
    """Return a folder of packages, and when its list of packages last changed."""
    try:
        return path, os.stat(path or ".").st_mtime_ns
    except OSError:  # Python accepts missing folders in sys.path
        return path, 0


@lru_cache(maxsize=32)
def _installed(group: str, paths: tuple[tuple[str, int], ...]) -> EntryPoints:
    """Read all packages' entry points; cached, as this takes as long as some requests.

    :param paths: part of the cache key, so that changed folders are read again
    """
    return entry_points(group=group)
