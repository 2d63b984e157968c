"""Whether the QPU takes work: open, draining or closed, with the operator's message."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import Literal, TypeAlias, cast

from sf_quantum.files import JSON
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.queue import maintenance
from sf_quantum.service.queue.maintenance import Window
from sf_quantum.service.store import audit
from sf_quantum.service.store.store import Store

Status: TypeAlias = Literal["open", "draining", "closed"]
_WORDS = {"draining": "the QPU is being drained", "closed": "the QPU is closed"}
_ACTIONS = {"open": "open", "draining": "drain", "closed": "close"}
# the machine's clock may be set meanwhile
LOOK_SECONDS = 60.0
_NEVER = float("inf")
# who turns the switch where nobody asked over HTTP
SERVICE = "service"
logger = logging.getLogger(__name__)


class Door:
    """The operator's switch, and the maintenance that shuts the QPU by itself.

    Both stay as they are over a restart. At a window's start the QPU is drained; what
    the switch says comes back at its end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        status, message = store.door() or ("open", "")
        self._switch = cast("Status", status)
        self._message = message
        self._windows = maintenance.load(store)
        self._seen: Window | None = None
        self._timer: asyncio.TimerHandle | None = None
        # one change at a time: each depends on what the one before it left
        self._turning = asyncio.Lock()
        self._listeners: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to look at the clock; needs an event loop."""
        self._seen = self.window
        self._look()

    def stop(self) -> None:
        """Look at the clock no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def status(self) -> Status:
        """What the switch says, or ``draining`` in a maintenance window."""
        lasts = self._switch == "open" and self.window is not None
        return "draining" if lasts else self._switch

    @property
    def message(self) -> str:
        """The operator's, of the switch or of the window."""
        window = self.window
        return window.message if window and self._switch == "open" else self._message

    @property
    def windows(self) -> list[Window]:
        """The maintenance windows that are not over, in the order of their starts."""
        now = time.time()
        return [window for window in self._windows if not window.over(now)]

    @property
    def window(self) -> Window | None:
        """The maintenance window that lasts."""
        now = time.time()
        return next((one for one in self._windows if one.covers(now)), None)

    @property
    def maintenance(self) -> float | None:
        """When the next window starts, in seconds since the epoch."""
        now = time.time()
        return next((w.starts for w in self._windows if w.starts > now), None)

    @property
    def is_open(self) -> bool:
        """Whether jobs and leases start."""
        return self.status == "open"

    @property
    def reason(self) -> str:
        """Why the QPU takes no work, empty while it does."""
        window = self.window
        if self._switch == "open":
            return window.words if window else ""
        words = _WORDS[self._switch]
        return f"{words}: {self._message}" if self._message else words

    def check(self) -> None:
        """Refuse to start anything while the QPU takes no work.

        :raises Refused: 503
        """
        if not self.is_open:
            raise Refused(503, self.reason)

    def fits(self, seconds: float) -> bool:
        """Say whether a job of so many seconds would end before the next window."""
        return time.time() + seconds <= (self.maintenance or _NEVER)

    def starts_in(self, wait: float, seconds: float) -> float | None:
        """Expect when a job starts, between the windows.

        :param wait: seconds of work before it
        :param seconds: that it takes itself
        :returns: seconds from now; ``None`` while nobody can tell
        """
        if self._switch != "open":
            return None
        now = at = time.time()
        for window in self.windows:
            if at + wait + seconds <= window.starts:
                break
            if window.ends is None:
                return None
            # what fits before the window is done by its end
            wait -= min(wait, max(0.0, window.starts - at))
            at = window.ends
        return at + wait - now

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function whenever the QPU is opened or shut, or will be."""
        self._listeners.append(listener)

    async def turn(
        self, status: Status, message: str = "", *, user: str = SERVICE
    ) -> None:
        """Turn the switch; on the disk when this returns.

        To open it ends the window that lasts, and takes back those without an end.

        :param message: shown to whoever is refused
        :param user: who turns it, for the audit
        """
        async with self._turning:
            await self._turn(status, message, user)
        self._changed()

    async def _turn(self, status: Status, message: str, user: str) -> None:
        opens, now = status == "open", time.time()
        gone = [w for w in self.windows if opens and (w.covers(now) or w.ends is None)]
        old: dict[str, JSON] = {"status": self.status, "message": self.message}
        new: dict[str, JSON] = {"status": status, "message": message}
        if gone:
            old["windows"], new["windows"] = [window.told for window in gone], []
        about: dict[str, JSON] = {"message": message} if message else {}
        entry = audit.Entry(user, _ACTIONS[status], about, old, new)

        def change(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM door")
            db.execute("INSERT INTO door VALUES (?, ?)", (status, message))
            for window in gone:
                maintenance.forget(db, window)
            audit.record(db, entry)

        await asyncio.wrap_future(self._store.change(change))
        self._switch, self._message = status, message
        self._windows = [window for window in self._windows if window not in gone]

    async def announce(
        self, user: str, starts: float, ends: float | None, message: str
    ) -> Window:
        """Announce maintenance; one without an end takes the place of another such.

        :raises Refused: 422 or 409, see :func:`sf_quantum.service.queue.maintenance.check`
        """
        async with self._turning:
            known = self.windows
            replaced = [one for one in known if ends is None and one.ends is None]
            kept = [one for one in known if one not in replaced]
            wanted = Window(0, starts, ends, message)
            maintenance.check(wanted, kept)
            window = await asyncio.wrap_future(
                maintenance.add(self._store, user, wanted, replaced)
            )
            self._windows = sorted([*kept, window], key=lambda one: one.starts)
        self._changed()
        return window

    async def take_back(self, user: str, gone: list[Window]) -> None:
        """Take windows back, or end them early."""
        async with self._turning:
            await asyncio.wrap_future(maintenance.remove(self._store, user, gone))
            self._windows = [one for one in self._windows if one not in gone]
        self._changed()

    def _changed(self) -> None:
        self._seen = self.window
        for listener in self._listeners:
            listener()
        if self._timer is not None:  # else there is no loop, or it has ended
            self._look()

    def _look(self) -> None:
        """Take note of a window's start or end, and look again at the next one."""
        if self.window != self._seen:
            begins = self.window
            words = begins.words if begins else "maintenance is over"
            logger.info("%s", words)
            self._seen = begins
            for listener in self._listeners:
                listener()
        now, self._windows = time.time(), self.windows
        times = [t for w in self._windows for t in (w.starts, w.ends) if t is not None]
        pause = min((t - now for t in times if t > now), default=LOOK_SECONDS)
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(pause, LOOK_SECONDS), self._look)
