"""What the journals say of a workflow's jobs: how long they took, what they spent."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

from sf_quantum import journal
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.journal import Event, Journal

#: so many of the latest jobs of a step count, and so many earlier runs
LATEST = 10
RUNS = 20


@dataclass
class _Attempt:
    """An attempt that has not ended."""

    step: str
    target: str = ""
    started: float | None = None
    lease_seconds: float = 0.0
    queued_seconds: float = 0.0
    device_seconds: float = 0.0
    qpu_seconds: float = 0.0


@dataclass(frozen=True)
class Took:
    """How a job of a step on a target spent its time, less its waiting.

    :param device_seconds: on the QPU, as they went by
    :param qpu_seconds: on the QPU, as charged
    :param beside_seconds: everything else: starting, reading, writing
    """

    device_seconds: float
    qpu_seconds: float
    beside_seconds: float


@dataclass
class History:
    """Events taken in one after the other, of one run or several."""

    #: targets whose QPU does not tell what was done on it
    silent: set[str] = field(default_factory=set)
    _attempts: dict[str, _Attempt] = field(default_factory=dict)
    _took: defaultdict[tuple[str, str], deque[Took]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=LATEST))
    )
    _spent: defaultdict[tuple[str, str], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    #: seconds charged for a QPU job, by its QPU and its id there
    _charged: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, event: Event, *, paid: bool) -> None:
        """Take an event in.

        :param paid: what it spent counts against this run's budget
        """
        if event["event"] == "qpu":
            self._qpu(event, paid)
        elif event["event"] == "job":
            self._job(event)

    def took(self, step: str, target: str) -> Took | None:
        """How long a step takes on a target, the median of the latest jobs.

        :returns: None if no job of it has completed there
        """
        latest = self._took.get((step, target))
        if not latest:
            return None
        return Took(
            median(took.device_seconds for took in latest),
            median(took.qpu_seconds for took in latest),
            median(took.beside_seconds for took in latest),
        )

    def spent(self, step: str | None = None) -> dict[str, float]:
        """QPU seconds spent by a step, or by all, by target."""
        totals: defaultdict[str, float] = defaultdict(float)
        for (of, target), seconds in self._spent.items():
            if step in (None, of):
                totals[target] += seconds
        return dict(totals)

    def _qpu(self, event: Event, paid: bool) -> None:
        attempt = self._attempts.get(str(event["job"]))
        if attempt is None:
            return
        if event.get("qpu_job", "") is None:
            self.silent.add(attempt.target)
        # one wait, told with each of the QPU jobs under its lease
        attempt.lease_seconds = _number(event.get("lease_seconds"))
        attempt.queued_seconds += _number(event.get("queued_seconds"))
        attempt.device_seconds += _number(event.get("ran_seconds"))
        seconds = _number(event.get("qpu_seconds"))
        attempt.qpu_seconds += seconds
        if paid:
            self._spent[attempt.step, attempt.target] += self._charge(event, seconds)

    def _charge(self, event: Event, seconds: float) -> float:
        """What of a QPU job's seconds no journal that is paid for has told before."""
        key = (str(event.get("qpu")), str(event.get("qpu_job")))
        before = self._charged.get(key, 0.0) if event.get("found") else 0.0
        self._charged[key] = max(seconds, before)
        return max(0.0, seconds - before)

    def _job(self, event: Event) -> None:
        job, status = str(event["job"]), event["status"]
        if status == "waiting":
            self._attempts[job] = _Attempt(str(event["step"]))
            return
        attempt = self._attempts.get(job)
        if attempt is None:
            return
        attempt.target = target(event) or attempt.target
        if status == "running":
            attempt.started = _number(event["time"])
        elif status == "completed":
            self._complete(attempt, _number(event["time"]))

    def _complete(self, attempt: _Attempt, ended: float) -> None:
        if attempt.started is None:
            return
        ran = ended - attempt.started
        waited = attempt.lease_seconds + attempt.queued_seconds
        beside = max(0.0, ran - waited - attempt.device_seconds)
        self._took[attempt.step, attempt.target].append(
            Took(attempt.device_seconds, attempt.qpu_seconds, beside)
        )


class Past:
    """The journals of this run and of earlier ones of its workflows, read as they grow.

    :param record: of this run
    :param workflows: of its StreamFlow file
    """

    def __init__(self, record: Journal) -> None:
        self.history = History()
        #: whether anything is known at all
        self.known = False
        self._record = record
        self._read = 0

    def read(self) -> list[tuple[Event, bool]]:
        """Read what has been written since the last time; blocks.

        :returns: events for :meth:`take`, and whether each is paid for
        """
        events = [] if self.known else list(self._earlier())
        with open(self._record.path, "rb") as file:
            file.seek(self._read)
            read = self._read
            while (line := file.readline()).endswith(b"\n"):
                read += len(line)
                events.append((json.loads(line), True))
        self._read = read
        return events

    def take(self, events: Iterable[tuple[Event, bool]]) -> None:
        """Take in what was read."""
        for event, paid in events:
            self.history.add(event, paid=paid)
        self.known = True

    def _earlier(self) -> Iterator[tuple[Event, bool]]:
        own, first = self._record.path, self._record.first
        earlier = sorted(
            (p for p in own.parent.glob("*.jsonl") if p < own), reverse=True
        )
        same = islice((path for path in earlier if self._is_same(path)), RUNS)
        for path in reversed(list(same)):
            with suppress(InputError):  # it is spoilt
                # a driver that lives beside this one has a budget of its own
                paid = path.name >= first.name and not journal.is_open(path)
                yield from ((event, paid) for event in journal.read(path))

    def _is_same(self, path: Path) -> bool:
        with suppress(InputError):  # not one of ours
            return journal.is_of(path, self._record.file)
        return False


def target(event: Event) -> str:
    """A target of an event, as the StreamFlow file calls it: deployment/service."""
    parts = (event.get("deployment"), event.get("service"))
    return "/".join(str(part) for part in parts if part)


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
