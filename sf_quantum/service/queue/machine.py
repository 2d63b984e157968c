"""State machines: a state is an object; an event is a method that returns the next state."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import ClassVar, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Machine(Generic[S]):
    """An object with a state; belongs to the event loop's thread.

    The class of a state has the data of this state, and a method for each event that can
    happen in the state. Type checking thus rejects an event that cannot happen.

    :cvar transitions: for each state, the states that may follow; the table agrees with the
        return types of the state's events
    """

    transitions: ClassVar[Mapping[type, Collection[type]]]

    def __init__(self, state: S) -> None:
        self.state = state
        # created when the first task waits for a move
        self._moved: asyncio.Event | None = None

    def expect(self, kind: type[T]) -> T:
        """Return the state if it is of a class.

        :raises RuntimeError: if the state is of another class
        """
        if not isinstance(self.state, kind):
            raise RuntimeError(f"it is {self.state!r}, expected {kind.__name__}")
        return self.state

    def move(self, state: S) -> None:
        """Change to the state that an event has returned.

        :raises RuntimeError: if this state may not follow the current one
        """
        before, after = type(self.state), type(state)
        if after not in self.transitions[before]:
            raise RuntimeError(f"{after.__name__} may not follow {before.__name__}")
        self.state = state
        self.wake()

    def wake(self) -> None:
        """Wake all tasks that wait for the next move."""
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    @property
    def moved(self) -> asyncio.Event:
        """An event that is set by the next move or the next :meth:`wake`."""
        self._moved = self._moved or asyncio.Event()
        return self._moved
