"""The calibration of an emulated device: renewed at times, drifting between them."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sf_quantum.files import JSON

# one that went wrong is off by so much more
WRONG = 20.0


@dataclass(frozen=True)
class Calibration:
    """What a device was set to at one moment.

    :param id: tells calibrations apart; the same device with the same seed has the same
    :param made: when
    :param age: from 0, just made, to 1, about to be renewed
    :param wrong: whether it went wrong, which nobody notices before it is renewed
    :param seed: for what is drawn anew with each calibration
    """

    id: str
    made: datetime
    age: float
    wrong: bool
    seed: int

    @property
    def told(self) -> dict[str, JSON]:
        """What an answer says of it."""
        return {"id": self.id, "time": self.made.isoformat(timespec="seconds")}

    @property
    def factor(self) -> float:
        """How many times the errors of a good, new one."""
        return (1.0 + self.age) * (WRONG if self.wrong else 1.0)


@dataclass(frozen=True)
class Calibrations:
    """The calibrations of one device, one after the other.

    :param what: names the device
    :param root: what all is drawn from
    :param period_seconds: of real time
    :param wrong: probability that one goes wrong
    """

    what: str
    root: int
    period_seconds: float
    wrong: float = 0.0
    clock: Callable[[], float] = time.time
    started: float = field(default_factory=time.time)

    def now(self) -> Calibration:
        """Tell the present one."""
        number, rest = divmod(self.clock() - self.started, self.period_seconds)
        name = f"{self.what}/{self.root}/{int(number)}"
        draws = random.Random(f"{self.root}/calibration/{int(number)}")
        made = datetime.fromtimestamp(self.started + number * self.period_seconds, UTC)
        return Calibration(
            id=f"emulated-{hashlib.sha256(name.encode()).hexdigest()[:12]}",
            made=made,
            age=rest / self.period_seconds,
            wrong=draws.random() < self.wrong,
            seed=draws.getrandbits(64),
        )
