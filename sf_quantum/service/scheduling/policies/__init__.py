"""Scheduling policies, one module each.

A policy is a subclass of :class:`~sf_quantum.service.scheduling.policies.base.Policy` with an
entry point in the group ``sf_quantum.policies``. The service's configuration selects a policy
by the name of its entry point. ``base`` defines the base classes. ``classes`` is the default
policy, ``fifo`` is a baseline, ``fair_share`` orders jobs by past usage, and ``interleave``
orders jobs by the tenants' classical computation.
"""

from __future__ import annotations

from collections.abc import Mapping

from sf_quantum.files import JSON
from sf_quantum.registry import Registry
from sf_quantum.service.domain.settings import Shares
from sf_quantum.service.scheduling.policies.base import Policy
from sf_quantum.service.scheduling.work import Clock

GROUP = "sf_quantum.policies"
_registry: Registry[type[Policy]] = Registry(GROUP, "policy")
#: the names of the installed policies, sorted
names = _registry.names
#: the class of a policy, by the name of its entry point
load = _registry.load


def make(
    name: str, options: Mapping[str, JSON], shares: Shares, clock: Clock
) -> Policy:
    """Create a policy from the configuration.

    :param options: all keys except ``type``
    :param clock: see :meth:`.Policy.from_config`
    :raises InputError: if there is no such policy, or an option is invalid
    """
    return load(name).from_config(options, shares, clock)
