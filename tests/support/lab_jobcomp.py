"""Slurm's own record of the jobs that have ended, in a file (``jobcomp/filetxt``)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Completed:
    """A job in Slurm's own record of those that have ended.

    Times are epoch seconds; of a job that never started, the start is infinite.
    """

    id: int
    name: str
    state: str
    partition: str
    nodes: int
    submitted: float
    started: float
    ended: float
    exit_code: int
    signal: int


def read(record: Path) -> list[Completed]:
    """Read the record of a controller whose time zone is UTC."""
    # less a line that is still being written
    return [_completed(line) for line in record.read_text().split("\n")[:-1]]


def _completed(line: str) -> Completed:
    values = dict(re.findall(r"(\w+)=(.*?)(?= \w+=|\s*$)", line))
    code, signal = values["ExitCode"].split(":")

    def time_of(key: str) -> float:
        if values[key] == "Unknown":  # of Slurm 24.11
            return math.inf
        return datetime.fromisoformat(values[key]).replace(tzinfo=UTC).timestamp()

    return Completed(
        id=int(values["JobId"]),
        name=values["Name"],
        state=values["JobState"],
        partition=values["Partition"],
        nodes=int(values["NodeCnt"]),
        submitted=time_of("SubmitTime"),
        started=time_of("StartTime"),
        ended=time_of("EndTime"),
        exit_code=int(code),
        signal=int(signal),
    )
