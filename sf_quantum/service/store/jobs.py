"""Jobs on disk: how they are added, found, listed and read."""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Job, Lease, Submission
from sf_quantum.service.store.file.clock import wall_clock
from sf_quantum.service.store.rows import (
    LIVE,
    NO_JOB,
    SELECT_JOB,
    Records,
    insert,
    job_of,
    json_value,
    select_job,
)

logger = logging.getLogger(__name__)
# The purpose of an implicit lease is not a label: it is the same for all users. The key of
# such a lease is the name of its dialect.
_LABELS = (
    f"SELECT jobs.number, coalesce({json_value('jobs.metadata', 'label')}, jobs.purpose, "
    "CASE WHEN leases.key IS NOT jobs.dialect THEN leases.job END) "
    "FROM jobs JOIN leases ON leases.id = jobs.lease "
    "WHERE jobs.number IN (SELECT value FROM json_each(?))"
)
# columns in which a submission and the stored job with its key must agree
_COMPARED = "digest, repeatable"


class StoredJobs(Records):
    """The jobs of a service, with their payloads and results."""

    def add(
        self,
        lease: Lease,
        job: Submission,
        model_seconds: float,
        compute_seconds: float = 0.0,
        *,
        is_stored: bool = False,
    ) -> Future[tuple[Job, bool]]:
        """Add a job, unless its user has used the key before.

        An existing job moves to the lease of this submission, so the job does not end with
        its previous lease. If the job has ended, its use stays charged to the lease under
        which it ended.

        :param model_seconds: modelled QPU time
        :param compute_seconds: estimated CPU time
        :param is_stored: whether the caller found the job stored, and so did not check its
            content
        :returns: the job, and whether it is new
        :raises Refused: 409 if the key belongs to a different job, 503 if the stored job
            has been deleted meanwhile
        """
        row = {
            "id": secrets.token_hex(16),
            "user": lease.user,
            "lease": lease.id,
            "job_class": lease.job_class,
            "kind": job.kind,
            "key": job.key,
            "parameters": job.parameters_text,
            "digest": job.digest,
            "purpose": job.purpose,
            "dialect": job.dialect,
            "metadata": None if job.metadata is None else json.dumps(job.metadata),
            "model_seconds": model_seconds,
            "compute_seconds": compute_seconds,
            "repeatable": bool(job.repeatable),
            "bytes": len(job.payload),
            "submitted": wall_clock(),
            "submitted_steady": self._clock(),
        }
        payload = job.payload

        def change(db: sqlite3.Connection) -> tuple[Job, bool]:
            same_key = "WHERE user = ? AND key = ?"
            user_and_key = (lease.user, job.key)
            rows = db.execute(f"SELECT {_COMPARED} FROM jobs {same_key}", user_and_key)
            if (existing := rows.fetchone()) is None:
                if is_stored:
                    detail = "the job with this key was just deleted: submit it again"
                    raise Refused(503, detail, headers={"Retry-After": "1"})
                number = insert(db, "jobs", row)
                insert(db, "contents", {"number": number, "payload": payload})
                return select_job(db, "WHERE number = ?", number), True
            _check_same(job, *existing)
            db.execute(
                "UPDATE jobs SET lease = ?, charged_lease = CASE WHEN ended IS NOT NULL "
                f"THEN coalesce(charged_lease, lease) END {same_key}",
                (lease.id, *user_and_key),
            )
            return select_job(db, same_key, *user_and_key), False

        return self._db.change(change)

    def with_key(self, user: str, job: Submission) -> Job | None:
        """Find the job that was submitted with the same key before.

        :raises Refused: 409 if the key belongs to a different job
        """
        query = f"SELECT number, {_COMPARED} FROM jobs WHERE user = ? AND key = ?"
        for number, digest, repeatable in self._db.read(query, user, job.key):
            _check_same(job, digest, repeatable)
            return self.get(number)
        return None

    def get(self, job_id: str | int) -> Job | None:
        """Find a job by its id or its number."""
        name = "number" if isinstance(job_id, int) else "id"
        return next(iter(self._select(f"WHERE {name} = ?", job_id)), None)

    def latest(
        self,
        *,
        lease: str | None = None,
        user: str | None = None,
        key: str | None = None,
        label: str | None = None,
        dialect: str | None = None,
        before: int | None = None,
        live: bool = False,
        limit: int = 1000,
    ) -> list[Job]:
        """List the latest jobs of a lease, of a user or of all users, oldest first.

        :param lease: id of a lease; jobs charged to the lease are included, even if they have
            been resubmitted under another lease
        :param label: label of a SAPI problem
        :param before: number of a job; only jobs with lower numbers are listed
        :param live: whether to list only jobs that have not ended
        """
        # the + makes SQLite use the index of live jobs, not that of all jobs of the user
        by_user = "+user = ?" if live else "user = ?"
        # The index of charged_lease has few jobs, so this condition is cheap.
        of_lease = "(lease = ? OR charged_lease = ?)"
        terms = {of_lease: lease, by_user: user, "number < ?": before}
        terms |= {"dialect = ?": dialect, "key = ?": key}
        terms[f"{json_value('metadata', 'label')} = ?"] = label
        conditions = {term: value for term, value in terms.items() if value is not None}
        values = [
            value
            for term in conditions
            for value in [conditions[term]] * term.count("?")
        ]
        where = " AND ".join([LIVE] * live + [*conditions]) or "1"
        query = f"{SELECT_JOB} WHERE {where} ORDER BY number DESC LIMIT ?"
        return [*map(job_of, self._db.read_large(query, *values, limit))][::-1]

    def by_number(self, numbers: Sequence[int]) -> list[Job]:
        """Find jobs by their numbers; the order of the result is undefined."""
        marks = ", ".join("?" * len(numbers))
        return self._select(f"WHERE number IN ({marks})", *numbers)

    def labels(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the labels that users gave their jobs, for the jobs that have a label."""
        rows = self._db.read(_LABELS, json.dumps(numbers))
        return {number: label for number, label in rows if label}

    def live(self) -> list[Job]:
        """List the jobs that are queued or running, in the order of submission.

        A job that cannot be read is left out, and logged.
        """
        jobs = self._select(f"WHERE {LIVE} ORDER BY number")
        for job in jobs:
            if job.final:
                logger.error("job %s is not run: %s", job.id, job.note)
        return [job for job in jobs if not job.final]

    def last_ended(self, limit: int, user: str | None) -> list[Job]:
        """List the latest ended jobs of a user or of all users, newest first."""
        latest = "ended_steady IS NOT NULL ORDER BY ended_steady DESC LIMIT ?"
        if user is None:
            return self._select(f"WHERE {latest}", limit)
        return self._select(f"WHERE user = ? AND {latest}", user, limit)

    def payload(self, number: int) -> str:
        """Read a job's payload as JSON text.

        :raises Refused: 404 if the job has been deleted
        """
        rows = self._db.read_large(
            "SELECT payload FROM contents WHERE number = ?", number
        )
        if not rows:
            raise Refused(404, NO_JOB)
        return str(rows[0][0])

    def result(self, number: int) -> str | None:
        """Read a job's result as JSON text; ``None`` if it has none."""
        rows = self._db.read_large(
            "SELECT result FROM contents WHERE number = ?", number
        )
        return cast("str | None", rows[0][0]) if rows else None

    def result_bytes(self, number: int) -> int | None:
        """Return the size of a job's result; ``None`` if it has none."""
        return self._db.size("contents", "result", number)

    def result_part(self, number: int, first: int, most: int) -> bytes:
        """Read a part of a job's result; empty if the result has been deleted."""
        return self._db.part("contents", "result", number, first, most)

    def _select(self, where: str, *values: str | int) -> list[Job]:
        return [job_of(row) for row in self._db.read(SELECT_JOB + where, *values)]


def _check_same(job: Submission, digest: str, repeatable: int) -> None:
    detail = None
    if digest != job.digest:
        detail = "belongs to a job with another content or other parameters"
    elif job.repeatable not in (None, bool(repeatable)):
        kind = "repeatable" if repeatable else "not repeatable"
        detail = f"belongs to a job that is {kind}: submit this one under another key"
    if detail is not None:
        raise Refused(409, detail, "idempotency_key")
