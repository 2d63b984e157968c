"""Flux for the gate: an attribute of a held job, ``sfq.qpu``, names the QPU."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON, listing, mapping, parse_json
from sf_quantum.qpu.environment import JOB_ID, JOB_UID
from sf_quantum.qpu.leasing.batch_jobs import BatchJob
from sf_quantum.qpu.leasing.gating.scheduler import (
    Applicant,
    GatedJob,
    Scheduler,
    run_command,
)

# The states of jobs without nodes, flux_job_states(7).
_PENDING = ("DEPEND", "PRIORITY", "SCHED")
# The instance's name: job ids of another instance may be the same, and no attribute of the
# broker lasts exactly as long as the jobs do.
_NAME_KEY = "sfq.gate"
# Flux writes ids with a florin sign, which a locale may garble, or with an f.
_F58 = re.compile(r"(?:f|[^\x00-\x7f]+)([1-9A-HJ-NP-Za-km-z]+)")


class Flux(Scheduler):
    """The instance of ``FLUX_URI``, or the system's, of which this user is the owner.

    :raises QpuError: if it does not answer, or another user is its owner
    """

    title = "Flux"

    def __init__(self) -> None:
        super().__init__(_instance_name())
        self._rows: Mapping[str, Mapping[str, JSON]] = {}
        # Attributes of jobs do not change.
        self._requests: dict[str, str] = {}

    def jobs(self) -> dict[str, GatedJob]:
        output = _flux("jobs", "--json", "--count=0", "-A")
        rows = listing(mapping(parse_json(output.encode()))["jobs"])
        by_number = sorted(map(mapping, rows), key=lambda row: int(str(row["id"])))
        self._rows = {_job_id(str(row["jobid"])): row for row in by_number}
        self._requests = {
            id_: text for id_, text in self._requests.items() if id_ in self._rows
        }
        return {id_: self._job(id_, row) for id_, row in self._rows.items()}

    def _job(self, id_: str, row: Mapping[str, JSON]) -> GatedJob:
        is_pending = row["state"] in _PENDING
        is_held = is_pending and row["urgency"] == 0
        sched = mapping(mapping(row.get("annotations") or {}).get("sched") or {})
        return GatedJob(
            user=str(row["username"]),
            request=self._request(id_) if is_held else "",
            is_pending=is_pending,
            is_held=is_held,
            may_start=row["state"] == "SCHED",
            reason=str(sched.get("reason_pending") or "no reason"),
        )

    def _request(self, id_: str) -> str:
        if id_ not in self._requests:
            try:
                spec = parse_json(_flux("job", "info", id_, "jobspec").encode())
            except QpuError:  # the job has ended meanwhile
                return ""
            system = mapping(mapping(mapping(spec)["attributes"]).get("system") or {})
            self._requests[id_] = _words(system.get("sfq"))
        return self._requests[id_]

    def applicant(self, job: str) -> Applicant:
        row = self._rows[job]
        variables = {JOB_UID: str(row["userid"]), JOB_ID: job}
        queue = str(row.get("queue") or "")
        return Applicant(str(row["username"]), queue, "", variables)

    def release(self, job: str) -> None:
        _flux("job", "urgency", job, "default")

    def hold(self, job: str) -> None:
        # Flux refuses it once the job has nodes.
        _flux("job", "urgency", job, "hold")

    def explain(self, job: str, text: str) -> None:
        try:
            _flux("job", "memo", "--volatile", job, f"sfq={text}")
        except QpuError:  # nothing of the wait depends on it
            return


def job_of(variables: Mapping[str, str]) -> tuple[BatchJob, str] | None:
    """Read the Flux job of an environment; its instance and user are not known there."""
    if not (text := variables.get("FLUX_JOB_ID")):
        return None
    return BatchJob("Flux", None, _job_id(text)), ""


def _words(attributes: JSON) -> str:
    """Write the attributes below ``sfq`` as a request; any other key is a wrong bound."""
    if not isinstance(attributes, dict):
        return ""
    words = []
    for key, value in attributes.items():
        word = re.sub(r"\W", "_", key.removeprefix("qpu-"))
        words.append(f"{'qpu' if key == 'qpu' else f'qpu-{word}'}={value}")
    return " ".join(words)


def _job_id(text: str) -> str:
    """Return an id of Flux in ASCII.

    :raises InputError: if it is none
    """
    if (match := _F58.fullmatch(text)) is None:
        raise InputError(f"not the id of a Flux job: {text!r}")
    return f"f{match[1]}"


def _instance_name() -> str:
    """Return the name that the instance has from its first gate on."""
    try:
        return _flux("kvs", "get", _NAME_KEY)
    except QpuError as error:
        if "No such file" not in str(error):
            raise
    # The name survives a crash of the broker, as do jobs.
    _flux("kvs", "put", "--sync", f"{_NAME_KEY}={uuid.uuid4().hex[:12]}")
    return _flux("kvs", "get", _NAME_KEY)


def _flux(*words: str) -> str:
    return run_command("flux", *words)
