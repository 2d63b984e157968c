"""Run times and spending of earlier attempts, from the journals of this run and earlier ones."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from sf_quantum import journal
from sf_quantum.errors import InputError
from sf_quantum.journal import Journal
from sf_quantum.journal.events import Event, Job, Qpu, Slurm

#: the numbers of latest jobs of a step and of earlier runs that are considered
LATEST_JOBS = 10
LATEST_RUNS = 20

logger = logging.getLogger(__name__)


class JobTimes(NamedTuple):
    """Seconds of a job: on the QPU, charged by it, and all others but the wait for it.

    :param pending_seconds: the part of ``other_seconds`` in which its Slurm job was
        pending
    """

    device_seconds: float
    qpu_seconds: float
    other_seconds: float
    pending_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        """From the job's start to its end, without waiting."""
        return self.device_seconds + self.other_seconds


@dataclass
class _RecordedAttempt:
    """An attempt in the journal that has not ended."""

    step: str
    target: str = ""
    started: float | None = None
    lease_seconds: float = 0.0
    queued_seconds: float = 0.0
    device_seconds: float = 0.0
    qpu_seconds: float = 0.0
    pending_seconds: float = 0.0


class History:
    """The events of this run and of earlier runs of its StreamFlow file."""

    def __init__(self) -> None:
        #: targets whose QPU does not report what was spent on it
        self.unmetered: set[str] = set()
        #: whether the journals have been read
        self.is_read = False
        #: bytes of this run's journal whose events have been added
        self.offset = 0
        self._read_to = 0
        self._reading: asyncio.Task[None] | None = None
        self._attempts: dict[str, _RecordedAttempt] = {}
        self._times: defaultdict[tuple[str, str], deque[JobTimes]] = defaultdict(
            lambda: deque(maxlen=LATEST_JOBS)
        )
        self._spent: defaultdict[tuple[str, str], float] = defaultdict(float)
        # seconds charged for a QPU job, by its QPU and its id there
        self._charged: dict[tuple[str, str | None], float] = {}

    async def update(self, seconds: float) -> None:
        """Read the journals, which continues in the background after a timeout."""
        record = journal.current()
        if record is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._reading is not None:
                    # it may miss the latest events
                    await asyncio.wait([self._reading])
                if self._reading is None or self._reading.done():
                    self._reading = asyncio.create_task(self._read_on(record))
                await asyncio.wait([self._reading])

    def read(self, record: Journal) -> list[tuple[Event, bool]]:
        """Read the events since the last call, for :meth:`add`; blocks."""
        events = [] if self.is_read else list(_earlier(record))
        new, self._read_to = journal.read_on(record.path, self._read_to)
        return [*events, *((event, True) for event in new)]

    def add(self, events: Iterable[tuple[Event, bool]]) -> None:
        """Learn from events, each with whether its usage counts against the budget."""
        for event, budgeted in events:
            match event:
                case Qpu():
                    self._add_qpu_job(event, budgeted)
                case Slurm():
                    self._add_slurm_job(event)
                case Job():
                    self._add_status(event)
        self.is_read, self.offset = True, self._read_to

    def times(self, step: str, target: str) -> JobTimes | None:
        """The median times of the latest jobs of a step completed on a target, if any."""
        latest = self._times.get((step, target))
        return JobTimes(*map(median, zip(*latest, strict=True))) if latest else None

    def spent(self, step: str | None = None) -> dict[str, float]:
        """QPU seconds spent by a step, or by all, by target."""
        totals: defaultdict[str, float] = defaultdict(float)
        for (spender, target), seconds in self._spent.items():
            if step in (None, spender):
                totals[target] += seconds
        return dict(totals)

    async def _read_on(self, record: Journal) -> None:
        try:
            # added on the event loop, so that readers never see a part of the events
            self.add(await asyncio.to_thread(self.read, record))
        except (OSError, ValueError) as error:
            logger.warning("the run's journal cannot be read: %s", error)

    def _add_qpu_job(self, event: Qpu, budgeted: bool) -> None:
        attempt = self._attempts.get(event.job)
        if attempt is None:
            return
        if event.qpu_job is None:
            self.unmetered.add(attempt.target)
        # The wait is one, repeated with each of the QPU jobs under its lease
        attempt.lease_seconds = event.lease_seconds
        attempt.queued_seconds += event.queued_seconds or 0.0
        attempt.device_seconds += event.ran_seconds or 0.0
        seconds = event.qpu_seconds or 0.0
        attempt.qpu_seconds += seconds
        if budgeted:
            # seconds that an earlier event has counted are not counted again
            key = (event.qpu, event.qpu_job)
            before = self._charged.get(key, 0.0) if event.found else 0.0
            self._charged[key] = max(seconds, before)
            self._spent[attempt.step, attempt.target] += max(0.0, seconds - before)

    def _add_slurm_job(self, event: Slurm) -> None:
        attempt = self._attempts.get(event.job)
        if attempt is not None and event.started is not None:
            attempt.pending_seconds = max(0.0, event.started - event.submitted)

    def _add_status(self, event: Job) -> None:
        if event.status == "waiting":
            self._attempts[event.job] = _RecordedAttempt(event.step)
            return
        attempt = self._attempts.get(event.job)
        if attempt is None:
            return
        attempt.target = event.target or attempt.target
        if event.status == "running":
            attempt.started = event.time
        elif event.status == "completed" and attempt.started is not None:
            ran = event.time - attempt.started
            waited = attempt.lease_seconds + attempt.queued_seconds
            other = max(0.0, ran - waited - attempt.device_seconds)
            pending = min(attempt.pending_seconds, other)
            times = JobTimes(
                attempt.device_seconds, attempt.qpu_seconds, other, pending
            )
            self._times[attempt.step, attempt.target].append(times)


def _earlier(record: Journal) -> Iterator[tuple[Event, bool]]:
    """The events of earlier runs of the same StreamFlow file.

    A run with ``resumes`` shares the budget of the run before it, regardless of how that
    ended; any other run has its own.
    """
    runs: list[tuple[list[Event], bool]] = []
    shares = True
    for number, run in enumerate(record.predecessors()):
        shares = shares and run.is_resumed
        if number >= LATEST_RUNS and not shares:
            break
        # A driver that runs at the same time has a budget of its own.
        runs.append((run.events, shares and not run.is_open))
    for events, budgeted in reversed(runs):
        yield from ((event, budgeted) for event in events)


def earlier_runs(directory: Path, file: Path) -> Iterator[tuple[Event, bool]]:
    """Yield the events of a file's runs, none of which counts against a budget.

    :param directory: folder of the journals
    :param file: the StreamFlow file, resolved
    """
    runs = islice(journal.latest_first(directory, file), LATEST_RUNS)
    for path in reversed([*runs]):
        with suppress(InputError):  # a corrupt journal
            yield from ((event, False) for event in journal.read(path))
