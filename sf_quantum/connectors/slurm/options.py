"""What a service of ``sfq.slurm`` asks Slurm for, as options of ``sbatch``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableSequence

from streamflow.deployment.connector.queue_manager import QueueManagerService

from sf_quantum.connectors.slurm.policy import policy
from sf_quantum.files import JSON

_DIRECTIVE = "#SBATCH"


class Service(QueueManagerService):
    """A named kind of submission: StreamFlow's keys of a Slurm service, and ours.

    :param file: path of a job template
    :param qpu: names of the QPUs that its jobs use
    :param allocation: how its nodes are taken, if not as the deployment says
    :param options: every other key is an option of ``sbatch`` in camel case
    """

    def __init__(
        self,
        file: str | None = None,
        qpu: MutableSequence[str] | None = None,
        allocation: str | dict[str, JSON] | None = None,
        **options: JSON,
    ) -> None:
        super().__init__(file)
        self.qpu = list(qpu or [])
        self.policy = None if allocation is None else policy(allocation)
        self.options = options

    @property
    def quantum(self) -> bool:
        """Whether its jobs use a QPU."""
        gres = str(self.options.get("gres") or "")
        licenses = str(self.options.get("licenses") or "")
        return bool(self.qpu) or "qpu" in f"{gres},{licenses}".lower()

    @property
    def partition(self) -> str | None:
        """The partition it names, if any."""
        value = self.options.get("partition")
        return None if value is None else str(value)

    @property
    def clusters(self) -> str | None:
        """The other clusters it names, if any."""
        value = self.options.get("clusters")
        return None if value is None else str(value)

    def words(self, **instead: JSON) -> list[str]:
        """Its options for a shell.

        :param instead: options that take the place of its own; None leaves one out
        :returns: one word for each, quoted as StreamFlow does: the shell sees variables
        """
        options: Mapping[str, JSON] = {**self.options, **instead}
        return [word for key, value in options.items() for word in _words(key, value)]


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
