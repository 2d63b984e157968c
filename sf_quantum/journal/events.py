"""The events of a journal: a class for each kind, and the reader of a line.

The order of a class's fields is their order in a line, after ``time`` and ``event``. The
annotations name the types that the reader checks: it returns only events with all fields of
their kind, except those that earlier versions did not write, which have the default ``None``.
Fields and kinds of a later version are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from time import time as now
from typing import ClassVar, NamedTuple, TypeAlias

from sf_quantum import structs
from sf_quantum.files import JSON, mapping, parse_json

# Tags in StreamFlow's format; longer numbers cannot come from iterations.
_TAG = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
#: the states of a job, and of a run at its end: StreamFlow's states, and "reused"
STATUSES = frozenset(
    "waiting fireable running skipped completed failed cancelled rollback recovery "
    "recovered reused".split()
)

Amount: TypeAlias = float
Flag: TypeAlias = bool
Inputs: TypeAlias = Mapping[str, Mapping[str, str]]
Number: TypeAlias = float
Status: TypeAlias = str
Tag: TypeAlias = str
Text: TypeAlias = str
Texts: TypeAlias = Sequence[str]
Versions: TypeAlias = Mapping[str, str]
Whole: TypeAlias = int


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event; an object of this class itself is of a kind that a later version defines."""

    #: name of the class in the journal
    kind: ClassVar[str] = "event"
    time: Number = field(default_factory=now)

    def __init_subclass__(cls, *, kind: str = "") -> None:
        cls.kind = kind or cls.__name__.lower()

    def to_json(self) -> dict[str, JSON]:
        """Return the content of the event's line."""
        return {"time": self.time, "event": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Run(Event):
    run: Text
    file: Text
    pid: Whole
    host: Text
    workflows: Texts
    versions: Versions
    resumes: Flag


@dataclass(frozen=True, kw_only=True)
class Job(Event):
    job: Text
    step: Text
    tag: Tag
    loops: Whole
    status: Status
    attempt: Whole
    output: Text | None
    deployment: Text | None
    service: Text | None
    locations: Texts

    @property
    def target(self) -> str:
        """Deployment and service of the job; empty if it has none yet."""
        return "/".join(filter(None, (self.deployment, self.service)))


@dataclass(frozen=True)
class Fingerprint:
    """Digests of everything on which the result of a job depends.

    :param command: digest of the tool: its command line, environment and programs
    :param inputs: digests by input and name: one for each of the input's files and folders,
        and one for the rest of its value, under an empty name
    :param target: digest of the kind of deployment, and its QPU or container
    """

    command: str
    inputs: Inputs
    target: str


@dataclass(frozen=True, kw_only=True)
class Result(Event):
    job: Text
    fingerprint: Fingerprint
    locations: Texts
    output: Text
    local: Flag
    exit_code: Whole
    contents: Text


@dataclass(frozen=True, kw_only=True)
class Reuse(Event):
    job: Text
    run: Text | None
    latest: Text
    reason: Text


@dataclass(frozen=True, kw_only=True)
class Failure(Event):
    job: Text
    attempt: Whole
    exit_code: Whole | None
    error: Text


@dataclass(frozen=True, kw_only=True)
class Lease(Event):
    job: Text
    qpu: Text
    status: Text
    reason: Text
    seconds: Number


@dataclass(frozen=True, kw_only=True)
class Start(Event):
    job: Text
    qpu: Text
    status: Text
    seconds: Number


@dataclass(frozen=True, kw_only=True)
class Nodes(Event):
    job: Text
    deployment: Text
    service: Text | None
    status: Text
    seconds: Number


@dataclass(frozen=True)
class QueriedQpu:
    """A quantum target at the time of a decision.

    :param name: the target's name, deployment/service
    :param trouble: why it is offline, else empty
    :param rests: why it is not considered for a while, else empty
    :param failed: why the job does not try it again, else empty
    :param qubits: variables of the largest problem that it accepts; 0 if unknown
    :param wait: seconds until the job would start
    :param seconds: seconds that the job would take
    :param qpu_seconds: expected charge for the job
    :param cost: cost of a second of QPU time
    :param maintenance: seconds until a maintenance window
    :param load: leases and queued jobs per vQPU
    :param status: what the QPU reported about itself
    """

    name: str
    trouble: str = ""
    rests: str = ""
    failed: str = ""
    qubits: int = 0
    wait: float | None = None
    seconds: float | None = None
    qpu_seconds: float | None = None
    cost: float = 0.0
    maintenance: float | None = None
    load: float = 0.0
    status: JSON = None


@dataclass(frozen=True)
class PredictedWait:
    """The predicted wait for nodes of a classical target.

    :param seconds: the wait; ``None`` if it cannot be predicted
    :param why: why it cannot be predicted, as text after the target's name
    :param jobs: number of running and pending jobs of its partition
    """

    seconds: float | None = None
    why: str = ""
    jobs: int = 0


Qpus: TypeAlias = Sequence[QueriedQpu]
Waits: TypeAlias = Mapping[str, PredictedWait]


@dataclass(frozen=True, kw_only=True)
class Decision(Event):
    job: Text
    step: Text
    tag: Tag
    attempt: Whole
    quantum: Flag
    targets: Texts
    reason: Text
    brief: Text
    trouble: Flag
    mixed: Text
    seconds: Number
    asked: Qpus
    forecasts: Waits
    variables: Whole | None = None
    reads: Whole | None = None

    @property
    def qpus(self) -> list[str]:
        """The names of the QPUs whose states were queried."""
        return [qpu.name for qpu in self.asked]


@dataclass(frozen=True, kw_only=True)
class Overrun(Event):
    step: Text | None
    unit: Text
    used: Number
    limit: Number

    def __str__(self) -> str:
        of = "the run" if self.step is None else f"step {self.step}"
        used = f"{self.used:g} of {self.limit:g} {self.unit} used"
        return f"the budget of {of} is exceeded: {used}"


@dataclass(frozen=True, kw_only=True)
class RunWarning(Event, kind="warning"):
    text: Text

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Qpu(Event):
    job: Text
    qpu: Text
    technology: Text | None
    calibration: Text | None
    lease_seconds: Number
    qpu_job: Text | None
    state: Text | None
    queued_seconds: Number | None
    ran_seconds: Number | None
    qpu_seconds: Amount | None
    found: Flag | None


@dataclass(frozen=True, kw_only=True)
class SlurmEvent(Event):
    """An event of an allocation, or of a job in it."""

    deployment: Text
    service: Text | None
    strategy: Text
    partition: Text | None
    quantum: Flag
    job: Text | None
    allocation: Text
    slurm_job: Text
    slurm_cluster: Text | None


@dataclass(frozen=True, kw_only=True)
class Allocation(SlurmEvent):
    status: Text
    at: Number
    nodes: Whole
    node_list: Text | None
    pending_reason: Text | None


@dataclass(frozen=True, kw_only=True)
class Slurm(SlurmEvent):
    job: Text
    submitted: Number
    started: Number | None
    ended: Number | None
    state: Text
    exit_code: Whole
    signal: Whole
    reason: Text
    restarts: Whole


@dataclass(frozen=True, kw_only=True)
class End(Event):
    status: Status
    reason: Text | None
    job: Text | None


_CLASSES: list[type[Event]] = [Event, *Event.__subclasses__()]
_CLASSES += SlurmEvent.__subclasses__()
#: the classes of events, by the names of their kinds
KINDS: Mapping[str, type[Event]] = {
    one.kind: one for one in _CLASSES if one not in (Event, SlurmEvent)
}


class DamagedError(ValueError):
    """A damaged line; the text lists the faults, without values, which may be long.

    :param kind: class of the damaged event
    """

    def __init__(self, message: str, kind: type[Event] = Event) -> None:
        super().__init__(message)
        self.kind = kind


def _number(value: JSON) -> float:
    return float(structs.number(value))


def _amount(value: JSON) -> float:
    if (number := _number(value)) < 0:
        raise ValueError
    return number


def _text(value: JSON) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _status(value: JSON) -> str:
    if (text := _text(value)) not in STATUSES:
        raise ValueError
    return text


def _tag(value: JSON) -> str:
    if not _TAG.fullmatch(text := _text(value)):
        raise ValueError
    return text


def _fingerprint(value: JSON) -> Fingerprint:
    # Fingerprints of a later version, with more parts, must not equal those of this one.
    if mapping(value).keys() != {one.name for one in fields(Fingerprint)}:
        raise ValueError
    return structs.read(Fingerprint, value)


# Description of a valid value, by the name of its type in annotations, and the function that
# reads the value or raises a ValueError.
_TYPES: Mapping[str, tuple[str, structs.Reader]] = {
    "Amount": ("an amount", _amount),
    "Fingerprint": ("a fingerprint", _fingerprint),
    "Flag": ("a flag", structs.reader(bool)),
    "Number": ("a number", _number),
    "Qpus": ("a list of QPUs", structs.reader(list[QueriedQpu])),
    "Status": ("a status", _status),
    "Tag": ("a tag", _tag),
    "Text": ("a text", _text),
    "Texts": ("a list of texts", structs.reader(list[str])),
    "Versions": ("a mapping", structs.reader(dict[str, str])),
    "Waits": ("a mapping of waits", structs.reader(dict[str, PredictedWait])),
    "Whole": ("a whole number", structs.whole),
}


class _Field(NamedTuple):
    """A field of a kind of events, with the reader of its value."""

    name: str
    type: str
    is_nullable: bool
    #: whether earlier versions did not write the field
    is_later: bool

    @classmethod
    def of(cls, name: str, annotation: str, *, is_later: bool) -> _Field:
        nullable = annotation.endswith("None")
        return cls(name, annotation.removesuffix(" | None"), nullable, is_later)

    def read(self, content: Mapping[str, JSON]) -> object:
        """Return the field's value in a line's content.

        :raises ValueError: if the value is missing, or not of the field's type
        """
        if self.name not in content and not self.is_later:
            raise ValueError(f"{self.name} is missing")
        value = content.get(self.name)
        if value is None and self.is_nullable:
            return None
        words, read = _TYPES[self.type]
        try:
            return read(value)
        except ValueError:
            raise ValueError(f"{self.name} is not {words}") from None


#: the fields of each class of events
FIELDS: Mapping[type[Event], Sequence[_Field]] = {
    kind: [
        _Field.of(one.name, str(one.type), is_later=one.default is None)
        for one in fields(kind)
    ]
    for kind in _CLASSES
}


def parse(line: bytes) -> Event:
    """Parse a line of a journal.

    :raises DamagedError: if the line is not an event with all fields of its kind
    """
    try:
        content = mapping(parse_json(line))
    except ValueError:
        content = {}
    if not content.keys() >= {"time", "event"}:
        raise DamagedError("not an event")
    if not isinstance(content["event"], str):
        raise DamagedError("event is not a text")
    kind = KINDS.get(content["event"], Event)
    values, wrong = {}, []
    for field_ in FIELDS[kind]:
        try:
            values[field_.name] = field_.read(content)
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        raise DamagedError(", ".join(wrong), kind)
    make: Callable[..., Event] = kind
    return make(**values)
