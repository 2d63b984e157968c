"""The account of ``sfq lease --account``: the QPU jobs of a command under its leases.

It contains one line of JSON for each run of the command::

    {"status": 0, "waited": 0.1,
     "leases": [{"qpu": "a", "jobs": [...], "trouble": null,
                              "technology": "annealer", "calibration": null}],
     "refusal": null, "waited_out": false}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated

from sf_quantum import structs
from sf_quantum.errors import InputError, QuantumError
from sf_quantum.protocol.tasks import LeaseJob
from sf_quantum.qpu import Qpu, load
from sf_quantum.qpu.environment import RESOURCES, TOKEN, listed, types_by_name
from sf_quantum.text import unknown


@dataclass(frozen=True)
class LeaseUsage:
    """The use of one QPU's lease until the end of the command.

    :param jobs: see :meth:`~sf_quantum.qpu.Qpu.jobs`; ``None`` if the QPU does not report them
    :param trouble: why the jobs are unknown, if the QPU failed to report them
    :param technology: technology of the QPU, if known
    :param calibration: id of the calibration just after the samples were taken, if known
    """

    qpu: str
    jobs: list[Annotated[LeaseJob, LeaseJob.read]] | None
    trouble: str | None = None
    technology: str | None = None
    calibration: str | None = None


@dataclass(frozen=True)
class CommandRun:
    """One run of the command.

    :param status: exit status of the command
    :param waited: seconds that the command waited for its leases
    :param refusal: why the command got no lease or could not keep it, if the user is to
        blame
    :param waited_out: whether the command did not start, since no lease became free within
        the longest wait
    """

    status: int
    leases: list[LeaseUsage]
    waited: float = 0.0
    refusal: str | None = None
    waited_out: bool = False

    @property
    def used(self) -> bool | None:
        """Whether the command used a QPU; also true if a QPU does not support this report.

        :returns: ``None`` if a QPU failed to report its jobs
        """
        reported = [lease for lease in self.leases if lease.trouble is None]
        if any(lease.jobs is None or lease.jobs for lease in reported):
            return True
        return False if len(reported) == len(self.leases) else None


def usage(
    leases: Iterable[tuple[Qpu, str]], names: Iterable[str] | None = None
) -> list[LeaseUsage]:
    """Query QPUs for the jobs of leases.

    :param leases: each QPU with its token; the lease may have been released
    :param names: names of the QPUs; a QPU without a lease is treated like a QPU that does
        not report its jobs
    """
    by_name = {qpu.name: _usage(qpu, token) for qpu, token in leases}
    return [by_name.get(name) or LeaseUsage(name, None) for name in names or by_name]


def leases_of(
    names: Iterable[str], environment: Mapping[str, str]
) -> list[tuple[Qpu, str]]:
    """Find QPUs of the environment, each with its token.

    :param names: names of the QPUs; a QPU whose kind is not installed is left out
    """
    types, leases = types_by_name(environment), []
    for name in names:
        with suppress(InputError):
            qpu = load(types.get(name, "")).from_environment(name, environment)
            leases.append((qpu, environment.get(f"{name}_{TOKEN}", "")))
    return leases


def named(names: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Check names of QPUs of the environment; return all names if none is given."""
    available = listed(environment, RESOURCES) or []
    if not available:
        raise InputError(f"{RESOURCES[0]} names no QPU, so no lease is held")
    for name in names:
        if name not in available:
            raise InputError(unknown("QPU of the environment", name, available))
    return list(names) or available


def dumps(run: CommandRun) -> str:
    """Return the line of a run, which :func:`loads` reads."""
    return json.dumps(asdict(run))


def loads(text: str) -> list[CommandRun]:
    """Read the lines of an account."""
    try:
        return [
            structs.read(CommandRun, json.loads(line)) for line in text.splitlines()
        ]
    except (ValueError, RecursionError) as error:
        raise InputError(f"not an account of sfq lease: {text[:200]!r}") from error


def _usage(qpu: Qpu, token: str) -> LeaseUsage:
    try:
        jobs = qpu.jobs(token)
    except QuantumError as error:
        return LeaseUsage(qpu.name, None, trouble=str(error))
    if jobs:
        with suppress(QuantumError):  # the jobs are reported without the status
            status = qpu.status()
            return LeaseUsage(
                qpu.name, jobs, None, status.technology, status.calibration
            )
    return LeaseUsage(qpu.name, jobs)
