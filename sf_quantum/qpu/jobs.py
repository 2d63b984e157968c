"""Jobs at a QPU whose vendor's API has jobs: what is submitted, how it goes, how it ends.

Shared by the clients of QPUs, which drive their vendor's API, and by the QPU service,
whose queue drives any device in these terms.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON, listing, mapping, parse_json
from sf_quantum.net.transport import ANSWER_BYTES, RESULT_BYTES

# QRMI's words
State: TypeAlias = Literal["Queued", "Running", "Completed", "Failed", "Cancelled"]
# a serialized BQM, a sequence in Pulser's abstract representation, OpenQASM 3, an
# experiment of linear optics
Kind: TypeAlias = Literal["problem", "sequence", "circuit", "photonic"]
JobParameters: TypeAlias = Mapping[str, int | None]
#: states of a job that has ended
OVER: tuple[State, ...] = ("Completed", "Failed", "Cancelled")
# of a shot in a result, beside its values: energy, number, text around them
SHOT_BYTES = 1024
# what is more is neither seconds, nor a count, nor a price
MOST = 1e12


def number(told: JSON) -> float | None:
    """Read a time, a count or a price that a vendor tells.

    :returns: ``None`` if it is none: no number, negative, not finite (as JSON's ``NaN``)
        or absurdly large
    """
    if isinstance(told, bool) or not isinstance(told, int | float):
        return None
    return told if 0 <= told <= MOST else None


def count(told: JSON) -> int | None:
    """As :func:`number`, of a whole number."""
    return told if isinstance(told, int) and number(told) is not None else None


def counter(told: JSON) -> dict[str, int]:
    """Read how often each bit string was read.

    :raises ValueError: if these are no such counts
    """
    if not isinstance(told, dict):
        raise ValueError("no counts")
    read = {bits: count(n) for bits, n in told.items() if not bits.strip("01")}
    known = {bits: n for bits, n in read.items() if n is not None}
    if len(known) != len(told):
        raise ValueError("no counts of bit strings")
    return known


def counters(who: str, text: str, circuits: int) -> list[dict[str, int]]:
    """Read the counts of a job's circuits, in their order.

    :param who: the QPU, in error messages
    :param text: of the result
    :param circuits: how many the job had
    :raises QpuError: if these are not the counts of so many
    """
    try:
        content = mapping(parse_json(text))
        told = content.get("counters", content.get("counter"))
        found = [counter(one) for one in listing(told)]
        if len(found) != circuits:
            raise ValueError("not of all circuits")
        return found
    except ValueError as error:
        raise QpuError(f"{who}: its answer has no counts of bit strings") from error


class NotAccepted(QpuError):
    """A submission that certainly has made no job: the vendor is busy or closed.

    After any other :class:`~sf_quantum.errors.QpuError` of a submission, there may be a
    job.

    :param retry_seconds: after which the vendor asks for another attempt, if it does
    """

    def __init__(self, message: str, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class LeaseLost(NotAccepted):
    """The vendor has ended the lease of a request, which has done nothing."""


class UnknownJob(QpuError):
    """The vendor does not know, or no longer knows, a job that it has accepted.

    :param lease_lost: whether the vendor has ended its lease
    """

    def __init__(self, message: str, *, lease_lost: bool = False) -> None:
        super().__init__(message)
        self.lease_lost = lease_lost


class WrongAnswer(QpuError):
    """The vendor answers what cannot be read.

    :param answer: what it has sent, for the operator of a service
    """

    def __init__(self, message: str, answer: str) -> None:
        super().__init__(message)
        self.answer = answer


@dataclass(frozen=True)
class Task:
    """One attempt at a job, or at a slice of its shots.

    :param tag: of this submission and no other, for vendors who keep one: at most 60
        letters, digits and hyphens
    :param payload: JSON text: an object for a problem or an experiment, a list of objects
        for several problems, else a string
    :param parameters: ``num_reads`` (shots), optionally ``seed`` and ``num_sweeps``
    :param number: of the job in its queue
    :param attempt: at the job, from 1
    :param part: number of the slice, from 0
    """

    tag: str
    kind: Kind
    payload: str
    parameters: JobParameters
    number: int = 0
    attempt: int = 1
    part: int = 0

    @property
    def shots(self) -> int:
        return self.parameters.get("num_reads") or 1

    @property
    def result_bytes(self) -> int:
        """Largest size of its result, as JSON text: more is not read of an answer.

        A shot names each variable, atom or mode of the payload at most once.
        """
        if self.kind == "circuit":  # which may have more bits than letters, and values
            return RESULT_BYTES
        each = len(self.payload) + SHOT_BYTES
        return min(ANSWER_BYTES + self.shots * each, RESULT_BYTES)


@dataclass(frozen=True)
class Progress:
    """How a job is going.

    :param position: of a queued job: jobs before it in the vendor's queue, if told
    :param eta_seconds: until it starts, if told
    """

    state: State
    position: int | None = None
    eta_seconds: float | None = None


@dataclass(frozen=True)
class Result:
    """A result, which may be large and is not parsed by the service.

    :param text: a JSON object without its ``info``: a serialized sample set,
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

    :param result: ``None`` unless it completed
    :param failure: why it failed; ``None`` if it completed or was cancelled
    :param qpu_seconds: QPU time as the vendor bills it, also of a part of a job that was
        cancelled or failed; ``None`` if the vendor does not tell
    :param seconds: elapsed time on the QPU; ``None`` if the vendor does not tell
    :param calibration: id, time and values of the calibration, if told
    :param note: what the vendor says of how it ended, if anything
    :param lost: why the vendor has ended it, if that was no fault of the job, which may be
        submitted again; it has no result then
    """

    result: Result | None = None
    failure: str | None = None
    qpu_seconds: float | None = None
    seconds: float | None = None
    calibration: dict[str, JSON] | None = None
    note: str = ""
    lost: str | None = None


@dataclass(frozen=True)
class Topology:
    """The working graph of an annealer or of a gate-based QPU.

    :param kind: ``pegasus``, ``zephyr``, ``chimera``, ``square``, for example
    :param shape: its parameters, in the vendor's notation
    :param labels: upper bound of the qubit numbers, some of which are unused
    :param couplers: sorted pairs of qubits, lower number first
    """

    kind: str
    shape: tuple[int, ...]
    labels: int
    couplers: tuple[tuple[int, int], ...]

    @cached_property
    def qubits(self) -> tuple[int, ...]:
        """The numbers of the qubits, sorted."""
        return tuple(sorted({qubit for pair in self.couplers for qubit in pair}))

    @cached_property
    def id(self) -> str:
        """Hash of the graph."""
        text = f"{self.kind}{self.shape}{self.couplers}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __hash__(self) -> int:
        # that of all couplers takes a millisecond, in each look into a cache
        return hash(self.id)

    def without(self, qubits: Collection[int]) -> Topology:
        """Return the graph without some qubits and their couplers."""
        if not qubits:
            return self
        removed = set(qubits)
        couplers = tuple(pair for pair in self.couplers if removed.isdisjoint(pair))
        return replace(self, couplers=couplers)


@dataclass(frozen=True)
class Timing:
    """The run time of a job; a shot includes delays, but no read-out."""

    setup_seconds: float = 0.0
    shot_seconds: float = 0.0
    readout_seconds: float = 0.0

    def job_seconds(self, shots: int) -> float:
        """Return ``setup + shots * (shot + readout)``."""
        return self.setup_seconds + shots * (self.shot_seconds + self.readout_seconds)


@dataclass(frozen=True)
class Description:
    """A QPU as its vendor describes it now.

    :param qubits: in service: the largest job, in variables, qubits or modes; 0 if unknown
    :param out_of_service: numbers of the qubits out of service
    :param shots: the most that one job may have, if limited
    :param kinds: of jobs that it takes
    :param timing: ``None`` if unknown
    :param calibration: its id, its time in ISO 8601 and its values, as far as they are told
    :param specs: JSON text: of a neutral-atom device, Pulser's abstract representation; of
        a photonic one, Perceval's specifications
    :param solver: of an annealer, the properties of its solver beside its graph, with SAPI's
        names, if it takes the parameters that they list
    :param native_gates: of circuits, by their names in OpenQASM, on the couplers of
        ``topology``; empty if any gate may be on any qubits
    """

    technology: str
    qubits: int
    kinds: tuple[Kind, ...]
    out_of_service: frozenset[int] = frozenset()
    shots: int | None = None
    timing: Timing | None = None
    calibration: dict[str, JSON] | None = None
    topology: Topology | None = None
    specs: str | None = None
    native_gates: tuple[str, ...] = ()
    solver: dict[str, JSON] | None = None
