"""What a service of ``sfq.slurm`` asks Slurm for, as options of ``sbatch``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableSequence, Sequence

from streamflow.core.exception import WorkflowDefinitionException
from streamflow.deployment.connector.queue_manager import QueueManagerService

from sf_quantum.connectors.slurm.policy import policy
from sf_quantum.files import JSON

_DIRECTIVE = "#SBATCH"
# the same job id may be another job there, and scontrol(1) asks one cluster at a time
ONE_CLUSTER = (
    "sfq.slurm follows the jobs of the login node's own cluster only",
    "write a deployment of its own for each cluster",
)
# those that leave the variables of a batch job as they are without them
_AT_ONCE = frozenset(
    "account constraint exclude exclusive gres licenses mem nodelist nodes partition qos "
    "reservation time".split()
)


class Service(QueueManagerService):
    """A named kind of submission: StreamFlow's keys of a Slurm service, and ours.

    :param file: path of a job template
    :param qpu: names of the QPUs that its jobs use
    :param allocation: how its nodes are taken, if not as the deployment says
    :param options: every other key is an option of ``sbatch`` in camel case
    :raises WorkflowDefinitionException: if one is there that cannot be kept
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
        # whether Slurm has the option that takes their leases
        self.spank = False
        self.policy = None if allocation is None else policy(allocation)
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


def holding(name: str, service: Service, **instead: JSON) -> str:
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


def at_once(
    name: str, service: Service, lines: Sequence[str], **instead: JSON
) -> str | None:
    """The options of ``salloc`` for the same nodes.

    :param lines: the directives that its batch job would have
    :returns: for a shell; None where only a batch job gives what the service asks for
    """
    asked = service.options.keys() | instead.keys()
    if lines or service.qpu or asked - _AT_ONCE:
        return None
    return " ".join([f'--job-name="sfq {name}"', *service.words(**instead)])


def holdings(names: Sequence[str], services: Sequence[Service]) -> str:
    """The options of a job of several components that only holds their nodes.

    Slurm runs its script in the first, and so takes the leases of all there.
    """
    taken = [qpu for service in services if service.spank for qpu in service.qpu]
    leases = [",".join(dict.fromkeys(taken)) or None, *[None] * len(names)]
    return " : ".join(
        holding(name, service, qpu=lease)
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


def directives(script: str) -> list[str]:
    """The lines of a job script that ``sbatch`` would read options from.

    :param script: the job script
    :returns: those before its first command, as ``sbatch`` does (sbatch(1))
    """
    found = []
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith(_DIRECTIVE):
            found.append(line)
    return found


def says(script: str, *names: str) -> bool:
    """Whether a job script brings one of these options of ``sbatch``."""
    given = (word for line in directives(script) for word in line.split()[1:])
    return any(word.startswith(names) for word in given)


def interpreter(script: str) -> str:
    """The program that a job script names in its first line."""
    first = script.split("\n", 1)[0]
    return first[2:].strip() or "/bin/sh" if first.startswith("#!") else "/bin/sh"
