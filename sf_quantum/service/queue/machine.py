"""State machines: a state is an object; an event is a method that returns the next state."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import ClassVar, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Machine(Generic[S]):
    """An object with a state; belongs to the event loop's thread.

    The class of a state has the data of that state, and a method for each event that may
    happen in it. Type checking thus rejects an event that may not happen.

    :cvar transitions: for each state, the states that may follow: the return types of its
        events, as one table
    """

    transitions: ClassVar[Mapping[type, Collection[type]]]

    def __init__(self, state: S) -> None:
        self.state = state
        # made by the first waiter
        self._moved: asyncio.Event | None = None

    def expect(self, kind: type[T]) -> T:
        """Return the state, which must be of a class.

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
        """Wake all who wait for the next move."""
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    @property
    def moved(self) -> asyncio.Event:
        """The event that the next move, or :meth:`wake`, sets."""
        self._moved = self._moved or asyncio.Event()
        return self._moved
