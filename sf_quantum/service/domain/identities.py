"""The sender of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """The sender of a request.

    :param admin: may see and do everything
    :param root: root by MUNGE, or any user without authentication; acquires leases
        under warden's rule
    """

    user: str
    admin: bool
    root: bool = False
