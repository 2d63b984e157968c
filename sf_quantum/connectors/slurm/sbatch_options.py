"""Options of ``sbatch`` and ``salloc`` for the jobs of services, as words for the shell.

``schema.json`` lists the keys of a service.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.files import JSON

# options that salloc can get, as they do not change the environment variables of a batch job
_SALLOC_OPTIONS = frozenset(
    "account comment constraint exclude exclusive gres licenses mem nodelist nodes partition qos "
    "reservation time timeMin".split()
)


@dataclass(frozen=True)
class JobOptions:
    """The options of ``sbatch`` for a separate job.

    :param of_job: options of this job by name; the shell does not expand their values
    :param service: service whose options follow
    :param overrides: see :func:`words`
    """

    of_job: Mapping[str, str]
    service: SlurmService
    overrides: Mapping[str, JSON]

    def words(self) -> str:
        """Return the options for the shell."""
        options = [
            f"--{name}={shlex.quote(value)}" for name, value in self.of_job.items()
        ]
        return " ".join([*options, *words(self.service, **self.overrides)])


def note(service: SlurmService) -> str:
    """Return a service's comment, quoted, to follow the comment that identifies a job."""
    comment = service.options.get("comment")
    return "" if comment is None else _quoted(f" {comment}")


def words(service: SlurmService, **overrides: JSON) -> list[str]:
    """Return a service's options of ``sbatch`` for the shell, without the comment.

    :param overrides: options that override the service's options; ``None`` omits an option
    :returns: one word per option, quoted in StreamFlow's way: the shell expands variables
    """
    qpu = ",".join(service.qpu) if service.spank and service.qpu else None
    options: Mapping[str, JSON] = {
        **service.options,
        "qpu": qpu,
        "comment": None,
        **overrides,
    }
    return [word for key, value in options.items() for word in _words(key, value)]


def holder_options(
    name: str, services: Sequence[SlurmService], **overrides: JSON
) -> str:
    """Return the options of ``sbatch`` for a job that only holds nodes for services.

    Each service has a component. Slurm runs the script in the first component, which gets
    the leases of all QPUs.

    :param name: suffix of the job name if the service has no name
    """
    qpus = [qpu for service in services if service.spank for qpu in service.qpu]
    overrides["qpu"] = ",".join(dict.fromkeys(qpus)) or None
    components = []
    for service in services:
        job_name = f'--job-name="sfq {service.name or name}"'
        options = ["--output=/dev/null", job_name, *words(service, **overrides)]
        # An allocation must not be requeued, since it would lose its steps.
        components.append(" ".join([*options, "--no-requeue"]))
        overrides["qpu"] = None
    return " : ".join(components)


def at_once_options(
    name: str,
    services: Sequence[SlurmService],
    directives: Sequence[str],
    **overrides: JSON,
) -> str | None:
    """Return the options of ``salloc``, which grants the same nodes immediately if free.

    :param directives: ``#SBATCH`` lines of the batch job
    :returns: ``None`` if the services need a batch job, or several nodes, as a step lacks the
        information to set the environment variables of a batch job on several nodes
    """
    service = services[0]
    options = {**service.options, **overrides}
    if (
        len(services) > 1
        or directives
        or service.qpu
        or options.keys() - _SALLOC_OPTIONS
    ):
        return None
    one_node = str(options.get("nodes") or 1) in ("1", "1-1")
    if not one_node or re.search(r"[,\[]", str(options.get("nodelist") or "")):
        return None
    job_name = f'--job-name="sfq {service.name or name}"'
    return " ".join([job_name, *words(service, **overrides)])


def _words(key: str, value: JSON) -> Iterator[str]:
    """Yield the word for an option, none if it is not set."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", key).lower()
    if key == "waitAllNodes":  # the only flag with a numeric value
        value = 1 if value else None
    if value is True:
        yield f"--{name}"
    elif value is not None and value is not False:
        # The separator is "=", which options with an optional value require.
        yield f"--{name}={_quoted(value)}"


def _quoted(value: JSON) -> str:
    """Quote a value in StreamFlow's way: the shell expands variables in it."""
    return '"{}"'.format(str(value).replace('"', '\\"'))
