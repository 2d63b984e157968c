"""Accounting in warden's dialect: reports of QPU usage, for admins."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Generic, Self, TypeVar

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, NaiveDatetime

from sf_quantum.service.api.common import Admin, Queue, refusals, since_epoch, utc
from sf_quantum.service.api.warden.models import (
    STATES,
    STATUSES,
    Status,
    user_name,
    user_number,
)
from sf_quantum.service.domain.jobs import State
from sf_quantum.service.store import accounting
from sf_quantum.service.store.accounting import Filter, Page

Row = TypeVar("Row", bound=BaseModel)
Texts = Annotated[list[str], Field(default_factory=list, max_length=100)]
Time = AwareDatetime | NaiveDatetime
router = APIRouter(
    tags=["warden"],
    responses=refusals(
        {
            401: "No credential, or an invalid one.",
            403: "For admins.",
            422: "A parameter is wrong.",
        }
    ),
)
# newer versions of warden use the second path
PATHS = ("/acct", "/accounting")


class UsersQuery(BaseModel):
    """The scope of a report."""

    user_id: Texts
    ended_after: Time | None = None
    ended_before: Time | None = None
    limit: int = Field(default=100, gt=0, le=100)
    offset: int = Field(default=0, ge=0, le=2**62)

    @property
    def page(self) -> Page:
        """The rows to return."""
        return Page(self.limit, self.offset)

    def rows(
        self,
        *,
        ended: str,
        user: str,
        among: Mapping[str, Sequence[accounting.Value]] | None = None,
    ) -> Filter:
        """Convert the query for the store.

        :param ended: the column of the time that counts
        :param user: the column of the user
        :param among: the values allowed in other columns
        """
        users = [user_name(number) for number in self.user_id]
        since, before = since_epoch(self.ended_after), since_epoch(self.ended_before)
        return Filter(ended, since, before, {user: users, **(among or {})})


class SessionsQuery(UsersQuery):
    """The scope of a report on sessions."""

    session_id: Texts
    slurm_job_id: Texts


class JobsQuery(SessionsQuery):
    """The scope of a report on jobs."""

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
    """Jobs and their times in seconds; `qpu_seconds`, an extension, is exact."""

    count: int = 0
    execution_time: Whole = 0
    wait_time: Whole = 0
    shots: int = 0
    qpu_seconds: float = 0.0


class JobsSummary(Sums):
    """The jobs of a user."""

    per_status: dict[str, Sums] = Field(default_factory=dict)

    @classmethod
    def of(cls, rows: Mapping[State, sqlite3.Row]) -> Self:
        """Add up the sums of the states."""
        sums = {
            state: {"count": row["count"], **_sums(row)} for state, row in rows.items()
        }
        total = {
            name: sum(part[name] for part in sums.values())
            for name in Sums.model_fields
        }
        per_status = {STATUSES[state]: part for state, part in sums.items()}
        return cls.model_validate({**total, "per_status": per_status})


class SessionsSummary(BaseModel):
    """The sessions of a user; the duration in seconds."""

    count: int
    total_duration: Whole


class UserRow(BaseModel):
    """The sessions and jobs of a user."""

    user_id: str
    sessions: SessionsSummary
    jobs: JobsSummary


class SessionRow(BaseModel):
    """A session that is over."""

    id: str
    user_id: str
    created_at: datetime
    revoked_at: datetime
    slurm_job_id: str | None
    total_duration: Whole
    jobs_count: int


class JobRow(BaseModel):
    """A job that is over."""

    id: int
    user_id: str
    session_id: str
    slurm_job_id: str | None
    status: Status
    shots: int
    execution_time: Whole
    wait_time: Whole
    qpu_seconds: float


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
    """Sum up the sessions that are over, and those of their jobs that are over."""
    sessions = query.rows(ended="closed", user="user")
    total, rows = accounting.users(queue.store, sessions, query.page)
    jobs: dict[str, dict[State, sqlite3.Row]] = {row["user"]: {} for row in rows}
    # an empty list would allow all users
    on_page = query.model_copy(update={"user_id": [*jobs] or [""]})
    of_page = on_page.rows(ended="leases.closed", user="leases.user")
    for row in accounting.users_jobs(queue.store, of_page):
        jobs[row["user"]][row["state"]] = row
    data = [
        UserRow(
            user_id=user_number(row["user"]),
            sessions=SessionsSummary(count=row["count"], total_duration=row["seconds"]),
            jobs=JobsSummary.of(jobs[row["user"]]),
        )
        for row in rows
    ]
    return Users.of(query.page, total, data)


@router.get(f"{PATHS[0]}/sessions", summary="List sessions that are over")
@router.get(f"{PATHS[1]}/sessions", include_in_schema=False)
def by_session(
    queue: Queue, _: Admin, query: Annotated[SessionsQuery, Query()]
) -> Sessions:
    """List sessions that are over with their durations, the oldest first."""
    among = {"id": query.session_id, "slurm_job_id": query.slurm_job_id}
    sessions = query.rows(ended="closed", user="user", among=among)
    total, rows = accounting.leases(queue.store, sessions, query.page)
    data = [
        SessionRow(
            id=row["id"],
            user_id=user_number(row["user"]),
            created_at=utc(row["opened"]),
            revoked_at=utc(row["closed"]),
            slurm_job_id=row["slurm_job_id"],
            total_duration=row["closed"] - row["opened"],
            jobs_count=row["jobs"],
        )
        for row in rows
    ]
    return Sessions.of(query.page, total, data)


@router.get(f"{PATHS[0]}/jobs", summary="List jobs that are over")
@router.get(f"{PATHS[1]}/jobs", include_in_schema=False)
def by_job(queue: Queue, _: Admin, query: Annotated[JobsQuery, Query()]) -> Jobs:
    """List jobs that are over with their times and shots, the oldest first."""
    among: dict[str, Sequence[accounting.Value]] = {
        "jobs.lease": query.session_id,
        "leases.slurm_job_id": query.slurm_job_id,
        "jobs.state": [STATES[status] for status in query.status],
        "jobs.number": query.job_id,
    }
    wanted = query.rows(ended="jobs.ended", user="jobs.user", among=among)
    total, rows = accounting.jobs(queue.store, wanted, query.page)
    data = [
        JobRow.model_validate(
            {
                "id": row["number"],
                "user_id": user_number(row["user"]),
                "session_id": row["lease"],
                "slurm_job_id": row["slurm_job_id"],
                "status": STATUSES[row["state"]],
                **_sums(row),
            }
        )
        for row in rows
    ]
    return Jobs.of(query.page, total, data)


def _sums(row: sqlite3.Row) -> dict[str, float]:
    return {
        "execution_time": row["seconds"],
        "wait_time": row["wait"],
        "shots": row["shots"],
        "qpu_seconds": row["qpu_seconds"],
    }
