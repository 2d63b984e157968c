"""Times and QPU usage of earlier attempts, from the journals of this and earlier runs."""

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
from sf_quantum.journal.events import Decision, Event, Job, Qpu, Slurm
from sf_quantum.qpu import JobSize

#: number of a step's latest jobs on a target that determine the expected times
MAX_JOBS = 10
#: number of earlier runs that are read; more are read if they share the budget
MAX_RUNS = 20

logger = logging.getLogger(__name__)


class JobTimes(NamedTuple):
    """The times of a job in seconds, without its waits for the QPU.

    :param device_seconds: time for which the QPU ran the job
    :param qpu_seconds: time that the QPU charged for the job
    :param other_seconds: time off the QPU, except waits for the QPU
    :param pending_seconds: part of ``other_seconds`` in which the Slurm job was pending
    """

    device_seconds: float
    qpu_seconds: float
    other_seconds: float
    pending_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        """Seconds from the job's start to its end, without waits for the QPU."""
        return self.device_seconds + self.other_seconds


@dataclass
class _RecordedAttempt:
    """What the journal has recorded of an attempt so far.

    :param started: time at which the job began to run; ``None`` if it has not begun
    """

    step: str
    target: str = ""
    started: float | None = None
    lease_seconds: float = 0.0
    queued_seconds: float = 0.0
    device_seconds: float = 0.0
    qpu_seconds: float = 0.0
    pending_seconds: float = 0.0


class History:
    """Times and QPU usage in this run and in earlier runs of the StreamFlow file."""

    def __init__(self) -> None:
        #: targets whose QPU does not report its usage
        self.unmetered: set[str] = set()
        #: whether the journals have been read
        self.is_read = False
        #: number of bytes of this run's journal whose events have been added
        self.offset = 0
        # number of bytes of this run's journal that have been read, added or not
        self._read_offset = 0
        self._reading_task: asyncio.Task[None] | None = None
        self._attempts: dict[str, _RecordedAttempt] = {}
        self._times: defaultdict[tuple[str, str], deque[JobTimes]] = defaultdict(
            lambda: deque(maxlen=MAX_JOBS)
        )
        self._sizes: dict[str, JobSize] = {}
        self._spent: defaultdict[tuple[str, str], float] = defaultdict(float)
        # seconds charged for each QPU job, by QPU and job id
        self._charged: dict[tuple[str, str | None], float] = {}

    async def update(self, seconds: float) -> None:
        """Read new events of the journals.

        :param seconds: timeout; after it, reading continues in the background
        """
        record = journal.current()
        if record is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._reading_task is not None:
                    # A read in progress may have begun before the latest events were
                    # written, so another follows.
                    await asyncio.wait([self._reading_task])
                if self._reading_task is None or self._reading_task.done():
                    self._reading_task = asyncio.create_task(
                        self._read_new_events(record)
                    )
                await asyncio.wait([self._reading_task])

    def read(self, record: Journal) -> list[tuple[Event, bool]]:
        """Return the events since the last call, in the form for :meth:`add`; blocks."""
        events = [] if self.is_read else list(_earlier_events(record))
        new, self._read_offset = journal.read_on(record.path, self._read_offset)
        return [*events, *((event, True) for event in new)]

    def add(self, events: Iterable[tuple[Event, bool]]) -> None:
        """Update the times and the usage.

        :param events: pairs of an event, and whether its usage is charged to the budget
        """
        for event, is_budgeted in events:
            match event:
                case Qpu():
                    self._add_qpu_job(event, is_budgeted)
                case Slurm():
                    self._add_slurm_job(event)
                case Job():
                    self._add_status(event)
                case Decision(reads=int(reads)):
                    self._sizes[event.step] = JobSize(event.variables, reads)
        self.is_read, self.offset = True, self._read_offset

    def times(self, step: str, target: str) -> JobTimes | None:
        """Return the median times of a step's latest jobs on a target; ``None`` if none."""
        latest = self._times.get((step, target))
        if not latest:
            return None
        times = JobTimes(*map(median, zip(*latest, strict=True)))
        # Callers subtract the pending time from the total time. The difference must be the
        # median time without pending, which the difference of two medians would not be.
        ran = median(job.other_seconds - job.pending_seconds for job in latest)
        return times._replace(pending_seconds=times.other_seconds - ran)

    def size(self, step: str) -> JobSize | None:
        """Return the size of a step's latest job, on any target; ``None`` if unknown."""
        return self._sizes.get(step)

    def spent(self, step: str | None = None) -> dict[str, float]:
        """Return the QPU seconds charged to the budget, by target.

        :param step: step whose seconds are returned; ``None`` for all steps
        """
        totals: defaultdict[str, float] = defaultdict(float)
        for (spender, target), seconds in self._spent.items():
            if step in (None, spender):
                totals[target] += seconds
        return dict(totals)

    async def _read_new_events(self, record: Journal) -> None:
        try:
            # The events are added on the event loop, so that no reader sees only some of them.
            self.add(await asyncio.to_thread(self.read, record))
        except (OSError, ValueError) as error:
            logger.warning("the run's journal cannot be read: %s", error)

    def _add_qpu_job(self, event: Qpu, is_budgeted: bool) -> None:
        """Add a QPU job's times to its attempt, and its seconds to the spent budget."""
        attempt = self._attempts.get(event.job)
        if attempt is None:
            return
        if event.qpu_job is None:
            self.unmetered.add(attempt.target)
        # Every QPU job under the lease reports the same wait for the lease.
        attempt.lease_seconds = event.lease_seconds
        attempt.queued_seconds += event.queued_seconds or 0.0
        attempt.device_seconds += event.ran_seconds or 0.0
        seconds = event.qpu_seconds or 0.0
        attempt.qpu_seconds += seconds
        if is_budgeted:
            # If a QPU job was recovered, an earlier event may have a part of its seconds.
            key = (event.qpu, event.qpu_job)
            before = self._charged.get(key, 0.0) if event.found else 0.0
            self._charged[key] = max(seconds, before)
            self._spent[attempt.step, attempt.target] += max(0.0, seconds - before)

    def _add_slurm_job(self, event: Slurm) -> None:
        attempt = self._attempts.get(event.job)
        if attempt is not None and event.started is not None:
            attempt.pending_seconds = max(0.0, event.started - event.submitted)

    def _add_status(self, event: Job) -> None:
        """Follow an attempt from its beginning; when the job completes, add its times."""
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


def _earlier_events(record: Journal) -> Iterator[tuple[Event, bool]]:
    """Yield the events of earlier runs of the StreamFlow file, oldest first.

    Each event is paired with whether its usage is charged to the budget of this run. A run
    that is resumed shares its budget with this run, regardless of how it ended.
    """
    runs: list[tuple[list[Event], bool]] = []
    shares_budget = True
    for number, run in enumerate(record.predecessors()):
        shares_budget = shares_budget and run.is_resumed
        if number >= MAX_RUNS and not shares_budget:
            break
        # A run that is still in progress has a separate budget.
        runs.append((run.events, shares_budget and not run.is_open))
    for events, is_budgeted in reversed(runs):
        yield from ((event, is_budgeted) for event in events)


def earlier_runs(directory: Path, file: Path) -> Iterator[tuple[Event, bool]]:
    """Yield the events of a file's latest runs, which are not charged to a budget.

    :param directory: folder of the journals
    :param file: resolved path of the StreamFlow file
    """
    runs = islice(journal.latest_first(directory, file), MAX_RUNS)
    for path in reversed([*runs]):
        with suppress(InputError):  # a corrupt journal
            yield from ((event, False) for event in journal.read(path))
