"""Token buckets: limits on the long-term rate of events and on their number in a burst."""

from __future__ import annotations

import time
from collections.abc import Callable

_BUCKETS = 10_000


class TokenBuckets:
    """A token bucket for each sender; it fills at a constant rate up to the burst size."""

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        # when each bucket will be full again; a full bucket needs no entry
        self._full_at: dict[str, float] = {}

    def take(self, sender: str) -> float:
        """Take a token and return 0; or return the seconds until a token is available."""
        now = self._clock()
        full_at = max(self._full_at.get(sender, now), now) + 1 / self._rate
        wait = full_at - now - self._burst / self._rate
        if wait > 1e-9:
            return wait
        self._full_at[sender] = full_at
        if len(self._full_at) > _BUCKETS:
            self._full_at = {k: at for k, at in self._full_at.items() if at > now}
        return 0.0
