"""A job as the service reports it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from sf_quantum.files import JSON, mapping
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import Result, State
from sf_quantum.protocol.values import Amount, Count, Size, check_about
from sf_quantum.qpu.sfq.service_client import read_answer
from sf_quantum.text import one_line

# A job that should end within this time is not logged.
SOON_SECONDS = 1.0
# A job that is expected to run for longer is logged as a warning.
LONG_SECONDS = 600.0
logger = logging.getLogger(__name__)


def _result(content: JSON) -> Result | None:
    if not isinstance(content, dict) or not isinstance(content.get("info"), dict):
        return None
    rest = {key: value for key, value in content.items() if key != "info"}
    return Result(json.dumps(rest), mapping(content["info"]))


@dataclass(frozen=True)
class ServiceJob:
    """A job; values that the service does not report are ``None`` or empty.

    :param attempt: number of the attempt, from 1
    :param ended: time when the job left the device, in seconds since the epoch
    :param position: number of jobs ahead of the job
    :param eta_seconds: seconds until the job starts
    :param expected_run_seconds: expected run time of the job in seconds
    :param result: result, if it is small enough to be part of the answer
    """

    id: str
    state: State
    kind: str = ""
    note: str = ""
    lease: str | None = None
    attempt: Size = 0
    ended: Amount = None
    position: Count = None
    eta_seconds: Amount = None
    expected_run_seconds: Amount = None
    qpu_seconds: Amount = None
    seconds: Amount = None
    calibration: CalibrationData | None = None
    result: Annotated[Result | None, _result] = None

    @classmethod
    def read(
        cls,
        who: str,
        answer: Mapping[str, JSON],
        *,
        id_: str | None = None,
        key: str | None = None,
    ) -> ServiceJob:
        """Read an answer.

        :param who: name of the service
        :param id_: id of the requested job
        :param key: idempotency key of the requested job
        :raises QpuError: if the answer is not a job, or is about another job
        """
        for name, asked in (("id", id_), ("idempotency_key", key)):
            if asked is not None:
                check_about(who, answer.get(name), asked)
        return read_answer(who, cls, {"id": id_, **answer}, "a job")

    @property
    def remark(self) -> str:
        """The note, unless it only reports that the job was cancelled."""
        return "" if self.note == "cancelled" else self.note

    def log_expected(self, who: str) -> None:
        """Log the expected start and run time of the job.

        A long run is a warning. A job that is expected to end soon is not logged.
        """
        seconds, eta = self.expected_run_seconds, self.eta_seconds
        if seconds is None or (eta is not None and eta + seconds < SOON_SECONDS):
            return
        level = logging.WARNING if seconds >= LONG_SECONDS else logging.INFO
        message = "%s: job %.80s (%.20s) %s; it is expected to run for %s"
        what = who, self.id, self.kind, self._start()
        logger.log(level, message, *what, _rounded(seconds))

    def _start(self) -> str:
        """Describe when the job starts."""
        if self.state == "Running":
            return "runs"
        if self.eta_seconds is None:
            why = one_line(self.note or "the QPU does not tell when it starts")
            return f"waits ({why:.200})"
        ahead = self.position or 0
        jobs = f", after {ahead} other job{'s' * (ahead > 1)}" if ahead else ""
        return f"starts in about {_rounded(self.eta_seconds)}{jobs}"


def _rounded(seconds: float) -> str:
    return f"{seconds:,.{0 if seconds >= 10 else 1}f} s"
