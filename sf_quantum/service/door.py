"""Whether the QPU takes work: open, draining or closed, with the operator's message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, TypeAlias, cast

from sf_quantum.service.refusal import Refused
from sf_quantum.service.store import Store

Status: TypeAlias = Literal["open", "draining", "closed"]
_WORDS = {"draining": "the QPU is being drained", "closed": "the QPU is closed"}


class Door:
    """The operator's switch; it stays as it is over a restart."""

    def __init__(self, store: Store) -> None:
        self._store = store
        status, message = store.door() or ("open", "")
        self.status = cast("Status", status)
        self.message = message
        # announced by the operator: when it will be shut, in seconds since the epoch
        self.maintenance: float | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """Whether jobs and leases start."""
        return self.status == "open"

    @property
    def reason(self) -> str:
        """Why the QPU takes no work, empty while it does."""
        if self.is_open:
            return ""
        words = _WORDS[self.status]
        return f"{words}: {self.message}" if self.message else words

    def check(self) -> None:
        """Refuse to start anything while the QPU takes no work.

        :raises Refused: 503
        """
        if not self.is_open:
            raise Refused(503, self.reason)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function whenever the switch was turned."""
        self._listeners.append(listener)

    async def turn(self, status: Status, message: str = "") -> None:
        """Turn the switch; on the disk when this returns.

        :param message: shown to whoever is refused
        """
        await asyncio.wrap_future(self._store.set_door(status, message))
        self.status, self.message = status, message
        if self.is_open:
            self.maintenance = None  # it is over
        for listener in self._listeners:
            listener()
