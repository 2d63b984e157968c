"""The services of a deployment, and their settings for allocations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from streamflow.core.exception import WorkflowDefinitionException
from streamflow.deployment.connector.queue_manager import QueueManagerService

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.allocation.elastic_rules import ElasticSettings
from sf_quantum.files import JSON
from sf_quantum.slurm import counts, ids, tres
from sf_quantum.slurm.components import Component

#: errors about clusters, each with its remedy
NO_CLUSTERS = (
    "expected the names of clusters",
    "write them with commas, without blanks; of `all`, those meant",
)
SEVERAL_CLUSTERS = (
    "an allocation is in one cluster, but its services name different ones",
    "give all services of `reserve` the same `clusters`",
)


@dataclass(frozen=True)
class PerStepSettings:
    """``per-step``: each job is submitted separately."""


@dataclass(frozen=True)
class ReservedSettings:
    """``reserved``: one allocation for the run, shared by services with equal settings.

    :param services: name of the service of each component; the other fields are keys of the
        schema
    """

    services: tuple[str, ...]
    release_after: str | None
    release_times: int
    idle: float | None


AllocationSettings: TypeAlias = PerStepSettings | ReservedSettings | ElasticSettings


def array_problem(*, is_elastic: bool, is_reserved: bool) -> tuple[str, str] | None:
    """Return the error about a service with an array, and its remedy; ``None`` if it is right.

    :param is_elastic: whether the strategy of the service is ``elastic``
    :param is_reserved: whether a ``reserve`` of the deployment names the service
    """
    remedies = {
        "take the service out of reserve": is_reserved,
        "give the service allocation: per-step": is_elastic,
    }
    needed = " and ".join(remedy for remedy, needs in remedies.items() if needs)
    if not needed:
        return None
    what = "an allocation that is kept for several jobs cannot be an array"
    return what, f"remove array, or {needed}"


def read_settings(value: str | Mapping[str, JSON]) -> AllocationSettings:
    """Read the configuration key ``allocation``, which the schema has already validated."""
    config = {"strategy": value} if isinstance(value, str) else dict(value)
    return _READERS[config.pop("strategy")](**config)


def _read_reserved(
    reserve: Sequence[str] | Mapping[str, int],
    release: Mapping[str, str | int] | None = None,
    idle: float | None = None,
) -> ReservedSettings:
    """Convert the keys of the schema to settings."""
    release = release or {}
    return ReservedSettings(
        services=tuple(Counter(reserve).elements()),
        release_after=str(release["after"]) if release else None,
        release_times=int(release.get("times", 1)),
        idle=idle,
    )


_READERS: dict[JSON, Callable[..., AllocationSettings]] = {
    "per-step": PerStepSettings,
    "reserved": _read_reserved,
    "elastic": ElasticSettings,
}


class SlurmService(QueueManagerService):
    """A Slurm service of StreamFlow with additional keys.

    :param qpu: names of the QPUs that the service's jobs use
    :param allocation: settings for allocations; ``None`` for the deployment's settings
    :param options: options of ``sbatch`` in camel case
    :raises WorkflowDefinitionException: if the option ``clusters`` is not a list of names
    """

    def __init__(
        self,
        file: str | None = None,
        qpu: MutableSequence[str] | None = None,
        allocation: str | dict[str, JSON] | None = None,
        **options: JSON,
    ) -> None:
        super().__init__(file)
        #: clusters for the service's jobs, separated by commas; empty for the login node's own
        #: cluster
        self.clusters = str(options.get("clusters") or "")
        if self.clusters and not ids.are_clusters(self.clusters):
            raise WorkflowDefinitionException(f"clusters: {'; '.join(NO_CLUSTERS)}")
        #: name of the service, which the connector sets; empty for the deployment's default
        self.name = ""
        self.qpu = list(qpu or [])
        #: whether Slurm acquires the leases of the QPUs (``--qpu=``)
        self.spank = False
        self.settings = None if allocation is None else read_settings(allocation)
        self.options = options

    def is_array(self, script: str) -> bool:
        """Whether Slurm runs a job script of the service once for each task of an array."""
        return "array" in self.options or scripts.has_option(script, "-a", "--array")

    @property
    def quantum(self) -> bool:
        """Whether the service's jobs use a QPU."""
        return bool(self.qpu) or tres.requests_qpu(self.options)

    @property
    def component(self) -> Component:
        """The nodes that the service requests, as a component of a heterogeneous job."""
        return Component.read(self.options.get("nodes") or 1, quantum=self.quantum)

    @property
    def on_quantum_nodes(self) -> bool:
        """Whether the service's nodes belong to a QPU; a quantum step may use others."""
        partition = self.partition or ""
        return "quantum" in partition.lower() or tres.names_qpu(
            self.options.get("gres"), partition
        )

    @property
    def partition(self) -> str | None:
        """The partition; ``None`` for Slurm's default."""
        value = self.options.get("partition")
        return None if value is None else str(value)

    @property
    def seconds(self) -> float | None:
        """The time limit in seconds; ``None`` if the service sets none."""
        return counts.limit_seconds(str(self.options.get("time") or ""))
