"""Who used the QPU, for how long: sums over what the store still has."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sf_quantum.service.store.past import OVER
from sf_quantum.service.store.store import Store

Value = str | float
By: TypeAlias = Literal["user", "project", "lease", "slurm-job", "step"]
# A job's times: on the device (all attempts), as modelled, and from its coming to its
# last start.
_SUMS = (
    "count(*) AS count, total(jobs.seconds) AS seconds, "
    "total(jobs.qpu_seconds) AS qpu_seconds, "
    "total(coalesce(jobs.started, jobs.ended) - jobs.submitted) AS wait, "
    "sum(coalesce(json_extract(jobs.parameters, '$.num_reads'), 1)) AS shots"
)
_BOTH = "FROM jobs JOIN leases ON leases.id = jobs.lease "


@dataclass(frozen=True)
class Filter:
    """What a report is about: all of it by default.

    :param period: the column with the time that counts, and from when to before when
    :param among: columns, and the values they may have; an empty list allows all
    """

    period: tuple[str, float | None, float | None]
    among: Mapping[str, Sequence[Value]] = field(default_factory=dict)

    def sql(self) -> tuple[str, list[Value]]:
        """Write the condition, and the values for its question marks."""
        column, after, before = self.period
        words, values = [f"{column} IS NOT NULL"], list[Value]()
        for sign, bound in ((">=", after), ("<", before)):
            if bound is not None:
                words.append(f"{column} {sign} ?")
                values.append(bound)
        for name, allowed in self.among.items():
            if allowed:
                words.append(f"{name} IN ({', '.join('?' * len(allowed))})")
                values += allowed
        return " AND ".join(words), values


@dataclass(frozen=True)
class Page:
    """Which rows of a report are wanted."""

    limit: int
    offset: int


def users(store: Store, wanted: Filter, page: Page) -> tuple[int, list[sqlite3.Row]]:
    """Sum up the closed leases of each user.

    :returns: how many users there are, and the page of them, by name
    """
    where, values = wanted.sql()
    total = _count(store, f"count(DISTINCT user) FROM leases WHERE {where}", values)
    rows = store.report(
        "SELECT user, count(*) AS count, total(closed - opened) AS seconds "
        f"FROM leases WHERE {where} GROUP BY user ORDER BY user LIMIT ? OFFSET ?",
        *(*values, page.limit, page.offset),
    )
    return total, rows


def users_jobs(store: Store, wanted: Filter) -> list[sqlite3.Row]:
    """Sum up the jobs that are over, of closed leases, by user and state."""
    where, values = wanted.sql()
    return store.report(
        f"SELECT leases.user AS user, jobs.state AS state, {_SUMS} {_BOTH} "
        f"WHERE jobs.ended IS NOT NULL AND {where} GROUP BY leases.user, jobs.state "
        "ORDER BY leases.user, jobs.state",
        *values,
    )


def leases(store: Store, wanted: Filter, page: Page) -> tuple[int, list[sqlite3.Row]]:
    """List closed leases with the number of their jobs, the oldest first."""
    where, values = wanted.sql()
    rows = store.report(
        "SELECT id, user, opened, closed, slurm_job_id, "
        "(SELECT count(*) FROM jobs WHERE jobs.lease = leases.id) AS jobs "
        f"FROM leases WHERE {where} ORDER BY opened LIMIT ? OFFSET ?",
        *(*values, page.limit, page.offset),
    )
    return _count(store, f"count(*) FROM leases WHERE {where}", values), rows


def jobs(store: Store, wanted: Filter, page: Page) -> tuple[int, list[sqlite3.Row]]:
    """List jobs that are over, the oldest first."""
    where, values = wanted.sql()
    rows = store.report(
        "SELECT jobs.number AS number, jobs.user AS user, jobs.lease AS lease, "
        "leases.slurm_job_id AS slurm_job_id, jobs.state AS state, "
        f"{_SUMS} {_BOTH} WHERE {where} GROUP BY jobs.number "
        "ORDER BY jobs.number LIMIT ? OFFSET ?",
        *(*values, page.limit, page.offset),
    )
    return _count(store, f"count(*) {_BOTH} WHERE {where}", values), rows


# A purpose is RUN:/step/tag or /step/tag where a workflow's connector wrote it, RUN
# being the journal's name (accounts.purpose); anything else is a step as it is.
_JOB = "substr(purpose, instr(purpose, ':/') + 1)"
_OF_RUN = "purpose GLOB '[0-9]*Z-[0-9]*:/*'"
_STEP = f"rtrim(rtrim({_JOB}, '0123456789.'), '/')"
_COLUMNS = {
    "user": "user",
    "project": "project",
    "lease": "lease",
    "slurm_job_id": "slurm_job_id",
    "run": f"CASE WHEN {_OF_RUN} THEN substr(purpose, 1, instr(purpose, ':/') - 1) END",
    "step": f"CASE WHEN {_OF_RUN} OR purpose LIKE '/%' THEN {_STEP} ELSE purpose END",
}
#: what a report's rows are told apart by
KEYS: Mapping[By, tuple[str, ...]] = {
    "user": ("user",),
    "project": ("project",),
    "lease": ("lease", "user", "project", "slurm_job_id"),
    "slurm-job": ("slurm_job_id", "user"),
    "step": ("user", "run", "step"),
}
_TOTALS = {
    "jobs": "coalesce(sum(jobs), 0)",
    **{
        state.lower(): f"coalesce(sum(jobs) FILTER (WHERE state = '{state}'), 0)"
        for state in ("Completed", "Failed", "Cancelled")
    },
    "qpu_seconds": "total(qpu_seconds)",
    "seconds": "total(seconds)",
    "wait_seconds": "total(wait_seconds)",
    "mean_wait_seconds": "coalesce(total(wait_seconds) / sum(jobs), 0.0)",
    "longest_wait_seconds": "coalesce(max(longest_wait_seconds), 0.0)",
}
NUMBERS = (*_TOTALS,)


@dataclass(frozen=True)
class Report:
    """Sums over jobs that are over, whatever became of them, by what they are for.

    :param count: how many rows there are, of which these are a page
    :param total: over all of them
    """

    count: int
    rows: list[sqlite3.Row]
    total: sqlite3.Row


def usage(store: Store, by: By, wanted: Filter, page: Page) -> Report:
    """Sum up who used the QPU, those who used it most first.

    A job counts when it is over, with all its attempts. Those that the store has
    forgotten count with the hour in which they ended.
    """
    where, values = wanted.sql()
    over = f"FROM ({OVER}) WHERE {where}"
    keys = ", ".join(f"{_COLUMNS[key]} AS {key}" for key in KEYS[by])
    sums = ", ".join(f"{sum_} AS {name}" for name, sum_ in _TOTALS.items())
    places = ", ".join(str(place + 1) for place in range(len(KEYS[by])))
    groups = f"SELECT {keys}, {sums} {over} GROUP BY {places}"
    rows = store.report(
        f"{groups} ORDER BY qpu_seconds DESC, {places} LIMIT ? OFFSET ?",
        *(*values, page.limit, page.offset),
    )
    (total,) = store.report(f"SELECT {sums} {over}", *values)
    return Report(_count(store, f"count(*) FROM ({groups})", values), rows, total)


def _count(store: Store, what: str, values: Sequence[Value]) -> int:
    return int(store.report(f"SELECT {what}", *values)[0][0])
