"""What is wished for a job's stay on a QPU, from who sent it there to its connector.

StreamFlow hands a connector the job's name and nothing else; like the run's journal, the
rest is found by process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sf_quantum.files import JSON


@dataclass(frozen=True)
class Wish:
    """How a job is to be treated.

    :param hints: see :meth:`sf_quantum.qpu.Qpu.hinted`
    :param wait_seconds: how long it waits for its lease, and in the QPU's queue, at most
    :param told: when it was wished, on the monotonic clock: from then on the job waits
    :param elsewhere: it can run on another location, so it gives up a QPU that goes
        offline instead of waiting for it
    """

    hints: Mapping[str, JSON] = field(default_factory=dict)
    wait_seconds: float | None = None
    elsewhere: bool = False
    told: float = field(default_factory=time.monotonic, compare=False)

    @property
    def left(self) -> float | None:
        """How many seconds of the wait there are still; None for as long as it takes."""
        if self.wait_seconds is None:
            return None
        return max(0.0, self.told + self.wait_seconds - time.monotonic())


_wishes: dict[str, Wish] = {}


def tell(job: str, wish: Wish) -> None:
    """Wish something for a job's next attempt."""
    _wishes[job] = wish


def of(job: str) -> Wish:
    """What is wished for a job."""
    return _wishes.get(job, Wish())


def forget(job: str) -> None:
    """Wish nothing for a job any more."""
    _wishes.pop(job, None)
