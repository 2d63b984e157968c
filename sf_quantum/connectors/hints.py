"""Hints for a job, which the scheduler or the candidate filter passes to the job's connector.

The hints are kept by the job's name until its attempt ends, since StreamFlow passes only the
name to the connector. Names are unique, as a driver process has one run at a time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from sf_quantum.protocol.leases import LeaseHints


@dataclass(frozen=True)
class JobHints:
    """The hints for one job.

    :param lease_hints: hints for the lease, see :meth:`sf_quantum.qpu.Qpu.with_hints`
    :param wait_seconds: longest total wait for the job's lease and in the QPU's job queue
    :param has_alternative: whether the job can run on another target, so that it leaves a QPU
        that goes offline instead of waiting for it
    :param since: start of the wait, on the monotonic clock
    :param waited_out: whether the job was not started in time; the connector sets this
    :param refused: whether Slurm refused the job, which is not a failure of the QPU; the
        connector sets this
    :param is_bound_once: whether no attempt can run on another target, since the job's step
        is bound to a single target and has no filter
    """

    lease_hints: LeaseHints = field(default_factory=LeaseHints)
    wait_seconds: float | None = None
    has_alternative: bool = False
    since: float = field(default_factory=time.monotonic, compare=False)
    waited_out: bool = False
    refused: bool = False
    is_bound_once: bool = False

    @property
    def latest_start(self) -> float | None:
        """The time by which the lease has to be granted, in seconds since the epoch."""
        return self.lease_hints.latest_start

    @property
    def seconds_left(self) -> float | None:
        """Seconds left to wait; ``None`` if the wait has no limit."""
        if self.wait_seconds is None:
            return None
        return max(0.0, self.since + self.wait_seconds - time.monotonic())


# hints by the job's name
_hints: dict[str, JobHints] = {}


def put(job: str, hints: JobHints) -> None:
    """Set the hints for a job's next attempt."""
    _hints[job] = hints


def of(job: str) -> JobHints:
    return _hints.get(job, JobHints())


def completed(job: str, lease_hints: LeaseHints) -> JobHints:
    """Add lease hints to the hints of a job, which take precedence; return all its hints."""
    given = of(job)
    if lease_hints != LeaseHints():
        given = replace(given, lease_hints=given.lease_hints.completed(lease_hints))
        _hints[job] = given
    return given


def wait_out(job: str) -> None:
    """Note that a job was not started within its ``wait_seconds``."""
    _hints[job] = replace(of(job), waited_out=True)


def refuse(job: str) -> None:
    """Note that Slurm refused a job."""
    _hints[job] = replace(of(job), refused=True)


def discard(job: str) -> None:
    _hints.pop(job, None)
