"""``/v1``: reports of QPU usage and waiting times."""

from __future__ import annotations

import csv
import io
import time
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from sf_quantum.service.dialects.common import EVERYWHERE, Queue, Who, since_epoch
from sf_quantum.service.dialects.v1.models import Strict
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.store import accounting
from sf_quantum.service.store.accounting import (
    KEYS,
    NUMBERS,
    By,
    Filter,
    Page,
    UsageReport,
)
from sf_quantum.text import PERIOD, csv_row

router = APIRouter(prefix="/v1/accounting", tags=["accounting"], responses=EVERYWHERE)


class UsageSums(Strict):
    """Jobs that are over, and their times in seconds."""

    jobs: int
    completed: int
    failed: int
    cancelled: int
    qpu_seconds: float = Field(
        description="Modelled time on hardware, without interrupted attempts."
    )
    seconds: float = Field(
        description="Actual time on the device, of the same attempts."
    )
    wait_seconds: float = Field(
        description="From submission to the last start, summed over the jobs."
    )
    mean_wait_seconds: float
    longest_wait_seconds: float
    lost_attempts: int = Field(
        description="Attempts that were pre-empted, or interrupted because the QPU was "
        "closed or the service stopped or died; their jobs ran again, and are not charged "
        "for them."
    )
    lost_qpu_seconds: float = Field(
        description="As `qpu_seconds`, of the lost attempts; 0 for those that died with "
        "the service, since nobody knows how far they ran."
    )
    lost_seconds: float = Field(description="As `seconds`, of the lost attempts.")
    cost: float | None = Field(
        description="Of `qpu_seconds`, in the site's unit: each job at the price when it "
        "ended. Null if the device had none."
    )


class UsageRow(UsageSums):
    """The sums of one user, project, month, lease, Slurm job or account, or workflow step.

    Columns that do not identify the rows are null, and so are values that jobs lack.
    """

    month: str | None = Field(
        default=None, description="In which the jobs ended, in UTC, such as 2026-11."
    )
    user: str | None = None
    project: str | None = None
    lease: str | None = None
    slurm_job_id: str | None = None
    slurm_cluster: str | None = Field(
        default=None, description="Null: the service's own."
    )
    slurm_account: str | None = Field(
        default=None,
        description="The account of the Slurm job, as Slurm says if the service can ask "
        "it, else as the client says.",
    )
    run: str | None = Field(default=None, description="The name of a run's journal.")
    step: str | None = Field(
        default=None, description="The workflow's step, or the jobs' other purpose."
    )


class UsageAnswer(Strict):
    """A report; times are seconds since the epoch."""

    by: By
    from_: float | None = Field(alias="from")
    until: float = Field(
        description="The report covers jobs that ended before this time, from `from` on."
    )
    count: int = Field(description="The number of rows; `rows` is a page of them.")
    rows: list[UsageRow]
    total: UsageSums = Field(description="Over all rows, including other pages.")


class UsageQuery(Strict):
    by: By = "user"
    from_: datetime | None = Field(
        default=None, alias="from", description="ISO 8601, or seconds since the epoch."
    )
    until: datetime | None = Field(default=None, description="By default now.")
    format: Literal["json", "csv"] = "json"
    limit: int = Field(default=1000, gt=0, le=10_000)
    offset: int = Field(default=0, ge=0, le=2**62)


@router.get(
    "",
    summary="Report who used the QPU",
    response_model=UsageAnswer,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def usage(
    queue: Queue, who: Who, query: Annotated[UsageQuery, Query()]
) -> Response | UsageAnswer:
    """Sum up the jobs that ended in a period: the caller's or, for an admin, all.

    A job counts for the user, project, lease and Slurm job under which it ended, with the
    attempt that ended it, as far as that ran. Attempts that were interrupted before are
    lost, and have columns of their own. Jobs older than the retention time count with the
    hour in which they ended. CSV has the rows without the total, each with the period,
    numbers as plain decimals, and an apostrophe before a text that a spreadsheet would
    interpret as a formula.
    """
    since, before = since_epoch(query.from_), since_epoch(query.until)
    if before is None:
        before = time.time()
    if since is not None and since > before:
        raise Refused(422, "expected a time after `from`", "until")
    rows = Filter("ended", since, before, {} if who.admin else {"user": [who.user]})
    page = Page(query.limit, query.offset)
    report = accounting.usage(queue.store, query.by, rows, page)
    if query.format == "csv":
        text = _csv(query.by, report, (since, before))
        return Response(text, media_type="text/csv")
    return UsageAnswer(
        by=query.by,
        until=before,
        count=report.count,
        rows=[UsageRow(**row) for row in report.rows],
        total=UsageSums(**report.total),
        **{"from": since},
    )


def _csv(by: By, report: UsageReport, period: tuple[float | None, float]) -> str:
    names = (*KEYS[by], *NUMBERS)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([*PERIOD, *names])
    for row in report.rows:
        writer.writerow(csv_row(period, [row[name] for name in names]))
    return file.getvalue()
