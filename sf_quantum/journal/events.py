"""The fields of a journal's events, by kind, which its one reader checks.

Who reads an event after that may look up every field of its kind, and finds a value of the
field's type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeGuard

from sf_quantum.files import JSON, mapping, parse_json

Event: TypeAlias = dict[str, JSON]

# Times and amounts up to this one can be added, rounded and drawn.
_MAX_NUMBER = 1e12
# Tags as StreamFlow writes them; longer numbers do not come from iterations.
_TAG = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")


def number(value: JSON) -> float:
    """The value as a float; 0 if it is not a number."""
    return float(value) if _is_number(value) else 0.0


def _is_number(value: JSON) -> TypeGuard[int | float]:
    """Return whether a value is a number with which readers can calculate."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -_MAX_NUMBER <= value <= _MAX_NUMBER  # NaN is not in this range


def number_or_null(value: JSON) -> int | float | None:
    """The value if it is a number; for what somebody else calls a number."""
    return value if _is_number(value) else None


#: the states of a job, and of a run at its end: those of StreamFlow, and our "reused"
STATUSES = frozenset(
    "waiting fireable running skipped completed failed cancelled rollback recovery "
    "recovered reused".split()
)
_TYPES: Mapping[str, Callable[[JSON], bool]] = {
    "amount": lambda value: _is_number(value) and value >= 0,
    "flag": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "mapping": lambda value: isinstance(value, dict),
    "number": _is_number,
    "status": lambda value: isinstance(value, str) and value in STATUSES,
    "tag": lambda value: isinstance(value, str) and bool(_TAG.fullmatch(value)),
    "text": lambda value: isinstance(value, str),
    "texts": lambda value: (
        isinstance(value, list) and all(isinstance(one, str) for one in value)
    ),
    "whole": lambda value: isinstance(value, int) and _is_number(value),
}
_EVERY = "time:number event:text"
_PLACE = "deployment:text service:text?"
_WAIT = "job:text status:text seconds:number"
_SLURM = f"{_PLACE} allocation:text slurm_job:text slurm_cluster:text? strategy:text"
# The fields of each kind, with their types; a value with a question mark may be null.
_KINDS = {
    "run": "run:text file:text pid:whole host:text workflows:texts versions:mapping "
    "resumes:flag",
    "job": "job:text step:text tag:tag loops:whole status:status attempt:whole "
    "deployment:text? service:text? locations:texts output:text?",
    "result": "job:text fingerprint:mapping locations:texts output:text local:flag "
    "exit_code:whole contents:text",
    "reuse": "job:text run:text? latest:text reason:text",
    "failure": "job:text attempt:whole exit_code:whole? error:text",
    "lease": f"{_WAIT} qpu:text reason:text",
    "start": f"{_WAIT} qpu:text",
    "nodes": f"{_WAIT} {_PLACE}",
    "decision": "job:text step:text tag:tag attempt:whole quantum:flag targets:texts "
    "reason:text brief:text trouble:flag mixed:text seconds:number asked:list "
    "forecasts:mapping",
    "qpu": "job:text qpu:text technology:text? qpu_job:text? state:text? "
    "lease_seconds:number queued_seconds:number? ran_seconds:number? "
    "qpu_seconds:amount? calibration:text? found:flag?",
    "allocation": f"{_SLURM} partition:text? quantum:flag job:text? status:text "
    "at:number nodes:whole node_list:text? pending_reason:text?",
    "slurm": f"{_SLURM} partition:text? quantum:flag job:text submitted:number "
    "started:number? ended:number? state:text exit_code:whole signal:whole reason:text "
    "restarts:whole",
    "end": "status:status reason:text? job:text?",
}
#: the types of the fields of each kind of event, by the fields' names
FIELDS: Mapping[str, Mapping[str, str]] = {
    kind: dict(one.split(":") for one in f"{_EVERY} {fields}".split())
    for kind, fields in _KINDS.items()
}
# An event that a later version writes has these; no reader looks at it.
_UNKNOWN = dict(one.split(":") for one in _EVERY.split())


def parse(line: bytes) -> Event:
    """Parse a line of a journal, which may be damaged: see :func:`damage`.

    :returns: empty if the line is not a JSON object
    """
    try:
        return mapping(parse_json(line))
    except ValueError:
        return {}


def damage(event: Event) -> str:
    """Say what is wrong with a line's content; empty if it is an event, and whole.

    The values are not shown: a line may be of any length.
    """
    if not event.keys() >= _UNKNOWN.keys():
        return "not an event"
    return ", ".join(_damaged_fields(event))


def _damaged_fields(event: Event) -> Iterator[str]:
    kind = event.get("event")
    for name, type_ in FIELDS.get(str(kind), _UNKNOWN).items():
        if name not in event:
            yield f"{name} is missing"
        elif not _is_of(event[name], type_):
            type_ = type_.removesuffix("?")
            yield f"{name} is not {'an' if type_ == 'amount' else 'a'} {type_}"


def _is_of(value: JSON, type_: str) -> bool:
    if value is None:
        return type_.endswith("?")
    return _TYPES[type_.removesuffix("?")](value)
