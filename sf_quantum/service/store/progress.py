"""Writes the progress of jobs on a device; each change is on disk before it takes effect."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import Future

from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.service.domain.jobs import Job, State
from sf_quantum.service.store.file.clock import wall_clock
from sf_quantum.service.store.rows import (
    CANCELLED,
    LIVE,
    QUEUED,
    REQUEUED,
    Records,
    select_job,
)


class Progress(Records):
    """Writes the changes of jobs from their submission to the device until their end."""

    def send(self, number: int, device: str) -> Future[Job]:
        """Note that a device may have a job, unless the job has ended or been sent before.

        :param device: identity of the device
        """
        return self._update(
            number, "device = ?", device, where=f"{LIVE} AND device IS NULL"
        )

    def not_sent(self, number: int) -> Future[Job]:
        """Note that the device does not have the job after all."""
        return self._update(number, "device = NULL", where="device_job IS NULL")

    def submitted(self, number: int, device_job: str) -> Future[Job]:
        """Note the id of a job on its device."""
        return self._update(number, "device_job = ?", device_job)

    def slice_begins(self, number: int, shots: int) -> Future[Job]:
        """Note the shots of a slice before it is submitted."""
        return self._update(number, "slice_shots = ?", shots)

    def start(self, number: int, seconds_ago: float = 0.0) -> Future[Job]:
        """Mark a job as running if it is queued, in the service or on its device."""
        return self._update(
            number,
            "state = 'Running', started = ?, started_steady = ?",
            *(round(wall_clock() - seconds_ago, 6), self._clock() - seconds_ago),
            where="state = 'Queued'",
        )

    def note_cancellation(self, number: int, note: str) -> Future[Job]:
        """Note that a job is being cancelled, so that ``recover`` cancels it after a crash."""
        return self._update(number, "cancelling = ?", note, where=LIVE)

    def note_interruption(self, number: int, attempt: int, note: str) -> Future[Job]:
        """Note that an attempt is being cancelled on its device, and its job runs again."""
        where = f"{LIVE} AND attempt = {attempt:d}"
        return self._update(number, "interrupting = ?", note, where=where)

    def cancel_waiting(self, number: int, note: str) -> Future[Job]:
        """Cancel a job if it is queued."""
        times = wall_clock(), self._clock()
        return self._update(number, CANCELLED, *times, note, where=QUEUED)

    def finish(
        self,
        number: int,
        state: State,
        *,
        note: str | None,
        used: tuple[float, float],
        cost: float | None = None,
        result: str | None = None,
        calibration: CalibrationData | None = None,
    ) -> Future[Job]:
        """Store how a job ended, unless its end is on disk already.

        :param used: billed or modelled QPU seconds, and measured seconds on the device,
            without interrupted attempts
        :param cost: cost of the last slice, if the device has a price; the cost of earlier
            slices is already on disk
        :param result: JSON text of the result, if the job completed
        :param calibration: calibration under which the job ran, if it ran
        """
        query = (
            "UPDATE jobs SET state = ?, ended = ?, ended_steady = ?, "
            "note = coalesce(?, note), calibration = ?, qpu_seconds = ?, seconds = ?, "
            "cost = coalesce(cost + ?, ?, cost), bytes = bytes + ?, device = NULL "
            f"WHERE number = ? AND {LIVE}"
        )
        calibration_text = (
            None if calibration is None else json.dumps(calibration.to_json())
        )

        def change(db: sqlite3.Connection) -> Job:
            ended = wall_clock(), self._clock()
            size = len(result or "")
            values = (state, *ended, note, calibration_text, *used, cost, cost)
            changed = db.execute(query, (*values, size, number)).rowcount
            if changed and result is not None:
                set_result = "UPDATE contents SET result = ? WHERE number = ?"
                db.execute(set_result, (result, number))
            return select_job(db, "WHERE number = ?", number)

        return self._db.change(change)

    def put_back(
        self, number: int, note: str, used: tuple[float, float]
    ) -> Future[Job]:
        """Queue a job again, unless it has ended; the lost attempt is not charged.

        :param used: see :meth:`finish`
        """
        columns = (
            f"{REQUEUED}, lost_qpu_seconds = lost_qpu_seconds + ?, "
            "lost_seconds = lost_seconds + ?"
        )
        # the job may have moved to another lease, whose end has cancelled the job meanwhile
        return self._update(number, columns, note, *used, where=LIVE)

    def _update(
        self, number: int, columns: str, *values: str | float, where: str = "1"
    ) -> Future[Job]:
        query = f"UPDATE jobs SET {columns} WHERE number = ? AND {where}"

        def change(db: sqlite3.Connection) -> Job:
            db.execute(query, (*values, number))
            return select_job(db, "WHERE number = ?", number)

        return self._db.change(change)
