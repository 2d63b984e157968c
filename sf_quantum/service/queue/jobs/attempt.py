"""One attempt at a job: runs the job's unfinished slices, one at a time, on the device.

A job that would occupy the device for long is cut into slices, so that a pre-empting job
waits for one slice at most. If a job has several circuits or BQMs, each slice runs some of
them with all their shots; a slice of any other job runs part of its shots. Finished slices
are on disk: if an attempt is interrupted or the service dies, only the work of the running
slice is lost, and the next attempt starts with this slice again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData, calibration_id
from sf_quantum.protocol.tasks import Outcome, Progress, Result, Task
from sf_quantum.protocol.values import count
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.processes.merging import merged
from sf_quantum.service.domain.jobs import Job, Recovery
from sf_quantum.service.domain.reasons import Cause, Interruption
from sf_quantum.service.queue.jobs.attempt_control import Control, Detached, Interrupt
from sf_quantum.service.queue.jobs.device_job import DeviceJob, runs_again
from sf_quantum.service.queue.jobs.giving_up import GivenUp
from sf_quantum.service.queue.jobs.slices import Batch, Slices
from sf_quantum.service.queue.writing import written
from sf_quantum.service.store.slices import Slice
from sf_quantum.service.store.store import Store
from sf_quantum.threads import in_thread

logger = logging.getLogger(__name__)
# longest time in seconds that a device may report for a job; longer times are ignored
MOST_SECONDS = 1e9


@dataclass(frozen=True)
class Ended:
    """The end of an attempt.

    :param outcome: outcome of the job, with the times of its last slice
    :param used: QPU seconds, and seconds on the device, of this attempt's slices and of the
        finished slices of earlier attempts
    :param spent: QPU seconds of this attempt
    :param surplus: remark for the job's note if a duplicate submission arrived late, or if
        the job may still run on the device; otherwise empty
    :param given_up: the job on the device, if it was given up and may still run there
    """

    outcome: Outcome
    used: tuple[float, float]
    spent: float
    surplus: str = ""
    given_up: GivenUp | None = None

    @property
    def last(self) -> tuple[float, float]:
        """QPU seconds, and seconds on the device, of the last slice."""
        return self.outcome.qpu_seconds or 0.0, self.outcome.seconds or 0.0


class Attempt:
    """One attempt at a job; :meth:`run` blocks, other methods may be called from any thread.

    :param job: job as stored, with its id on the device if the device has it already
    :param submitted: called each time that the job, or a slice of it, has been submitted
    :param running: called once, when the device is first seen to run the job
    :param slice_seconds: longest time that a slice should take; ``None``: not sliced
    :param check: whether to check the job again, since the device may have changed after
        the last check
    :param unsure: whether a previous service process may have submitted the job
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        job: Job,
        submitted: Callable[[], None],
        running: Callable[[], None],
        *,
        slice_seconds: float | None = None,
        check: bool = False,
        unsure: bool = False,
    ) -> None:
        self._store = store
        self._device = device
        self._job = job
        self._on_submitted = submitted
        self._on_running = running
        self._seen_running = False
        self._needs_check = check
        self._control = Control()
        self._on_device: DeviceJob | None = None
        self._payload: str | None = None
        # a job that was between two slices is not on the device
        unsure = unsure and not (job.slices and job.slice_shots is None)
        self._surplus = ""
        # QPU seconds, and seconds on the device, of all finished slices, including slices of
        # earlier attempts
        self._used = job.qpu_seconds, job.seconds
        self._unsure = unsure
        self._slices = Slices(device, job, slice_seconds, is_fixed=unsure)

    @property
    def progress(self) -> Progress:
        """The job's progress, as the device reports it."""
        return (
            Progress("Queued") if self._on_device is None else self._on_device.progress
        )

    @property
    def submitted(self) -> bool:
        """Whether the device has the job, or has had a slice of it."""
        on_device = self._on_device
        return self._slices.number > 0 or (
            on_device is not None and on_device.id is not None
        )

    @property
    def _finishes_slice_on_preemption(self) -> bool:
        """Whether a pre-empting job waits for the running slice, which is not cancelled."""
        is_running = self.progress.state == "Running"
        ends_soon = self._slices.are_several or self._slices.is_short
        return (ends_soon and is_running) or not runs_again(
            self._device.jobs, self._job
        )

    def lets_slice_finish(self, interruption: Interruption) -> bool:
        """Whether the slice on the device may still finish before the attempt ends."""
        return self._interrupt_for(interruption) is Interrupt.PAUSE

    def detaches(self, interruption: Interruption) -> bool:
        """Whether an interruption leaves the job on the device to the next service process."""
        return self._interrupt_for(interruption) is Interrupt.DETACH

    def _interrupt_for(self, interruption: Interruption) -> Interrupt:
        if (
            interruption.cause is Cause.PREEMPTION
            and self._finishes_slice_on_preemption
        ):
            return Interrupt.PAUSE
        job_continues = self._device.jobs.recovery in (Recovery.BY_TAG, Recovery.BY_ID)
        service_stops = interruption.cause is Cause.SERVICE_STOP
        return Interrupt.DETACH if service_stops and job_continues else Interrupt.CANCEL

    def interrupt(self, interruption: Interruption) -> None:
        """Interrupt the attempt without blocking; a cancellation on the device is final."""
        how, control = self._interrupt_for(interruption), self._control
        control.note = None
        if not interruption.cancels:
            control.note = interruption.note(self._job.attempt)
        if control.interrupt is not Interrupt.CANCEL:
            control.interrupt = how
        self._control.wake.set()
        if (on_device := self._on_device) is not None:
            # in another thread, since the thread of run() may be waiting for the device
            in_thread(on_device.cancel_if_asked)

    def leave(self) -> None:
        """Leave the job to the next service process, even if the job is to be cancelled."""
        self._control.leave = True
        self._control.wake.set()

    def run(self) -> Ended:
        """Run the job until it has ended or is interrupted.

        :raises Detached: if the job was left to the next service process
        """
        spent = 0.0
        while True:
            outcome = self._run_next()
            shots = self._slices.shots
            spent += outcome.qpu_seconds or 0.0
            if outcome.result is None or self._slices.shots_left <= shots:
                break
            self._write_slice(outcome, shots)
            self._slices.next()
            if self._control.interrupt is not None:
                stopped = Outcome(None, None, 0.0, 0.0)
                return Ended(stopped, self._used, spent, self._surplus)
        if outcome.result is not None:
            outcome = self._merged_outcome(outcome, shots)
        self._add_use(outcome)
        given_up = self._on_device.given_up if self._on_device else None
        return Ended(outcome, self._used, spent, self._surplus, given_up)

    def _read_payload(self) -> None:
        """Read the payload once, and cut the job again if its slices depend on the payload."""
        job = self._job
        if self._payload is not None:
            return
        self._payload = self._store.jobs.payload(job.number)
        if (batch := Batch.of(job.kind, self._payload)) is None:
            if job.kind == "circuit" and self._slices.compute_long:
                with suppress(FieldError):
                    content = json.loads(self._payload)
                    size = self._device.check(job.kind, content, job.parameters)
                    self._slices.set_size(size)
            return
        slices = self._store.slices.of(job.number) if job.slices else []
        done = [count(part.info.get(batch.what)) for part in slices]
        self._slices.set_batch(batch, sum(part or 0 for part in done))

    def _run_next(self) -> Outcome:
        before = self._device.description.calibration
        try:
            self._read_payload()
            outcome = self._run_slice(self._slices.shots)
        except InputError as error:
            outcome = Outcome(failure=str(error))
        except Detached:
            raise
        except Exception as error:  # a job's content must not end the service
            logger.exception("job %s: the device failed", self._job.id)
            outcome = Outcome(failure=f"{type(error).__name__}: {error}")
            if self._on_device is not None:
                self._on_device.give_up()
        submitted = self._on_device is not None and self._on_device.id is not None
        after = self._device.description.calibration
        used = _calibration(outcome.calibration, before if submitted else None, after)
        outcome = replace(outcome, calibration=used)
        has_result = outcome.result is not None
        seconds = self._on_device.seconds(has_result) if self._on_device else 0.0
        outcome = _in_json(outcome)
        if self._slices.one_by_one and (result := outcome.result) is not None:
            as_list = Result(f'{{"sample_sets": [{result.whole}]}}')
            outcome = replace(outcome, result=as_list)
        return self._with_times(outcome, self._slices.shots, seconds)

    def _run_slice(self, shots: int) -> Outcome:
        job, slices = self._job, self._slices
        number, attempt, part = job.number, job.attempt, slices.number
        first = part == job.slices
        payload = self._payload or ""
        tag, parameters = f"sfq-{job.id}-{attempt}", job.parameters
        if slices.are_several:
            tag = f"{tag}-{part}"
            parameters = {**parameters, **slices.parameters}
            payload = slices.payload(payload)
            if not (first and job.slice_shots is not None):
                written(lambda: self._store.progress.slice_begins(number, shots))
        lease = self._store.leases.get(job.lease)
        reservation = None if lease is None else lease.reservation
        task = Task(
            tag, job.kind, payload, parameters, number, attempt, part, reservation
        )
        job_id = job.device_job if first else None
        unsure = self._unsure and first
        if job_id is None and not unsure:
            self._check_again(task)
        self._on_device = DeviceJob(
            self._store,
            self._device,
            job,
            task,
            self._control,
            self._on_submitted,
            self._note_running,
            job_id=job_id,
            began=None if job_id is None else self._began_before(),
            unsure=unsure,
        )
        outcome = self._on_device.run()
        self._surplus = self._on_device.surplus or self._surplus
        return outcome or Outcome()

    def _began_before(self) -> float | None:
        """Return when a previous service process saw the job run, by the monotonic clock.

        ``None`` for a later slice, since only the start of the first slice is on disk.
        """
        started = self._job.started_steady
        if started is None or self._job.slices:
            return None
        return time.monotonic() - (self._store.clock() - started)

    def _note_running(self) -> None:
        if not self._seen_running:
            self._seen_running = True
            self._on_running()

    def _check_again(self, task: Task) -> None:
        """Refuse a job that the device no longer accepts, before it causes any cost."""
        if not self._needs_check:
            return
        self._needs_check = False
        try:
            self._device.check(task.kind, json.loads(task.payload), task.parameters)
        except FieldError as error:
            reason = f"{error.field}: {error.detail}"
            text = f"the device has changed since the job was submitted: {reason}"
            raise InputError(text) from error

    def _with_times(self, outcome: Outcome, shots: int, seconds: float) -> Outcome:
        """Replace times that the device does not report, or that are not plausible."""
        by_vendor, billed = _plausible_seconds(outcome.seconds), _plausible_seconds(
            outcome.qpu_seconds
        )
        if billed is None:
            billed = self._job.model_seconds * shots / self._slices.all_shots
            # a given-up job may still run to its end: expect the full QPU time
            may_run_on = self._on_device is not None and self._on_device.given_up
            if outcome.result is None and not may_run_on:
                billed = min(billed, seconds)
        return replace(
            outcome,
            seconds=seconds if by_vendor is None else by_vendor,
            qpu_seconds=billed,
        )

    # slices

    def _write_slice(self, outcome: Outcome, shots: int) -> None:
        """Write a finished slice to disk; not called for the last slice."""
        record = self._slice_record(outcome, shots, self._device.price)
        written(lambda: self._store.slices.end(self._job.number, record))
        self._add_use(outcome)

    def _add_use(self, outcome: Outcome) -> None:
        qpu_seconds, seconds = self._used
        self._used = (
            qpu_seconds + (outcome.qpu_seconds or 0.0),
            seconds + (outcome.seconds or 0.0),
        )

    def _merged_outcome(self, last: Outcome, shots: int) -> Outcome:
        """Return the job's outcome, with the merged results of all slices."""
        if not self._slices.number:
            return last
        slices = [
            *self._store.slices.of(self._job.number),
            self._slice_record(last, shots),
        ]
        try:
            by_circuit = self._slices.batch is not None
            text = merged([part.text for part in slices], by_circuit=by_circuit)
        except (InputError, OSError) as error:
            failure = f"the results of its slices cannot be merged: {error}"
            return replace(last, result=None, failure=failure)
        info = dict(last.result.info) if last.result else {}
        infos: list[JSON] = [part.info for part in slices]
        return replace(last, result=Result(text, {**info, "slices": infos}))

    def _slice_record(
        self, outcome: Outcome, shots: int, price: float | None = None
    ) -> Slice:
        """Make the record of a slice; that of the last slice is merged but not written."""
        result = outcome.result or Result()
        info: dict[str, JSON] = {"shots": shots, "qpu_seconds": outcome.qpu_seconds}
        if (batch := self._slices.batch) is not None:
            items = shots // self._job.shots
            info |= {"shots": self._job.shots, batch.what: items}
        info["calibration"] = calibration_id(outcome.calibration) or None
        if "seed" in result.info:
            info["seed"] = result.info["seed"]
        used = outcome.qpu_seconds or 0.0, outcome.seconds or 0.0
        cost = None if price is None else price * used[0]
        stored_shots = self._slices.shots_on_disk
        return Slice(stored_shots, result.text, info, *used, cost)


def _plausible_seconds(amount: float | None) -> float | None:
    """Return the seconds that a vendor reports; ``None`` if they are not plausible."""
    if amount is None or not 0 <= amount <= MOST_SECONDS:
        if amount is not None:
            logger.warning(
                "a device tells of %r seconds, which are not counted", amount
            )
        return None
    return float(amount)


def _in_json(outcome: Outcome) -> Outcome:
    """Make the ``info`` of a result valid JSON, with ``null`` for ``NaN`` and infinities."""
    if outcome.result is None:
        return outcome
    try:
        text = json.dumps(outcome.result.info)
        info = json.loads(text, parse_constant=lambda _: None)
    except (TypeError, ValueError, RecursionError) as error:
        failure = f"the device's info is no JSON: {error}"
        return replace(outcome, result=None, failure=failure)
    return replace(outcome, result=replace(outcome.result, info=info))


def _calibration(
    by_vendor: CalibrationData | None,
    before: CalibrationData | None,
    now: CalibrationData | None,
) -> CalibrationData | None:
    """Return a slice's calibration, from the vendor's report or the device's description.

    :param by_vendor: calibration in the vendor's report, perhaps only its id
    :param before: calibration in the description before the slice
    :param now: calibration in the description after the slice
    """
    if by_vendor is None:  # unknown if the calibration was renewed meanwhile
        return before if before == now else None
    matching = (known for known in (before, now) if known and known.id == by_vendor.id)
    return by_vendor.completed(next(matching, by_vendor))
