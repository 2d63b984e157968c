"""Jobs at a QPU whose vendor's API has jobs: submissions, progress and outcomes.

The clients of QPUs use these types to drive their vendor's API, and the queue of the QPU
service to drive any device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sf_quantum import structs
from sf_quantum.errors import QpuError
from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.bounds import ANSWER_BYTES, RESULT_BYTES
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.values import Amount, number

# the states have QRMI's names
State: TypeAlias = Literal["Queued", "Running", "Completed", "Failed", "Cancelled"]
# a serialized BQM, a sequence in Pulser's abstract representation, OpenQASM 3, an
# experiment of linear optics
Kind: TypeAlias = Literal["problem", "sequence", "circuit", "photonic"]
JobParameters: TypeAlias = Mapping[str, int | None]
#: states of a job that has ended
OVER: tuple[State, ...] = ("Completed", "Failed", "Cancelled")
# Bytes of a shot in a result apart from its values: energy, count, punctuation.
SHOT_BYTES = 1024


class NotAccepted(QpuError):
    """A submission that has certainly made no job, for example because the vendor is busy.

    If a submission raises any other :class:`~sf_quantum.errors.QpuError`, there may be a
    job.

    :param retry_seconds: wait that the vendor requests before a retry, if stated
    """

    def __init__(self, message: str, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class LeaseLost(NotAccepted):
    """The vendor has ended the lease of a request; the request had no effect."""


class UnknownJob(QpuError):
    """The vendor no longer knows a job that it has accepted.

    :param lease_lost: whether the vendor has ended the job's lease
    """

    def __init__(self, message: str, *, lease_lost: bool = False) -> None:
        super().__init__(message)
        self.lease_lost = lease_lost


class WrongAnswer(QpuError):
    """The vendor's answer cannot be read.

    :param answer: the answer as received, for the operator of a service
    """

    def __init__(self, message: str, answer: str) -> None:
        super().__init__(message)
        self.answer = answer


def shots_of(parameters: JobParameters) -> int:
    """Return the number of shots of a job, ``num_reads``; 1 by default."""
    return parameters.get("num_reads") or 1


@dataclass(frozen=True)
class Task:
    """One attempt at a job, or at a slice of its shots.

    :param tag: unique id of this submission, for vendors that store tags; at most 60
        letters, digits and hyphens
    :param payload: JSON text: an object for a problem or an experiment, a list of objects
        for several problems, otherwise a string
    :param parameters: ``num_reads`` (shots), optionally ``seed`` and ``num_sweeps``
    :param number: number of the job in its queue
    :param attempt: number of the attempt at the job, from 1
    :param part: number of the slice, from 0
    :param reservation: name of the vendor's reservation in which the task runs; ``None``
        selects the reservation of the lease at the vendor, if any
    """

    tag: str
    kind: Kind
    payload: str
    parameters: JobParameters
    number: int = 0
    attempt: int = 1
    part: int = 0
    reservation: str | None = None

    @property
    def shots(self) -> int:
        return shots_of(self.parameters)

    @property
    def result_bytes(self) -> int:
        """Largest size of the result as JSON text; a longer result is not read.

        A shot names each variable, atom or mode of the payload at most once.
        """
        if self.kind == "circuit":  # a short text may declare many bits
            return RESULT_BYTES
        each = len(self.payload) + SHOT_BYTES
        return min(ANSWER_BYTES + self.shots * each, RESULT_BYTES)


@dataclass(frozen=True)
class Progress:
    """The progress of a job.

    :param position: number of jobs ahead of a queued job at the vendor, if reported
    :param eta_seconds: seconds until the job starts, if reported
    """

    state: State
    position: int | None = None
    eta_seconds: float | None = None


@dataclass(frozen=True)
class LeaseJob:
    """A QPU job of a lease, for the run's journal; unknown values are ``None``.

    Moments are in seconds since the epoch.

    :param queued_seconds: seconds from the job's submission to its last start
    :param seconds: elapsed time on the QPU
    :param eta_seconds: seconds until the job starts; infinite while the QPU cannot predict
        the start
    :param attempt: number of times that the job was started
    :param lost_qpu_seconds: QPU time of interrupted attempts
    :param found: whether the job is older than the lease
    :param charged: whether the job's use is charged to this lease, not to an earlier lease
    """

    id: str | None = None
    state: str | None = None
    submitted: Amount = None
    started: Amount = None
    ended: Amount = None
    queued_seconds: Amount = None
    qpu_seconds: Amount = None
    seconds: Amount = None
    eta_seconds: Amount = None
    attempt: Amount = None
    lost_qpu_seconds: Amount = None
    found: bool | None = None
    charged: bool | None = None

    @classmethod
    def read(cls, job: JSON) -> LeaseJob:
        """Read a job with the fields as keys.

        :raises WrongValue: if a field has another type
        """
        eta = number(mapping(job).get("eta_seconds"))
        if eta is None and "eta_seconds" in mapping(job):
            # A closed QPU reports null; a QPU without predictions omits the field.
            eta = math.inf
        return structs.read(cls, job, eta_seconds=eta)


@dataclass(frozen=True)
class Result:
    """A result, which may be large; the service does not parse it.

    :param text: JSON object without its ``info``: a serialized sample set,
        ``{"sample_sets": [...]}`` or ``{"counter": {bits: count}}``
    """

    text: str = "{}"
    info: dict[str, JSON] = field(default_factory=dict)

    @property
    def whole(self) -> str:
        """The JSON text with ``info``."""
        comma = "" if self.text == "{}" else ", "
        return f'{self.text[:-1]}{comma}"info": {json.dumps(self.info)}}}'


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    :param result: result of the job; ``None`` unless it completed
    :param failure: reason why the job failed; ``None`` if it completed or was cancelled
    :param qpu_seconds: QPU time that the vendor bills, even if the job was cancelled or
        failed; ``None`` if not reported
    :param seconds: elapsed time on the QPU; ``None`` if not reported
    :param calibration: calibration under which the job ran, if reported
    :param note: the vendor's message about the job's end, if any
    :param lost: reason why the vendor ended a job that was not at fault; the job then has
        no result and may be submitted again. Otherwise ``None``
    """

    result: Result | None = None
    failure: str | None = None
    qpu_seconds: float | None = None
    seconds: float | None = None
    calibration: CalibrationData | None = None
    note: str = ""
    lost: str | None = None
