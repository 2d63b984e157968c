"""Whether the QPU accepts work: the status that an operator set, and maintenance windows.

::

    open <--> draining <--> closed      set by operators, in any order

    draining   no job and no lease starts; the running job finishes
    closed     no job and no lease starts; the running job is interrupted

During a maintenance window, an open QPU is draining; the window does not change the status
that an operator set. Status and windows survive a restart.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias, cast

from sf_quantum.files import JSON
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.store import audit
from sf_quantum.service.store.reports.operation import Operation, last_status
from sf_quantum.service.store.store import Store
from sf_quantum.text import utc

Status: TypeAlias = Literal["open", "draining", "closed"]
_REASONS = {"draining": "the QPU is being drained", "closed": "the QPU is closed"}
_ACTIONS = {"open": "open", "draining": "drain", "closed": "close"}
# Interval in which a wait for a window checks whether the system's clock was set, and
# smallest change of the clock that is noticed.
CLOCK_CHECK_SECONDS = 60.0
STEP_SECONDS = 1.0
# maximum number of windows that are read at the start, those that end last
MAX_WINDOWS = 1000
# the user in audit entries of the service's own changes
SERVICE = "service"


@dataclass(frozen=True)
class MaintenanceWindow:
    """A period in which no job starts; times are seconds since the epoch.

    :param ends: end of the period; ``None`` if an operator ends it
    """

    id: int
    starts: float
    ends: float | None
    message: str

    @property
    def reason(self) -> str:
        until = "until it is opened"
        if self.ends is not None:
            until = f"until {utc(self.ends)}"
        return _with_message(f"the QPU is in maintenance {until}", self.message)

    @property
    def end(self) -> float:
        return math.inf if self.ends is None else self.ends

    def covers(self, now: float) -> bool:
        return self.starts <= now < self.end


class Availability:
    """The status and the maintenance windows of one QPU, kept in the store."""

    def __init__(self, store: Store) -> None:
        #: reason why the device accepts no work, such as its vendor's message; empty if it
        #: accepts work
        self.device_reason = ""
        self._store = store
        status, message = last_status(store) or ("open", "")
        self._status = cast("Status", status)
        self._message = message
        self._user = _last_user(store)
        # windows that have ended are included, since the system's clock may be set back
        rows = store.report(
            "SELECT id, starts, ends, message FROM windows "
            "ORDER BY ends IS NOT NULL, ends DESC LIMIT ?",
            MAX_WINDOWS,
        )
        windows = [MaintenanceWindow(*row) for row in rows]
        self._windows = sorted(windows, key=lambda one: one.starts)
        # held during a change, since each change depends on the previous change
        self._changing = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def status(self) -> Status:
        """The status that an operator set, or ``draining`` during a maintenance window."""
        return "draining" if self.in_maintenance else self._status

    @property
    def in_maintenance(self) -> bool:
        """Whether the QPU accepts no work because of a window."""
        return self._status == "open" and self.window is not None

    @property
    def operation(self) -> Operation:
        """``maintenance`` during a window, otherwise the status that an operator set."""
        return "maintenance" if self.window is not None else self._status

    @property
    def message(self) -> str:
        """The operator's message for the status or for the window."""
        window = self.window
        return window.message if window and self._status == "open" else self._message

    @property
    def user(self) -> str | None:
        """The operator who drained or closed the QPU."""
        return None if self._status == "open" else self._user

    @property
    def windows(self) -> list[MaintenanceWindow]:
        """The maintenance windows that have not ended, by start."""
        now = time.time()
        return [window for window in self._windows if window.end > now]

    @property
    def window(self) -> MaintenanceWindow | None:
        now = time.time()
        return next((one for one in self._windows if one.covers(now)), None)

    @property
    def next_maintenance(self) -> float | None:
        """The start of the next window, in seconds since the epoch."""
        now = time.time()
        return next((w.starts for w in self._windows if w.starts > now), None)

    @property
    def maintenance_seconds(self) -> float | None:
        starts = self.next_maintenance
        return None if starts is None else max(0.0, starts - time.time())

    @property
    def opens_at(self) -> float:
        """The earliest time at which the QPU may open, in seconds since the epoch.

        This is the end of the current maintenance. If there is no maintenance or its end is
        unknown, it is the current time: an operator may open the QPU at any time, which also
        ends the maintenance.
        """
        moment = time.time()
        for window in self.windows if self.in_maintenance else ():
            if window.covers(moment) and window.ends is not None:
                moment = window.ends
        return moment

    @property
    def is_open(self) -> bool:
        """Whether the operators allow the QPU to accept work."""
        return self.status == "open"

    @property
    def accepts_work(self) -> bool:
        """Whether the operators allow the QPU to accept work, and the device accepts it."""
        return self.is_open and not self.device_reason

    @property
    def reason(self) -> str:
        """The reason why the QPU accepts no work; empty if it accepts work."""
        if self._status != "open":
            return _with_message(_REASONS[self._status], self._message)
        window = self.window
        return window.reason if window else self.device_reason

    def check_open(self) -> None:
        """Refuse new jobs, with 503, unless the operators allow the QPU to accept work."""
        if not self.is_open:
            raise Refused(503, self.reason)

    def check(self) -> None:
        """Refuse new leases, with 503, while the QPU accepts no work."""
        if not self.accepts_work:
            raise Refused(503, self.reason)

    async def changed(self, window: MaintenanceWindow | None) -> None:
        """Wait until the status or the windows change, or ``window`` is no longer current.

        The wait also ends when the system's clock was set, since the windows then begin
        earlier or later than expected.
        """
        changed, offset = self._changed, _clock_offset()
        while not changed.is_set() and self.window == window:
            if abs(_clock_offset() - offset) > STEP_SECONDS:
                return
            now = time.time()
            times = [
                moment
                for planned in self.windows
                for moment in (planned.starts, planned.end)
            ]
            seconds = min((t - now for t in times if t > now), default=math.inf)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, CLOCK_CHECK_SECONDS)):
                    await changed.wait()

    async def opened(self) -> None:
        while True:
            # read before is_open, so that changed() notices if the window ends in between
            window = self.window
            if self.is_open:
                return
            await self.changed(window)

    async def set_status(
        self, status: Status, message: str = "", *, user: str = SERVICE
    ) -> None:
        """Open, drain or close the QPU; the change is on disk when this returns.

        Opening the QPU ends the current window and cancels a window without an end.

        :param message: message for users whose requests are refused
        :param user: user whom the audit names
        """
        async with self._changing:
            opens, now = status == "open", time.time()
            ended = [
                w for w in self.windows if opens and (w.covers(now) or w.ends is None)
            ]
            old: dict[str, JSON] = {"status": self.status, "message": self.message}
            new: dict[str, JSON] = {"status": status, "message": message}
            if ended:
                old["windows"], new["windows"] = [asdict(one) for one in ended], []
            parameters: dict[str, JSON] = {"message": message} if message else {}
            entry = audit.AuditEntry(user, _ACTIONS[status], parameters, old, new)

            def change(db: sqlite3.Connection) -> None:
                db.execute("DELETE FROM availability")
                db.execute(
                    "INSERT INTO availability (status, message) VALUES (?, ?)",
                    (status, message),
                )
                _delete(db, ended)
                audit.record(db, entry)

            await asyncio.wrap_future(self._store.change(change))
            self._status, self._message, self._user = status, message, user
            self._set_windows([one for one in self._windows if one not in ended])

    async def announce(
        self, user: str, starts: float, ends: float | None, message: str
    ) -> MaintenanceWindow:
        """Announce maintenance; a window without an end replaces an earlier such window.

        :raises Refused: 422 if the window ends too early, 409 if it overlaps with another
        """
        async with self._changing:
            replaced = [w for w in self.windows if ends is None and w.ends is None]
            other_windows = [
                window for window in self._windows if window not in replaced
            ]
            new_window = MaintenanceWindow(0, starts, ends, message)
            _check(
                new_window,
                [window for window in self.windows if window in other_windows],
            )

            def change(db: sqlite3.Connection) -> MaintenanceWindow:
                _cancel(db, user, replaced)
                query = "INSERT INTO windows (starts, ends, message) VALUES (?, ?, ?)"
                row = db.execute(query, (starts, ends, message)).lastrowid or 0
                added = replace(new_window, id=row)
                new = asdict(added)
                entry = audit.AuditEntry(user, "announce maintenance", new, {}, new)
                audit.record(db, entry)
                return added

            window = await asyncio.wrap_future(self._store.change(change))
            self._set_windows([*other_windows, window])
        return window

    async def cancel_windows(
        self, user: str, windows: Sequence[MaintenanceWindow]
    ) -> None:
        """Cancel windows, or end them early."""
        async with self._changing:
            cancelling = self._store.change(lambda db: _cancel(db, user, windows))
            await asyncio.wrap_future(cancelling)
            self._set_windows([one for one in self._windows if one not in windows])

    def _set_windows(self, windows: list[MaintenanceWindow]) -> None:
        self._windows = sorted(windows, key=lambda one: one.starts)
        self._changed.set()
        self._changed = asyncio.Event()


def _last_user(store: Store) -> str | None:
    names = ", ".join(f"'{action}'" for action in _ACTIONS.values())
    rows = store.report(
        f"SELECT user FROM audit WHERE action IN ({names}) ORDER BY number DESC LIMIT 1"
    )
    return rows[0]["user"] if rows else None


def _clock_offset() -> float:
    return time.time() - time.monotonic()


def _with_message(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason


def _check(window: MaintenanceWindow, others: Sequence[MaintenanceWindow]) -> None:
    if window.end <= max(window.starts, time.time()):
        raise Refused(422, "expected a time after `starts`, and after now", "ends")
    for other in others:
        if other.starts < window.end and window.starts < other.end:
            detail = f"it overlaps with window {other.id}, which can be cancelled"
            raise Refused(409, detail, "starts")


def _delete(db: sqlite3.Connection, windows: Sequence[MaintenanceWindow]) -> None:
    db.executemany("DELETE FROM windows WHERE id = ?", [(one.id,) for one in windows])


def _cancel(
    db: sqlite3.Connection, user: str, windows: Sequence[MaintenanceWindow]
) -> None:
    _delete(db, windows)
    for window in windows:
        action, parameters = "take maintenance back", {"id": window.id}
        audit.record(db, audit.AuditEntry(user, action, parameters, asdict(window)))
