"""What Slurm's commands tell of a job, shrink it, and allocate further nodes for it."""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sf_quantum.errors import QuantumError
from sf_quantum.slurm import records, squeue, tres
from sf_quantum.text import one_line

# the environment of a job would change the options and the output of these commands, and
# credentials in it are none of Slurm's business
_VARIABLES = "PATH LD_LIBRARY_PATH HOME USER LOGNAME SLURM_CONF".split()
_TIMEOUT_SECONDS = 120.0
# Pause between two checks of a further allocation whether its owner still runs.
PAUSE_SECONDS = 5
_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}

_HOLD = """\
#!/bin/sh
# This job holds nodes for job {owner}, as long as that runs. The owner may end in any way,
# so Slurm is asked for it. An answer that could not be had is not an end. A requeued job has another start.
while :; do
  if said=$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs={owner} \\
    --states=RUNNING,SUSPENDED --format=%S 2>&1)
  then
    [ "$said" = "{start}" ] || exit 0
  else
    case $said in *"Invalid job id"*) exit 0; esac
  fi
  sleep {pause}
done
"""


class SlurmError(QuantumError):
    """A command of Slurm's failed; the text is its message."""


@dataclass(frozen=True)
class Allocation:
    """The nodes of one Slurm job.

    :param nodes: their names, the batch script's node first
    """

    job: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A job as ``scontrol show job`` describes it.

    :param fields: such as ``Partition``, without those that have no value
    """

    allocation: Allocation
    fields: Mapping[str, str]

    @property
    def cpus_per_node(self) -> int:
        """The CPUs that it has on each node."""
        return int(self.fields["NumCPUs"]) // len(self.allocation.nodes)


def job(id_: str) -> Job:
    """Describe a job that runs.

    :raises SlurmError: if it does not, or Slurm does not answer
    """
    entries = records.read(run("scontrol", "show", "job", id_))
    if len(entries) != 1:
        raise SlurmError(
            f"job {id_}: cannot read its record: {len(entries)} jobs in it"
        )
    fields = entries[0].fields
    if "NodeList" not in fields:
        raise SlurmError(f"job {id_} has no nodes, its state is {fields['JobState']}")
    names = hostnames(fields["NodeList"])
    batch = [name for name in names if name == fields.get("BatchHost")]
    nodes = (*batch, *(name for name in names if name not in batch))
    return Job(Allocation(id_, nodes), fields)


def hostnames(expression: str) -> list[str]:
    """List the names in an expression such as ``c[1-3]``."""
    return run("scontrol", "show", "hostnames", expression).split()


def named(name: str, *states: str) -> list[tuple[str, str]]:
    """List this user's jobs of a name and some states: id and expression of nodes."""
    wanted = ("--me", f"--name={name}", f"--states={','.join(states)}")
    form = f"--format={squeue.ALLOCATIONS_FORMAT}"
    return squeue.allocations(run("squeue", "--noheader", *wanted, form))


def state(id_: str) -> str:
    """Return the state of a job, in Slurm's words; empty once it is forgotten."""
    return run("squeue", "--noheader", "--states=all", f"--jobs={id_}", "--format=%T")


def steps(id_: str) -> list[tuple[str, list[str]]]:
    """List the steps of a job, other than its batch script: id and nodes."""
    form = f"--format={squeue.STEPS_FORMAT}"
    lines = run("squeue", "--steps", "--noheader", f"--jobs={id_}", form)
    return [(step, hostnames(nodes)) for step, nodes in squeue.steps(lines)]


def shrink(id_: str, nodes: Sequence[str]) -> None:
    """Have a job keep some of its nodes, and give back the others."""
    # scontrol leaves scripts in its folder
    with tempfile.TemporaryDirectory(prefix="sfq-") as folder:
        keep = f"NodeList={','.join(nodes)}"
        run("scontrol", "update", f"JobId={id_}", keep, folder=folder)


def request(owner: Job, name: str, nodes: int, held: Sequence[str]) -> str:
    """Submit a job that holds further nodes, like those of a job, until that job ends.

    :param name: name of the new job
    :param held: the nodes that the program has already
    :returns: its id
    """
    fields = owner.fields
    script = _HOLD.format(
        owner=owner.allocation.job, start=fields["StartTime"], pause=PAUSE_SECONDS
    )
    quiet = ("--parsable", "--no-requeue", "--chdir=/", "--output=/dev/null")
    # A node whose CPUs the program does not all have would be chosen again.
    avoided = (
        [*held, *hostnames(fields["ExcNodeList"])] if "ExcNodeList" in fields else held
    )
    exclude = f"--exclude={','.join(avoided)}"
    words = (*quiet, f"--job-name={name}", f"--nodes={nodes}", exclude, *_like(owner))
    return run("sbatch", *words, script=script).partition(";")[0]


def _like(owner: Job) -> list[str]:
    """Return the options that request nodes like those of a job."""
    fields = owner.fields
    options = {
        option: fields[key]
        for option, key in {
            "partition": "Partition",
            "account": "Account",
            "qos": "QOS",
            "constraint": "Features",
            "reservation": "Reservation",
        }.items()
        if key in fields
    }
    # a number of tasks would set the number of nodes, too
    options["mincpus"] = str(owner.cpus_per_node)
    for option, key in (("mem", "MinMemoryNode"), ("mem-per-cpu", "MinMemoryCPU")):
        if size := re.fullmatch(r"([\d.]+)([KMGT])", fields.get(key, "")):
            options[option] = f"{math.ceil(float(size[1]) * _MEGABYTES[size[2]])}M"
    if gres := _gres(fields.get("TresPerNode", "")):
        options["gres"] = gres
    if fields.get("TimeLimit") == "UNLIMITED":
        options["time"] = "UNLIMITED"
    elif fields.get("EndTime", "").isdigit():
        seconds = int(fields["EndTime"]) - time.time()
        options["time"] = str(max(1, math.ceil(seconds / 60)))
    exclusive = ["--exclusive"] if fields.get("OverSubscribe") == "NO" else []
    return [*(f"--{option}={value}" for option, value in options.items()), *exclusive]


def _gres(requested: str) -> str:
    """Return what else a node has to have, as ``--gres`` takes it.

    A QPU is not the node's: the job that asked for it has its lease.

    :param requested: ``TresPerNode`` of the job
    """
    return ",".join(str(one) for one in tres.parse(requested) if one.name != "qpu")


def lower(id_: str, nodes: int) -> None:
    """Have a job that waits for nodes start with as many of them as are free."""
    run("scontrol", "update", f"JobId={id_}", f"NumNodes=1-{nodes}")


def cancel(id_: str) -> None:
    """Cancel a job, and give its nodes back."""
    run("scancel", id_)


def run(*words: str, script: str = "", folder: str | None = None) -> str:
    """Run one of Slurm's commands.

    :param script: its standard input
    :param folder: its working directory
    :returns: what it printed
    :raises SlurmError: if it fails
    """
    try:
        done = subprocess.run(
            words,
            env=environment(),
            cwd=folder,
            input=script,
            capture_output=True,
            text=True,
            errors="replace",  # a job's name may be in any encoding
            timeout=_TIMEOUT_SECONDS,
        )
    except OSError as error:
        raise SlurmError(f"{words[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{words[0]}: no answer from Slurm") from error
    if done.returncode != 0:
        message = one_line(done.stderr) or f"exit status {done.returncode}"
        raise SlurmError(f"{' '.join(words[:2])}: {message}")
    return done.stdout.strip()


def environment() -> dict[str, str]:
    """Return the environment of Slurm's commands."""
    kept = {key: os.environ[key] for key in _VARIABLES if key in os.environ}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
