"""Flux as the gate's batch system: the attribute ``sfq.qpu`` of a held job names the QPU."""

from __future__ import annotations

import os
import pwd
import re
import time
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import mapping, parse_json
from sf_quantum.qpu.leasing.batch_jobs import BatchJob
from sf_quantum.qpu.leasing.gating.scheduler import (
    Applicant,
    GatedJob,
    Scheduler,
    run_command,
)
from sf_quantum.text import shortened

# The states of jobs without nodes, flux_job_states(7).
_PENDING = ("DEPEND", "PRIORITY", "SCHED")
# Longest wait for the scheduler to withdraw a job. Flux reports only the total number of jobs
# that the scheduler considers, so in a busy queue every wait takes this long.
SETTLE_SECONDS = 2.0
# Key of the name that the gate gives the instance, since other instances may have the same
# job ids. No attribute of the broker lasts exactly as long as the jobs.
_NAME_KEY = "sfq.gate"
# Flux writes ids with a florin sign, which a locale may garble, or with an f.
_F58 = re.compile(r"(?:f|[^\x00-\x7f]+)([1-9A-HJ-NP-Za-km-z]+)")


class _Row(NamedTuple):
    """A line of ``flux jobs`` in :data:`_FORMAT`."""

    id: str
    user: str
    queue: str
    state: str
    urgency: str
    number: str


# Guests cannot write arbitrary text to these fields. They can to annotations, and on some
# texts there Flux itself fails.
_FORMAT = "{id.f58plain}\t{username}\t{queue}\t{state}\t{urgency}\t{id.dec}"


class Flux(Scheduler):
    """The Flux instance of ``FLUX_URI``, or the system's instance, owned by this user.

    :raises InputError: if another user owns the instance
    :raises QpuError: if the instance does not answer
    """

    title = "Flux"

    def __init__(self) -> None:
        owner = _flux("getattr", "security.owner")
        if owner != str(os.getuid()):
            raise InputError(
                f"sfq flux gate: run the gate as the owner of the instance, uid {owner}"
            )
        super().__init__(_instance_name())
        self._rows: Mapping[str, _Row] = {}
        # Attributes of jobs do not change.
        self._requests: dict[str, str] = {}

    def jobs(self) -> dict[str, GatedJob]:
        output = _flux("jobs", "-A", "--count=0", "--no-header", f"--format={_FORMAT}")
        try:
            rows = [_Row(*line.split("\t")) for line in output.splitlines()]
            rows.sort(key=lambda row: int(row.number))
        except (TypeError, ValueError):
            raise QpuError(f"flux jobs: not its list: {shortened(output)!r}") from None
        self._rows = {row.id: row for row in rows}
        self._requests = {
            id_: text for id_, text in self._requests.items() if id_ in self._rows
        }
        return {row.id: self._job(row) for row in rows}

    def _job(self, row: _Row) -> GatedJob:
        is_pending = row.state in _PENDING
        is_held = is_pending and row.urgency == "0"
        return GatedJob(
            user=row.user,
            request=self._request(row.id) if is_held else "",
            is_pending=is_pending,
            is_held=is_held,
            may_start=row.state == "SCHED",
            reason=f"state {row.state}",
        )

    def _request(self, id_: str) -> str:
        if id_ not in self._requests:
            try:
                jobspec = _flux("job", "info", id_, "jobspec")
            except QpuError:  # the job has ended meanwhile
                return ""
            self._requests[id_] = _read_request(jobspec)
        return self._requests[id_]

    def applicant(self, job: str) -> Applicant:
        row = self._rows[job]
        return Applicant(row.user, row.queue, "", {})

    def release(self, job: str) -> None:
        _flux("job", "urgency", job, "default")

    def hold(self, job: str) -> None:
        # Flux rejects a hold once the job has nodes. But it does not wait until the scheduler
        # has withdrawn the job: if nodes still arrive, the second hold is rejected.
        _flux("job", "urgency", job, "hold")
        end = time.monotonic() + SETTLE_SECONDS
        while _is_scheduling() and time.monotonic() < end:
            time.sleep(0.2)
        _flux("job", "urgency", job, "hold")

    def explain(self, job: str, text: str) -> None:
        try:
            _flux("job", "memo", "--volatile", job, f"sfq={text}")
        except QpuError:  # the wait does not depend on the memo
            return


def job_of(variables: Mapping[str, str]) -> tuple[BatchJob, str] | None:
    """Read the Flux job of an environment, and its user if the uid has a name.

    The environment does not name the instance, so an admin also sees the leases of jobs with
    the same id in other instances.
    """
    return _job_named(variables.get("FLUX_JOB_ID"))


def enclosing_job_of(variables: Mapping[str, str]) -> tuple[BatchJob, str] | None:
    """Read the job of ``flux batch`` or ``flux alloc`` that an environment is within.

    Such a job is itself an instance, and its script is not a job of this instance.
    """
    return _job_named(variables.get("FLUX_ENCLOSING_ID"))


def _job_named(text: str | None) -> tuple[BatchJob, str] | None:
    if not text:
        return None
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = ""
    return BatchJob("Flux", None, _job_id(text)), user


def _read_request(jobspec: str) -> str:
    """Convert the attributes below ``sfq`` to a request; unknown keys become wrong bounds."""
    try:
        spec = mapping(parse_json(jobspec))
    except ValueError:  # for example, an attribute of the user is nested too deeply
        return "qpu-unreadable_jobspec="
    attributes = mapping(
        mapping(mapping(spec.get("attributes")).get("system")).get("sfq")
    )
    words = []
    for key, value in attributes.items():
        word = re.sub(r"\W", "_", key.removeprefix("qpu-"))
        words.append(f"{'qpu' if key == 'qpu' else f'qpu-{word}'}={value}")
    return " ".join(words)


def _job_id(text: str) -> str:
    """Return a Flux job id in ASCII.

    :raises InputError: if the text is not such an id
    """
    if (match := _F58.fullmatch(text)) is None:
        raise InputError(f"not the id of a Flux job: {text!r}")
    return f"f{match[1]}"


def _instance_name() -> str:
    """Return the name of the instance, which its first gate sets."""
    try:
        return _flux("kvs", "get", _NAME_KEY)
    except QpuError as error:
        if "No such file" not in str(error):
            raise
    # The name survives a crash of the broker, as do jobs.
    _flux("kvs", "put", "--sync", f"{_NAME_KEY}={uuid.uuid4().hex[:12]}")
    return _flux("kvs", "get", _NAME_KEY)


def _is_scheduling() -> bool:
    """Return whether the scheduler considers any job."""
    status = _flux("queue", "status", "--verbose")
    return "0 alloc requests pending to scheduler" not in status.splitlines()


def _flux(*words: str) -> str:
    return run_command("flux", *words)
