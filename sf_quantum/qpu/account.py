"""Which QPU jobs a command had under its leases: what ``sfq lease --account`` writes.

One line of JSON for each time that the command ran::

    {"status": 0, "waited": 0.1,
     "leases": [{"qpu": "a", "jobs": [...], "trouble": null,
                              "technology": "annealer", "calibration": null}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON
from sf_quantum.qpu import RESOURCES, TYPES, Qpu, load, words
from sf_quantum.samplers import unknown


@dataclass(frozen=True)
class LeaseUsage:
    """A lease of one QPU, as it was when the command had ended.

    :param jobs: see :meth:`~sf_quantum.qpu.Qpu.jobs`; ``None`` if the QPU does not tell
    :param trouble: why it did not tell, if it is of a kind that does
    :param technology: of the QPU, if it told
    :param calibration: just after the samples were taken, if it told
    """

    qpu: str
    jobs: list[dict[str, JSON]] | None
    trouble: str | None = None
    technology: str | None = None
    calibration: str | None = None


@dataclass(frozen=True)
class CommandRun:
    """One time that the command ran.

    :param status: its exit status
    :param waited: how many seconds it waited for its leases
    """

    status: int
    leases: Sequence[LeaseUsage]
    waited: float = 0.0

    @property
    def used(self) -> bool | None:
        """Whether it used a QPU, or may have used one of a kind that does not tell.

        :returns: ``None`` if nobody knows, because of trouble
        """
        told = [lease for lease in self.leases if lease.trouble is None]
        if any(lease.jobs is None or lease.jobs for lease in told):
            return True
        return False if len(told) == len(self.leases) else None


def usage(held: Iterable[tuple[Qpu, str]]) -> list[LeaseUsage]:
    """Ask each QPU what a lease was used for.

    :param held: each QPU with its token; the lease may have been given back
    """
    return [_ask(qpu, token) for qpu, token in held]


def usage_of_environment(
    names: Iterable[str], environment: Mapping[str, str]
) -> list[LeaseUsage]:
    """As :func:`usage`, for leases that the environment tells of.

    A QPU of a kind that is not installed here does not tell.

    :param names: of the QPUs
    """
    wanted = list(names)
    found = {qpu.name: (qpu, token) for qpu, token in leases_of(wanted, environment)}
    return [
        _ask(*found[name]) if name in found else LeaseUsage(name, None)
        for name in wanted
    ]


def leases_of(
    names: Iterable[str], environment: Mapping[str, str]
) -> list[tuple[Qpu, str]]:
    """The QPUs that the environment tells of, each with its token.

    :param names: of the QPUs; one of a kind that is not installed here is left out
    """
    types = words(environment, TYPES) or []
    kinds = dict(zip(words(environment, RESOURCES) or [], types, strict=False))
    found = []
    for name in names:
        token = environment.get(f"{name}_QRMI_JOB_ACQUISITION_TOKEN", "")
        with suppress(InputError):
            qpu = load(kinds.get(name, "")).from_environment(name, environment)
            found.append((qpu, token))
    return found


def named(names: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Which of the environment's QPUs are meant: those named, or all.

    :raises InputError: if one is not there
    """
    known = words(environment, RESOURCES) or []
    if not known:
        raise InputError(f"{RESOURCES[0]} names no QPU, so there is no lease held")
    for name in names:
        if name not in known:
            raise InputError(unknown("QPU of the environment", name, known))
    return list(names) or known


def dumps(ran: CommandRun) -> str:
    """Write what :func:`loads` reads."""
    leases = [asdict(lease) for lease in ran.leases]
    return json.dumps({"status": ran.status, "waited": ran.waited, "leases": leases})


def loads(text: str) -> list[CommandRun]:
    """Read lines of an account.

    :raises InputError: if they are something else
    """
    try:
        lines = [json.loads(line) for line in text.splitlines()]
        return [
            CommandRun(
                int(one["status"]),
                [LeaseUsage(**lease) for lease in one["leases"]],
                float(one["waited"]),
            )
            for one in lines
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"not an account of sfq lease: {text[:200]!r}") from error


def _ask(qpu: Qpu, token: str) -> LeaseUsage:
    try:
        jobs = qpu.jobs(token)
    except QuantumError as error:
        return LeaseUsage(qpu.name, None, trouble=str(error))
    if jobs:
        with suppress(QuantumError):  # the jobs matter more
            told = qpu.status()
            return LeaseUsage(qpu.name, jobs, None, told.technology, told.calibration)
    return LeaseUsage(qpu.name, jobs)
