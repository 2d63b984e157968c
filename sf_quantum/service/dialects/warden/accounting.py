"""Accounting in warden's dialect: reports of QPU usage, for admins."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Annotated, Generic, Self, TypeVar

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, NaiveDatetime

from sf_quantum.service.dialects.common import Admin, Queue, refusal, since_epoch
from sf_quantum.service.dialects.warden.routes import (
    STATES,
    STATUSES,
    Status,
    StatusOf,
    Time,
    UserId,
    user_name,
    user_number,
)
from sf_quantum.service.domain.jobs import State
from sf_quantum.service.store.reports import usage
from sf_quantum.service.store.reports.usage import Filter, Page

Row = TypeVar("Row", bound=BaseModel)
Texts = Annotated[list[str], Field(default_factory=list, max_length=100)]
router = APIRouter(
    tags=["warden"],
    responses={
        401: refusal("No credential, or an invalid one."),
        403: refusal("Only admins may do this."),
        422: refusal("A parameter is wrong."),
    },
)
# newer versions of warden use the second path, older versions the first
PATHS = ("/acct", "/accounting")


class UsersQuery(BaseModel):
    user_id: Texts
    ended_after: AwareDatetime | NaiveDatetime | None = None
    ended_before: AwareDatetime | NaiveDatetime | None = None
    limit: int = Field(default=100, gt=0, le=100)
    offset: int = Field(default=0, ge=0, le=2**62)

    @property
    def users(self) -> list[str]:
        # not in a validator, which runs on the event loop: the look-up may block
        return [*map(user_name, self.user_id)]

    @property
    def page(self) -> Page:
        """The rows to return."""
        return Page(self.limit, self.offset)

    def rows(self, ended: str, among: Mapping[str, Sequence[usage.Value]]) -> Filter:
        """Return the filter of a report.

        :param ended: column of the time to which the query's bounds apply
        :param among: allowed values by column
        """
        since, before = since_epoch(self.ended_after), since_epoch(self.ended_before)
        return Filter(ended, since, before, among)


class SessionsQuery(UsersQuery):
    session_id: Texts
    slurm_job_id: Texts


class JobsQuery(SessionsQuery):
    status: list[Status] = Field(default_factory=list)
    job_id: list[Annotated[int, Field(ge=0, le=2**62)]] = Field(
        default_factory=list, max_length=100
    )


class Pagination(BaseModel):
    """The range of the rows returned."""

    total: int
    start: int
    end: int


# warden's clients expect integers
Whole = Annotated[int, BeforeValidator(round)]


class Sums(BaseModel):
    """The number of jobs, and their times in seconds.

    `qpu_seconds`, which is not rounded, and the later fields are extensions of warden's API.
    Lost attempts, which were interrupted, are not included in the other sums.
    """

    count: int = 0
    execution_time: Whole = Field(default=0, validation_alias="seconds")
    wait_time: Whole = Field(default=0, validation_alias="wait")
    shots: int = 0
    qpu_seconds: float = 0.0
    lost_attempts: int = 0
    lost_qpu_seconds: float = 0.0
    cost: float | None = None


class JobsSummary(Sums):
    """The jobs of a user."""

    per_status: dict[str, Sums] = Field(default_factory=dict)


class SessionsSummary(BaseModel):
    """The sessions of a user; the duration is in seconds."""

    count: int
    total_duration: Whole = Field(validation_alias="seconds")


class UserRow(BaseModel):
    """The sessions and jobs of a user."""

    user_id: str
    sessions: SessionsSummary
    jobs: JobsSummary


class SessionRow(BaseModel):
    """A session that has ended."""

    id: str
    user_id: UserId
    created_at: Time = Field(validation_alias="opened")
    revoked_at: Time = Field(validation_alias="closed")
    slurm_job_id: str | None
    total_duration: Whole
    jobs_count: int = Field(validation_alias="jobs")


class JobRow(BaseModel):
    """A job that has ended."""

    id: int = Field(validation_alias="number")
    user_id: UserId
    session_id: str = Field(validation_alias="lease")
    slurm_job_id: str | None
    status: StatusOf
    shots: int
    execution_time: Whole = Field(validation_alias="seconds")
    wait_time: Whole = Field(validation_alias="wait")
    qpu_seconds: float
    lost_attempts: int
    lost_qpu_seconds: float
    cost: float | None


class _Report(BaseModel, Generic[Row]):
    data: list[Row]
    pagination: Pagination

    @classmethod
    def of(cls, page: Page, total: int, rows: list[Row]) -> Self:
        start = min(page.offset, total)
        pagination = Pagination(total=total, start=start, end=start + len(rows))
        return cls(data=rows, pagination=pagination)


class Users(_Report[UserRow]):
    """A report by user."""


class Sessions(_Report[SessionRow]):
    """A report by session."""


class Jobs(_Report[JobRow]):
    """A report by job."""


@router.get(PATHS[0], summary="Sum up sessions and jobs by user")
@router.get(PATHS[1], include_in_schema=False)
def by_user(queue: Queue, _: Admin, query: Annotated[UsersQuery, Query()]) -> Users:
    """Sum up the sessions that have ended, and their jobs that have ended.

    Sessions are kept, and included in reports, for the service's retention time.
    """
    sessions = query.rows("closed", {"user": query.users})
    total, rows = usage.users(queue.store, sessions, query.page)
    jobs: dict[str, dict[State, sqlite3.Row]] = {row["user"]: {} for row in rows}
    # an empty list would allow all users
    of_page = query.rows("leases.closed", {"leases.user": [*jobs] or [""]})
    for row in usage.users_jobs(queue.store, of_page):
        jobs[row["user"]][row["state"]] = row
    data = [
        UserRow(
            user_id=user_number(row["user"]),
            sessions=SessionsSummary(**row),
            jobs=_add_up(jobs[row["user"]]),
        )
        for row in rows
    ]
    return Users.of(query.page, total, data)


@router.get(f"{PATHS[0]}/sessions", summary="List sessions that are over")
@router.get(f"{PATHS[1]}/sessions", include_in_schema=False)
def by_session(
    queue: Queue, _: Admin, query: Annotated[SessionsQuery, Query()]
) -> Sessions:
    """List ended sessions with their durations, the oldest first.

    The number of jobs includes jobs that have been deleted.
    """
    among = {
        "user": query.users,
        "id": query.session_id,
        "slurm_job_id": query.slurm_job_id,
    }
    sessions = query.rows("closed", among)
    total, rows = usage.leases(queue.store, sessions, query.page)
    return Sessions.of(query.page, total, [SessionRow(**row) for row in rows])


@router.get(f"{PATHS[0]}/jobs", summary="List jobs that are over")
@router.get(f"{PATHS[1]}/jobs", include_in_schema=False)
def by_job(queue: Queue, _: Admin, query: Annotated[JobsQuery, Query()]) -> Jobs:
    """List ended jobs with their times and shots, the oldest first.

    Deleted jobs are not listed, but are included in the sums by user.
    """
    among: dict[str, Sequence[usage.Value]] = {
        "jobs.user": query.users,
        "leases.id": query.session_id,
        "leases.slurm_job_id": query.slurm_job_id,
        "jobs.state": [STATES[status] for status in query.status],
        "jobs.number": query.job_id,
    }
    rows_filter = query.rows("jobs.ended", among)
    total, rows = usage.jobs(queue.store, rows_filter, query.page)
    return Jobs.of(query.page, total, [JobRow(**row) for row in rows])


def _add_up(rows: Mapping[State, sqlite3.Row]) -> JobsSummary:
    """Add up the sums over all states."""
    counted = ("count", "shots", "lost_attempts")
    names = (*counted, "seconds", "wait", "qpu_seconds", "lost_qpu_seconds")
    total = {name: sum(row[name] for row in rows.values()) for name in names}
    costs = [row["cost"] for row in rows.values() if row["cost"] is not None]
    total["cost"] = sum(costs) if costs else None
    per_status = {STATUSES[state]: dict(row) for state, row in rows.items()}
    return JobsSummary.model_validate({**total, "per_status": per_status})
