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
    #: the job continues on the device, for the next service
    DETACH = auto()


class Detached(Exception):
    """The job was left to the next service."""


@dataclass
class Control:
    """Requests of other threads to an attempt."""

    interrupt: Interrupt | None = None
    #: the service stops: the job on the device, even if it is being cancelled, is left to
    #: the next service
    leave: bool = False
    #: Note of a job that is to be queued again; written to disk before the device is
    #: asked to stop the job.
    note: str | None = None
    wake: threading.Event = field(default_factory=threading.Event)

    @property
    def leaves(self) -> bool:
        """Whether the job on the device is left to the next service."""
        return self.leave or self.interrupt is Interrupt.DETACH

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the attempt is interrupted."""
        if self.wake.wait(seconds):
            # only one pause is cut short; the next is at the vendor's pace again
            self.wake.clear()
