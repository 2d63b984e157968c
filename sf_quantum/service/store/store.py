"""The acknowledged leases, jobs and results, on disk."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

from sf_quantum.files import JSON
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Job,
    Lease,
    Purpose,
    Recovery,
    State,
    Submission,
)
from sf_quantum.service.domain.reasons import (
    NOT_FOUND_AGAIN,
    RELEASED,
    Cause,
    Interruption,
)
from sf_quantum.service.store.clock import steady_clock
from sf_quantum.service.store.database import Database
from sf_quantum.service.store.schema import SCHEMA, UPGRADES, VERSION

_LEASE = f"SELECT {', '.join(field.name for field in fields(Lease))} FROM leases "
_JOB = f"SELECT {', '.join(field.name for field in fields(Job))} FROM jobs "
# An implicit lease, whose key is the name of its dialect, has the same purpose for all users.
_LABELS = (
    "SELECT jobs.number, coalesce(json_extract(jobs.metadata, '$.label'), jobs.purpose, "
    "CASE WHEN leases.key IS NOT jobs.dialect THEN leases.job END) "
    "FROM jobs JOIN leases ON leases.id = jobs.lease "
    "WHERE jobs.number IN (SELECT value FROM json_each(?))"
)
# said of a job that does not exist, or no longer
NO_JOB = "no such job"
# Columns by which requests with the same key may differ.
_ASKED = "digest, repeatable"
LIVE = "state IN ('Queued', 'Running')"
# a queued job may be in the vendor's queue already
_QUEUED = "state = 'Queued' AND device IS NULL"
_ON_DEVICE = "(state = 'Running' OR state = 'Queued' AND device IS NOT NULL)"
_CANCELLED = "state = 'Cancelled', ended = ?, ended_steady = ?, note = ?"
_AGAIN = (
    "state = 'Queued', started = NULL, started_steady = NULL, attempt = attempt + 1, "
    "device = NULL, device_job = NULL, slice_shots = NULL, interrupting = NULL, note = ?"
)


@dataclass(frozen=True)
class Slice:
    """A slice of a job that is over.

    :param text: its result, as of :class:`~sf_quantum.protocol.tasks.Result`
    :param info: its shots, times and calibration, for the job's ``info``
    """

    shots: int
    text: str
    info: dict[str, JSON]
    qpu_seconds: float = 0.0
    seconds: float = 0.0
    cost: float | None = None


class Store(Database):
    """Leases and jobs in one SQLite file.

    Methods that change something return a future that is done once the change is on
    disk.

    :raises InputError: if this version cannot read the file
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            version=VERSION,
            schema=SCHEMA,
            upgrades=UPGRADES,
            functions={
                "purpose_run": lambda text: Purpose.parse(text).run if text else None,
                "purpose_step": lambda text: text and Purpose.parse(text).step,
            },
        )

        #: Clock for durations and ages.
        self.clock = self.change(steady_clock).result()

    def add_lease(self, lease: Lease) -> Future[None]:
        """Store a new lease; that of a quality job is closed."""
        now = self.clock()
        ended = None if lease.closed is None else now
        steady = {"opened_steady": now, "closed_steady": ended}

        def change(db: sqlite3.Connection) -> None:
            _insert(db, "leases", asdict(lease) | steady)

        return self.change(change)

    def grant_lease(self, lease: Lease) -> Future[None]:
        """Note that a lease waits no longer."""
        query = (
            "UPDATE leases SET waiting = 0, opened = ?, opened_steady = ?, expires = ? "
            "WHERE id = ?"
        )
        values = lease.opened, self.clock(), lease.expires, lease.id

        def change(db: sqlite3.Connection) -> None:
            db.execute(query, values)

        return self.change(change)

    def close_lease(
        self,
        lease_id: str,
        reason: str,
        note: str,
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> Future[Lease]:
        """Close a lease and cancel its queued jobs; closing it again changes nothing.

        :param reason: shown to requests that still use the lease
        :param note: note of the cancelled jobs
        :param also: another change of the same transaction
        :raises Refused: 404
        """

        def change(db: sqlite3.Connection) -> Lease:
            now, steady = time.time(), self.clock()
            db.execute(
                # one that waited was held for no time
                "UPDATE leases SET closed = ?, closed_steady = ?, reason = ?, "
                "opened_steady = CASE WHEN waiting THEN ? ELSE opened_steady END "
                "WHERE id = ? AND closed IS NULL",
                (now, steady, reason, steady, lease_id),
            )
            db.execute(
                f"UPDATE jobs SET {_CANCELLED} WHERE lease = ? AND {_QUEUED}",
                (now, steady, note, lease_id),
            )
            # The note is for recover(): the service may die before the device releases
            # the job.
            db.execute(
                "UPDATE jobs SET cancelling = coalesce(cancelling, ?) "
                f"WHERE lease = ? AND {_ON_DEVICE}",
                (note, lease_id),
            )
            if also is not None:
                also(db)
            row = db.execute(_LEASE + "WHERE id = ?", (lease_id,)).fetchone()
            if row is None:
                raise Refused(404, "no such lease")
            return _lease(row)

        return self.change(change)

    def lease(self, lease_id: str) -> Lease | None:
        """Find a lease, held or not."""
        return next(iter(self._leases("WHERE id = ?", lease_id)), None)

    def leases(self, user: str | None = None, limit: int = 1000) -> list[Lease]:
        """List the leases of a user or of all users, the latest first."""
        if user is None:
            return self._leases("ORDER BY opened DESC LIMIT ?", limit)
        where = "WHERE user = ? ORDER BY opened DESC LIMIT ?"
        return self._leases(where, user, limit)

    def held(self) -> list[Lease]:
        """List the leases that are held or wait for a vQPU, the oldest first."""
        return self._leases("WHERE closed IS NULL ORDER BY opened")

    def lease_ages(self) -> dict[str, float]:
        """Return for how many seconds each lease has been held."""
        query = "SELECT id, ? - opened_steady FROM leases WHERE closed IS NULL"
        return {row[0]: row[1] for row in self.read(query, self.clock())}

    def add_job(
        self,
        lease: Lease,
        job: Submission,
        model_seconds: float,
        compute_seconds: float = 0.0,
        *,
        is_stored: bool = False,
    ) -> Future[tuple[Job, bool]]:
        """Add a job, unless its user has used the key before.

        An existing job moves to the lease of this submission, so that it does not end
        with the lease it was first submitted under; what a job that is over has used
        stays charged to the lease that it ended under.

        :param model_seconds: modelled QPU time
        :param compute_seconds: estimated CPU time
        :param is_stored: whether the job existed just now, and so was not checked again
        :returns: the job, and whether it is new
        :raises Refused: 409 if the key belongs to a job that differs, 503 if a job that
            was known has been deleted meanwhile
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
            "submitted": time.time(),
            "submitted_steady": self.clock(),
        }
        payload = job.payload

        def change(db: sqlite3.Connection) -> tuple[Job, bool]:
            same = "WHERE user = ? AND key = ?"
            user_and_key = (lease.user, job.key)
            rows = db.execute(f"SELECT {_ASKED} FROM jobs {same}", user_and_key)
            if (existing := rows.fetchone()) is None:
                if is_stored:
                    detail = "the job with this key was just deleted: submit it again"
                    raise Refused(503, detail, headers={"Retry-After": "1"})
                number = _insert(db, "jobs", row)
                _insert(db, "contents", {"number": number, "payload": payload})
                return _select_job(db, "WHERE number = ?", number), True
            _check_same(job, *existing)
            db.execute(
                "UPDATE jobs SET lease = ?, charged_lease = CASE WHEN ended IS NOT NULL "
                f"THEN coalesce(charged_lease, lease) END {same}",
                (lease.id, *user_and_key),
            )
            return _select_job(db, same, *user_and_key), False

        return self.change(change)

    def job_by_key(self, user: str, job: Submission) -> Job | None:
        """Find the job that was submitted with the same key before.

        :raises Refused: 409 if the key belongs to a job that differs
        """
        query = f"SELECT number, {_ASKED} FROM jobs WHERE user = ? AND key = ?"
        for number, digest, repeatable in self.read(query, user, job.key):
            _check_same(job, digest, repeatable)
            return self.job(number)
        return None

    def job(self, job_id: str | int) -> Job | None:
        """Find a job by its id or its number."""
        name = "number" if isinstance(job_id, int) else "id"
        return next(iter(self._jobs(f"WHERE {name} = ?", job_id)), None)

    def jobs(
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

        :param label: label of SAPI's problems
        :param before: only jobs with lower numbers
        :param live: only jobs that are not over
        """
        # + keeps SQLite from searching all jobs of a user for few that are live
        by_user = "+user = ?" if live else "user = ?"
        terms = {"lease = ?": lease, by_user: user, "number < ?": before}
        terms |= {"dialect = ?": dialect, "key = ?": key}
        terms["json_extract(metadata, '$.label') = ?"] = label
        given = {term: value for term, value in terms.items() if value is not None}
        where = " AND ".join([LIVE] * live + [*given]) or "1"
        query = f"{_JOB} WHERE {where} ORDER BY number DESC LIMIT ?"
        return [*map(_job, self.read_large(query, *given.values(), limit))][::-1]

    def jobs_by_number(self, numbers: Sequence[int]) -> list[Job]:
        """Find jobs by their numbers, in any order."""
        marks = ", ".join("?" * len(numbers))
        return self._jobs(f"WHERE number IN ({marks})", *numbers)

    def labels(self, numbers: Sequence[int]) -> dict[int, str]:
        """Find what users call their jobs; some have no label."""
        rows = self.read(_LABELS, json.dumps(numbers))
        return {number: label for number, label in rows if label}

    def live(self) -> list[Job]:
        """List the jobs that are queued or running, in the order of submission."""
        return self._jobs(f"WHERE {LIVE} ORDER BY number")

    def last_ended(self, limit: int, user: str | None) -> list[Job]:
        """List the latest jobs of a user or of all users that are over, newest first."""
        latest = "ended_steady IS NOT NULL ORDER BY ended_steady DESC LIMIT ?"
        if user is None:
            return self._jobs(f"WHERE {latest}", limit)
        return self._jobs(f"WHERE user = ? AND {latest}", user, limit)

    def payload(self, number: int) -> str:
        """Read a job's payload, JSON text.

        :raises Refused: 404 if the job has been deleted
        """
        rows = self.read_large("SELECT payload FROM contents WHERE number = ?", number)
        if not rows:
            raise Refused(404, NO_JOB)
        return str(rows[0][0])

    def result(self, number: int) -> str | None:
        """Read a job's result, JSON text; ``None`` if it has none."""
        rows = self.read_large("SELECT result FROM contents WHERE number = ?", number)
        return cast("str | None", rows[0][0]) if rows else None

    def result_bytes(self, number: int) -> int | None:
        """Return the size of a job's result; ``None`` if it has none."""
        return self.size("contents", "result", number)

    def result_part(self, number: int, first: int, most: int) -> bytes:
        """Read a part of a job's result; nothing if it has been deleted."""
        return self.part("contents", "result", number, first, most)

    def send(self, number: int, device: str) -> Future[Job]:
        """Note that a device may have a job from now on, unless the job is over.

        :param device: its identity
        """
        return self._update(
            number, "device = ?", device, where=f"{LIVE} AND device IS NULL"
        )

    def not_sent(self, number: int) -> Future[Job]:
        """Note that the device has no such job after all."""
        return self._update(number, "device = NULL", where="device_job IS NULL")

    def submitted(self, number: int, device_job: str) -> Future[Job]:
        """Note the id of a job on its device."""
        return self._update(number, "device_job = ?", device_job)

    def slice_begins(self, number: int, shots: int) -> Future[Job]:
        """Note the shots of a slice before it is submitted."""
        return self._update(number, "slice_shots = ?", shots)

    def slice_ended(self, number: int, part: Slice) -> Future[None]:
        """Keep a slice that is over; the job's times and cost grow by its own."""
        info = json.dumps(part.info)

        def change(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO slices SELECT number, slices, ?, ?, ? FROM jobs "
                "WHERE number = ?",
                (part.shots, part.text, info, number),
            )
            db.execute(
                "UPDATE jobs SET slices = slices + 1, shots_done = shots_done + ?, "
                "slice_shots = NULL, device = NULL, device_job = NULL, "
                "qpu_seconds = qpu_seconds + ?, seconds = seconds + ?, "
                "cost = coalesce(cost + ?, ?, cost) WHERE number = ?",
                (
                    part.shots,
                    part.qpu_seconds,
                    part.seconds,
                    part.cost,
                    part.cost,
                    number,
                ),
            )

        return self.change(change)

    def slices(self, number: int) -> list[Slice]:
        """Read the slices of a job that are over, in order."""
        query = "SELECT shots, result, info FROM slices WHERE number = ? ORDER BY slice"
        rows = self.read_large(query, number)
        return [Slice(shots, text, json.loads(info)) for shots, text, info in rows]

    def slice_infos(self, number: int) -> list[dict[str, JSON]]:
        """Read what the slices of a job are, without their results."""
        query = "SELECT info FROM slices WHERE number = ? ORDER BY slice"
        return [json.loads(info) for (info,) in self.read_large(query, number)]

    def slice_text(self, number: int, part: int) -> str | None:
        """Read the result of a slice; ``None`` if there is none."""
        query = "SELECT result FROM slices WHERE number = ? AND slice = ?"
        rows = self.read_large(query, number, part)
        return cast("str | None", rows[0][0]) if rows else None

    def start(self, number: int, seconds_ago: float = 0.0) -> Future[Job]:
        """Mark a job as running if it is queued, here or on its device."""
        return self._update(
            number,
            "state = 'Running', started = ?, started_steady = ?",
            *(time.time() - seconds_ago, self.clock() - seconds_ago),
            where="state = 'Queued'",
        )

    def note_cancellation(self, number: int, note: str) -> Future[Job]:
        """Note that a job is being cancelled; :meth:`recover` completes it."""
        return self._update(number, "cancelling = ?", note, where=LIVE)

    def note_interruption(self, number: int, attempt: int, note: str) -> Future[Job]:
        """Note that an attempt is being cancelled on its device, and is to be repeated."""
        where = f"{LIVE} AND attempt = {attempt:d}"
        return self._update(number, "interrupting = ?", note, where=where)

    def cancel_waiting(self, number: int, note: str) -> Future[Job]:
        """Cancel a job if it is queued."""
        times = time.time(), self.clock()
        return self._update(number, _CANCELLED, *times, note, where=_QUEUED)

    def finish(
        self,
        number: int,
        state: State,
        *,
        note: str | None,
        used: tuple[float, float],
        cost: float | None = None,
        result: str | None = None,
        calibration: JSON = None,
    ) -> Future[Job]:
        """Store how a job ended, unless its end is on disk already.

        :param used: seconds on the device, billed or modelled and actual, without those of
            interrupted attempts
        :param cost: cost of the last slice, if the device has a price; the cost of the
            slices before is on disk
        :param result: JSON text, for a job that completed
        :param calibration: the calibration that the job ran under, if it ran
        """
        query = (
            "UPDATE jobs SET state = ?, ended = ?, ended_steady = ?, "
            "note = coalesce(?, note), calibration = ?, qpu_seconds = ?, seconds = ?, "
            "cost = coalesce(cost + ?, ?, cost), bytes = bytes + ?, device = NULL "
            f"WHERE number = ? AND {LIVE}"
        )
        calibration_text = None if calibration is None else json.dumps(calibration)

        def change(db: sqlite3.Connection) -> Job:
            ended = time.time(), self.clock()
            size = len(result or "")
            values = (state, *ended, note, calibration_text, *used, cost, cost)
            changed = db.execute(query, (*values, size, number)).rowcount
            if changed and result is not None:
                set_result = "UPDATE contents SET result = ? WHERE number = ?"
                db.execute(set_result, (result, number))
            return _select_job(db, "WHERE number = ?", number)

        return self.change(change)

    def put_back(
        self, number: int, note: str, used: tuple[float, float]
    ) -> Future[Job]:
        """Queue a job again, unless it has ended: the attempt is lost, and not charged.

        :param used: see :meth:`finish`
        """
        columns = (
            f"{_AGAIN}, lost_qpu_seconds = lost_qpu_seconds + ?, "
            "lost_seconds = lost_seconds + ?"
        )
        # the end of a lease, to which it was moved, may have cancelled it meanwhile
        return self._update(number, columns, note, *used, where=LIVE)

    def recover(
        self, deaths: int, device: str = "", recovery: Recovery = Recovery.AGAIN
    ) -> Future[list[Job]]:
        """Settle the jobs that the end of the former service interrupted.

        Jobs that the device still has stay as they are. Of the others, those of closed
        leases and those that were being cancelled are cancelled; jobs that may have run
        on a device and must not run twice have failed, as have those during which the
        service died the given number of times; others are queued again.

        :param device: identity of the present device
        :returns: the jobs that were settled
        """
        on_device = {
            Recovery.BY_TAG: "coalesce(device = :device, 0)",
            Recovery.BY_ID: "coalesce(device = :device AND device_job IS NOT NULL, 0)",
        }.get(recovery, "0")
        closed = "lease IN (SELECT id FROM leases WHERE closed IS NOT NULL)"
        interrupted = f"{LIVE} AND NOT {on_device} AND "
        ended = "ended = :ended, ended_steady = :steady"
        unsettled = (
            f"(state = 'Running' OR device IS NOT NULL OR cancelling IS NOT NULL "
            f"OR {closed})"
        )

        def change(db: sqlite3.Connection) -> list[Job]:
            given = {
                "device": device,
                "ended": time.time(),
                "steady": self.clock(),
                "released": RELEASED.note,
                "lost": f"interrupted: the service ended; {NOT_FOUND_AGAIN}",
                "deaths": deaths,
            }
            query = f"SELECT number FROM jobs WHERE {interrupted} {unsettled}"
            numbers = [number for (number,) in db.execute(query, given)]
            cancel = f"UPDATE jobs SET state = 'Cancelled', device = NULL, {ended}, "
            fail = f"UPDATE jobs SET state = 'Failed', device = NULL, {ended}, "
            running = f"{interrupted} state = 'Running'"
            for statement in (
                f"{cancel} note = cancelling "
                f"WHERE {interrupted} cancelling IS NOT NULL",
                f"{cancel} note = :released WHERE {interrupted} {closed}",
                f"{fail} note = :lost "
                f"WHERE {interrupted} device IS NOT NULL AND NOT repeatable",
                f"UPDATE jobs SET deaths = deaths + 1 WHERE {running}",
                f"{fail} note = 'the service died ' || deaths || ' times during the job' "
                f"WHERE {running} AND deaths >= :deaths",
            ):
                db.execute(statement, given)
            query = (
                f"SELECT number, attempt FROM jobs WHERE {interrupted} "
                "(state = 'Running' OR device IS NOT NULL)"
            )
            for number, attempt in db.execute(query, given).fetchall():
                db.execute(
                    f"UPDATE jobs SET {_AGAIN} WHERE number = ?",
                    (Interruption(Cause.RESTART).note(attempt), number),
                )
            return [_select_job(db, "WHERE number = ?", number) for number in numbers]

        return self.change(change)

    def availability(self) -> tuple[str, str] | None:
        """Read the QPU's status and its message; ``None`` in a new file."""
        rows = self.read("SELECT status, message FROM availability")
        return (rows[0][0], rows[0][1]) if rows else None

    def _update(
        self, number: int, columns: str, *values: str | float, where: str = "1"
    ) -> Future[Job]:
        query = f"UPDATE jobs SET {columns} WHERE number = ? AND {where}"

        def change(db: sqlite3.Connection) -> Job:
            db.execute(query, (*values, number))
            return _select_job(db, "WHERE number = ?", number)

        return self.change(change)

    def _leases(self, where: str, *values: str | int) -> list[Lease]:
        return [*map(_lease, self.read(_LEASE + where, *values))]

    def _jobs(self, where: str, *values: str | int) -> list[Job]:
        return [_job(row) for row in self.read(_JOB + where, *values)]


def _check_same(job: Submission, digest: str, repeatable: int) -> None:
    detail = None
    if digest != job.digest:
        detail = "belongs to a job with another content or other parameters"
    elif job.repeatable not in (None, bool(repeatable)):
        kind = "repeatable" if repeatable else "not repeatable"
        detail = f"belongs to a job that is {kind}: submit this one under another key"
    if detail is not None:
        raise Refused(409, detail, "idempotency_key")


def _lease(row: sqlite3.Row) -> Lease:
    return Lease(**{**dict(row), "waiting": bool(row["waiting"])})


def _job(row: sqlite3.Row) -> Job:
    texts = {name: row[name] for name in ("parameters", "calibration", "metadata")}
    read = {name: text and json.loads(text) for name, text in texts.items()}
    read["repeatable"] = bool(row["repeatable"])
    return Job(**{**dict(row), **read})


def _insert(
    db: sqlite3.Connection, table: str, row: Mapping[str, str | float | None]
) -> int:
    """Insert a row and return its number."""
    marks = ", ".join("?" * len(row))
    query = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
    return db.execute(query, [*row.values()]).lastrowid or 0


def _select_job(db: sqlite3.Connection, where: str, *values: str | int) -> Job:
    """:raises Refused: 404 if it has been deleted meanwhile"""
    row = db.execute(_JOB + where, values).fetchone()
    if row is None:
        raise Refused(404, NO_JOB)
    return _job(row)
