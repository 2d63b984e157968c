"""The checks of a vendor's replies before they are used.

Every reply of a vendor, about its QPU or a job, is checked here before the service uses,
stores, bills, logs or lists it: results (:mod:`.verification`), times, job ids
(:mod:`.job_ids`), states, descriptions and messages. Wrong replies are logged and kept
(:mod:`.evidence`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import get_args

from sf_quantum.errors import InputError, QpuError, QuantumError
from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description, Timing, Topology
from sf_quantum.protocol.leases import ReservedTime
from sf_quantum.protocol.tasks import (
    Kind,
    Outcome,
    Progress,
    Result,
    State,
    Task,
    WrongAnswer,
)
from sf_quantum.protocol.values import count, number
from sf_quantum.qpu import QpuStatus
from sf_quantum.service.device.foreign import TooLarge, plain
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.vendor.evidence import Evidence
from sf_quantum.service.device.vendor.job_ids import VendorJobIds, WrongId
from sf_quantum.text import LAST_SECOND, MAX_CHARACTERS, described, shortened

# Limits of the check of a result: a result of 20 MB takes seconds, and a tenth of this
# memory.
LIMITS = ComputeLimits(memory_gib=8.0, cpu_seconds=300)
# Attempts at this check, as its process may be killed if memory is short.
CHECKS = 2
# Tolerances for reported times: a vendor may round up to whole seconds, and its clock may be
# a little faster.
SPARE_SECONDS, SPARE_SHARE = 1.0, 0.01
# Maximum characters of a result's info, a calibration, a device's properties and its specs.
MAX_INFO, MAX_CALIBRATION = 2**20, 2**18
MAX_SOLVER, MAX_SPECS = 2**22, 2**24
# Largest waiting time and counts that a vendor may report; larger values are ignored.
MAX_WAIT_SECONDS = 366 * 86400.0
MAX_COUNT = 10**7
# A calibration may be this far in the future.
DAY_SECONDS = 86400.0


@dataclass(frozen=True)
class Passed:
    """The time that a job was at its vendor, by the service's own clock.

    :param at_vendor: seconds since the job was first sent; ``None`` if unknown
    :param on_qpu: seconds that the job seems to have run, which are booked if the vendor
        reports more than ``at_vendor``
    """

    at_vendor: float | None
    on_qpu: float = 0.0


class VendorAnswers:
    """Checks the replies of one vendor; thread-safe.

    :param name: name of the QPU, in log lines
    :param fewer_reads: whether the vendor's jobs may have fewer reads than requested
    """

    def __init__(self, name: str, *, fewer_reads: bool = False) -> None:
        self.jobs = VendorJobIds()
        self._evidence = Evidence(name)
        self._fewer_reads = fewer_reads

    def keep_in(self, folder: Path, identity: str) -> None:
        """Keep evidence and job ids in files next to the service's state.

        :param identity: text that identifies this vendor
        """
        self._evidence.keep_in(folder)
        self.jobs.keep_in(folder / f"vendor-jobs-{identity[:16]}.txt")

    def job_id(self, answer: JSON, tag: str) -> str:
        """Check and record the id that the vendor has given to a submission.

        :raises InputError: if the reply is not an id, or the id of another submission
        """
        try:
            return self.jobs.claim(answer, tag)
        except WrongId as error:
            self._evidence.keep(tag, str(error), str(answer))
            raise

    def unread(self, error: WrongAnswer, job_id: str, task: Task) -> None:
        """Keep a reply that should be a result, but that the client cannot read."""
        self._evidence.keep(task.tag, str(error), error.answer, {"job": job_id})

    def outcome(
        self, claimed: Outcome, job_id: str, task: Task, passed: Passed
    ) -> Outcome:
        """Check the outcome of a job; blocks while its result is checked.

        :returns: the outcome, with a failure instead of a result that does not match the job,
            without impossible times, and with texts of limited length
        """
        outcome = replace(
            claimed,
            failure=_optional(claimed.failure),
            note=shortened(claimed.note),
            lost=_optional(claimed.lost),
            calibration=_calibration(claimed.calibration),
        )
        if claimed.result is not None:
            outcome = self._checked(outcome, claimed.result, job_id, task)
        elif claimed.failure is not None and not outcome.failure:
            outcome = replace(outcome, failure="no reason given")
        return self._timed(outcome, job_id, task, passed)

    def _checked(
        self, outcome: Outcome, unchecked: Result, job_id: str, task: Task
    ) -> Outcome:
        """Check a result; replace a wrong result with a failure, and keep it as evidence."""
        result, wrong = self._verified(unchecked, task)
        if wrong is None:
            return replace(outcome, result=result, failure=None)
        more: dict[str, JSON] = {
            "job": job_id,
            "kind": task.kind,
            "shots": task.shots,
            "qpu_seconds": _shown(outcome.qpu_seconds),
            "seconds": _shown(outcome.seconds),
        }
        self._evidence.keep(task.tag, wrong, unchecked.text, more)
        failure = f"the QPU's result is not one of this job: it {wrong}"
        return replace(outcome, result=None, failure=shortened(failure))

    def _verified(self, result: Result, task: Task) -> tuple[Result | None, str | None]:
        """Check a result in a separate process.

        :returns: the result, or the error in it
        """
        text = result.text
        if not text.isascii():  # a text that cannot be encoded is not JSON either
            text = text.encode(errors="replace").decode()
        arguments: dict[str, JSON] = {
            "kind": task.kind,
            "characters": len(task.payload),
            "shots": task.shots,
            "fewer": self._fewer_reads,
        }
        for attempt in range(CHECKS):
            try:
                answer = process_pool.ask(
                    "verify",
                    arguments,
                    task.payload,
                    lambda: False,
                    LIMITS,
                    more=text,
                )
            except InputError as error:
                if attempt + 1 == CHECKS:
                    return None, f"cannot be checked: {error}"
                continue
            except OSError as error:  # a process cannot be started now
                raise QpuError(f"a result cannot be checked now: {error}") from error
            break
        if answer is None:  # impossible, as the call is never given up
            return None, "cannot be checked"
        if (wrong := answer.info.get("wrong")) is not None:
            return None, str(wrong)
        info = _info(result.info)
        if difference := answer.info.get("difference"):
            info["energies_recomputed"] = {"largest_difference": difference}
        return Result(answer.text, info), None

    def _timed(
        self, outcome: Outcome, job_id: str, task: Task, passed: Passed
    ) -> Outcome:
        """Replace impossible times with the service's own measurement."""
        billed = number(_json(outcome.qpu_seconds))
        ran = number(_json(outcome.seconds))
        outcome = replace(outcome, qpu_seconds=billed, seconds=ran)
        if (most := passed.at_vendor) is None:
            return outcome
        longest, on_qpu = most * (1 + SPARE_SHARE) + SPARE_SECONDS, passed.on_qpu
        notes: dict[str, JSON] = {}
        if billed is not None and billed > longest:
            notes["qpu_seconds"] = billed
            outcome = replace(outcome, qpu_seconds=on_qpu)
        if ran is not None and ran > longest:
            notes["seconds"] = ran
            outcome = replace(outcome, seconds=on_qpu)
        if not notes:
            return outcome
        words = ", ".join(f"{name} {value:g}" for name, value in notes.items())
        note = f"the vendor tells {words}, of a job that it had for {most:.3g} s"
        self._evidence.keep(task.tag, note, "", {"job": job_id, **notes})
        if outcome.failure is not None:
            return replace(outcome, failure=_joined(outcome.failure, note))
        if (result := outcome.result) is None:
            return replace(outcome, note=_joined(outcome.note, note))
        info = {key: value for key, value in result.info.items() if key != "timing"}
        info["vendor_times"] = notes
        return replace(outcome, result=replace(result, info=info))


@contextmanager
def bounded_errors() -> Iterator[None]:
    """Raise a client's errors as errors of this package, of one line of limited length.

    A reply on which the client fails counts as no reply.
    """
    try:
        yield
    except QuantumError as error:
        error.args = (shortened(str(error)) or type(error).__name__,)
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        detail = f"{type(error).__name__}: {described(error)}"
        raise QpuError(f"a malformed answer: {detail}") from error


def progress(answer: Progress) -> Progress:
    """Check the progress of a job.

    :raises QpuError: if the state is not a state of jobs
    """
    if answer.state not in get_args(State):
        state = shortened(str(answer.state), 40)
        raise QpuError(f"the vendor tells of an unknown state, {state!r}")
    return Progress(answer.state, _size(answer.position), _wait(answer.eta_seconds))


def status(answer: QpuStatus) -> QpuStatus:
    """Drop impossible numbers from a status, and shorten its texts to one line."""
    return replace(
        answer,
        name=shortened(str(answer.name)),
        technology=shortened(str(answer.technology)),
        online=answer.online is True,
        reason=shortened(str(answer.reason or "")),
        trouble=shortened(str(answer.trouble or "")),
        qubits=_size(answer.qubits) or 0,
        vqpus=_size(answer.vqpus) or 0,
        leases=_size(answer.leases) or 0,
        queue_length=_size(answer.queue_length) or 0,
        calibration=_optional(answer.calibration),
        eta_seconds=_wait(answer.eta_seconds),
        position=_size(answer.position),
        cost_per_second=number(_json(answer.cost_per_second)),
        maintenance_seconds=_wait(answer.maintenance_seconds),
    )


def description(answer: Description) -> Description:
    """Check the description of a QPU, and drop wrong optional values.

    :raises QpuError: if the graph or the specifications, which jobs need, are wrong
    """
    if answer.topology is not None:
        _check_topology(answer.topology)
    if answer.specs is not None:
        _check_specs(answer.specs)
    out = frozenset(one for one in answer.out_of_service if _size(one) is not None)
    return replace(
        answer,
        technology=shortened(str(answer.technology)),
        qubits=_size(answer.qubits) or 0,
        kinds=tuple(kind for kind in answer.kinds if kind in get_args(Kind)),
        out_of_service=out,
        shots=count(answer.shots) or None,
        timing=_timing(answer.timing),
        calibration=_calibration(answer.calibration),
        native_gates=tuple(shortened(str(one)) for one in answer.native_gates[:1000]),
        solver=None if answer.solver is None else _solver(answer.solver),
    )


def reserved_time(answer: ReservedTime | None) -> ReservedTime | None:
    """Check a reserved time of a QPU.

    :raises QpuError: if start and end are not valid times in this order
    """
    if answer is None or 0 <= answer.starts <= answer.ends <= LAST_SECOND:
        return answer
    detail = shortened(f"from {answer.starts} to {answer.ends}")
    raise QpuError(f"the vendor tells of an impossible reservation, {detail}")


def _check_topology(graph: Topology) -> None:
    if (labels := _size(graph.labels)) is None or len(graph.couplers) > MAX_COUNT:
        raise QpuError("the QPU's graph has an impossible size")
    before = (-1, -1)
    for pair in graph.couplers:
        one, other = pair
        if not (type(one) is type(other) is int and one >= 0 and other >= 0):
            raise QpuError("the QPU's graph has a coupler that is not of two qubits")
        if not (before < pair and one < other < labels):
            detail = f"({one}, {other}) of {labels} qubits, after {before}"
            raise QpuError(f"the QPU's graph has a coupler that cannot be: {detail}")
        before = pair


def _check_specs(specs: str) -> None:
    if len(specs) > MAX_SPECS:
        raise QpuError(f"the QPU's specs have more than {MAX_SPECS:,} characters")
    try:
        if isinstance(json.loads(specs, parse_constant=_no_number), dict):
            return
    except (ValueError, RecursionError) as error:
        raise QpuError("the QPU's specs are not JSON") from error
    raise QpuError("the QPU's specs are not a JSON object")


def _no_number(word: str) -> JSON:
    raise ValueError(word)


def _timing(timing: Timing | None) -> Timing | None:
    if timing is None:
        return None
    seconds = [
        _wait(timing.setup_seconds),
        _wait(timing.shot_seconds),
        _wait(timing.readout_seconds),
    ]
    plausible = [one for one in seconds if one is not None]
    return Timing(*plausible) if len(plausible) == len(seconds) else None


def _calibration(calibration: CalibrationData | None) -> CalibrationData | None:
    """Keep the valid values of a calibration; a time far in the future is not valid."""
    if calibration is None:
        return None
    time = calibration.time if _is_plausible_time(str(calibration.time)) else ""
    values: JSON = {}
    with suppress(TooLarge):
        values = plain({**calibration.values}, MAX_CALIBRATION)
    id_ = shortened(str(calibration.id))
    return CalibrationData.read({"id": id_, "time": time, "values": values})


def _is_plausible_time(timestamp: str) -> bool:
    try:
        moment = datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        return False
    return 0 <= moment <= time.time() + DAY_SECONDS


def _info(info: Mapping[str, JSON]) -> dict[str, JSON]:
    try:
        return mapping(plain({**info}, MAX_INFO))
    except TooLarge:
        return {"left_out": f"more than {MAX_INFO:,} characters of info"}


def _solver(properties: Mapping[str, JSON]) -> dict[str, JSON]:
    try:
        return mapping(plain({**properties}, MAX_SOLVER))
    except TooLarge as error:
        raise QpuError("the properties of the QPU's solver are too large") from error


def _size(size: int | None) -> int | None:
    parsed = count(_json(size))
    return parsed if parsed is None or parsed <= MAX_COUNT else None


def _wait(seconds: float | None) -> float | None:
    parsed = number(_json(seconds))
    return parsed if parsed is None or parsed <= MAX_WAIT_SECONDS else None


def _optional(text: str | None) -> str | None:
    return None if text is None else shortened(str(text))


def _joined(*texts: str) -> str:
    return shortened("; ".join(filter(None, texts)), 2 * MAX_CHARACTERS)


def _json(value: float | None) -> JSON:
    return value


def _shown(value: float | None) -> JSON:
    return None if value is None else repr(value)[:40]
