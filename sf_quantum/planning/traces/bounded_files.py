"""Opens files with traces, with limits on damaged files; the formats parse the lines."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Protocol, TextIO, TypeVar

from sf_quantum.errors import InputError
from sf_quantum.files import cannot_read

#: Largest number of lines in a trace; their jobs take less than a gigabyte.
MOST_LINES = 2_000_000
_LONGEST_LINE = 1_000_000


class Trace(Protocol):
    """The jobs of a trace.

    :param left_out: number of jobs that were left out, by reason
    :param file: name of the file with the trace
    """

    left_out: Counter[str]
    file: str

    @property
    def jobs(self) -> Sized:
        """The jobs that were not left out."""


T = TypeVar("T", bound=Trace)


def read(
    path: Path, kind: str, parse: Callable[[Iterable[str]], T], errors: str = "replace"
) -> T:
    """Read a trace.

    :param kind: the expected content, for messages
    :param errors: handling of bytes that are not UTF-8; ``strict`` rejects the file
    :raises InputError: if the file cannot be read, or no job is left
    """
    try:
        # The format for QPU jobs is CSV, which needs unchanged line ends.
        with path.open(encoding="utf-8-sig", errors=errors, newline="") as file:
            trace = parse(_bounded(file))
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, kind, error) from error
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: {error}") from error
    if not trace.jobs:
        raise no_job(path, kind, trace.left_out)
    trace.file = str(path)
    return trace


def _bounded(file: TextIO) -> Iterator[str]:
    """Yield the lines of a trace; reject damaged and huge traces.

    :raises ValueError: if there are more than :data:`MOST_LINES`, or a line is too long
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
    """Return the error for a trace without a job that can be simulated."""
    reasons = f" (left out: {described(left_out)})" if left_out else ""
    return InputError(f"{path}: no job of {kind}{reasons}")


def described(left_out: Counter[str]) -> str:
    """Return the counts of jobs that were left out, as text."""
    return ", ".join(f"{count} {why}" for why, count in left_out.most_common())
