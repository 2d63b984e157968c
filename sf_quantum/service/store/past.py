"""Jobs that are over: those of the store, and the sums of those it has forgotten."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

HOUR = 3600
_WAIT = "coalesce(jobs.started, jobs.ended) - jobs.submitted"
_PURPOSE = "coalesce(jobs.purpose, leases.job)"
_BOTH = "FROM jobs JOIN leases ON leases.id = jobs.lease"
# a row of one job, or of several of the same lease, purpose and state
OVER = f"""
SELECT jobs.ended AS ended, jobs.user AS user, leases.project AS project,
    jobs.lease AS lease, leases.slurm_job_id AS slurm_job_id, {_PURPOSE} AS purpose,
    jobs.state AS state, 1 AS jobs, jobs.qpu_seconds AS qpu_seconds,
    jobs.seconds AS seconds, {_WAIT} AS wait_seconds, {_WAIT} AS longest_wait_seconds
{_BOTH} WHERE jobs.ended IS NOT NULL
UNION ALL SELECT * FROM past
"""
_REMEMBER = f"""
INSERT INTO past
SELECT {HOUR} * CAST(jobs.ended / {HOUR} AS INTEGER) AS hour, jobs.user,
    leases.project, jobs.lease, leases.slurm_job_id, {_PURPOSE} AS purpose, jobs.state,
    count(*), total(jobs.qpu_seconds), total(jobs.seconds), total({_WAIT}), max({_WAIT})
{_BOTH} WHERE jobs.number IN (SELECT value FROM json_each(?))
GROUP BY hour, jobs.lease, purpose, jobs.state
"""


def remember(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Add up jobs that are about to be forgotten, by the hour of their end."""
    db.execute(_REMEMBER, (json.dumps(list(numbers)),))
