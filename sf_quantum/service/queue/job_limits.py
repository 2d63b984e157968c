"""Limits on the size of a job, and on the number of a user's unfinished jobs."""

from __future__ import annotations

from collections import Counter

from sf_quantum.protocol.leases import LEASE_HEADER
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import CLASSES, JobClass, Kind, Lease, Size
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.text import plural


def check_sizes(lease: Lease, kind: Kind, shots: int, size: Size) -> None:
    """Refuse with 422 a job that is larger than its lease allows."""
    if lease.max_shots is not None and shots > lease.max_shots:
        detail = f"{shots} shots, the lease is for at most {lease.max_shots} per job"
        raise Refused(422, detail, "parameters.num_reads")
    if lease.max_qubits is None:
        return
    what = "variables" if kind == "problem" else "qubits"
    most = f"the lease is for at most {lease.max_qubits}"
    if size.qubits is None:
        reason = size.qubits_problem
        if not reason:
            job = "an experiment" if kind == "photonic" else f"a {kind}"
            reason = f"the device does not report how many {what} {job} uses"
        raise Refused(422, f"{most} {what}, and {reason}", kind)
    if size.qubits > lease.max_qubits:
        raise Refused(422, f"{size.qubits} {what}, {most}", kind)


def check_run_seconds(most: float, expected: float) -> None:
    """Refuse with 422 a job that is expected to run for too long."""
    if expected > most:
        expects = f"the job is expected to run for {expected:,.{0 if expected >= 10 else 2}f} s"
        detail = f"{expects}; at most {most:g} s are allowed (limits.run_seconds)"
        raise Refused(422, detail, "parameters.num_reads")


def check_budget(most: float, taken: float, seconds: float) -> None:
    """Refuse a job with 422 if its lease has too few QPU seconds left.

    :param most: QPU seconds of the lease
    :param taken: QPU seconds of its other jobs, modelled for jobs that have not ended
    :param seconds: modelled QPU seconds of the job
    """
    # with a tolerance, since sums of floating-point numbers are not exact
    if taken + seconds > most * (1 + 1e-9):
        detail = (
            f"the job takes {seconds:.3g} s on the QPU, the lease has "
            f"{max(0.0, most - taken):.3g} s left of {most:g} s"
        )
        raise Refused(422, detail, LEASE_HEADER)


class JobCounts:
    """Counts each user's unfinished jobs and their payloads, and enforces the limits."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self._jobs: Counter[tuple[str, JobClass]] = Counter()
        self._bytes: Counter[str] = Counter()

    def take(self, user: str, job_class: JobClass, payload_bytes: int) -> None:
        self._jobs[user, job_class] += 1
        self._bytes[user] += payload_bytes

    def give_back(self, user: str, job_class: JobClass, payload_bytes: int) -> None:
        self._jobs[user, job_class] -= 1
        if not self._jobs[user, job_class]:
            del self._jobs[user, job_class]
        self._bytes[user] -= payload_bytes
        if not self._bytes[user]:
            del self._bytes[user]

    def check(
        self, lease: Lease, shots: int, seconds: float, payload_bytes: int
    ) -> None:
        """Refuse a job that is too large (422 or 413), or exceeds a number of jobs (429)."""
        user, job_class = lease.user, lease.job_class
        limits = self.settings.classes.limits_of(job_class)
        if limits.shots is not None and shots > limits.shots:
            detail = f"{shots} shots, a {job_class} job has at most {limits.shots}"
            raise Refused(422, detail, "parameters.num_reads")
        if limits.seconds is not None and seconds > limits.seconds:
            detail = (
                f"{shots} shots take {seconds:,.0f} s, a {job_class} job has at most "
                f"{limits.seconds:g} s"
            )
            raise Refused(422, detail, "parameters.num_reads")
        if limits.jobs is not None and self._jobs[user, job_class] >= limits.jobs:
            unfinished = plural(limits.jobs, f"unfinished {job_class} job")
            detail = f"the user has {unfinished}"
            raise Refused(429, detail, LEASE_HEADER, {"Retry-After": "1"})
        max_jobs = self.settings.limits.jobs
        if max_jobs is not None:
            jobs = sum(self._jobs[user, name] for name in CLASSES)
            if jobs >= max_jobs:
                detail = f"the user has {plural(jobs, 'unfinished job')}"
                raise Refused(429, detail, LEASE_HEADER, {"Retry-After": "1"})
        self._check_bytes(user, payload_bytes)

    def _check_bytes(self, user: str, payload_bytes: int) -> None:
        max_mib = self.settings.limits.pending_mib
        total_mib = (self._bytes[user] + payload_bytes) / 2**20
        if max_mib is None or total_mib <= max_mib:
            return
        if payload_bytes > max_mib * 2**20:
            detail = (
                f"the payload has more than the {max_mib:g} MiB that a user's may have"
            )
            raise Refused(413, detail)
        detail = (
            f"the user's jobs that are not over would have {total_mib:,.1f} MiB of payloads, "
            f"at most {max_mib:g} MiB"
        )
        raise Refused(429, detail, LEASE_HEADER, {"Retry-After": "1"})
