"""``/v1``: reports of QPU usage and waiting times."""

from __future__ import annotations

import csv
import io
import math
import time
from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response
from pydantic import Field, field_validator

from sf_quantum.protocol.usage_columns import KEYS, SUMS, By, UsageRow, UsageSums
from sf_quantum.service.dialects.common import (
    EVERYWHERE,
    FIRST_SECOND,
    Queue,
    Who,
    since_epoch,
    utc,
)
from sf_quantum.service.dialects.v1.models import Strict
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.store.reports.usage import (
    Filter,
    Page,
    UsageReport,
    last_end,
    usage_report,
)
from sf_quantum.text import LAST_SECOND, PERIOD, csv_row, exact_utc

# Added to the last end of a job, so that a report's period, which excludes its own end,
# includes this job. It exceeds a microsecond, to which times in requests are exact.
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
    total: UsageSums = Field(description="The sums of all rows, including other pages.")


class UsageQuery(Strict):
    by: By = "user"
    from_: datetime | None = Field(
        default=None, alias="from", description="ISO 8601, or seconds since the epoch."
    )
    until: datetime | None = Field(
        default=None,
        description="By default now, or the time after the last end of a job if the "
        "system's clock was then set back.",
    )
    format: Literal["json", "csv"] = "json"
    limit: int = Field(default=1000, gt=0, le=10_000)
    offset: int = Field(default=0, ge=0, le=2**62)

    @field_validator("from_", "until", mode="before")
    @classmethod
    def _read_seconds(cls, value: str) -> str | datetime:
        """Read any number as seconds; pydantic reads large numbers as milliseconds."""
        try:
            seconds = float(value)
        except ValueError:
            return value
        if math.isnan(seconds):
            return value
        return utc(min(max(seconds, FIRST_SECOND), LAST_SECOND))


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

    A job's use is that of its last attempt. It is charged to the user, project, lease and
    Slurm job under which the job ended. Earlier attempts, which were interrupted, are lost
    and have separate columns. For jobs older than the retention time, the end is rounded down
    to the hour. CSV contains the rows without the total, each with the period; numbers are
    plain decimals, and an apostrophe precedes a text that a spreadsheet would interpret as a
    formula. If there are more rows than `limit`, the header `Link` contains the address of
    the next page, with `rel="next"`.
    """
    since, before = since_epoch(query.from_), since_epoch(query.until)
    if before is None:
        # exact to a microsecond like times in requests, so the next report can begin there
        before = round(max(time.time(), last_end(queue.store) + MILLISECOND), 6)
    if since is not None and since > before:
        if query.until is None:
            raise Refused(422, "expected a time before now", "from")
        raise Refused(422, "expected a time after `from`", "until")
    rows = Filter("ended", since, before, {} if who.admin else {"user": [who.user]})
    page = Page(query.limit, query.offset)
    report = usage_report(queue.store, query.by, rows, page)
    if query.format == "csv":
        text = _csv(query.by, report, (since, before))
        headers = {}
        if query.offset + len(report.rows) < report.count:
            headers["Link"] = f'<{_next_page(query, since, before)}>; rel="next"'
        return Response(text, media_type="text/csv", headers=headers)
    return UsageAnswer(
        by=query.by,
        until=before,
        count=report.count,
        rows=report.rows,
        total=report.total,
        **{"from": since},
    )


def _next_page(query: UsageQuery, since: float | None, before: float) -> str:
    """Return the address of the next page, for the same period."""
    parameters: dict[str, str | int] = {"by": query.by, "until": exact_utc(before)}
    if since is not None:
        parameters["from"] = exact_utc(since)
    parameters |= {"format": query.format, "limit": query.limit}
    parameters["offset"] = query.offset + query.limit
    return f"{router.prefix}?{urlencode(parameters)}"


def _csv(by: By, report: UsageReport, period: tuple[float | None, float]) -> str:
    names = (*KEYS[by], *SUMS)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([*PERIOD, *names])
    for row in report.rows:
        writer.writerow(csv_row(period, [getattr(row, name) for name in names]))
    return file.getvalue()
