"""Which job runs next: the scheduling policies installed here, one file each.

A policy is one class in one file with one entry point in the group
``sf_quantum.policies``, whose name is what the service's configuration calls it. What it
is told and what it answers is written at :class:`~sf_quantum.service.policies.base.Policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers import unknown
from sf_quantum.service.policies.base import Policy
from sf_quantum.service.policies.shares import Shares

GROUP = "sf_quantum.policies"


def names() -> list[str]:
    """Name the policies that are installed, ours and a site's own, sorted."""
    return sorted(_registered())


def load(name: str) -> type[Policy]:
    """Find a policy's class by the name of its entry point.

    :raises InputError: if no policy has that name, or its package cannot be imported
    """
    registered = _registered()
    if name not in registered:
        raise InputError(unknown("policy", name, [*registered]))
    try:
        return cast("type[Policy]", registered[name].load())
    except (ImportError, AttributeError) as error:
        raise InputError(f"policy {name!r} cannot be loaded: {error}") from error


def make(name: str, options: Mapping[str, JSON], shares: Shares) -> Policy:
    """Make a policy as the configuration wants it.

    :param options: the keys beside ``type``
    :raises InputError: if there is none of that name, or an option is wrong
    """
    return load(name).from_config(options, shares)


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
