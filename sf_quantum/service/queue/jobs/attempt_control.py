"""How other threads interrupt an attempt."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum, auto


class Interrupt(Enum):
    """How an attempt is interrupted."""

    #: the job is cancelled on the device
    CANCEL = auto()
    #: what is on the device ends, and nothing more is submitted
    PAUSE = auto()
    #: the job goes on, for the next service
    DETACH = auto()


class Detached(Exception):
    """The job was left to the next service."""


@dataclass
class Control:
    """What is asked of an attempt from other threads."""

    interrupt: Interrupt | None = None
    #: the service stops: what the device has is left to the next one, even if it is to end
    leave: bool = False
    #: Note of a job that is to be queued again; on disk before the device is told to
    #: stop it.
    note: str | None = None
    wake: threading.Event = field(default_factory=threading.Event)

    @property
    def leaves(self) -> bool:
        """Whether what the device has is left to the next service."""
        return self.leave or self.interrupt is Interrupt.DETACH

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the attempt is interrupted."""
        if self.wake.wait(seconds):
            # once; after that, at the vendor's pace again
            self.wake.clear()
