"""A moment until which a loop or a request may continue."""

from __future__ import annotations

import math
import time


class Deadline:
    """A moment on the monotonic clock, ``seconds`` from now; ``None`` sets no deadline."""

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The remaining seconds, at least 0; infinite without a deadline."""
        return max(0.0, self._end - time.monotonic())
