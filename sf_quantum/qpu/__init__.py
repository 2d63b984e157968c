"""The interface of every kind of QPU, and the registry of the installed kinds.

``environment`` makes and reads the variables that name a job's QPUs; each kind of QPU adds
variables, such as ``sfq/service_variables`` for our service. ``opening`` leases a QPU for a
program, ``selection`` finds the QPUs that a command names, ``configuration`` reads a QPU's
keys in a deployment, and ``qrmi_config`` reads a site's file. ``running`` submits jobs to a
QPU, repeats submissions that were not accepted, and waits for the jobs. ``sampler`` is the
``dimod.Sampler`` of a QPU, ``circuit_runner`` runs the circuits of QAOA, and
``native_circuits`` reads circuits of native gates, to convert them to a vendor's format.
``vendors`` contains the vendors' kinds of QPU, ``sfq`` the client of our own service, and
``leasing`` acquires and renews leases. ``sdks`` adapts QPUs to SDKs, and ``passes`` transforms
circuits and their counts.

Imports: malleability, net, protocol, samplers, slurm.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.malleability import offload as offload
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.leases import LeaseHints, ReservedTime
from sf_quantum.protocol.tasks import Kind, LeaseJob, Outcome, Progress, Task
from sf_quantum.registry import Registry

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

    from sf_quantum.qpu.sdks.pennylane import Device
    from sf_quantum.qpu.sdks.perceval import RemoteComputer, RemoteProcessor
    from sf_quantum.qpu.sdks.pulser import Backend, Pulses
    from sf_quantum.qpu.sdks.qiskit import QpuBackend

GROUP = "sf_quantum.qpus"
_registry: Registry[type[Qpu]] = Registry(GROUP, "QPU type")
NO_PENNYLANE = (
    "the package pennylane-qiskit is not installed (pip install pennylane-qiskit)"
)
NO_PERCEVAL = "the package perceval-quandela is not installed (pip install 'sf-quantum[photonic]')"
NO_PULSER = (
    "the package pulser-core is not installed (pip install 'sf-quantum[pulser]')"
)
NO_QISKIT = "the package qiskit is not installed (pip install 'sf-quantum[qaoa]')"


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        # imported late, since ``environment`` itself imports this module
        if name not in ("from_environment", "leased"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.environment"), name)


#: number of reads of a job that sets no number, the same as in ``sfq solve``
DEFAULT_READS = 1000


@dataclass(frozen=True)
class JobSize:
    """The size of a job, to request its cost together with a QPU's status.

    :param variables: number of variables of the job's problem, if known
    """

    variables: int | None = None
    reads: int = DEFAULT_READS


def with_qpu_name(qpu: str, info: Mapping[str, JSON]) -> dict[str, JSON]:
    """Replace the QPU's name in a result's ``info`` with the name that the user knows.

    :param qpu: name of the deployment, or of the resource
    :returns: ``info`` with this name in ``qpu``; a different name there, of a service or a
        vendor, is moved to ``device``
    """
    device = info.get("qpu", qpu)
    return {**info} if device == qpu else {"device": device, **info, "qpu": qpu}


class NoLease(QpuError):
    """No lease is free now: all are held, or the QPU is closed."""


class LeaseTooLate(NoLease):
    """No lease was granted by the latest start of the request."""


class AuthenticationError(InputError):
    """The service rejects its user: the token is wrong or revoked, or has too few rights."""


@dataclass(frozen=True)
class QpuStatus:
    """The status of a QPU; values that it does not report are ``None`` or empty.

    :param reason: why the QPU is not online; empty if it is
    :param qubits: number of variables of the largest problem; 0 if unknown
    :param vqpus: number of leases that may be held at the same time
    :param leases: number of leases that are held
    :param queue_length: number of jobs that are pending or running
    :param calibration: id of the present calibration
    :param eta_seconds: time until a job submitted now would start
    :param position: number of jobs that would run before a job submitted now
    :param cost_per_second: price of a second of QPU time, in the site's unit
    :param maintenance_seconds: time until the next announced maintenance window
    :param payloads: kinds of payload that jobs may have (``problem``, ``sequence``,
        ``circuit``, ``photonic``)
    :param trouble: problem that impairs the QPU although it is online
    :param job_qpu_seconds: expected charge for a job of the size given to
        :meth:`Qpu.with_job_size`, in QPU seconds
    :param job_run_seconds: expected time of this job from its start to its end
    """

    name: str
    technology: str
    online: bool
    reason: str = ""
    qubits: int = 0
    vqpus: int = 1
    leases: int = 0
    queue_length: int = 0
    calibration: str | None = None
    eta_seconds: float | None = None
    position: int | None = None
    cost_per_second: float | None = None
    maintenance_seconds: float | None = None
    payloads: tuple[str, ...] = ()
    trouble: str = ""
    job_qpu_seconds: float | None = None
    job_run_seconds: float | None = None


class Qpu(ABC):
    """The client of a QPU.

    It has two sides: the driver's side, such as in ``sfq run``, leases the QPU; the job's
    side runs jobs under the lease. A new kind is a subclass in one file and an entry point in
    the group ``sf_quantum.qpus`` whose name is :attr:`type`. Every method blocks: programs
    with an event loop must call it in another thread.

    :param name: name of the QPU, with which the names of its environment variables start
    """

    type: ClassVar[str]
    #: whether :meth:`from_config` itself reads a site's file (``qrmiConfig``); otherwise, the
    #: ``environment`` of the QPU's entry in the file is merged into the configuration
    reads_qrmi_config: ClassVar[bool] = False
    #: the keys that this kind reads in the ``environment`` of its entry in a site's file;
    #: empty if only the vendor's client knows the keys
    variables: ClassVar[tuple[str, ...]] = ()
    #: additional keys of a deployment's configuration that name files; such a path may be
    #: relative to the StreamFlow file
    files: ClassVar[tuple[str, ...]] = ()
    #: the kinds of job that :meth:`submit` accepts; empty for a kind without a job side
    kinds: ClassVar[tuple[Kind, ...]] = ()
    #: whether :meth:`find` can look up a job by its tag
    finds_by_tag: ClassVar[bool] = False
    #: whether a result may have fewer reads than requested, as documented by the vendor;
    #: otherwise such a result is an error
    fewer_reads: ClassVar[bool] = False
    #: whether jobs end with their lease, and only submissions show that the lease has ended
    jobs_end_with_lease: ClassVar[bool] = False
    #: whether requests for leases may have a priority
    supports_priorities: ClassVar[bool] = False
    #: the vendor's names of the reservations that a lease may name; ``None`` if only the
    #: QPU's service knows them
    reservations: ClassVar[tuple[str, ...] | None] = ()

    @classmethod
    def problem(cls) -> str | None:
        """Explain briefly why this kind cannot be used on this machine; ``None`` if it can."""
        return None

    @classmethod
    def sampler_problem(cls) -> str | None:
        """Explain briefly why :meth:`sampler` would fail here; ``None`` if it would not.

        Only jobs call this; a driver only leases the QPU.
        """
        return None

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def identity(self) -> str:
        """Text that distinguishes QPUs: the vendor's endpoint, and the resource there.

        After a restart, a job is looked up only on a QPU with the same text. So neither
        credentials nor options of leases are part of the text.
        """
        return f"{type(self).__name__} {self.name}"

    @classmethod
    @abstractmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """Make the driver's side from a deployment's configuration.

        :raises InputError: if a key is unknown, missing or wrong
        """

    @abstractmethod
    def status(self) -> QpuStatus:
        """Query the QPU's status.

        :raises QpuError: if the QPU does not answer
        """

    @abstractmethod
    def acquire(self, job: str | None = None) -> str:
        """Acquire a lease.

        :param job: purpose of the lease, shown to the QPU's operator
        :returns: the acquisition token
        :raises NoLease: if no lease is free now
        :raises QpuError: if the QPU does not answer
        """

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        """Acquire a lease, waiting in the QPU's own queue for leases if it has one.

        :func:`sf_quantum.qpu.leasing.held_leases.acquire` calls this repeatedly, so an
        implementation need not wait.

        :param job: see :meth:`acquire`
        :param wait_seconds: the longest wait in the queue
        :param key: key of the request; a repeated request with the same key keeps its
            position in the queue, or gets the lease that it was already granted
        :returns: the acquisition token
        :raises NoLease: if no lease became free in this time
        :raises LeaseTooLate: if no lease was granted by the request's latest start
        :raises QpuError: if the QPU does not answer
        """
        return self.acquire(job)

    def with_hints(self, hints: LeaseHints) -> Self:
        """Return a client of this QPU that acquires leases with hints.

        A kind with :attr:`supports_priorities` or :attr:`reservations` overrides this.

        :param hints: hints for each lease;
            :func:`~sf_quantum.qpu.leasing.held_leases.acquire` applies ``latest_start``
            with any kind
        :returns: this object itself if this kind uses no hints
        :raises InputError: if a priority or a reservation would be ignored
        """
        if (problem := self.hint_problem(hints)) is not None:
            raise InputError(f"QPU {self.name!r}: {problem}")
        return self

    @classmethod
    def hint_problem(cls, hints: LeaseHints) -> str | None:
        """Explain which hint this kind would ignore, and the remedy; ``None`` if no hint.

        :param hints: see :meth:`with_hints`
        """
        if hints.priority and not cls.supports_priorities:
            return f"QPUs of type {cls.type} have no priorities: omit priority"
        reservation, names = hints.reservation, cls.reservations
        if not reservation or names is None or reservation in names:
            return None
        which = f"QPUs of type {cls.type}"
        if not names:
            return f"{which} have no reservations: omit reservation"
        right = " or ".join(map(repr, names))
        return f"{which} have no reservation {reservation!r}: write {right}"

    def reserved_time(self, reservation: str) -> ReservedTime | None:
        """Query the time for which the vendor has reserved the QPU, on the driver's side.

        :param reservation: one of :attr:`reservations`
        :returns: the current reserved time, or else the next; ``None`` if none is booked
        :raises InputError: if the vendor rejects the query
        :raises QpuError: if the vendor does not answer
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no reservations")

    def with_job_size(self, size: JobSize | None) -> Self:
        """Return a client of this QPU whose status contains the cost of a job.

        :param size: size of the job; ``None`` for a status without a job's cost
        :returns: this object itself if this kind does not report the cost
        """
        return self

    def shortfall(self, token: str) -> str | None:
        """Explain how a new lease falls short of its request; ``None`` if it does not."""
        return None

    def renew(self, token: str) -> float | None:
        """Keep a lease from expiring.

        :returns: seconds until the next renewal; ``None`` if the lease does not expire
        :raises AuthenticationError: if the user is rejected
        :raises LeaseLost: if the lease has ended
        :raises InputError: if the renewal is rejected for another reason; the caller then
            releases the lease
        :raises QpuError: if the QPU does not answer
        """
        return None

    def jobs(self, token: str) -> list[LeaseJob] | None:
        """List the QPU jobs of a held or released lease, for the run's journal.

        :returns: ``None`` if this kind of QPU does not report them
        :raises QpuError: if the QPU does not answer
        """
        return None

    def release_keeping_position(self, token: str) -> None:
        """Release a lease, so that others can use the QPU now.

        If the QPU has a queue for leases, only an admin may do this. A new request with the
        lease's key within a minute gets the position of the original request.

        :raises QpuError: if the QPU does not answer
        """
        self.release(token)

    def close(self) -> None:  # noqa: B027 - most kinds have nothing to end
        """End this object's own activities, such as threads; the QPU is not affected."""

    @abstractmethod
    def release(self, token: str) -> None:
        """Release a lease and cancel its unfinished jobs; repeating this is harmless.

        :raises QpuError: if the QPU does not answer
        """

    @abstractmethod
    def environment(self, token: str) -> dict[str, str]:
        """Make the variables with which a job reaches the QPU; the QPU's name is their prefix.

        :func:`~sf_quantum.qpu.environment.job_environment` adds the variables that list QPUs.

        :param token: the job's lease
        """

    @classmethod
    @abstractmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        """Make the job's side from the variables of :meth:`environment`.

        :raises InputError: if a variable is missing or wrong
        """

    @abstractmethod
    def sampler(self) -> Sampler:
        """Make a sampler that runs on the QPU, on the job's side."""

    def qaoa(self) -> Sampler:
        """Make the sampler ``qaoa``, on the job's side, whose circuits run on the QPU.

        :raises InputError: if the QPU takes no circuits, or Qiskit is not installed
        """
        from sf_quantum.samplers.qaoa import QaoaSampler

        if missing := QaoaSampler.problem():
            raise InputError(f"sampler 'qaoa': {missing}")
        from sf_quantum.qpu.circuit_runner import JobRunner

        return QaoaSampler(runner=JobRunner(self))

    def backend(self) -> QpuBackend:
        """Make a backend of Qiskit, on the job's side; ``backend.run()`` runs on the QPU.

        :raises InputError: if the QPU takes no circuits, or Qiskit is not installed
        """
        try:
            from sf_quantum.qpu.sdks.qiskit import QpuBackend
        except ImportError as error:
            raise InputError(NO_QISKIT) from error
        return QpuBackend(self)

    def pulser_backend(self, sequence: Pulses) -> Backend:
        """Make Pulser's backend for a sequence, on the job's side.

        :raises InputError: if the QPU takes no sequences, or Pulser is not installed
        """
        try:
            from sf_quantum.qpu.sdks import pulser
        except ImportError as error:
            raise InputError(NO_PULSER) from error
        return pulser.backend(self, sequence)

    def photonic_computer(self) -> RemoteComputer:
        """Make a remote computer of Perceval, on the job's side; it samples experiments.

        :raises InputError: if the QPU takes no photons, or Perceval is not installed
        """
        try:
            from sf_quantum.qpu.sdks import perceval
        except ImportError as error:
            raise InputError(NO_PERCEVAL) from error
        return perceval.computer(self)

    def photonic_processor(self) -> RemoteProcessor:
        """Make a remote processor of Perceval, on the job's side, for its ``Sampler``.

        :raises InputError: if the QPU takes no photons, or Perceval is not installed
        """
        try:
            from sf_quantum.qpu.sdks import perceval
        except ImportError as error:
            raise InputError(NO_PERCEVAL) from error
        return perceval.processor(self)

    def device(self, wires: int) -> Device:
        """Make a device of PennyLane, on the job's side; it runs on :meth:`backend`.

        :param wires: number of qubits
        :raises InputError: if the QPU takes no circuits, or pennylane-qiskit is not
            installed
        """
        try:
            from sf_quantum.qpu.sdks import pennylane
        except ImportError as error:
            raise InputError(NO_PENNYLANE) from error
        return pennylane.device(self.backend(), wires)

    def solve(
        self, bqm: Mapping[str, JSON], parameters: Mapping[str, int | None]
    ) -> dict[str, JSON]:
        """Sample a serialized BQM; kinds that need no dimod for this override the method.

        :param bqm: valid BQM in the format of dimod's ``to_serializable()``
        :param parameters: keyword arguments of the sampler; ``None`` values are left out
        :returns: the serialized sample set
        :raises InputError: if the QPU rejects the problem or a parameter
        :raises QpuError: if the QPU fails or does not answer
        """
        from sf_quantum.samplers.problem import sample

        return sample(self.sampler(), bqm, parameters)

    def solve_multiple(
        self,
        bqms: Sequence[Mapping[str, JSON]],
        parameters: Mapping[str, int | None],
    ) -> list[dict[str, JSON]]:
        """Sample BQMs like :meth:`solve`; one at a time if the kind accepts no lists."""
        return [self.solve(bqm, parameters) for bqm in bqms]

    # Methods for jobs, on the job's side. Except for run_job(), they neither wait for a job
    # nor repeat an unanswered request: callers, such as the QPU service, do both. Each method
    # raises LeaseLost if the vendor has ended the lease.

    def describe(self) -> Description:
        """Query the vendor for the current device, on either side.

        :raises QpuError: if the vendor does not answer
        """
        status = self.status()
        id_ = status.calibration
        calibration = CalibrationData(id_) if id_ else None
        kinds = self.kinds or ("problem",)
        return Description(
            status.technology, status.qubits, kinds, calibration=calibration
        )

    @classmethod
    def check(cls, kind: Kind, content: JSON) -> None:
        """Reject a payload that :meth:`submit` would not send; makes no request.

        Any user may send the content, so implementations must limit its size. The check may
        take seconds.

        :raises FieldError: if the payload is rejected; the error names its kind
        """
        return

    def submit(self, task: Task) -> str:
        """Submit a job, with its tag if the vendor keeps tags.

        :returns: the vendor's id of the job
        :raises NotAccepted: if the vendor is busy, and certainly has no job
        :raises AuthenticationError: if the vendor rejects the user
        :raises InputError: if the vendor rejects the job
        :raises QpuError: if the vendor may have a job, since its reply was lost
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no job side")

    def find(self, tag: str) -> str | None:
        """Look up a job by its tag, if :attr:`finds_by_tag` is set; ``None`` if no job has the tag.

        :raises QpuError: if the vendor does not answer
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no tags")

    def duplicates(self, tag: str, job_id: str) -> Sequence[str]:
        """List the other jobs with the tag of a job, if :attr:`finds_by_tag` is set.

        There are none if the vendor accepts each tag only once.

        :raises QpuError: if the vendor does not answer
        """
        other = self.find(tag)
        return [] if other in (None, job_id) else [str(other)]

    def poll(self, job_id: str) -> Progress:
        """Query the progress of a job.

        :raises UnknownJob: if the vendor no longer knows the job
        :raises QpuError: if the vendor does not answer
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no job side")

    def result(self, job_id: str, task: Task) -> Outcome:
        """Read the outcome of a finished job, with the result if the job completed.

        :raises UnknownJob: if the vendor no longer knows the job
        :raises QpuError: if the vendor does not answer, or its answer is malformed
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no job side")

    def run_job(self, task: Task) -> Outcome:
        """Run a job and wait for its end; an interrupt cancels the job.

        A submission is repeated if the vendor requests this and certainly has no job yet.
        Later requests are repeated if they get no reply.

        :returns: the outcome; ``failure`` contains the job's id, even after a cancellation
        :raises InputError: if the QPU rejects the job
        :raises QpuError: if the QPU does not answer
        """
        from sf_quantum.qpu import running

        return running.run_job(self, task)

    def cancel(self, job_id: str) -> None:
        """Request the cancellation of a job; harmless if the job has finished.

        :raises QpuError: if the vendor does not answer
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no job side")


def names() -> list[str]:
    """List the installed kinds of QPU, without importing them."""
    return _registry.names()


def load(type_: str) -> type[Qpu]:
    """Import a kind of QPU by its type.

    :raises InputError: if there is no such kind, or its package cannot be imported
    """
    return _registry.load(type_)
