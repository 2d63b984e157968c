"""Who sends a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """Who sends a request.

    :param admin: may see and do everything
    :param root: the superuser of MUNGE, or anybody where nobody is checked: what
        warden's rule lets acquire leases
    """

    user: str
    admin: bool
    root: bool = False
