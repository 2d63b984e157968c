"""Users, leases, jobs, and requests for leases and jobs, as plain data."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import Literal, Self, TypeAlias

from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import Kind as Kind
from sf_quantum.protocol.tasks import State as State
from sf_quantum.protocol.tasks import shots_of

# the classes that users may request
UserClass: TypeAlias = Literal["production", "test", "development"]
# the service's own jobs, which monitor the device, have a separate class
JobClass: TypeAlias = Literal[UserClass, "quality"]
# where a lease's user computes: mostly on the QPU, mostly off the QPU, or on both alike
# (Wennersteen et al. 2025)
Pattern: TypeAlias = Literal["qc-heavy", "cc-heavy", "balanced"]

# from the first class to run to the last
CLASSES: tuple[JobClass, ...] = ("production", "quality", "test", "development")
RANKS: Mapping[JobClass, int] = {name: rank for rank, name in enumerate(CLASSES)}

#: beginning of the note of a job that is in the database, but cannot be read
UNREADABLE = "the service cannot read its record of this job"
# The connectors send purposes RUN:/step/tag and /step/tag; RUN is the name of a run's journal.
_RUN = re.compile(r"[0-9].*Z-[0-9].*", re.DOTALL)


@dataclass(frozen=True)
class Identity:
    """The sender of a request.

    :param admin: whether the sender may see and do everything
    :param root: whether MUNGE identifies the sender as root, or there is no
        authentication; such a sender may acquire leases where only root may, as with warden
    """

    user: str
    admin: bool
    root: bool = False


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds on the jobs of a lease; ``None`` sets no bound.

    :param max_qpu_seconds: largest sum of the jobs' ``qpu_seconds``; lost attempts are not
        included
    :param max_shots: largest number of shots of each job
    :param max_qubits: largest number of qubits, variables, atoms or modes of each job
    """

    max_qpu_seconds: float | None = None
    max_shots: int | None = None
    max_qubits: int | None = None


@dataclass(frozen=True, kw_only=True)
class Intent:
    """When a lease is to be granted.

    :param latest_start: latest time of the grant, in seconds since the epoch; ``None`` sets
        no limit
    :param priority: priority among the waiting requests of its class; the highest is granted
        first
    :param reservation: name of a vendor's reservation; the lease is granted and held only
        during the reservation
    """

    latest_start: float | None = None
    priority: int = 0
    reservation: str | None = None


@dataclass(frozen=True)
class Lease(Intent, Bounds):
    """The right to submit jobs; the lease's id is a secret, which proves the right.

    Times are seconds since the epoch.

    :param job: purpose of the lease, shown to operators
    :param slurm_job_id: id of the Slurm job with whose end the lease ends
    :param slurm_cluster: cluster of the Slurm job; ``None``: the cluster of the service
    :param slurm_account: account of the Slurm job, for the accounting
    :param expected_seconds: hint: expected sum of its jobs' ``qpu_seconds``; waits,
        computation off the QPU and the device's time scale are not included
    :param key: name of the lease: while the lease is held, its user gets the same lease for
        each request with this key
    :param expires: latest end of the lease
    :param reason: reason why the lease was closed
    :param project: project whose share of the QPU the lease uses; ``None``: the user's own
        share
    :param tenths: tenths of the QPU that the batch system assigned to the lease, 1 to 10
    :param waiting: whether the lease and its jobs wait for a vQPU
    """

    id: str
    user: str
    job_class: JobClass
    job: str | None = None
    slurm_job_id: str | None = None
    partition: str | None = None
    expected_seconds: float | None = None
    pattern: Pattern | None = None
    key: str | None = None
    opened: float = field(default_factory=time.time)
    expires: float | None = None
    closed: float | None = None
    reason: str | None = None
    project: str | None = None
    tenths: int | None = None
    slurm_cluster: str | None = None
    slurm_account: str | None = None
    waiting: bool = False

    @property
    def held(self) -> bool:
        return self.closed is None and not self.waiting


@dataclass(frozen=True)
class LeaseRequest(Intent, Bounds):
    """A request for a lease.

    :param job_class: job class; by default, the class of the partition, or else the
        service's default class
    :param user: user of the lease; by default the sender
    :param key: name of the lease: a user's requests with the same key get the same lease
        while it is held; a repeated request keeps its position among the waiting requests
    :param project: project of the user; by default, the project with the name of
        ``account``, or else the user's first project
    :param account: account of the Slurm job
    :param tenths: see :class:`Lease`; only root and admins set them
    """

    job: str | None = None
    job_class: JobClass | None = None
    slurm_job_id: str | None = None
    partition: str | None = None
    expected_seconds: float | None = None
    pattern: Pattern | None = None
    user: str | None = None
    key: str | None = None
    project: str | None = None
    account: str | None = None
    tenths: int | None = None
    slurm_cluster: str | None = None


class Recovery(Enum):
    """What happens to a job on the device when the service is killed."""

    #: the job ends with the service, at no cost, so it runs again
    RERUN = "rerun"
    #: the job continues; the next service process finds it by its id, or by its tag if the id
    #: is lost
    BY_TAG = "by tag"
    #: the job continues; the next service process finds it by its id, unless the id is lost
    BY_ID = "by id"
    #: the job may have run, and its outcome cannot be determined
    LOST = "lost"


@dataclass(frozen=True)
class Size:
    """The size of a payload, on which the cost of its computation depends.

    :param values: number of variables or classical bits that each shot reads
    :param updates: number of updates in each sweep over a BQM: 1 per interaction, and 50
        per variable
    :param amplitudes: number of amplitudes that the gates of all circuits change
    :param evolution: work to simulate a sequence: (its nanoseconds plus 3 per radian by
        which it may turn a state) times (its number of amplitudes plus 64)
    :param sites: number of atoms times nanoseconds, for a sequence of so many atoms that
        ``evolution`` does not apply
    :param circuits: number of circuits in a job; each runs with all shots
    :param problems: number of BQMs in a list; each runs with all shots; 0 without a list
    :param setup_ns: nanoseconds by which the solver parameters in a BQM lengthen the set-up;
        for a list of BQMs, the mean
    :param shot_ns: nanoseconds by which they lengthen each shot; for a list, the mean
    :param qubits: largest number of qubits, variables, atoms or modes of a circuit,
        sequence or problem; ``None`` if unknown
    :param qubits_problem: why ``qubits`` is unknown; empty if the device does not report it
    :param gates: number of gates, measurements and resets in all circuits
    :param shot_amplitudes: number of amplitudes that the gates change in each shot, if
        shots are simulated one at a time
    :param photons: number of photons sent into a circuit for each shot
    :param detected: minimum number of photons that must reach the detectors in each shot
    """

    values: int = 0
    updates: int = 0
    amplitudes: int = 0
    evolution: int = 0
    sites: int = 0
    circuits: int = 1
    gates: int = 0
    shot_amplitudes: int = 0
    photons: int = 0
    detected: int = 0
    problems: int = 0
    setup_ns: float = 0.0
    shot_ns: float = 0.0
    qubits: int | None = None
    qubits_problem: str = ""


@dataclass(frozen=True)
class Written:
    """The payload and digest of a job's content, which has already been checked."""

    payload: str
    digest: str
    size: Size


@dataclass(frozen=True)
class Submission:
    """A job as it is submitted.

    :param content: serialized BQMs, the text of a sequence, circuits, or an experiment
    :param parameters: ``num_reads`` (shots), and the parameters of the kind
    :param key: name of the job: a user's submissions with the same key are the same job
    :param written: large content that has already been checked; replaces ``content``
    :param purpose: purpose of the job; by default, that of its lease
    :param metadata: data that the dialect returns to its client with the job
    :param implicit_lease: whether the service acquires the lease, since the dialect has no
        leases; the job may then be pending while its lease waits for a vQPU
    :param calibrated_within: maximum age of the calibration in seconds; if set, the job is
        also refused while the device drifts
    :param repeatable: whether the job may run twice if it is unknown whether it has run;
        by default, according to the service's configuration
    """

    kind: Kind
    content: JSON
    parameters: Mapping[str, int | None]
    key: str
    written: Written | None = None
    purpose: str | None = None
    calibrated_within: float | None = None
    dialect: str = "v1"
    metadata: dict[str, JSON] | None = None
    implicit_lease: bool = False
    repeatable: bool | None = None

    @cached_property
    def payload(self) -> str:
        """The content as JSON text; equal content has equal text."""
        if self.written is not None:
            return self.written.payload
        return json.dumps(self.content, sort_keys=True)

    @cached_property
    def parameters_text(self) -> str:
        return json.dumps(dict(self.parameters), sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """A hash of kind, parameters and content."""
        if self.written is not None:
            return self.written.digest
        text = "\n".join((self.kind, self.parameters_text, self.payload))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Purpose:
    """The purpose of a job or a lease: a step of a workflow's run, or any text.

    :param run: name of the run's journal; ``None`` if the purpose names no run
    :param step: step of the workflow; or any other purpose, as a whole
    """

    run: str | None
    step: str

    @classmethod
    @lru_cache(1024)
    def parse(cls, text: str) -> Self:
        run, colon, job = text.partition(":")
        if not (colon and job.startswith("/") and _RUN.fullmatch(run)):
            if not text.startswith("/"):
                return cls(None, text)
            return cls(None, text.rstrip("0123456789.").rstrip("/"))
        return cls(run, job.rstrip("0123456789.").rstrip("/"))


@dataclass(frozen=True)
class Job:
    """A job without its payload; times are seconds since the epoch.

    :param submitted_steady: the time ``submitted`` by the store's clock, which nobody sets
    :param started_steady: the time ``started`` by the same clock
    :param metadata: see :class:`Submission`
    :param number: position in the order of submission
    :param attempt: number of the current attempt; 2 or more after an interruption
    :param note: reason why the job failed, was cancelled or was interrupted
    :param model_seconds: QPU time by the device's model, determined before the job ran
    :param compute_seconds: estimated CPU time of its computation
    :param qpu_seconds: billed or modelled QPU time of the last attempt
    :param seconds: seconds that the last attempt spent on the device
    :param lost_qpu_seconds: QPU time of the interrupted attempts
    :param lost_seconds: seconds that the interrupted attempts spent on the device
    :param cost: cost of ``qpu_seconds`` in the site's unit, at the price when the job,
        or each slice of it, ended
    :param charged_lease: lease under which the job ended, if it was resubmitted under
        another lease after its end
    :param calibration: id, time and values of the last attempt's calibration
    :param bytes: size of its payload and its result, in bytes
    :param repeatable: see :class:`Submission`
    :param device: identity of the device that may have the job; ``None`` if no device has it
    :param device_job: id of the last attempt on the device
    :param cancelling: note of a cancellation that has not reached the device yet
    :param interrupting: note of an interruption that has not reached the device yet; the
        interrupted job is queued again
    :param slices: number of its finished slices
    :param shots_done: shots of its finished slices
    :param slice_shots: shots of the slice that the device may have
    """

    number: int
    id: str
    user: str
    lease: str
    job_class: JobClass
    kind: Kind
    key: str
    parameters: dict[str, int | None]
    state: State
    attempt: int
    note: str | None
    submitted: float
    started: float | None
    ended: float | None
    model_seconds: float
    qpu_seconds: float
    seconds: float
    lost_qpu_seconds: float = 0.0
    lost_seconds: float = 0.0
    cost: float | None = None
    charged_lease: str | None = None
    submitted_steady: float = 0.0
    started_steady: float | None = None
    ended_steady: float | None = None
    dialect: str = "v1"
    metadata: dict[str, JSON] | None = None
    calibration: CalibrationData | None = None
    compute_seconds: float = 0.0
    bytes: int = 0
    repeatable: bool = False
    device: str | None = None
    device_job: str | None = None
    cancelling: str | None = None
    interrupting: str | None = None
    slices: int = 0
    shots_done: int = 0
    slice_shots: int | None = None

    @property
    def shots(self) -> int:
        return shots_of(self.parameters)

    @property
    def final(self) -> bool:
        return self.state not in ("Queued", "Running")

    @property
    def queued_seconds(self) -> float | None:
        """Seconds from submission to the last start; ``None`` if the job has not started."""
        if self.started_steady is None:
            return None
        return max(0.0, self.started_steady - self.submitted_steady)


@dataclass(frozen=True)
class Used:
    """QPU time that jobs used before the service started.

    :param qpu_seconds: billed or modelled QPU time, without interrupted attempts
    :param when: mean end of the jobs, by the store's clock
    """

    user: str
    project: str | None
    qpu_seconds: float
    when: float


@dataclass(frozen=True)
class Forecast:
    """The expected run of a job.

    :param position: number of jobs ahead of the job
    :param eta_seconds: time until the job's start; ``None`` if unknown, for example while
        the QPU is closed or the device is offline
    :param expected_seconds: expected QPU time, see :class:`Lease`
    :param expected_run_seconds: expected time from the job's start to its end
    :param reason: reason why the start is unknown, or may be later than ``eta_seconds``
    """

    position: int
    eta_seconds: float | None
    expected_seconds: float
    expected_run_seconds: float
    reason: str = ""

    @property
    def words(self) -> str:
        """The run time as text, for clients that only show messages."""
        seconds = self.expected_run_seconds
        return f"expected to run for {seconds:,.{0 if seconds >= 10 else 2}f} s"
