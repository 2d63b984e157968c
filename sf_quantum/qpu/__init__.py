"""The interface of every kind of QPU, and the registry of the installed kinds.

``environment`` makes and reads the variables that name a job's QPUs (each kind adds its own,
such as ``sfq/service_variables`` for our service), ``opening`` leases one for a program,
``selection`` finds those that a command names, ``configuration`` reads what a deployment says
of one, and ``qrmi_config`` the file of a site. ``running`` submits problems, circuits and
sequences to a QPU, again after a refusal, and waits for them, ``sampler`` is the
``dimod.Sampler`` that it offers, ``circuit_runner`` runs the circuits of QAOA,
``native_circuits`` writes circuits of native gates in a vendor's own format. ``vendors`` has
one module per kind of QPU, ``sfq`` the client of our own service, ``leasing`` the leases,
``sdks`` and ``passes`` what programs of SDKs need.

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


if not TYPE_CHECKING:  # else a wrong name would not be found

    def __getattr__(name: str) -> object:
        # It imports this module, and programs expect its functions here.
        if name not in ("from_environment", "leased"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.environment"), name)


#: the reads of a job unless it says how many, as of ``sfq solve``
DEFAULT_READS = 1000


@dataclass(frozen=True)
class JobSize:
    """The size of a job for which a QPU's status is asked.

    :param variables: number of variables of its problem, if known
    """

    variables: int | None = None
    reads: int = DEFAULT_READS


def under_name(qpu: str, info: Mapping[str, JSON]) -> dict[str, JSON]:
    """Give the QPU in a result's ``info`` the name that its user knows.

    :param qpu: name of the deployment, or of the resource
    :returns: ``info``; if it named the QPU differently, as a service or a vendor does, that name
        is in ``device``
    """
    device = info.get("qpu", qpu)
    return {**info} if device == qpu else {"device": device, **info, "qpu": qpu}


class NoLease(QpuError):
    """No lease is free now: all are held, or the QPU is closed."""


class LeaseTooLate(NoLease):
    """No lease is granted by the latest start of its request."""


class AuthenticationError(InputError):
    """The service refuses its user: the token is wrong or revoked, or has too few rights."""


@dataclass(frozen=True)
class QpuStatus:
    """What a QPU reports about itself.

    :param reason: why it is not online, else empty
    :param qubits: the largest problem it takes, in variables; 0 if unknown
    :param vqpus: how many leases may be held at once
    :param leases: number of leases that are held
    :param queue_length: number of jobs that are pending or running
    :param calibration: id of the calibration from which its samples come, if it reports
        one
    :param eta_seconds: time until a job submitted now would start, if it reports one
    :param position: number of jobs that would run before it, if it reports one
    :param cost_per_second: price of a second of QPU time, in the site's unit, if it
        reports one
    :param maintenance_seconds: time until a maintenance window, if one is announced
    :param payloads: what jobs may carry (``problem``, ``sequence``, ``circuit``,
        ``photonic``), if known
    :param trouble: what impairs it although it is online, if it reports that
    :param job_qpu_seconds: expected charge for a job of the size given to :meth:`Qpu.sized`,
        if it reports one
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
    """The client of a QPU, for the driver that leases it or the job that uses it.

    A new kind is a subclass in one file and an entry point in the group
    ``sf_quantum.qpus`` whose name is :attr:`type`. Every method blocks: call it from a
    thread where an event loop runs.

    :param name: name of the QPU; its environment variables start with it
    """

    type: ClassVar[str]
    #: whether :meth:`from_config` reads a site's file (``qrmiConfig``); for other kinds, the
    #: ``environment`` of an entry there is merged into the configuration
    reads_qrmi_config: ClassVar[bool] = False
    #: the keys that this kind reads in the ``environment`` of an entry; empty if only its
    #: vendor's client knows them
    variables: ClassVar[tuple[str, ...]] = ()
    #: further keys of a deployment's configuration that name files, so that paths may be
    #: relative to the StreamFlow file
    files: ClassVar[tuple[str, ...]] = ()
    #: the jobs that :meth:`submit` takes; empty for a kind without a job side
    kinds: ClassVar[tuple[Kind, ...]] = ()
    #: whether :meth:`find` can look up a job by its tag
    finds: ClassVar[bool] = False
    #: whether a job may have fewer reads than it asks for, as the vendor documents; such a
    #: result is an error otherwise
    fewer_reads: ClassVar[bool] = False
    #: whether jobs end with their lease, of which only a submission tells that it has ended
    sessions: ClassVar[bool] = False
    #: whether requests for leases may have a priority
    priorities: ClassVar[bool] = False
    #: the reservations that a lease may name, in the vendor's words; ``None`` if only the
    #: QPU's service knows them
    reservations: ClassVar[tuple[str, ...] | None] = ()

    @classmethod
    def problem(cls) -> str | None:
        """Explain in a few words why this kind cannot be used on this machine, if so."""
        return None

    @classmethod
    def lack(cls) -> str | None:
        """Explain in a few words why :meth:`sampler` would fail here, if it would.

        A driver only leases the QPU, so this does not concern it.
        """
        return None

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def identity(self) -> str:
        """Tells one QPU from another: the vendor's endpoint, and the resource there.

        A job is looked for only where it was submitted. So neither credentials nor options
        of leases are part of it.
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
        """Ask the QPU for its status.

        :raises QpuError: if it does not answer
        """

    @abstractmethod
    def acquire(self, job: str | None = None) -> str:
        """Acquire a lease.

        :param job: what the lease is for, shown to the QPU's operator
        :returns: the acquisition token
        :raises NoLease: if none is free now
        :raises QpuError: if the QPU does not answer
        """

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        """Acquire a lease, waiting in the QPU's own queue for leases if it has one.

        :func:`sf_quantum.qpu.leasing.held_leases.acquire` calls this repeatedly, so an implementation
        need not wait.

        :param job: see :meth:`acquire`
        :param wait_seconds: the longest wait in the queue
        :param key: a repeated request with the same key keeps its position in the queue, and
            gets the lease that was granted to it before
        :returns: the acquisition token
        :raises NoLease: if none became free in this time
        :raises LeaseTooLate: if none is granted by the request's latest start
        :raises QpuError: if the QPU does not answer
        """
        return self.acquire(job)

    def hinted(self, hints: LeaseHints) -> Self:
        """Get this QPU with hints for the leases it acquires.

        A kind with :attr:`priorities` or :attr:`reservations` overrides this.

        :param hints: hints for each lease;
            :func:`~sf_quantum.qpu.leasing.held_leases.acquire` keeps to ``latest_start``
            with any kind
        :returns: this object itself where this kind takes no hints
        :raises InputError: if a priority or a reservation would be ignored
        """
        if (problem := self.hint_problem(hints)) is not None:
            raise InputError(f"QPU {self.name!r}: {problem}")
        return self

    @classmethod
    def hint_problem(cls, hints: LeaseHints) -> str | None:
        """Explain which hint this kind would ignore, with what is right, if any.

        :param hints: see :meth:`hinted`
        """
        if hints.priority and not cls.priorities:
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
        """Ask when the vendor has reserved the QPU, on the driver's side.

        :param reservation: one of :attr:`reservations`
        :returns: the time that runs, or else the next one; ``None`` if none is booked
        :raises InputError: if the vendor refuses the question
        :raises QpuError: if it does not answer
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no reservations")

    def sized(self, size: JobSize | None) -> Self:
        """Get this QPU with a status that says what a job of a size costs.

        :param size: ``None``: the status says nothing of a job
        :returns: this object itself where this kind does not tell
        """
        return self

    def shortfall(self, token: str) -> str | None:
        """Explain how a new lease falls short of the request, if it does."""
        return None

    def renew(self, token: str) -> float | None:
        """Keep a lease from expiring.

        :returns: seconds until the next renewal; ``None`` if the lease does not expire
        :raises AuthenticationError: if the user is refused
        :raises LeaseLost: if the lease has ended
        :raises InputError: if the QPU refuses otherwise: the lease is then given back
        :raises QpuError: if the QPU does not answer
        """
        return None

    def jobs(self, token: str) -> list[LeaseJob] | None:
        """List the QPU jobs of a lease, held or given back, for the run's journal.

        :returns: ``None`` if this kind of QPU does not report them
        :raises QpuError: if the QPU does not answer
        """
        return None

    def give_way(self, token: str) -> None:
        """Give a lease back to others, who can use it now.

        Where the QPU has a queue for leases, an admin's next request with the lease's key,
        within a minute, is ahead of those that came after the lease's own request.

        :raises QpuError: if the QPU does not answer
        """
        self.release(token)

    def close(self) -> None:  # noqa: B027 - most kinds have nothing to end
        """End what this object itself runs, such as threads; the QPU is not concerned."""

    @abstractmethod
    def release(self, token: str) -> None:
        """Give a lease back and cancel the jobs it still has; a second time is harmless.

        :raises QpuError: if the QPU does not answer
        """

    @abstractmethod
    def environment(self, token: str) -> dict[str, str]:
        """Make the variables with which a job reaches the QPU; they start with its name.

        :func:`~sf_quantum.qpu.environment.job_environment` adds those that list the QPUs.

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
        """Make a backend of Qiskit, on the job's side; ``backend.run(circuit)`` runs there.

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
        """Sample a serialized BQM; overridden by kinds that need no dimod for it.

        :param bqm: valid, in the format of dimod's ``to_serializable()``
        :param parameters: the sampler's keywords; those that are ``None`` are left out
        :returns: the serialized sample set
        :raises InputError: if the QPU refuses the problem or a parameter
        :raises QpuError: if the QPU fails or does not answer
        """
        from sf_quantum.samplers.problem import sample

        return sample(self.sampler(), bqm, parameters)

    def solve_multiple(
        self,
        bqms: Sequence[Mapping[str, JSON]],
        parameters: Mapping[str, int | None],
    ) -> list[dict[str, JSON]]:
        """As :meth:`solve`, several BQMs; one after the other where a kind has no lists."""
        return [self.solve(bqm, parameters) for bqm in bqms]

    # Jobs, on the job's side. But for run_job(), none waits for a job, or repeats a request
    # that was not answered: that is for the caller, such as the QPU service, to do. Each
    # raises LeaseLost if the vendor has ended the lease.

    def describe(self) -> Description:
        """Ask the vendor for the current device, on the driver's side.

        :raises QpuError: if it does not answer
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
        """Refuse the payload of a job that :meth:`submit` would not send; asks nobody.

        May take seconds, for a content of any user: its bound is the implementation's.

        :raises FieldError: if it is refused; the error names its kind
        """
        return

    def submit(self, task: Task) -> str:
        """Submit a job, with its tag where the vendor keeps one.

        :returns: the vendor's id of the job
        :raises NotAccepted: if the vendor is busy, and there is certainly no job
        :raises AuthenticationError: if the vendor refuses the user
        :raises InputError: if it refuses the job
        :raises QpuError: if there may be a job, since the answer was lost
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no job side")

    def find(self, tag: str) -> str | None:
        """Look up a job by its tag, if :attr:`finds` says so; ``None`` if there is none.

        :raises QpuError: if the vendor does not answer
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no tags")

    def others(self, tag: str, job_id: str) -> Sequence[str]:
        """List the jobs with the tag of a job beside it, if :attr:`finds` says so.

        A vendor that takes each tag once has none.

        :raises QpuError: if the vendor does not answer
        """
        other = self.find(tag)
        return [] if other in (None, job_id) else [str(other)]

    def poll(self, job_id: str) -> Progress:
        """Ask how a job is going.

        :raises UnknownJob: if the vendor no longer knows it
        :raises QpuError: if the vendor does not answer
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no job side")

    def result(self, job_id: str, task: Task) -> Outcome:
        """Read how a job that is over ended, and its result if it completed.

        :raises UnknownJob: if the vendor no longer knows it
        :raises QpuError: if the vendor does not answer, or its answer is malformed
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no job side")

    def run_job(self, task: Task) -> Outcome:
        """Run a job and wait for its end; interrupted, it is cancelled.

        A submission is repeated as the vendor asks, if there is certainly no job yet.
        Later requests that are not answered are repeated too.

        :returns: how it ended; ``failure`` has the job's id, also of one that was cancelled
        :raises InputError: if the QPU refuses the job
        :raises QpuError: if the QPU does not answer
        """
        from sf_quantum.qpu import running

        return running.run_job(self, task)

    def cancel(self, job_id: str) -> None:
        """Ask the vendor to cancel a job; of one that is over, it is harmless.

        :raises QpuError: if the vendor does not answer
        """
        raise NotImplementedError(f"QPU type {self.type!r} has no job side")


def names() -> list[str]:
    """List the kinds of QPU that are installed; nothing is imported."""
    return _registry.names()


def load(type_: str) -> type[Qpu]:
    """Import a kind of QPU by its type.

    :raises InputError: if there is no such kind, or its package cannot be imported
    """
    return _registry.load(type_)
