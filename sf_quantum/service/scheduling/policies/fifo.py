"""First come, first served, whatever the class: what the others are compared with."""

from __future__ import annotations

from sf_quantum.service.scheduling.pending import Entry
from sf_quantum.service.scheduling.policies.base import Keyed


class Fifo(Keyed[tuple[()]]):
    """Jobs run as they came; none stops another."""

    def key(self, entry: Entry) -> tuple[()]:
        """See :meth:`Keyed.key`."""
        return ()
