"""Reports of QPU usage: sums over jobs that have ended, including deleted jobs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sf_quantum.protocol.usage_columns import KEYS, By, UsageRow, UsageSums
from sf_quantum.service.domain.jobs import Used
from sf_quantum.service.store.rows import json_value
from sf_quantum.service.store.store import Store

Value: TypeAlias = str | float
# not negative even if the clock was set back at a boot
WAIT = (
    "max(0, coalesce(jobs.started_steady, jobs.ended_steady) - jobs.submitted_steady)"
)
SHOTS = f"coalesce({json_value('jobs.parameters', 'num_reads')}, 1)"
PURPOSE = "coalesce(jobs.purpose, leases.job)"
# a job that has ended stays charged to the lease under which it ended
LEASE = "coalesce(jobs.charged_lease, jobs.lease)"
_JOINED = f"FROM jobs JOIN leases ON leases.id = {LEASE}"
_PAST_COLUMNS = (
    "ended, ended_steady, user, project, lease, slurm_job_id, slurm_cluster, "
    "slurm_account, purpose, state, jobs, qpu_seconds, seconds, wait_seconds, "
    "longest_wait_seconds, lost_attempts, lost_qpu_seconds, lost_seconds, cost"
)
# One row for each stored job; and one row for all deleted jobs of the same lease, purpose
# and state that ended in the same hour (see retention).
_ENDED = f"""
SELECT {_PAST_COLUMNS} FROM (
    SELECT jobs.ended, jobs.ended_steady, jobs.user, leases.project, leases.id AS lease,
        leases.slurm_job_id, leases.slurm_cluster, leases.slurm_account,
        {PURPOSE} AS purpose, jobs.state, 1 AS jobs, jobs.qpu_seconds, jobs.seconds,
        {WAIT} AS wait_seconds, {WAIT} AS longest_wait_seconds,
        jobs.attempt - 1 AS lost_attempts, jobs.lost_qpu_seconds, jobs.lost_seconds,
        jobs.cost
    {_JOINED} WHERE jobs.ended IS NOT NULL)
UNION ALL SELECT {_PAST_COLUMNS} FROM past
"""
# sums over jobs; the wait of a job ends with its last start
_SUMS = (
    "count(*) AS count, total(jobs.seconds) AS seconds, "
    f"total(jobs.qpu_seconds) AS qpu_seconds, total({WAIT}) AS wait, "
    f"sum({SHOTS}) AS shots, "
    "sum(jobs.attempt - 1) AS lost_attempts, "
    "total(jobs.lost_qpu_seconds) AS lost_qpu_seconds, sum(jobs.cost) AS cost"
)
# number of intervals for which recent_use() returns sums: hours, for a period of ten days
USED_PARTS = 240


@dataclass(frozen=True)
class Filter:
    """The rows that a report covers.

    :param column: column of the time to which the bounds apply
    :param since: lower bound in seconds since the epoch, inclusive; ``None`` sets no bound
    :param before: upper bound in seconds since the epoch, exclusive; ``None`` sets no bound
    :param among: allowed values by column; an empty list allows all
    """

    column: str
    since: float | None = None
    before: float | None = None
    among: Mapping[str, Sequence[Value]] = field(default_factory=dict)

    def sql(self) -> tuple[str, list[Value]]:
        """Return the condition and the values for its question marks."""
        conditions, values = [f"{self.column} IS NOT NULL"], list[Value]()
        for operator, bound in ((">=", self.since), ("<", self.before)):
            if bound is not None:
                conditions.append(f"{self.column} {operator} ?")
                values.append(bound)
        for column, allowed in self.among.items():
            if allowed:
                conditions.append(f"{column} IN ({', '.join('?' * len(allowed))})")
                values += allowed
        return " AND ".join(conditions), values


@dataclass(frozen=True)
class Page:
    """Which of a report's rows are returned: ``limit`` rows, after ``offset`` rows."""

    limit: int
    offset: int


def users(store: Store, rows: Filter, page: Page) -> tuple[int, list[sqlite3.Row]]:
    """Sum up the closed leases of each user.

    :returns: the number of users, and a page of users, by name
    """
    columns = "user, count(*) AS count, total(closed_steady - opened_steady) AS seconds"
    query = f"SELECT {columns} FROM leases"
    return _read_page(store, query, rows, page, order="user", group="user")


_SUM_NAMES = "count seconds qpu_seconds wait shots lost_attempts lost_qpu_seconds cost"
# the columns of _SUMS, for deleted jobs
_PAST_SUMS = (
    "past.jobs AS count, past.seconds, past.qpu_seconds, past.wait_seconds AS wait, "
    "past.shots, past.lost_attempts, past.lost_qpu_seconds, past.cost"
)


def users_jobs(store: Store, rows: Filter) -> list[sqlite3.Row]:
    """Sum up the ended jobs of closed leases, by user and state.

    Deleted jobs are included if their lease has not been deleted.
    """
    where, values = rows.sql()
    sums = ", ".join(f"sum({name}) AS {name}" for name in _SUM_NAMES.split())
    return store.report(
        f"SELECT user, state, {sums} FROM ("
        f"SELECT leases.user AS user, jobs.state AS state, {_SUMS} {_JOINED} "
        f"WHERE jobs.ended IS NOT NULL AND {where} GROUP BY leases.user, jobs.state "
        f"UNION ALL SELECT leases.user, past.state, {_PAST_SUMS} "
        f"FROM past JOIN leases ON leases.id = past.lease WHERE {where}"
        ") GROUP BY user, state ORDER BY user, state",
        *values,
        *values,
    )


def leases(store: Store, rows: Filter, page: Page) -> tuple[int, list[sqlite3.Row]]:
    """List closed leases with the number of their jobs, the oldest first."""
    query = (
        "SELECT id, user, opened, closed, slurm_job_id, "
        "closed_steady - opened_steady AS total_duration, "
        "(SELECT count(*) FROM jobs WHERE lease = leases.id AND charged_lease IS NULL) "
        "+ (SELECT count(*) FROM jobs WHERE charged_lease = leases.id) "
        "+ (SELECT coalesce(sum(jobs), 0) FROM past WHERE lease = leases.id) AS jobs "
        "FROM leases"
    )
    return _read_page(store, query, rows, page, order="opened")


def jobs(store: Store, rows: Filter, page: Page) -> tuple[int, list[sqlite3.Row]]:
    """List the ended jobs that have not been deleted, the oldest first."""
    query = (
        "SELECT jobs.number AS number, jobs.user AS user, leases.id AS lease, "
        f"leases.slurm_job_id AS slurm_job_id, jobs.state AS state, {_SUMS} {_JOINED}"
    )
    number = "jobs.number"
    return _read_page(store, query, rows, page, order=number, group=number)


_KEY_SQL = {
    "month": "strftime('%Y-%m', ended, 'unixepoch')",
    "run": "purpose_run(purpose)",
    "step": "purpose_step(purpose)",
}
# the SQL expression of each sum of the report
_SUM_SQL = {
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
    "lost_attempts": "coalesce(sum(lost_attempts), 0)",
    "lost_qpu_seconds": "total(lost_qpu_seconds)",
    "lost_seconds": "total(lost_seconds)",
    "cost": "sum(cost)",
}


@dataclass(frozen=True)
class UsageReport:
    """Sums over jobs that have ended, in any final state.

    :param count: number of all rows of the report; :attr:`rows` is a page of the rows
    :param total: sums over all rows
    """

    count: int
    rows: list[UsageRow]
    total: UsageSums


def usage_report(store: Store, by: By, rows: Filter, page: Page) -> UsageReport:
    """Sum up the use of the QPU, the largest use first.

    A job is included once it has ended; its use belongs to the lease under which it ended.
    Interrupted attempts are summed up separately. The end of a deleted job is rounded down
    to the hour.
    """
    keys = ", ".join(f"{_KEY_SQL.get(key, key)} AS {key}" for key in KEYS[by])
    sums = ", ".join(f"{total} AS {name}" for name, total in _SUM_SQL.items())
    query = f"SELECT {keys}, {sums} FROM ({_ENDED})"
    groups = ", ".join(str(number + 1) for number in range(len(KEYS[by])))
    order = f"qpu_seconds DESC, {groups}"
    count, used = _read_page(store, query, rows, page, order=order, group=groups)
    where, values = rows.sql()
    (total,) = store.report(f"SELECT {sums} FROM ({_ENDED}) WHERE {where}", *values)
    rows_ = [UsageRow(**row) for row in used]
    return UsageReport(count, rows_, UsageSums(**total))


def last_end(store: Store) -> float:
    """Return when the last job ended, in seconds since the epoch; 0 if no job has ended."""
    ((last,),) = store.report(
        "SELECT max(coalesce((SELECT max(ended) FROM jobs), 0), "
        "coalesce((SELECT max(ended) FROM past), 0))"
    )
    return float(last)


def recent_use(store: Store, since: float) -> list[Used]:
    """Sum up the use of the QPU by interval, including deleted jobs.

    The time of a sum is the mean end of its jobs, weighted by their QPU seconds. Interrupted
    attempts are not included.

    :param since: time by the store's clock; jobs that ended earlier are left out
    """
    width = max(1.0, (store.clock() - since) / USED_PARTS)
    query = (
        "SELECT user, project, total(qpu_seconds), "
        "total(qpu_seconds * ended_steady) / total(qpu_seconds) "
        f"FROM ({_ENDED}) WHERE ended_steady > ? AND qpu_seconds > 0 "
        "GROUP BY user, project, CAST(ended_steady / ? AS INTEGER)"
    )
    return [Used(*row) for row in store.report(query, since, width)]


def lease_seconds(store: Store, lease_id: str) -> tuple[float, float]:
    """Read the QPU seconds of the jobs of a lease with a limit of QPU seconds.

    :returns: QPU seconds of jobs that have ended, and modelled QPU seconds of the
        others
    """
    query = "SELECT spent_seconds, modelled_seconds FROM leases WHERE id = ?"
    ((spent, modelled),) = store.read(query, lease_id)
    return float(spent), float(modelled)


def used_by_leases(store: Store, leases: Sequence[str]) -> dict[str, float]:
    """Sum up, by lease, the QPU seconds that are charged for jobs that have ended."""
    among = "IN (SELECT value FROM json_each(?))"
    rows = store.report(
        "SELECT lease, total(qpu_seconds) AS used FROM ("
        # only ended jobs: the seconds of other jobs are those of their finished slices
        "SELECT lease, qpu_seconds FROM jobs "
        f"WHERE charged_lease IS NULL AND ended IS NOT NULL AND lease {among} "
        "UNION ALL SELECT charged_lease, qpu_seconds FROM jobs "
        f"WHERE charged_lease {among} "
        f"UNION ALL SELECT lease, qpu_seconds FROM past WHERE lease {among}"
        ") GROUP BY lease",
        *(json.dumps([*leases]),) * 3,
    )
    return {row["lease"]: row["used"] for row in rows}


def _read_page(
    store: Store, select: str, rows: Filter, page: Page, *, order: str, group: str = ""
) -> tuple[int, list[sqlite3.Row]]:
    where, values = rows.sql()
    query = f"{select} WHERE {where}" + (f" GROUP BY {group}" if group else "")
    (total,) = store.report(f"SELECT count(*) FROM ({query})", *values)
    limits = (page.limit, page.offset)
    page_rows = store.report(
        f"{query} ORDER BY {order} LIMIT ? OFFSET ?", *values, *limits
    )
    return total[0], page_rows
