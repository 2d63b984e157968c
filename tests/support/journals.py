"""Journals of runs that a test makes up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from sf_quantum import journal
from sf_quantum.files import JSON
from sf_quantum.journal import Journal, events
from sf_quantum.reporting import attempts, run_usage
from sf_quantum.reporting.attempts import JobAttempt
from sf_quantum.reporting.progress import progress_lines
from sf_quantum.reporting.run_usage import RunUsage

#: the content of an event's line; a test may leave fields out: see `whole`
Event: TypeAlias = dict[str, JSON]

# a value of each type that says nothing
_EMPTY: Mapping[str, JSON] = {
    "Amount": 0.0,
    "Fingerprint": {"command": "", "inputs": {}, "target": ""},
    "Flag": False,
    "Number": 0.0,
    "Qpus": [],
    "Status": "completed",
    "Tag": "0",
    "Text": "",
    "Texts": [],
    "Versions": {},
    "Waits": {},
    "Whole": 0,
}


def whole(event: Event) -> Event:
    """Add the fields that every event of its kind has."""
    kind = events.KINDS.get(str(event["event"]), events.Event)
    empty = {
        one.name: None if one.is_nullable else _EMPTY[one.type]
        for one in events.FIELDS[kind]
    }
    return {**empty, **event}


def typed(contents: Iterable[Event]) -> Iterator[events.Event]:
    """The events as a reader of their whole lines has them."""
    return (events.parse(line(content).encode()) for content in contents)


def read(path: str | Path) -> list[Event]:
    """The contents of a journal's lines."""
    return [event.to_json() for event in journal.read(path)]


def collect(contents: Iterable[Event]) -> list[JobAttempt]:
    return attempts.collect(typed(contents))


def progress(contents: Iterable[Event]) -> Iterator[str]:
    return progress_lines(typed(contents))


def measure(contents: Iterable[Event]) -> RunUsage:
    return run_usage.measure(typed(contents))


def line(event: Event) -> str:
    """The line of a whole event in a journal."""
    return f"{json.dumps(whole(event))}\n"


def event(
    at: float, step: str, tag: str, status: str, attempt: int = 1, **more: JSON
) -> Event:
    started = status not in ("waiting", "rollback")
    return {
        "time": at,
        "event": "job",
        "job": f"{step}/{tag}",
        "step": step,
        "tag": tag,
        "loops": 1,
        "status": status,
        "attempt": attempt,
        "output": None,
        "deployment": "nodes" if started else None,
        "service": None,
        "locations": ["c1"] if started else [],
        **more,
    }


def a_run(output: Path | None = None) -> list[Event]:
    """Two iterations; in the second the job is tried twice."""
    score = str(output) if output else None
    return [
        {"time": 0.0, "event": "run", "run": "r"},
        event(0.0, "/in-injector", "0", "waiting"),
        event(0.5, "/loop/a", "0.0.1", "waiting"),
        event(1.0, "/loop/a", "0.0.1", "fireable"),
        event(2.0, "/loop/a", "0.0.1", "running"),
        event(5.0, "/loop/a", "0.0.1", "completed", output=score),
        event(5.0, "/loop/b", "0.1", "waiting", 1),
        event(5.1, "/loop/b", "0.1", "running", 1, deployment="qpu", locations=["qpu"]),
        {"time": 5.9, "event": "qpu", "job": "/loop/b/0.1", "qpu_job": "1"},
        event(6.0, "/loop/b", "0.1", "recovery", 1, deployment="qpu", locations=[]),
        event(6.1, "/loop/b", "0.1", "rollback", 1),
        event(6.2, "/loop/b", "0.1", "waiting", 2),
        event(6.3, "/loop/b", "0.1", "fireable", 2, deployment="__LOCAL__"),
        event(6.4, "/loop/b", "0.1", "running", 2, locations=["__LOCAL__"]),
        event(9.4, "/loop/b", "0.1", "completed", 2),
        {"time": 9.5, "event": "end", "status": "completed"},
    ]


def write(path: Path, events: Iterable[Event]) -> Path:
    """Write a journal of whole events, and the folder that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(line, events)))
    return path


def append(journal: Journal, event: Event) -> None:
    """Write a whole event, now, into a journal."""
    journal.write(*typed([{**event, "time": time.time()}]))
