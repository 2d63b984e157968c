"""``/v1``: reports of QPU usage and waiting times."""

from __future__ import annotations

import csv
import io
import time
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from sf_quantum.protocol.usage_columns import KEYS, SUMS, By, UsageRow, UsageSums
from sf_quantum.service.dialects.common import EVERYWHERE, Queue, Who, since_epoch
from sf_quantum.service.dialects.v1.models import Strict
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.store.reports.usage import (
    Filter,
    Page,
    UsageReport,
    last_end,
    usage_report,
)
from sf_quantum.text import PERIOD, csv_row

# Added to the last end of a job, since a period excludes its end; times in requests have
# microseconds.
MILLISECOND = 1e-3
router = APIRouter(prefix="/v1/accounting", tags=["accounting"], responses=EVERYWHERE)


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
    until: datetime | None = Field(
        default=None,
        description="By default now, or after the last end, if the system's clock was set "
        "back since.",
    )
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
    """Sum up the jobs that ended in a period: the caller's jobs or, for an admin, all jobs.

    A job is charged to the user, project, lease and Slurm job under which it ended, with the
    use of the attempt that ended it. Earlier attempts, which were interrupted, are lost and
    have separate columns. Jobs older than the retention time count as ended at the beginning
    of the hour in which they ended. CSV has the rows without the total, each with the
    period; numbers are plain decimals, and an apostrophe precedes a text that a spreadsheet
    would interpret as a formula.
    """
    since, before = since_epoch(query.from_), since_epoch(query.until)
    if before is None:
        before = max(time.time(), last_end(queue.store) + MILLISECOND)
    if since is not None and since > before:
        raise Refused(422, "expected a time after `from`", "until")
    rows = Filter("ended", since, before, {} if who.admin else {"user": [who.user]})
    page = Page(query.limit, query.offset)
    report = usage_report(queue.store, query.by, rows, page)
    if query.format == "csv":
        text = _csv(query.by, report, (since, before))
        return Response(text, media_type="text/csv")
    return UsageAnswer(
        by=query.by,
        until=before,
        count=report.count,
        rows=report.rows,
        total=report.total,
        **{"from": since},
    )


def _csv(by: By, report: UsageReport, period: tuple[float | None, float]) -> str:
    names = (*KEYS[by], *SUMS)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([*PERIOD, *names])
    for row in report.rows:
        writer.writerow(csv_row(period, [getattr(row, name) for name in names]))
    return file.getvalue()
