"""The results of jobs that earlier runs have completed, which a resumed run reuses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice

from sf_quantum import journal
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.journal import Event, Journal

#: whose results are looked for
LATEST_RUNS = 20
SAME = "its inputs, command and environment are the same"


@dataclass(frozen=True)
class Fingerprint:
    """What the result of a job depends on, each as a digest.

    :param command: the tool: its command line and environment, and the programs it names
    :param inputs: values, and contents of files and folders
    :param target: the kind of deployment, and its QPU or container
    """

    command: str
    inputs: str
    target: str

    def difference(self, other: Fingerprint) -> str:
        """Explain why a result of another fingerprint is not this job's, if it is not."""
        for name, change in _CHANGES.items():
            if getattr(self, name) != getattr(other, name):
                return change
        return ""


_CHANGES = {
    "command": "its command or environment has changed",
    "inputs": "its inputs have changed",
    "target": "its target has changed",
}


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


def earlier(record: Journal) -> tuple[dict[str, list[Result]], dict[str, str]]:
    """The results of earlier runs of the same StreamFlow file; reads their journals.

    :returns: these by job, the latest first, and the latest run that started each job
    """
    results: dict[str, list[Result]] = {}
    started: dict[str, str] = {}
    for path in islice(record.earlier(), LATEST_RUNS):
        with suppress(InputError, OSError):
            if journal.is_open(path):  # it goes on
                continue
            for event in reversed(journal.read(path)):
                if event["event"] == "job" and event.get("status") == "running":
                    started.setdefault(str(event["job"]), path.stem)
                elif (result := _result(event, path.stem)) is not None:
                    results.setdefault(result.job, []).append(result)
                    started.setdefault(result.job, path.stem)
    return results, started


def _result(event: Event, run: str) -> Result | None:
    """The result that an event tells, if it is one."""
    if event["event"] != "result":
        return None
    digests = mapping(event.get("fingerprint"))
    return Result(
        run=run,
        job=str(event.get("job")),
        fingerprint=Fingerprint(*(str(digests.get(name)) for name in _CHANGES)),
        locations=tuple(map(str, listing(event.get("locations")))),
        output=str(event.get("output")),
        local=bool(event.get("local")),
        exit_code=int(journal.number(event.get("exit_code"))),
        contents=str(event.get("contents")),
    )
