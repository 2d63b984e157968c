"""The services of a deployment: options of ``sbatch``, and the allocation settings."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from streamflow.core.exception import WorkflowDefinitionException
from streamflow.deployment.connector.queue_manager import QueueManagerService

from sf_quantum.connectors.slurm.allocation.elastic_rules import ElasticSettings
from sf_quantum.files import JSON
from sf_quantum.slurm import ids
from sf_quantum.slurm.components import Component

#: what is wrong with clusters, and what would be right
NO_CLUSTERS = (
    "expected the names of clusters",
    "write them with commas, without blanks; of `all`, those meant",
)
SEVERAL_CLUSTERS = (
    "an allocation is in one cluster, but its services name different ones",
    "give all services of `reserve` the same `clusters`",
)
# options of sbatch that do not change the environment variables of a batch job
_AT_ONCE = frozenset(
    "account comment constraint exclude exclusive gres licenses mem nodelist nodes partition qos "
    "reservation time timeMin".split()
)


@dataclass(frozen=True)
class PerStepSettings:
    """``per-step``: each job is submitted separately."""


@dataclass(frozen=True)
class ReservedSettings:
    """``reserved``: one allocation for the run, shared by services with equal settings.

    :param services: the service of each component; the others are keys of the schema
    """

    services: tuple[str, ...]
    release_after: str | None
    release_times: int
    idle: float | None


AllocationSettings: TypeAlias = PerStepSettings | ReservedSettings | ElasticSettings


def read_settings(value: str | Mapping[str, JSON]) -> AllocationSettings:
    """Read the configuration key ``allocation``, already validated by the schema."""
    config = {"strategy": value} if isinstance(value, str) else dict(value)
    return _READERS[config.pop("strategy")](**config)


def _read_reserved(
    reserve: Sequence[str] | Mapping[str, int],
    release: Mapping[str, str | int] | None = None,
    idle: float | None = None,
) -> ReservedSettings:
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

    :param qpu: names of the QPUs that its jobs use
    :param allocation: the allocation settings; None for those of the deployment
    :param options: options of ``sbatch`` in camel case
    :raises WorkflowDefinitionException: if the option ``clusters`` is no names
    """

    def __init__(
        self,
        file: str | None = None,
        qpu: MutableSequence[str] | None = None,
        allocation: str | dict[str, JSON] | None = None,
        **options: JSON,
    ) -> None:
        super().__init__(file)
        #: Clusters for the service's jobs, separated by commas; empty for the login
        #: node's own.
        self.clusters = str(options.get("clusters") or "")
        if self.clusters and not ids.are_clusters(self.clusters):
            raise WorkflowDefinitionException(f"clusters: {'; '.join(NO_CLUSTERS)}")
        #: set by the connector; empty for the deployment's default
        self.name = ""
        self.qpu = list(qpu or [])
        #: whether Slurm acquires the leases of the QPUs (``--qpu=``)
        self.spank = False
        self.settings = None if allocation is None else read_settings(allocation)
        self.options = options

    @property
    def quantum(self) -> bool:
        """Whether its jobs use a QPU."""
        return bool(self.qpu) or requests_qpu(self.options)

    @property
    def component(self) -> Component:
        """What a component of a heterogeneous job requests for it."""
        return Component.read(self.options.get("nodes") or 1, quantum=self.quantum)

    @property
    def on_quantum_nodes(self) -> bool:
        """Whether its nodes are those of a QPU; a hybrid step may use classical ones."""
        nodes = f"{self.options.get('gres')},{self.partition}"
        return re.search("qpu|quantum", nodes, re.IGNORECASE) is not None

    @property
    def partition(self) -> str | None:
        """The partition, None for Slurm's default."""
        value = self.options.get("partition")
        return None if value is None else str(value)

    @property
    def seconds(self) -> float | None:
        """The time limit; None if it is that of the partition, or none."""
        return limit_seconds(str(self.options.get("time") or ""))

    @property
    def note(self) -> str:
        """The service's own comment, for the shell, after that by which a job is found."""
        comment = self.options.get("comment")
        return "" if comment is None else _quoted(f" {comment}")

    def words(self, **instead: JSON) -> list[str]:
        """The options of ``sbatch`` for the shell, except for the comment.

        :param instead: options that override those of the service; None omits one
        :returns: one word per option, quoted as by StreamFlow: the shell expands variables
        """
        qpu = ",".join(self.qpu) if self.spank and self.qpu else None
        options: Mapping[str, JSON] = {
            **self.options,
            "qpu": qpu,
            "comment": None,
            **instead,
        }
        return [word for key, value in options.items() for word in _words(key, value)]


@dataclass(frozen=True)
class JobOptions:
    """The options of ``sbatch`` of a job of its own.

    :param of_job: its own options, by name, with literal values
    :param service: service whose options follow
    :param instead: see :meth:`SlurmService.words`
    """

    of_job: Mapping[str, str]
    service: SlurmService
    instead: Mapping[str, JSON]

    def words(self) -> str:
        """The options for the shell."""
        options = [
            f"--{name}={shlex.quote(value)}" for name, value in self.of_job.items()
        ]
        return " ".join([*options, *self.service.words(**self.instead)])


def requests_qpu(options: Mapping[str, JSON]) -> bool:
    """Whether options of Slurm request a QPU as a resource or a licence."""
    return "qpu" in f"{options.get('gres')},{options.get('licenses')}".lower()


def holder_options(name: str, services: Sequence[SlurmService], **instead: JSON) -> str:
    """The options of ``sbatch`` for a job that only holds nodes of services.

    Each service has a component. Slurm runs the script in the first one, which gets the
    leases of all QPUs.

    :param name: the suffix of the job name, if the service has no name
    """
    taken = [qpu for service in services if service.spank for qpu in service.qpu]
    instead["qpu"] = ",".join(dict.fromkeys(taken)) or None
    components = []
    for service in services:
        job_name = f'--job-name="sfq {service.name or name}"'
        words = ["--output=/dev/null", job_name, *service.words(**instead)]
        # a requeued allocation would have lost its steps
        components.append(" ".join([*words, "--no-requeue"]))
        instead["qpu"] = None
    return " : ".join(components)


def at_once_options(
    name: str,
    services: Sequence[SlurmService],
    directives: Sequence[str],
    **instead: JSON,
) -> str | None:
    """The options of ``salloc``, which grants the same nodes at once if they are free.

    :param directives: ``#SBATCH`` lines of the batch job
    :returns: None if the services need a batch job, or more than one node: a step lacks the
        information to set the environment variables of a batch job on several nodes
    """
    service = services[0]
    options = {**service.options, **instead}
    if len(services) > 1 or directives or service.qpu or options.keys() - _AT_ONCE:
        return None
    one_node = str(options.get("nodes") or 1) in ("1", "1-1")
    if not one_node or re.search(r"[,\[]", str(options.get("nodelist") or "")):
        return None
    job_name = f'--job-name="sfq {service.name or name}"'
    return " ".join([job_name, *service.words(**instead)])


def limit_seconds(limit: str) -> float | None:
    """A time limit in one of the forms of sbatch(1), None if it is none of them."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:
        numbers.insert(0, 0)  # they start with minutes, otherwise with hours
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60.0 + seconds


def _words(key: str, value: JSON) -> Iterator[str]:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", key).lower()
    if key == "waitAllNodes":  # the only flag with a numeric value
        value = 1 if value else None
    if value is True:
        yield f"--{name}"
    elif value is not None and value is not False:
        # The separator is "=", since the value of some options is optional.
        yield f"--{name}={_quoted(value)}"


def _quoted(value: JSON) -> str:
    """A value quoted as by StreamFlow: the shell expands variables."""
    return '"{}"'.format(str(value).replace('"', '\\"'))
