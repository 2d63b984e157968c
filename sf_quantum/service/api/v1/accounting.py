"""``/v1``: who used the QPU, for how long, and waited how long for it."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from sf_quantum.service.api.v1.models import Strict
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.http.dependencies import Queue, Who
from sf_quantum.service.store import accounting
from sf_quantum.service.store.accounting import (
    KEYS,
    NUMBERS,
    By,
    Filter,
    Page,
    UsageReport,
)

router = APIRouter(prefix="/v1/accounting", tags=["accounting"])
# a spreadsheet takes what begins so for a formula
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


class Sums(Strict):
    """Jobs that are over, and their times in seconds."""

    jobs: int
    completed: int
    failed: int
    cancelled: int
    qpu_seconds: float = Field(
        description="As modelled: what hardware would take, for all attempts."
    )
    seconds: float = Field(description="As they went by on the device.")
    wait_seconds: float = Field(
        description="From the jobs' coming to their last start, added up."
    )
    mean_wait_seconds: float
    longest_wait_seconds: float


class UsageRow(Sums):
    """The sums of one user, project, lease, Slurm job or workflow step.

    What the report is not by is null, as is what jobs did not say.
    """

    user: str | None = None
    project: str | None = None
    lease: str | None = None
    slurm_job_id: str | None = None
    run: str | None = Field(default=None, description="The name of a run's journal.")
    step: str | None = Field(
        default=None, description="The workflow's step, or what else jobs are for."
    )


class UsageAnswer(Strict):
    """A report; times are seconds since the epoch."""

    by: By
    from_: float | None = Field(alias="from")
    until: float = Field(description="Jobs that ended before this, from `from` on.")
    count: int = Field(description="Rows there are; `rows` is a page of them.")
    rows: list[UsageRow]
    total: Sums = Field(description="Of all rows, also those of other pages.")


class Asked(Strict):
    """What a report is about."""

    by: By = "user"
    from_: datetime | None = Field(
        default=None, alias="from", description="ISO 8601, or seconds since the epoch."
    )
    until: datetime | None = Field(default=None, description="Now, if it is not given.")
    format: Literal["json", "csv"] = "json"
    limit: int = Field(default=1000, gt=0, le=10_000)
    offset: int = Field(default=0, ge=0, le=2**62)

    def period(self) -> tuple[float | None, float]:
        """Tell from when, and to before when.

        :raises Refused: 422 if it ends before it begins
        """
        begin = None if self.from_ is None else _seconds(self.from_)
        end = time.time() if self.until is None else _seconds(self.until)
        if begin is not None and begin > end:
            raise Refused(422, "expected a time after `from`", "until")
        return begin, end


class _Csv(Response):
    media_type = "text/csv"

    @classmethod
    def of(cls, by: By, report: UsageReport) -> Self:
        """Write a report down, without its total."""
        names = (*KEYS[by], *NUMBERS)
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(_cells(names, dict(row)) for row in report.rows)
        return cls(file.getvalue())


@router.get(
    "",
    summary="Report who used the QPU",
    response_model=UsageAnswer,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def usage(queue: Queue, who: Who, asked: Annotated[Asked, Query()]) -> Response:
    """Sum up the jobs that ended within a time, the caller's or, for an admin, all.

    Attempts that were cancelled, pre-empted or interrupted count as far as they came;
    one that died with the service counts nothing, since nobody knows how far it came.
    Jobs older than the retention count with the hour in which they ended. CSV has the
    rows alone, and an apostrophe before a text that a spreadsheet would take for a
    formula.
    """
    begin, end = asked.period()
    mine = {} if who.admin else {"user": [who.user]}
    wanted = Filter("ended", begin, end, mine)
    page = Page(asked.limit, asked.offset)
    report = accounting.usage(queue.store, asked.by, wanted, page)
    if asked.format == "csv":
        return _Csv.of(asked.by, report)
    answer = UsageAnswer(
        by=asked.by,
        until=end,
        count=report.count,
        rows=[UsageRow(**row) for row in report.rows],
        total=Sums(**report.total),
        **{"from": begin},
    )
    return JSONResponse(answer.model_dump(by_alias=True))


def _cells(names: Iterable[str], row: Mapping[str, object]) -> list[object]:
    return [_cell(row[name]) for name in names]


def _cell(value: object) -> object:
    formula = isinstance(value, str) and value.startswith(_FORMULAS)
    return f"'{value}" if formula else value


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
