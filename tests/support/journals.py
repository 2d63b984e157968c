"""Journals of runs that a test makes up."""

from __future__ import annotations

import json
from pathlib import Path

from sf_quantum.files import JSON
from sf_quantum.journal import Event


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


def write(path: Path, events: list[Event]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path
