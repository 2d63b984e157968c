"""Which job runs next: the scheduling policies installed here, one file each.

A policy is one class in one file with one entry point in the group
``sf_quantum.policies``, whose name is what the service's configuration calls it. What it
is told and what it answers is written at :class:`~sf_quantum.service.scheduling.policies.base.Policy`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sf_quantum.files import JSON
from sf_quantum.samplers.registry import Registry
from sf_quantum.service.domain.settings import Shares
from sf_quantum.service.scheduling.policies.base import Policy

GROUP = "sf_quantum.policies"
_registry: Registry[type[Policy]] = Registry(GROUP, "policy")


def names() -> list[str]:
    """Name the policies that are installed, ours and a site's own, sorted."""
    return _registry.names()


def load(name: str) -> type[Policy]:
    """Find a policy's class by the name of its entry point.

    :raises InputError: if no policy has that name, or its package cannot be imported
    """
    return _registry.load(name)


def make(name: str, options: Mapping[str, JSON], shares: Shares) -> Policy:
    """Make a policy as the configuration wants it.

    :param options: the keys beside ``type``
    :raises InputError: if there is none of that name, or an option is wrong
    """
    return load(name).from_config(options, shares)
