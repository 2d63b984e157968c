"""What a service asks of Slurm: options of ``sbatch``, and how nodes are allocated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from streamflow.core.exception import WorkflowDefinitionException
from streamflow.deployment.connector.queue_manager import QueueManagerService

from sf_quantum.files import JSON

# the same job id may be another job there, and scontrol(1) asks one cluster at a time
ONE_CLUSTER = (
    "sfq.slurm follows the jobs of the login node's own cluster only",
    "write a deployment of its own for each cluster",
)
# options of sbatch without which the variables of a batch job are the same
_AT_ONCE = frozenset(
    "account constraint exclude exclusive gres licenses mem nodelist nodes partition qos "
    "reservation time".split()
)


@dataclass(frozen=True)
class PerStepSettings:
    """``per-step``: each job is a submission of its own."""


@dataclass(frozen=True)
class ReservedSettings:
    """``reserved``: one allocation for the run, shared by services with equal settings.

    :param counts: the services, and how many jobs of each at once
    :param release_after: the step after which the quantum part is given back
    :param release_times: after how many of its jobs
    :param idle: seconds without a quantum job after which it is given back
    """

    counts: tuple[tuple[str, int], ...]
    release_after: str | None
    release_times: int
    idle: float | None

    @property
    def services(self) -> list[str]:
        """Those whose nodes are reserved."""
        return [name for name, _ in self.counts]


@dataclass(frozen=True)
class ElasticSettings:
    """``elastic``: allocations of the service's own shape, kept between jobs.

    :param keep: how many are kept although they are idle
    :param maximum: how many there are at most; None for as many as there are jobs
    :param idle: seconds without a job after which one is given back
    :param patience: seconds in the queue after which fewer nodes will do
    :param ahead: nodes are requested while a quantum step runs
    :param dependent: Slurm itself waits for the step's end, where the step is a Slurm job
    """

    keep: int
    maximum: int | None
    idle: float
    patience: float
    ahead: bool
    dependent: bool


AllocationSettings: TypeAlias = PerStepSettings | ReservedSettings | ElasticSettings


def read_settings(value: str | Mapping[str, JSON]) -> AllocationSettings:
    """Read the key ``allocation``; its schema has checked it and says what is what.

    :param value: the strategy's name, or a mapping with ``strategy``
    """
    config = {"strategy": value} if isinstance(value, str) else dict(value)
    return _READERS[config.pop("strategy")](**config)


def _read_reserved(
    reserve: Sequence[str] | Mapping[str, int],
    release: Mapping[str, str | int] | None = None,
    idle: float | None = None,
) -> ReservedSettings:
    counts = reserve if isinstance(reserve, Mapping) else Counter(reserve)
    release = release or {}
    return ReservedSettings(
        counts=tuple(counts.items()),
        release_after=str(release["after"]) if release else None,
        release_times=int(release.get("times", 1)),
        idle=idle,
    )


def _read_elastic(
    keep: int = 0,
    max: int | None = None,
    idle: float = 5.0,
    patience: float = 60.0,
    ahead: bool | Literal["dependent"] = False,
) -> ElasticSettings:
    dependent = ahead == "dependent"
    return ElasticSettings(keep, max, idle, patience, bool(ahead), dependent)


_READERS: dict[JSON, Callable[..., AllocationSettings]] = {
    "per-step": PerStepSettings,
    "reserved": _read_reserved,
    "elastic": _read_elastic,
}


class Service(QueueManagerService):
    """A named kind of submission: StreamFlow's keys of a Slurm service, and ours.

    :param file: path of a job template
    :param qpu: names of the QPUs that its jobs use
    :param allocation: how its nodes are taken, if not as the deployment says
    :param options: every other key is an option of ``sbatch`` in camel case
    :raises WorkflowDefinitionException: if the option ``clusters`` is there
    """

    def __init__(
        self,
        file: str | None = None,
        qpu: MutableSequence[str] | None = None,
        allocation: str | dict[str, JSON] | None = None,
        **options: JSON,
    ) -> None:
        super().__init__(file)
        if options.get("clusters"):
            raise WorkflowDefinitionException(f"clusters: {'; '.join(ONE_CLUSTER)}")
        self.qpu = list(qpu or [])
        #: whether Slurm has the SPANK plugin, whose option takes their leases
        self.spank = False
        self.settings = None if allocation is None else read_settings(allocation)
        self.options = options

    @property
    def quantum(self) -> bool:
        """Whether its jobs use a QPU."""
        gres = str(self.options.get("gres") or "")
        licenses = str(self.options.get("licenses") or "")
        return bool(self.qpu) or "qpu" in f"{gres},{licenses}".lower()

    @property
    def on_quantum_nodes(self) -> bool:
        """Whether its nodes are those of a QPU; a hybrid step may hold classical ones."""
        gres, partition = self.options.get("gres"), self.options.get("partition")
        return (
            re.search("qpu|quantum", f"{gres},{partition}", re.IGNORECASE) is not None
        )

    @property
    def partition(self) -> str | None:
        """The partition it names, if any."""
        value = self.options.get("partition")
        return None if value is None else str(value)

    def words(self, **instead: JSON) -> list[str]:
        """Its options for a shell.

        :param instead: options that take the place of its own; None leaves one out
        :returns: one word for each, quoted as StreamFlow does: the shell sees variables
        """
        qpu = ",".join(self.qpu) if self.spank and self.qpu else None
        options: Mapping[str, JSON] = {**self.options, "qpu": qpu, **instead}
        return [word for key, value in options.items() for word in _words(key, value)]


def holder_options(name: str, service: Service, **instead: JSON) -> str:
    """The options of a job that only holds a service's nodes.

    :param name: what it is for
    :param instead: see :meth:`Service.words`
    :returns: for a shell
    """
    words = [
        "--output=/dev/null",
        f'--job-name="sfq {name}"',
        *service.words(**instead),
    ]
    # started again it would have none of its jobs any more
    return " ".join([*words, "--no-requeue"])


def at_once_options(
    name: str, service: Service, lines: Sequence[str], **instead: JSON
) -> str | None:
    """The options of ``salloc`` for the same nodes, which it gives at once if they are free.

    :param lines: the directives that the batch job would have
    :param instead: see :meth:`Service.words`
    :returns: for a shell; None where only a batch job gives what the service asks for, and
        for more than one node, of which a step knows too little to have the variables of a
        batch job
    """
    options = {**service.options, **instead}
    if lines or service.qpu or options.keys() - _AT_ONCE:
        return None
    one_node = str(options.get("nodes") or 1) in ("1", "1-1")
    if not one_node or re.search(r"[,\[]", str(options.get("nodelist") or "")):
        return None
    return " ".join([f'--job-name="sfq {name}"', *service.words(**instead)])


def component_options(names: Sequence[str], services: Sequence[Service]) -> str:
    """The options of a job of several components that only holds their nodes.

    Slurm runs its script in the first, and so takes the leases of all there.
    """
    taken = [qpu for service in services if service.spank for qpu in service.qpu]
    leases = [",".join(dict.fromkeys(taken)) or None, *[None] * len(names)]
    return " : ".join(
        holder_options(name, service, qpu=lease)
        for name, service, lease in zip(names, services, leases, strict=False)
    )


def _words(key: str, value: JSON) -> Iterator[str]:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", key).lower()
    if key == "waitAllNodes":  # the one switch that takes a number
        value = 1 if value else None
    if value is True:
        yield f"--{name}"
    elif value is not None and value is not False:
        # with "=", since some options may come without a value
        yield '--{}="{}"'.format(name, str(value).replace('"', '\\"'))
