"""A job in the words of ``slurmrestd``, which v0.0.40 of its API has changed.

Since then a number may be an object that says whether it is set, a state is a list of words,
and a submission has numbers where v0.0.38 took the words of sbatch(1).
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

#: the last version with the words of sbatch
FIRST_VERSION = "v0.0.38"
# job_state_string() of slurm_protocol_defs.c: which of several words `squeue` shows
_FLAGS = (
    "COMPLETING STAGE_OUT CONFIGURING RESIZING REQUEUED REQUEUE_FED REQUEUE_HOLD "
    "SPECIAL_EXIT STOPPED REVOKED RESV_DEL_HOLD SIGNALING".split()
)
# sbatch(1), --signal
_SIGNAL = re.compile(r"(?:([RB]):)?(\w+)(?:@(\d+))?")
_SIGNAL_FLAGS = {"B": "BATCH_JOB", "R": "RESERVATION_JOB"}
_SIGNAL_SECONDS = 60


@dataclass(frozen=True)
class _SlurmNumber:
    set: bool
    number: int = 0


def _number(value: JSON) -> int | None:
    """Read a number, which may be an object that says whether it is set."""
    if isinstance(value, dict):
        read = structs.read(_SlurmNumber, value)
        return read.number if read.set else None
    if (number := integer(value)) is None:
        raise expected("a whole number", value)
    return number


def _time(value: JSON) -> float | None:
    seconds = _number(value) or 0
    return float(seconds) if seconds > 0 else None


def _job_id(value: JSON) -> str:
    if (number := integer(value)) is None or number <= 0:
        raise expected("the id of a job", value)
    return str(number)


def _state(value: JSON) -> str:
    """Read the state of a job as ``squeue`` shows it."""
    words = value if isinstance(value, list) else [value]
    texts = [word for word in words if isinstance(word, str)]
    if not texts or len(texts) < len(words):
        raise expected("a state, or the list of its words", value)
    return next((flag for flag in _FLAGS if flag in texts), texts[0])


Number: TypeAlias = Annotated[int | None, _number]
JobId: TypeAlias = Annotated[str, _job_id]
_Time: TypeAlias = Annotated[float | None, _time]
_State: TypeAlias = Annotated[str, _state]


@dataclass(frozen=True)
class _Signal:
    id: Number = None
    # its name until v0.0.39
    signal_id: Number = None


@dataclass(frozen=True)
class _ExitCode:
    """How a script ended; there is no code if a signal ended it."""

    return_code: Number = None
    signal: _Signal = field(default=_Signal())


def _wait_status(value: JSON) -> int | None:
    """Read the exit code and the signal of a job as from wait(2)."""
    if not isinstance(value, dict):
        return _number(value)
    code = structs.read(_ExitCode, value)
    signal = code.signal.id or code.signal.signal_id
    if code.return_code is None and signal is None:
        return None
    return (code.return_code or 0) << 8 | (signal or 0)


_WaitStatus: TypeAlias = Annotated[int | None, _wait_status]


@dataclass(frozen=True)
class RestJob:
    """A job that ``slurmrestd`` lists, with the names of its API.

    :param exit_code: as from wait(2)
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
        """The job as ``squeue`` would show it."""
        return QueueRow(
            job=self.job_id,
            state=self.job_state,
            reason=self.state_reason,
            started=self.start_time,
            ended=self.end_time,
            nodes=self.node_count or 0,
            node_list=self.nodes,
            status=_known_status(self.job_state, self.exit_code),
            restarts=self.restart_cnt or 0,
            comment=self.comment or NO_COMMENT,
        )


def _known_status(state: str, status: int | None) -> int | None:
    """Return the status; without one, only a job that is ``COMPLETED`` may have failed."""
    return 0 if status is None and state != "COMPLETED" else status


@dataclass(frozen=True)
class _AccountedState:
    current: _State
    reason: str = ""


@dataclass(frozen=True)
class _AccountedTime:
    start: _Time = None
    end: _Time = None


@dataclass(frozen=True)
class AccountedJob:
    """A job of slurmdbd's, with the names of the API."""

    job_id: JobId
    state: _AccountedState
    time: _AccountedTime = field(default=_AccountedTime())
    exit_code: _WaitStatus = None

    @property
    def outcome(self) -> JobOutcome | None:
        """How it ended; ``None`` if that is not recorded."""
        status = _known_status(self.state.current, self.exit_code)
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


def submitted(job: Mapping[str, JSON], version: str) -> dict[str, JSON]:
    """Return the properties of a new job as a version of the API takes them.

    :param job: properties as v0.0.38 takes them
    :raises InputError: if a value cannot be read
    """
    if version == FIRST_VERSION:
        return dict(job)
    converted: dict[str, JSON] = {}
    for key, value in job.items():
        for name, text in _PARTS.get(key, _same)(key, value).items():
            before = converted.get(name) if name.startswith("tres_per_") else None
            converted[name] = f"{before},{text}" if before else text
    return converted


def _same(key: str, value: JSON) -> dict[str, JSON]:
    return {key: value}


def _whole(key: str, value: JSON) -> dict[str, JSON]:
    try:
        return {key: int(str(value))}
    except ValueError:
        raise InputError(f"{key}: expected a whole number, not '{value}'") from None


def _set(key: str, value: JSON) -> dict[str, JSON]:
    return {key: {"set": True, "infinite": False, "number": _whole(key, value)[key]}}


def _minutes(key: str, value: JSON) -> dict[str, JSON]:
    text = str(value)
    if text.upper() in ("INFINITE", "UNLIMITED", "-1"):
        return {key: {"set": True, "infinite": True, "number": 0}}
    if (seconds := limit_seconds(text)) is None:
        raise InputError(f"{key}: expected a time as for sbatch, not '{text}'")
    return _set(key, math.ceil(seconds / 60))


def _gres(name: str) -> Callable[[str, JSON], dict[str, JSON]]:
    def words(_: str, value: JSON) -> dict[str, JSON]:
        text = str(value)
        if name == "gres":
            gres = [f"gres/{tres.bare(word)}" for word in text.split(",")]
            return {"tres_per_node": ",".join(gres)}
        return {name: ",".join(f"gres/gpu:{word}" for word in text.split(","))}

    return words


def _nodes(key: str, value: JSON) -> dict[str, JSON]:
    least, dash, most = str(value).partition("-")
    if least.isdigit() and (not dash or most.isdigit()):
        # `nodes` makes "2-2" of "1-2" in Slurm 24.11
        counts = {"minimum_nodes": int(least), "maximum_nodes": int(most or least)}
        return {**counts}
    return {key: value}


def _signal(key: str, value: JSON) -> dict[str, JSON]:
    if (match := _SIGNAL.fullmatch(str(value))) is None:
        raise InputError(f"{key}: expected [{{R|B}}:]SIGNAL[@SECONDS], not '{value}'")
    who, name, seconds = match.groups()
    warning: dict[str, JSON] = {
        "kill_warning_signal": name,
        **_set("kill_warning_delay", seconds or _SIGNAL_SECONDS),
    }
    return warning | ({"kill_warning_flags": [_SIGNAL_FLAGS[who]]} if who else {})


def _environment(key: str, value: JSON) -> dict[str, JSON]:
    return {key: [f"{name}={text}" for name, text in mapping(value).items()]}


_PARTS: dict[str, Callable[[str, JSON], dict[str, JSON]]] = {
    "cpus_per_task": _whole,
    "environment": _environment,
    # the variable of the environment alone says so
    "get_user_environment": lambda key, value: {},
    "gpus": _gres("tres_per_job"),
    "gpus_per_node": _gres("tres_per_node"),
    "gpus_per_task": _gres("tres_per_task"),
    "gres": _gres("gres"),
    "mail_type": lambda key, value: {key: [*str(value).upper().split(",")]},
    "nice": _whole,
    "nodelist": lambda key, value: {"required_nodes": [str(value)]},
    "nodes": _nodes,
    "priority": _set,
    "signal": _signal,
    "tasks": _whole,
    "tasks_per_node": _whole,
    "time_limit": _minutes,
    "time_minimum": _minutes,
}
