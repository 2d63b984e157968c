"""How a QPU is reached: what every kind of QPU is, and which kinds are installed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.samplers.registry import Registry

if TYPE_CHECKING:
    from dimod.core.sampler import Sampler

GROUP = "sf_quantum.qpus"
_registry: Registry[type[Qpu]] = Registry(GROUP, "QPU type")
RESOURCES = ("QRMI_JOB_QPU_RESOURCES", "SLURM_JOB_QPU_RESOURCES")
TYPES = ("QRMI_JOB_QPU_TYPES", "SLURM_JOB_QPU_TYPES")

# QRMI's words for a job that is over
OVER = ("Completed", "Failed", "Cancelled")


@dataclass(frozen=True)
class QpuStatus:
    """What a QPU says of itself.

    :param reason: why it is not online, else empty
    :param qubits: the largest problem it takes, in variables; 0 if it does not tell
    :param vqpus: how many leases may be held at once
    :param leases: how many are held
    :param queue_length: jobs waiting or running
    :param calibration: which calibration its samples come from, if it tells
    :param eta_seconds: after how long a job submitted now would start, if it tells
    :param position: jobs that would run before it, if it tells
    :param cost_per_second: of QPU time, in the site's own unit, if it tells
    :param maintenance_seconds: after how long it stops taking jobs, if that is announced
    :param payloads: what a job may carry (``problem``, ``sequence``, ``circuit``), if it
        tells
    """

    name: str
    technology: str
    online: bool
    reason: str
    qubits: int
    vqpus: int
    leases: int
    queue_length: int
    calibration: str | None = None
    eta_seconds: float | None = None
    position: int | None = None
    cost_per_second: float | None = None
    maintenance_seconds: float | None = None
    payloads: tuple[str, ...] = ()


class NoLease(QpuError):
    """Every lease is held, or the QPU is closed for now: one may come, so wait or go."""


class Qpu(ABC):
    """A QPU, seen from the driver that leases it and from the job that uses it.

    A new kind is a subclass in one file and an entry point in the group
    ``sf_quantum.qpus`` whose name is :attr:`type`. Every method blocks: call it from a
    thread where an event loop runs.

    :param name: the name of the QPU, which starts its environment variables
    """

    type: ClassVar[str]
    #: whether :meth:`from_config` reads a site's file, ``qrmiConfig``, itself; of other
    #: kinds the environment of an entry there has the keys of the configuration
    reads_qrmi_config: ClassVar[bool] = False

    @classmethod
    def problem(cls) -> str | None:
        """Why QPUs of this kind cannot be used on this machine, in a few words."""
        return None

    @classmethod
    def lack(cls) -> str | None:
        """Why :meth:`sampler` would fail here though they can be used, in a few words.

        Whoever only leases them, for a job that brings what it needs, may do without.
        """
        return None

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    @abstractmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """Make the driver's side from a deployment's configuration.

        :raises InputError: if a key is unknown, missing or wrong
        """

    @abstractmethod
    def status(self) -> QpuStatus:
        """Ask the QPU how it is.

        :raises QpuError: if it does not answer
        """

    @abstractmethod
    def acquire(self, job: str | None = None) -> str:
        """Take a lease.

        :param job: what the lease is for, in words for the QPU's operator
        :returns: the acquisition token
        :raises NoLease: if there is none to be had now
        :raises QpuError: if the QPU does not answer
        """

    def acquire_waiting(
        self, job: str | None, *, wait_seconds: float, key: str | None = None
    ) -> str:
        """Take a lease, in the QPU's own queue for one if it has such a queue.

        :func:`sf_quantum.qpu.waiting.acquire` calls this again and again; alone it need
        not wait at all.

        :param job: as :meth:`acquire` takes it
        :param wait_seconds: how long to stay in the queue at most
        :param key: the same key keeps the place in the queue, and finds the lease that
            it was given before
        :returns: the acquisition token
        :raises NoLease: if none came in this time
        :raises QpuError: if the QPU does not answer
        """
        return self.acquire(job)

    def hinted(self, hints: Mapping[str, JSON]) -> Self:
        """Give the same QPU, whose leases are asked for with hints.

        :param hints: ``expectedSeconds`` and ``pattern``, as far as they are known
        :returns: this one itself where its kind takes no hints
        """
        return self

    def shortfall(self, token: str) -> str | None:
        """What a lease that was just taken has less than was asked for, in a few words."""
        return None

    def renew(self, token: str) -> float | None:
        """Say that a lease is still wanted.

        :returns: in how many seconds to say so again at the latest; ``None`` if a lease
            of this kind does not run out
        :raises InputError: if the lease is not held any more
        :raises QpuError: if the QPU does not answer
        """
        return None

    def jobs(self, token: str) -> list[dict[str, JSON]] | None:
        """List the jobs of a lease, held or given back, for the record of a run.

        :returns: each with what is known of ``id``, ``state``, ``submitted``, ``started``,
            ``ended`` (epoch seconds), ``qpu_seconds``, ``seconds`` and ``found`` (it was
            there before the lease was); ``None`` if this kind of QPU does not tell, so
            that reports and budgets do not know what it did
        :raises QpuError: if the QPU does not answer
        """
        return None

    @abstractmethod
    def release(self, token: str) -> None:
        """Give a lease back, and cancel the jobs it still has; twice does no harm.

        :raises QpuError: if the QPU does not answer
        """

    @abstractmethod
    def environment(self, token: str) -> dict[str, str]:
        """Tell a job how to reach the QPU: the variables that start with its name.

        :func:`environment` adds those that name the QPUs themselves.

        :param token: the job's lease
        """

    @classmethod
    @abstractmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        """Make the job's side from what :meth:`environment` told.

        :raises InputError: if a variable is missing or wrong; the text names it
        """

    @abstractmethod
    def sampler(self) -> Sampler:
        """Give the job a sampler that runs on the QPU."""

    def solve(
        self, bqm: Mapping[str, JSON], parameters: Mapping[str, int | None]
    ) -> dict[str, JSON]:
        """Sample a serialized BQM; a QPU that takes JSON can do it without dimod.

        :param bqm: as dimod's ``to_serializable()`` writes it, and checked
        :param parameters: the sampler's keywords; those that are ``None`` are left out
        :returns: the sample set, serialized
        :raises InputError: if the QPU refuses the problem or a parameter
        :raises QpuError: if the QPU fails or does not answer
        """
        from sf_quantum.samplers.problem import sample

        return sample(self.sampler(), bqm, parameters)


def names() -> list[str]:
    """Name the kinds of QPU that are installed; nothing is imported."""
    return _registry.names()


def load(type_: str) -> type[Qpu]:
    """Find a kind of QPU by its type string.

    :raises InputError: if there is no such kind, or its package cannot be imported
    """
    return _registry.load(type_)


def environment(leases: Iterable[tuple[Qpu, str]]) -> dict[str, str]:
    """Write what a job needs to use its QPUs, in the dialect of QRMI's SPANK plugin.

    :param leases: each QPU with the job's acquisition token
    """
    variables: dict[str, str] = {}
    held = list(leases)
    for qpu, token in held:
        variables |= qpu.environment(token)
    variables[RESOURCES[0]] = ",".join(qpu.name for qpu, _ in held)
    variables[TYPES[0]] = ",".join(qpu.type for qpu, _ in held)
    return variables


def from_environment(variables: Mapping[str, str] = os.environ) -> Qpu | None:
    """Find the first QPU of the environment.

    :returns: the QPU, or ``None`` on a classical location, where nothing is set
    :raises InputError: if only some of the variables are set, so that a lost variable
        cannot turn into a silent classical run
    """
    resources, types = words(variables, RESOURCES), words(variables, TYPES)
    if resources is None and types is None:
        orphan = next((key for key in variables if key.endswith("_SFQ_URL")), None)
        if orphan is not None:
            raise InputError(f"{orphan} is set but {RESOURCES[0]} is not")
        return None
    if not resources:
        raise InputError(f"{TYPES[0]} is set but {RESOURCES[0]} names no QPU")
    if not types:
        raise InputError(f"{RESOURCES[0]} is set but {TYPES[0]} names no type")
    if len(resources) != len(types):
        raise InputError(
            f"{TYPES[0]} names {len(types)} types for the {len(resources)} QPUs "
            f"of {RESOURCES[0]}"
        )
    return load(types[0]).from_environment(resources[0], variables)


def words(variables: Mapping[str, str], keys: tuple[str, str]) -> list[str] | None:
    """Read a list of the environment, under the first of its names that is set."""
    value = next((variables[key] for key in keys if key in variables), None)
    if value is None:
        return None
    return [word.strip() for word in value.split(",") if word.strip()]
