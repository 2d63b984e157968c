"""Accounting in warden's dialect: who used the QPU, for how long; admins only."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, NaiveDatetime

from sf_quantum.service.api.warden.models import (
    STATES,
    STATUSES,
    Status,
    moment,
    user_name,
    user_number,
)
from sf_quantum.service.domain.jobs import State
from sf_quantum.service.http.dependencies import Admin, Queue, Refusal
from sf_quantum.service.store import accounting
from sf_quantum.service.store.accounting import Filter, Page

Words = Annotated[list[str], Field(default_factory=list, max_length=100)]
Time = AwareDatetime | NaiveDatetime
router = APIRouter(
    tags=["warden"],
    responses={
        401: {"model": Refusal, "description": "No credential, or none that holds."},
        403: {"model": Refusal, "description": "For admins."},
        422: {"model": Refusal, "description": "A parameter is wrong."},
    },
)
# newer wardens have moved it
PATHS = ("/acct", "/accounting")


class Asked(BaseModel):
    """What a report is about."""

    user_id: Words
    ended_after: Time | None = None
    ended_before: Time | None = None
    limit: int = Field(default=100, gt=0, le=100)
    offset: int = Field(default=0, ge=0, le=2**62)

    @property
    def page(self) -> Page:
        """The rows asked for."""
        return Page(self.limit, self.offset)

    def filter(
        self, column: str, user: str, **among: Sequence[accounting.Value]
    ) -> Filter:
        """Write the question down for the store.

        :param column: with the time that counts
        :param user: the column with the user
        :param among: other columns, ``__`` for the point in their names
        """
        names = [user_name(number) for number in self.user_id]
        others = {name.replace("__", "."): list(among[name]) for name in among}
        since, before = _seconds(self.ended_after), _seconds(self.ended_before)
        return Filter(column, since, before, {user: names, **others})


class AskedSessions(Asked):
    """Which sessions."""

    session_id: Words
    slurm_job_id: Words


class AskedJobs(AskedSessions):
    """Which jobs."""

    status: list[Status] = Field(default_factory=list)
    job_id: list[Annotated[int, Field(ge=0, le=2**62)]] = Field(
        default_factory=list, max_length=100
    )


class Pagination(BaseModel):
    """Which of the rows these are."""

    total: int
    start: int
    end: int

    @classmethod
    def of(cls, page: Page, count: int, total: int) -> Self:
        """Say where a page stands."""
        start = min(page.offset, total)
        return cls(total=total, start=start, end=start + count)


# a client of warden's reads whole numbers
Whole = Annotated[int, BeforeValidator(round)]


class Sums(BaseModel):
    """Jobs and their times in seconds; `qpu_seconds` is ours, and exact."""

    count: int = 0
    execution_time: Whole = 0
    wait_time: Whole = 0
    shots: int = 0
    qpu_seconds: float = 0.0

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Read a row with sums."""
        return cls.model_validate({**_sums(row), "count": row["count"]})


class JobsSummary(Sums):
    """The jobs of a user."""

    per_status: dict[str, Sums] = Field(default_factory=dict)

    @classmethod
    def of_states(cls, rows: Mapping[State, sqlite3.Row]) -> Self:
        """Add up the states."""
        whole = {
            name: sum(_sums(row)[name] for row in rows.values()) for name in _NAMES
        }
        return cls.model_validate(
            {
                **whole,
                "count": sum(row["count"] for row in rows.values()),
                "per_status": {
                    STATUSES[state]: Sums.of(row) for state, row in rows.items()
                },
            }
        )


class SessionsSummary(BaseModel):
    """The sessions of a user, seconds."""

    count: int
    total_duration: Whole


class UserRow(BaseModel):
    """What a user had."""

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


class Users(BaseModel):
    """A report by user."""

    data: list[UserRow]
    pagination: Pagination


class Sessions(BaseModel):
    """A report by session."""

    data: list[SessionRow]
    pagination: Pagination


class Jobs(BaseModel):
    """A report by job."""

    data: list[JobRow]
    pagination: Pagination


@router.get(PATHS[0], summary="Sum up sessions and jobs by user")
@router.get(PATHS[1], include_in_schema=False)
def by_user(queue: Queue, _: Admin, asked: Annotated[Asked, Query()]) -> Users:
    """Sum up the sessions that are over, and their jobs that are."""
    total, rows = accounting.users(
        queue.store, asked.filter("closed", "user"), asked.page
    )
    states: dict[str, dict[State, sqlite3.Row]] = {row["user"]: {} for row in rows}
    named = {"user_id": [*states]} if states else {"user_id": [""]}
    of_page = asked.model_copy(update=named).filter("leases.closed", "leases.user")
    for row in accounting.users_jobs(queue.store, of_page):
        states[row["user"]][row["state"]] = row
    data = [
        UserRow(
            user_id=user_number(row["user"]),
            sessions=SessionsSummary(count=row["count"], total_duration=row["seconds"]),
            jobs=JobsSummary.of_states(states[row["user"]]),
        )
        for row in rows
    ]
    return Users(data=data, pagination=Pagination.of(asked.page, len(data), total))


@router.get(f"{PATHS[0]}/sessions", summary="List sessions that are over")
@router.get(f"{PATHS[1]}/sessions", include_in_schema=False)
def by_session(
    queue: Queue, _: Admin, asked: Annotated[AskedSessions, Query()]
) -> Sessions:
    """List them with their durations, the oldest first."""
    wanted = asked.filter(
        "closed", "user", id=asked.session_id, slurm_job_id=asked.slurm_job_id
    )
    total, rows = accounting.leases(queue.store, wanted, asked.page)
    data = [
        SessionRow(
            id=row["id"],
            user_id=user_number(row["user"]),
            created_at=moment(row["opened"]),
            revoked_at=moment(row["closed"]),
            slurm_job_id=row["slurm_job_id"],
            total_duration=row["closed"] - row["opened"],
            jobs_count=row["jobs"],
        )
        for row in rows
    ]
    return Sessions(data=data, pagination=Pagination.of(asked.page, len(data), total))


@router.get(f"{PATHS[0]}/jobs", summary="List jobs that are over")
@router.get(f"{PATHS[1]}/jobs", include_in_schema=False)
def by_job(queue: Queue, _: Admin, asked: Annotated[AskedJobs, Query()]) -> Jobs:
    """List them with their times and shots, the oldest first."""
    wanted = asked.filter(
        "jobs.ended",
        "jobs.user",
        jobs__lease=asked.session_id,
        leases__slurm_job_id=asked.slurm_job_id,
        jobs__state=[STATES[word] for word in asked.status],
        jobs__number=asked.job_id,
    )
    total, rows = accounting.jobs(queue.store, wanted, asked.page)
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
    return Jobs(data=data, pagination=Pagination.of(asked.page, len(data), total))


_NAMES = {
    "execution_time": "seconds",
    "wait_time": "wait",
    "shots": "shots",
    "qpu_seconds": "qpu_seconds",
}


def _sums(row: sqlite3.Row) -> dict[str, float]:
    return {name: row[column] for name, column in _NAMES.items()}


def _seconds(time: datetime | None) -> float | None:
    if time is None:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
