"""The output of ``sacct --parsable2``, whose columns are the fields of ``--format``.

None of the fields read here is free text, so each ``|`` is a separator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sf_quantum.slurm.counts import epoch

#: the fields for :func:`read`
FIELDS = "JobID State Reason ExitCode Start End".split()
#: the required and the optional fields of a trace of a cluster's load
TRACE_FIELDS = ("JobID", "Partition", "Submit", "End", "ElapsedRaw", "NNodes")
TRACE_OPTIONAL = ("Eligible", "TimelimitRaw")


@dataclass(frozen=True)
class AccountingRow:
    """A job, or a task of an array, in Slurm's accounting."""

    job: str
    state: str
    reason: str
    exit_code: int
    signal: int
    started: float | None
    ended: float | None


def read(text: str) -> list[AccountingRow]:
    """Read the output of ``sacct --noheader --parsable2`` with :data:`FIELDS`."""
    return [
        row for line in text.split("\n") if (row := _row(line.split("|"))) is not None
    ]


def _row(words: Sequence[str]) -> AccountingRow | None:
    """Read the words of a row; ``None`` if the row is malformed."""
    if len(words) != len(FIELDS) or not words[0][:1].isdecimal() or not words[1]:
        return None
    job, state, reason, status, started, ended = words
    code, _, signal = status.partition(":")
    if not (code.isdecimal() and (signal or "0").isdecimal()):
        return None
    return AccountingRow(
        job,
        state.split()[0],  # it may be "CANCELLED by 1000"
        reason,
        int(code),
        int(signal or 0),
        epoch(started),
        epoch(ended),
    )
