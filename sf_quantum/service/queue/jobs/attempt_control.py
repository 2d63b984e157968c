"""How other threads interrupt an attempt."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum, auto


class Interrupt(Enum):
    """How an attempt is interrupted."""

    #: the job is cancelled on the device
    CANCEL = auto()
    #: the slice on the device finishes, and no further slice is submitted
    PAUSE = auto()
    #: the job continues on the device, and the next service process follows it
    DETACH = auto()


class Detached(Exception):
    """The job was left to the next service process."""


@dataclass
class Control:
    """What other threads request of an attempt."""

    interrupt: Interrupt | None = None
    #: whether the service stops, and leaves the job on the device to the next service process
    #: even if the job is being cancelled
    leave: bool = False
    #: note of a job that is to be queued again; written to disk before the job is cancelled
    #: on the device
    note: str | None = None
    wake: threading.Event = field(default_factory=threading.Event)

    @property
    def leaves(self) -> bool:
        """Whether the job on the device is left to the next service process."""
        return self.leave or self.interrupt is Interrupt.DETACH

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the attempt is interrupted."""
        if self.wake.wait(seconds):
            # an interruption shortens only one pause; the next has its full length again
            self.wake.clear()
