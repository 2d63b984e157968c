"""The results of jobs that earlier runs have completed, for reuse in a resumed run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from sf_quantum import journal
from sf_quantum.errors import InputError
from sf_quantum.journal import Journal, events
from sf_quantum.journal.events import Event, Fingerprint, Inputs

#: Largest number of runs that are searched for results, the latest first.
LATEST_RUNS = 20
# states of jobs that have their outputs
_COMPLETED = ("completed", "reused")
SAME = "its inputs, command and environment are the same"


def difference(now: Fingerprint, before: Fingerprint) -> str:
    """Explain why a result with an earlier fingerprint is not valid now; empty if valid."""
    if now.command != before.command:
        return "its command or environment has changed"
    changes = [*_changes(now.inputs, before.inputs)]
    if changes:
        more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
        return f"{changes[0]}{more}"
    return "its target has changed" if now.target != before.target else ""


def _changes(now: Inputs, before: Inputs) -> Iterator[str]:
    """Describe the change of each input that has changed."""
    for name in dict.fromkeys([*now, *before]):
        new, old = now.get(name, {}), before.get(name, {})
        differing = [part for part in {**new, **old} if new.get(part) != old.get(part)]
        files = [part for part in differing if part]
        if files:
            change = "changed" if files[0] in old else "is new"
            change = change if files[0] in new else "is gone"
            yield f"its input {name} has changed: file {files[0]} {change}"
        elif differing:
            yield f"its input {name} has another value"


class EarlierResult(NamedTuple):
    """A completed job, and the name of its run."""

    run: str
    event: events.Result


@dataclass(frozen=True)
class Earlier:
    """The jobs of earlier runs of a StreamFlow file, from the journals of these runs.

    :param results: results by job, latest first
    :param started: the latest run that started the job, by job
    :param completed: jobs that the run in ``started`` has completed
    """

    results: dict[str, list[EarlierResult]] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)

    def add(self, event: Event, run: str) -> None:
        """Add an event; events must be added in reverse order, latest first."""
        match event:
            case events.Job(status="running"):
                self.started.setdefault(event.job, run)
            case events.Job() if event.status in _COMPLETED:
                if event.job not in self.started:
                    self.started[event.job] = run
                    self.completed.add(event.job)
            case events.Result():
                self.results.setdefault(event.job, []).append(EarlierResult(run, event))
                self.started.setdefault(event.job, run)


def earlier(record: Journal) -> Earlier:
    """Read the results of earlier runs of the same StreamFlow file from their journals."""
    found = Earlier()
    for path in islice(record.earlier(), LATEST_RUNS):
        with suppress(InputError, OSError):
            if journal.is_open(path):  # the run is still in progress
                continue
            for event in reversed(journal.read(path)):
                found.add(event, path.stem)
    return found
