"""The data about leases that clients and the service exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, integer
from sf_quantum.protocol.values import number

#: header of a request under a lease; its value is the lease's id
LEASE_HEADER = "X-SFQ-Lease"
#: the classes that users may request; the first class runs first
CLASSES = ("production", "test", "development")
#: the highest priority of a lease within its class; the lowest is 0
MAX_PRIORITY = 1000
#: field of a request that is named if the service refuses its latest start as too early
LATEST_START = "latest_start"
#: description of the format of a latest start
A_TIME = "a time with its zone, such as 2026-12-01T08:00:00+01:00"


@dataclass(frozen=True)
class ReservedTime:
    """A period for which a QPU is reserved for the user, in seconds since the epoch."""

    starts: float
    ends: float


@dataclass(frozen=True)
class LeaseHints:
    """A user's hints about a lease, and bounds of its jobs; ``None`` if not stated.

    :param expected_seconds: expected total QPU seconds of the lease's jobs
    :param pattern: ``qc-heavy``, ``cc-heavy`` or ``balanced``
    :param latest_start: latest time of the grant, in seconds since the epoch
    :param priority: rank among the waiting requests of the same class; the highest is first
    :param reservation: name of the reservation in which the jobs run
    :param job_class: one of :data:`CLASSES`
    :param max_qpu_seconds: bound on the total QPU seconds of all jobs
    :param max_shots: bound on the shots of each job
    :param max_qubits: bound on the qubits of each job
    """

    expected_seconds: float | None = None
    pattern: str | None = None
    latest_start: float | None = None
    priority: int | None = None
    reservation: str | None = None
    job_class: str | None = None
    max_qpu_seconds: float | None = None
    max_shots: int | None = None
    max_qubits: int | None = None

    @classmethod
    def read(
        cls, config: Mapping[str, JSON], latest_start: float | None = None
    ) -> LeaseHints:
        """Read the hints in a StreamFlow file; a value of the wrong type is ignored.

        :param latest_start: latest start in the file, in seconds since the epoch
        """
        pattern, reservation = config.get("pattern"), config.get("reservation")
        return cls(
            expected_seconds=number(config.get("expectedSeconds")),
            pattern=pattern if isinstance(pattern, str) else None,
            latest_start=latest_start,
            priority=integer(config.get("priority")),
            reservation=reservation if isinstance(reservation, str) else None,
        )

    def singly(self) -> Iterator[tuple[str, LeaseHints]]:
        """Yield each hint separately, after its key in a StreamFlow file."""
        for name, value in self._given_values.items():
            yield _FILE_NAMES.get(name, name), _hints_from({name: value})

    def completed(self, others: LeaseHints) -> LeaseHints:
        """Return these hints; hints that are not stated are taken from ``others``."""
        return _hints_from({**others._given_values, **self._given_values})

    def to_json(self) -> dict[str, JSON]:
        """Return the fields of a request to the service."""
        return {
            _REQUEST_NAMES.get(name, name): value
            for name, value in self._given_values.items()
        }

    @property
    def _given_values(self) -> dict[str, int | float | str]:
        return {name: value for name, value in vars(self).items() if value is not None}


def _hints_from(values: Mapping[str, int | float | str]) -> LeaseHints:
    make: Callable[..., LeaseHints] = LeaseHints
    return make(**values)


# Hints with another name in a request to the service, and in a StreamFlow file.
_REQUEST_NAMES = {"job_class": "class"}
_FILE_NAMES = {"expected_seconds": "expectedSeconds", "latest_start": "latestStart"}


def latest_start(text: JSON) -> float:
    """Read the latest start of a lease in a StreamFlow file.

    :returns: seconds since the epoch
    :raises InputError: if the text is not a time with its zone
    """
    try:
        moment = datetime.fromisoformat(str(text))
        if moment.tzinfo is not None:
            return moment.timestamp()
    except (ValueError, OverflowError):
        pass
    raise InputError(f"{text}: expected {A_TIME}")
