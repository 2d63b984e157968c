"""The results of jobs that earlier runs have completed, which a resumed run reuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TypeAlias

from sf_quantum import journal
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.journal import Event, Journal

#: Largest number of runs that are searched for results, the latest first.
LATEST_RUNS = 20
#: digests by input, and by the parts of each
Inputs: TypeAlias = Mapping[str, Mapping[str, str]]
# states of a job that has its outputs
_COMPLETED = ("completed", "reused")
SAME = "its inputs, command and environment are the same"


@dataclass(frozen=True)
class Fingerprint:
    """Digests of all that the result of a job depends on.

    :param command: the tool: its command line and environment, and the programs it names
    :param inputs: digests of each input: of its files and folders, by name, and of its
        other values, under an empty name
    :param target: the kind of deployment, and its QPU or container
    """

    command: str
    inputs: Inputs
    target: str

    def difference(self, other: Fingerprint) -> str:
        """Explain why a result of another fingerprint is not this job's, if it is not."""
        if self.command != other.command:
            return "its command or environment has changed"
        changes = [*_changes(self.inputs, other.inputs)]
        if changes:
            more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
            return f"{changes[0]}{more}"
        return "its target has changed" if self.target != other.target else ""


def _changes(now: Inputs, before: Inputs) -> Iterator[str]:
    """Say which inputs have changed, and what of them."""
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


@dataclass(frozen=True)
class Result:
    """A completed job, where its outputs are, and the digest of these.

    :param run: the name of the run
    :param locations: names of the locations of its deployment
    :param output: the folder of its outputs there
    :param local: the folder is on the driver's machine
    :param contents: the digest of the folder
    """

    run: str
    job: str
    fingerprint: Fingerprint
    locations: tuple[str, ...]
    output: str
    local: bool
    exit_code: int
    contents: str

    def to_event(self) -> dict[str, JSON]:
        """The fields of its event, see :mod:`sf_quantum.journal`."""
        event: dict[str, JSON] = asdict(self)
        event["locations"] = [*self.locations]
        del event["run"]
        return event


@dataclass(frozen=True)
class Earlier:
    """What the journals of earlier runs of a StreamFlow file say of its jobs.

    :param results: results by job, the latest first
    :param started: the latest run that started each job
    :param completed: jobs that this run has completed
    """

    results: dict[str, list[Result]] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)

    def add(self, event: Event, run: str) -> None:
        """Add an event that is earlier than those before it."""
        job = str(event.get("job"))
        if event["event"] == "job":
            if event["status"] == "running":
                self.started.setdefault(job, run)
            elif event["status"] in _COMPLETED and job not in self.started:
                self.started[job] = run
                self.completed.add(job)
        elif (result := _result(event, run)) is not None:
            self.results.setdefault(job, []).append(result)
            self.started.setdefault(job, run)


def earlier(record: Journal) -> Earlier:
    """Read the results of earlier runs of the same StreamFlow file in their journals."""
    known = Earlier()
    for path in islice(record.earlier(), LATEST_RUNS):
        with suppress(InputError, OSError):
            if journal.is_open(path):  # it goes on
                continue
            for event in reversed(journal.read(path)):
                known.add(event, path.stem)
    return known


def _result(event: Event, run: str) -> Result | None:
    """The result that an event tells, if it is one."""
    if event["event"] != "result":
        return None
    digests = mapping(event.get("fingerprint"))
    return Result(
        run=run,
        job=str(event.get("job")),
        fingerprint=Fingerprint(
            command=str(digests.get("command")),
            inputs={
                name: {part: str(one) for part, one in mapping(parts).items()}
                for name, parts in mapping(digests.get("inputs")).items()
            },
            target=str(digests.get("target")),
        ),
        locations=tuple(map(str, listing(event.get("locations")))),
        output=str(event.get("output")),
        local=bool(event.get("local")),
        exit_code=int(journal.number(event.get("exit_code"))),
        contents=str(event.get("contents")),
    )
