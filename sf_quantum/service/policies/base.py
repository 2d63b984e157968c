"""The former place of :mod:`sf_quantum.service.scheduling.policies.base`, deprecated."""

from __future__ import annotations

import warnings

from sf_quantum.service.scheduling.policies.base import Keyed, Policy

__all__ = ["Keyed", "Policy"]

warnings.warn(
    "sf_quantum.service.policies.base is deprecated: import Policy and Keyed from "
    "sf_quantum.service.scheduling.policies.base",
    DeprecationWarning,
    stacklevel=2,
)
