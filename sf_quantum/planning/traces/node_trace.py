"""Jobs as they were recorded, and those that had to be left out."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

from sf_quantum.errors import InputError
from sf_quantum.files import cannot_read

#: Largest number of lines in a trace; their jobs take less than a gigabyte.
MOST_LINES = 2_000_000
_LONGEST_LINE = 1_000_000


class NodeJob(NamedTuple):
    """A job on nodes; times are in seconds, submission since the trace's start.

    :param nodes: number of nodes by partition; those of a heterogeneous job are granted
        at once
    :param estimate: the user's estimate of the run time, at least the run time
    """

    submitted: float
    nodes: Mapping[str, int]
    seconds: float
    estimate: float


@dataclass
class NodeTrace:
    """The jobs of a trace, in the order of submission.

    :param left_out: jobs that were left out, by the reason
    :param file: name of the file with the trace
    """

    jobs: list[NodeJob] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    file: str = ""

    def __len__(self) -> int:
        return len(self.jobs)

    def sort(self) -> None:
        """Order the jobs by submission; those of the same time stay as they are."""
        self.jobs.sort(key=lambda job: job.submitted)

    def starting(self, seconds: float) -> NodeTrace:
        """Return the jobs from a time on, with times counted from there."""
        return NodeTrace(
            [
                job._replace(submitted=job.submitted - seconds)
                for job in self.jobs
                if job.submitted >= seconds
            ],
            self.left_out,
            self.file,
        )


def read(
    path: Path, kind: str, parse: Callable[[Iterable[str]], NodeTrace]
) -> NodeTrace:
    """Read a trace of jobs on nodes.

    :param kind: the expected content, for messages
    :raises InputError: if it cannot be read, or no job is left
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            trace = parse(bounded(file))
    except OSError as error:
        raise cannot_read(path, kind, error) from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if not trace.jobs:
        raise no_job(path, kind, trace.left_out)
    trace.file = str(path)
    return trace


def bounded(file: TextIO) -> Iterator[str]:
    """Yield the lines of a trace, of which a damaged or a huge one has too many.

    :raises ValueError: if there are more than :data:`MOST_LINES`, or one is too long
    """
    for number in itertools.count(1):
        line = file.readline(_LONGEST_LINE)
        if not line:
            return
        if number > MOST_LINES:
            raise ValueError(f"more than {MOST_LINES:,} lines; cut it to fewer days")
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"line {number}: has {_LONGEST_LINE:,} characters or more")
        yield line


def no_job(path: Path, kind: str, left_out: Counter[str]) -> InputError:
    """Return the error for a trace without a job that can be simulated, to raise."""
    reasons = f" (left out: {described(left_out)})" if left_out else ""
    return InputError(f"{path}: no job of {kind}{reasons}")


def described(left_out: Counter[str]) -> str:
    """Return the counts of jobs that were left out, as text."""
    return ", ".join(f"{count} {why}" for why, count in left_out.most_common())
