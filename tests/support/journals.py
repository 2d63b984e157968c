"""Journals of runs that a test makes up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from sf_quantum.files import JSON
from sf_quantum.journal import Journal
from sf_quantum.journal.events import FIELDS, Event

# a value of each type that says nothing
_EMPTY: Mapping[str, JSON] = {
    "flag": False,
    "list": [],
    "mapping": {},
    "amount": 0.0,
    "number": 0.0,
    "status": "completed",
    "tag": "0",
    "text": "",
    "texts": [],
    "whole": 0,
}


def whole(event: Event) -> Event:
    """Add the fields that every event of its kind has."""
    types = FIELDS.get(str(event["event"]), {})
    empty = {
        name: None if type_.endswith("?") else _EMPTY[type_]
        for name, type_ in types.items()
    }
    return {**empty, "time": 0.0, **event}


def line(event: Event) -> str:
    """The line of a whole event in a journal."""
    return f"{json.dumps(whole(event))}\n"


def event(
    time: float, step: str, tag: str, status: str, attempt: int = 1, **more: JSON
) -> Event:
    started = status not in ("waiting", "rollback")
    return {
        "time": time,
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
    fields = whole(event)
    del fields["time"]
    journal.write(str(fields.pop("event")), **fields)
