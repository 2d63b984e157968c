"""A job in the words of ``slurmrestd``, which v0.0.40 of its API has changed.

Since then a number may be an object that says whether it is set, a state is a list of words,
and a submission has numbers where v0.0.38 took the words of sbatch(1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping
from sf_quantum.slurm import tres
from sf_quantum.slurm.counts import limit_seconds
from sf_quantum.slurm.records import NO_COMMENT
from sf_quantum.slurm.squeue import QueueRow

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
class RestJob:
    """A job that ``slurmrestd`` lists.

    :param row: the job as ``squeue`` would show it
    :param user: name of the job's user
    :param output: path of its standard output
    :param errors: path of its standard error
    """

    row: QueueRow
    user: str
    output: str
    errors: str

    @classmethod
    def read(cls, job: Mapping[str, JSON]) -> RestJob:
        row = QueueRow(
            job=str(job.get("job_id")),
            state=_state(job.get("job_state")),
            reason=str(job.get("state_reason")),
            started=_time(job.get("start_time")),
            ended=_time(job.get("end_time")),
            nodes=number(job.get("node_count")),
            node_list=str(job.get("nodes") or ""),
            status=_wait_status(job.get("exit_code")),
            restarts=number(job.get("restart_cnt")),
            comment=str(job.get("comment") or NO_COMMENT),
        )
        names = ("user_name", "standard_output", "standard_error")
        return cls(row, *(str(job.get(name) or "") for name in names))


def accounted(job: Mapping[str, JSON]) -> JobOutcome:
    """Read a job of slurmdbd's."""
    state, times = mapping(job.get("state")), mapping(job.get("time"))
    code = mapping(job.get("exit_code"))
    return JobOutcome(
        str(job.get("job_id")),
        _state(state.get("current")),
        str(state.get("reason") or ""),
        exit_code=_exit_code(code),
        signal=_signal_number(code),
        started=_time(times.get("start")),
        ended=_time(times.get("end")),
    )


def number(value: JSON) -> int:
    """Return a number, 0 if it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else 0
    return value if isinstance(value, int) else 0


def _time(value: JSON) -> float | None:
    seconds = number(value)
    return float(seconds) if seconds else None


def _state(value: JSON) -> str:
    """Return the state of a job as ``squeue`` shows it."""
    if not isinstance(value, list):
        return str(value)
    words = [str(word) for word in value]
    return next((flag for flag in _FLAGS if flag in words), words[0] if words else "")


def _wait_status(value: JSON) -> int:
    """Return the exit code and the signal of a job as from wait(2)."""
    if not isinstance(value, dict):
        return number(value)
    return _exit_code(value) << 8 | _signal_number(value)


def _exit_code(value: Mapping[str, JSON]) -> int:
    return number(value.get("return_code"))


def _signal_number(value: Mapping[str, JSON]) -> int:
    signal = mapping(value.get("signal"))
    return number(signal.get("signal_id", signal.get("id")))


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
