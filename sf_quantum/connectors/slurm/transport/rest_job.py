"""Jobs in the formats of ``slurmrestd``, which differ between v0.0.38 and v0.0.40 of its API.

Since v0.0.40,

- a number may be an object, with a flag for whether the number is set;
- a state is a list of words;
- a submission contains numbers and lists where v0.0.38 accepts texts as for sbatch(1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, TypeAlias

from sf_quantum import structs
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, integer, mapping
from sf_quantum.slurm import tres
from sf_quantum.slurm.counts import limit_seconds
from sf_quantum.slurm.records import NO_COMMENT
from sf_quantum.slurm.squeue import QueueRow
from sf_quantum.structs import expected

#: oldest supported version of the API, which accepts properties as texts for sbatch(1)
OLDEST_VERSION = "v0.0.38"
# Words of a state of which `squeue` prints the first that is present (job_state_string() of
# slurm_protocol_defs.c).
_STATE_FLAGS = (
    "COMPLETING STAGE_OUT CONFIGURING RESIZING REQUEUED REQUEUE_FED REQUEUE_HOLD "
    "SPECIAL_EXIT STOPPED REVOKED RESV_DEL_HOLD SIGNALING".split()
)
# The option --signal of sbatch(1): its format, the API's flags for its letters, and the
# default of its time.
_SIGNAL_PATTERN = re.compile(r"(?:([RB]):)?(\w+)(?:@(\d+))?")
_SIGNAL_FLAGS = {"B": "BATCH_JOB", "R": "RESERVATION_JOB"}
_DEFAULT_SIGNAL_SECONDS = 60


@dataclass(frozen=True)
class _SlurmNumber:
    """A number, and whether it is set."""

    set: bool
    number: int = 0


def _number(value: JSON) -> int | None:
    """Read a number, or an object with a number; return ``None`` if the number is not set."""
    if isinstance(value, dict):
        slurm_number = structs.read(_SlurmNumber, value)
        return slurm_number.number if slurm_number.set else None
    return structs.whole(value)


def _time(value: JSON) -> float | None:
    """Read a time in seconds since the epoch; return ``None`` if it is 0 or not set."""
    seconds = _number(value) or 0
    return float(seconds) if seconds > 0 else None


def _job_id(value: JSON) -> str:
    if (number := integer(value)) is None or number <= 0:
        raise expected("a job id", value)
    return str(number)


def _state(value: JSON) -> str:
    """Read the state of a job; return the word that ``squeue`` would print."""
    words = value if isinstance(value, list) else [value]
    texts = [word for word in words if isinstance(word, str)]
    if not texts or len(texts) < len(words):
        raise expected("a state or a list of its words", value)
    return next((flag for flag in _STATE_FLAGS if flag in texts), texts[0])


Number: TypeAlias = Annotated[int | None, _number]
JobId: TypeAlias = Annotated[str, _job_id]
_Time: TypeAlias = Annotated[float | None, _time]
_State: TypeAlias = Annotated[str, _state]


@dataclass(frozen=True)
class _Signal:
    """The signal that ended a script."""

    id: Number = None
    # the name of ``id`` in versions until v0.0.39
    signal_id: Number = None


@dataclass(frozen=True)
class _ExitCode:
    """Exit code and signal of a script; if a signal ended the script, no code is set."""

    return_code: Number = None
    signal: _Signal = field(default=_Signal())


def _wait_status(value: JSON) -> int | None:
    """Read the exit code of a job; return a status as in wait(2), or ``None`` if not set."""
    if not isinstance(value, dict):
        return _number(value)
    exit_code = structs.read(_ExitCode, value)
    signal = exit_code.signal.id or exit_code.signal.signal_id
    if exit_code.return_code is None and signal is None:
        return None
    return (exit_code.return_code or 0) << 8 | (signal or 0)


_WaitStatus: TypeAlias = Annotated[int | None, _wait_status]


@dataclass(frozen=True)
class RestJob:
    """A job in a list of ``slurmrestd``; the fields are keys of the API.

    :param exit_code: status as in wait(2); ``None`` if not set
    """

    job_id: JobId
    job_state: _State
    state_reason: str = ""
    start_time: _Time = None
    end_time: _Time = None
    node_count: Number = None
    nodes: str = ""
    exit_code: _WaitStatus = None
    restart_cnt: Number = None
    comment: str = ""
    user_name: str = ""
    standard_output: str = ""
    standard_error: str = ""

    @cached_property
    def row(self) -> QueueRow:
        """The job as a row of ``squeue``."""
        return QueueRow(
            job=self.job_id,
            state=self.job_state,
            reason=self.state_reason,
            started=self.start_time,
            ended=self.end_time,
            nodes=self.node_count or 0,
            node_list=self.nodes,
            status=_complete_status(self.job_state, self.exit_code),
            restarts=self.restart_cnt or 0,
            comment=self.comment or NO_COMMENT,
        )


def _complete_status(state: str, status: int | None) -> int | None:
    """Return the status of a job as in wait(2); ``None`` if the job's outcome is unknown.

    Unless the state is ``COMPLETED``, 0 replaces a missing status: every other state of an
    ended job is a failure regardless of the status.
    """
    if status is None and state != "COMPLETED":
        return 0
    return status


@dataclass(frozen=True)
class _AccountedState:
    """The state of a job in the accounting, and the reason for the state."""

    current: _State
    reason: str = ""


@dataclass(frozen=True)
class _AccountedTime:
    """The times of a job in the accounting."""

    start: _Time = None
    end: _Time = None


@dataclass(frozen=True)
class AccountedJob:
    """A job in Slurm's accounting (slurmdbd); the fields are keys of the API."""

    job_id: JobId
    state: _AccountedState
    time: _AccountedTime = field(default=_AccountedTime())
    exit_code: _WaitStatus = None

    @property
    def outcome(self) -> JobOutcome | None:
        """The outcome of the job; ``None`` if not recorded."""
        status = _complete_status(self.state.current, self.exit_code)
        if status is None:
            return None
        return JobOutcome(
            self.job_id,
            self.state.current,
            self.state.reason,
            exit_code=status >> 8,
            signal=status & 0x7F,
            started=self.time.start,
            ended=self.time.end,
        )


def convert_properties(job: Mapping[str, JSON], version: str) -> dict[str, JSON]:
    """Convert the properties of a new job to the format of a version of the API.

    :param job: properties in the format of v0.0.38
    :raises InputError: if a value is invalid
    """
    if version == OLDEST_VERSION:
        return _of_oldest_version(job)
    converted: dict[str, JSON] = {}
    for key, value in job.items():
        for name, part in _CONVERSIONS.get(key, _keep)(key, value).items():
            # Several properties, such as gpus_per_node and gres, are joined to one list.
            previous = converted.get(name) if name.startswith("tres_per_") else None
            converted[name] = f"{previous},{part}" if previous else part
    return converted


def _of_oldest_version(job: Mapping[str, JSON]) -> dict[str, JSON]:
    """Convert the properties that Slurm 22.05 would misread.

    :raises InputError: if a value cannot be expressed in this version
    """
    converted = dict(job)
    if converted.get("requeue") is False:  # Slurm 22.05 ignores this value
        del converted["requeue"]
        converted["no_requeue"] = True
    minimum, _, maximum = str(job.get("nodes") or "").partition("-")
    if maximum not in ("", minimum):
        raise InputError(
            f"nodes: {OLDEST_VERSION} of slurmrestd reads {minimum}-{maximum} as {maximum}; "
            "write one number"
        )
    return converted


def _keep(key: str, value: JSON) -> dict[str, JSON]:
    return {key: value}


def _integer(key: str, value: JSON) -> dict[str, JSON]:
    try:
        return {key: int(str(value))}
    except ValueError:
        raise InputError(f"{key}: expected a whole number, not '{value}'") from None


def _set_number(key: str, value: JSON) -> dict[str, JSON]:
    """Convert a number to an object in which the number is set."""
    return {key: {"set": True, "infinite": False, "number": _integer(key, value)[key]}}


def _minutes(key: str, value: JSON) -> dict[str, JSON]:
    """Convert a time limit to minutes, rounded up."""
    text = str(value)
    if text.upper() in ("INFINITE", "UNLIMITED", "-1"):
        return {key: {"set": True, "infinite": True, "number": 0}}
    if (seconds := limit_seconds(text)) is None:
        raise InputError(f"{key}: expected a time limit of sbatch, not '{text}'")
    return _set_number(key, math.ceil(seconds / 60))


def _gres(name: str) -> Callable[[str, JSON], dict[str, JSON]]:
    """Return a function that converts generic resources.

    :param name: API key for GPUs, or ``gres`` if the value lists resources of any kind
    """

    def convert(_: str, value: JSON) -> dict[str, JSON]:
        text = str(value)
        if name == "gres":
            gres = [f"gres/{tres.bare(word)}" for word in text.split(",")]
            return {"tres_per_node": ",".join(gres)}
        return {name: ",".join(f"gres/gpu:{word}" for word in text.split(","))}

    return convert


def _nodes(key: str, value: JSON) -> dict[str, JSON]:
    """Convert a number or a range of nodes; keep other texts."""
    minimum, dash, maximum = str(value).partition("-")
    if minimum.isdigit() and (not dash or maximum.isdigit()):
        # Slurm 24.11 reads "1-2" in `nodes` as "2-2".
        return {
            "minimum_nodes": int(minimum),
            "maximum_nodes": int(maximum or minimum),
        }
    return {key: value}


def _signal(key: str, value: JSON) -> dict[str, JSON]:
    """Convert the option ``--signal`` of sbatch(1)."""
    if (match := _SIGNAL_PATTERN.fullmatch(str(value))) is None:
        raise InputError(f"{key}: expected [{{R|B}}:]SIGNAL[@SECONDS], not '{value}'")
    receiver, name, seconds = match.groups()
    warning: dict[str, JSON] = {
        "kill_warning_signal": name,
        **_set_number("kill_warning_delay", seconds or _DEFAULT_SIGNAL_SECONDS),
    }
    if receiver:
        warning["kill_warning_flags"] = [_SIGNAL_FLAGS[receiver]]
    return warning


def _environment(key: str, value: JSON) -> dict[str, JSON]:
    return {key: [f"{name}={text}" for name, text in mapping(value).items()]}


# By property: the function that converts it. Other properties are kept.
_CONVERSIONS: dict[str, Callable[[str, JSON], dict[str, JSON]]] = {
    "cpus_per_task": _integer,
    "environment": _environment,
    # The variable SLURM_GET_USER_ENV in `environment` has the same effect.
    "get_user_environment": lambda key, value: {},
    "gpus": _gres("tres_per_job"),
    "gpus_per_node": _gres("tres_per_node"),
    "gpus_per_task": _gres("tres_per_task"),
    "gres": _gres("gres"),
    "mail_type": lambda key, value: {key: [*str(value).upper().split(",")]},
    "nice": _integer,
    "nodelist": lambda key, value: {"required_nodes": [str(value)]},
    "nodes": _nodes,
    "priority": _set_number,
    "signal": _signal,
    "tasks": _integer,
    "tasks_per_node": _integer,
    "time_limit": _minutes,
    "time_minimum": _minutes,
}
