"""Load of a QPU, from its service's report in the format of ``sfq usage --json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from sf_quantum.errors import InputError
from sf_quantum.files import read_json
from sf_quantum.planning.workloads.workload import HOUR, BackgroundQuantum
from sf_quantum.service.domain.settings import NotNegative
from sf_quantum.validation import dotted

# Shortest period of a report, in seconds.
_SHORTEST_PERIOD = 1.0


class _Row(BaseModel):
    jobs: Annotated[int, Field(ge=0, le=10**12)]
    seconds: NotNegative
    lost_seconds: NotNegative = 0.0
    user: str | None = None
    project: str | None = None


class _Report(BaseModel):
    since: NotNegative | None = Field(alias="from")
    until: NotNegative
    rows: list[_Row]


def read(path: Path, qpu: str, spread: float) -> list[BackgroundQuantum]:
    """Read a report: a Poisson process for each row in which jobs occupied the device.

    The times of interrupted attempts are included, so the load is the same as reported.

    :param spread: standard deviation of the times, relative to their mean
    :raises InputError: if the file is not such a report, or has no start, or no row in which
        jobs occupied the device
    """
    content = read_json(path, "usage report")
    try:
        report = _Report.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{path}: {dotted(first['loc'])}: {first['msg']}; expected what "
            "'sfq usage --json' prints"
        ) from error
    if report.since is None or report.until - report.since < _SHORTEST_PERIOD:
        raise InputError(f"{path}: no period; give sfq usage a start with --from")
    hours = (report.until - report.since) / HOUR
    try:
        processes = [
            BackgroundQuantum(
                qpu=qpu,
                per_hour=row.jobs / hours,
                seconds=seconds / row.jobs,
                spread=spread,
                user=row.user or "others",
                project=row.project,
            )
            for row in report.rows
            if row.jobs and (seconds := row.seconds + row.lost_seconds)
        ]
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{path}: {dotted(first['loc'])} {first['input']:g}, of the jobs of a row on "
            f"average: {first['msg'].lower()}"
        ) from error
    if not processes:
        raise InputError(f"{path}: no job that occupied the device")
    return processes
