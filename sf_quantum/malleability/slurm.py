"""Slurm's commands that describe a job, shrink it, and allocate further nodes for it."""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.slurm import records, squeue, tres
from sf_quantum.text import one_line

# Slurm's commands get only these variables. A job's other variables could change the
# commands' options and output, or may be credentials.
_VARIABLES = "PATH LD_LIBRARY_PATH HOME USER LOGNAME SLURM_CONF".split()
# time limit of each of Slurm's commands
_TIMEOUT_SECONDS = 120.0
# Pause between a holding job's checks whether its owner, the job of the program, still runs.
PAUSE_SECONDS = 5
# options of sbatch by the value of a job's field OverSubscribe
_SHARING_OPTIONS = {
    "NO": ["--exclusive"],
    "USER": ["--exclusive=user"],
    "MCS": ["--exclusive=mcs"],
    "YES": ["--oversubscribe"],
}
# megabytes of a unit of memory
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
    """A command of Slurm failed; the text is the command's message."""


@dataclass(frozen=True)
class Allocation:
    """The nodes of one Slurm job.

    :param nodes: names of the nodes, the batch script's node first
    :param task: name of the job as a task of an array, such as ``6_1``; needed because
        Slurm's commands apply the id of an array's last task to the whole array
    """

    job: str
    nodes: tuple[str, ...]
    task: str = ""

    @property
    def name(self) -> str:
        """The name with which Slurm's commands find only this job."""
        return self.task or self.job


@dataclass(frozen=True)
class Job:
    """A job as ``scontrol show job`` describes it.

    :param fields: fields with a value, such as ``Partition``
    :param shares: resources by node
    """

    allocation: Allocation
    fields: Mapping[str, str]
    shares: tuple[records.Share, ...]

    @property
    def cpus_per_node(self) -> int:
        """Number of CPUs of the job on each node."""
        return int(self.fields["NumCPUs"]) // len(self.allocation.nodes)

    @property
    def gpus_per_task(self) -> str:
        """The value of ``--gpus-per-task``; empty if the job was submitted without it."""
        requested = tres.parse(self.fields.get("TresPerTask", ""))
        gpus = [
            str(resource).removeprefix("gpu:")
            for resource in requested
            if resource.name == "gpu"
        ]
        return ",".join(gpus)

    @property
    def gres_option(self) -> str:
        """Resources of the job on each node, in the format of ``--gres``."""
        return ",".join(map(str, self.gres()))

    def gres(self, share: records.Share | None = None) -> list[tres.Resource]:
        """Return the generic resources that a node needs, such as GPUs.

        Resources that were requested in another way than per node (``--gpus-per-task``) are
        taken from the job's share of the node. QPUs are left out, as the job that requested
        a QPU has its lease.

        :param share: the job's share of the node; by default the first share
        """
        by_node = tres.parse(self.fields.get("TresPerNode", ""))
        others = {
            resource.name
            for key in ("TresPerTask", "TresPerSocket", "TresPerJob")
            for resource in tres.parse(self.fields.get(key, ""))
        }.difference(resource.name for resource in by_node)
        share = share or next(iter(self.shares), None)
        allocated = tres.parse(share.gres) if share else []
        return [
            *(resource for resource in by_node if resource.name != "qpu"),
            *(
                resource
                for resource in allocated
                if resource.name in others - {"qpu"} and resource.units
            ),
        ]

    def check_alike(self) -> None:
        """Check that further nodes like each of the job's nodes can be requested.

        :raises InputError: if the job's nodes differ, or a constraint applies to all its nodes
            together
        """
        first = self.shares[0] if self.shares else None
        for other in self.shares[1:]:
            if first and other.cpus != first.cpus:
                raise InputError(
                    f"job {self.allocation.name} has {first.cpus} CPUs on {first.nodes} but "
                    f"{other.cpus} on {other.nodes}; submit with --nodes and "
                    "--ntasks-per-node, so that all nodes are alike"
                )
            if first and self.gres(other) != self.gres(first):
                raise InputError(
                    f"job {self.allocation.name} has {first.gres} on {first.nodes} but "
                    f"{other.gres} on {other.nodes}; submit with --gpus-per-node"
                )
        features = self.fields.get("Features", "")
        if set(features) & set("[*"):
            raise InputError(
                f"job {self.allocation.name} has the constraint {features}, which holds for "
                "all its nodes together; submit with one that holds for each node"
            )


def job(id_: str) -> Job:
    """Return the description of a running job.

    :raises SlurmError: if the job is not running, or Slurm does not answer
    """
    text = run("scontrol", "--details", "show", "job", id_)
    # The id of an array's last task is also the id of the array, so other tasks are listed.
    entries = [entry for entry in records.read(text) if entry.job == id_]
    if len(entries) != 1:
        raise SlurmError(
            f"job {id_}: cannot read its record: {len(entries)} jobs in it"
        )
    entry, fields = entries[0], entries[0].fields
    if "NodeList" not in fields:
        raise SlurmError(f"job {id_} has no nodes, its state is {fields['JobState']}")
    names = hostnames(fields["NodeList"])
    batch = [name for name in names if name == fields.get("BatchHost")]
    nodes = (*batch, *(name for name in names if name not in batch))
    task = f"{entry.array}_{entry.task}" if entry.task else ""
    return Job(Allocation(id_, nodes, task), fields, entry.shares)


def hostnames(expression: str) -> list[str]:
    """List the names in an expression such as ``c[1-3]``."""
    return run("scontrol", "show", "hostnames", expression).split()


def named(name: str, *states: str) -> list[tuple[str, str]]:
    """List id and node expression of this user's jobs with a name, in one of the states."""
    wanted = ("--me", f"--name={name}", f"--states={','.join(states)}")
    form = f"--format={squeue.ALLOCATIONS_FORMAT}"
    return squeue.allocations(run("squeue", "--noheader", *wanted, form))


def state(id_: str) -> tuple[str, str]:
    """Return a job's state and reason in Slurm; both empty once Slurm forgets the job."""
    words = ("--noheader", "--states=all", f"--jobs={id_}", "--format=%T %r")
    try:
        text = run("squeue", *words)
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        text = ""
    word, _, reason = text.partition(" ")
    return word, reason


def steps(job_name: str) -> list[tuple[str, list[str]]]:
    """List the id and nodes of each step of a job, without its batch script."""
    form = f"--format={squeue.STEPS_FORMAT}"
    lines = run("squeue", "--steps", "--noheader", f"--jobs={job_name}", form)
    return [(step, hostnames(nodes)) for step, nodes in squeue.steps(lines)]


def shrink(job_name: str, nodes: Sequence[str]) -> None:
    """Give back the nodes of a job, except ``nodes``."""
    # scontrol writes scripts into its working directory.
    with tempfile.TemporaryDirectory(prefix="sfq-") as folder:
        keep = f"NodeList={','.join(nodes)}"
        run("scontrol", "update", f"JobId={job_name}", keep, folder=folder)


def request(
    owner: Job, name: str, nodes: int, held: Sequence[str], *options: str
) -> str:
    """Submit a job that holds further nodes, like the owner's nodes, until the owner ends.

    :param name: name of the new job
    :param held: nodes that the program already has
    :param options: further options of ``sbatch``, which take precedence
    :returns: id of the new job
    """
    fields = owner.fields
    script = _HOLD.format(
        owner=owner.allocation.name, start=fields["StartTime"], pause=PAUSE_SECONDS
    )
    quiet = ("--parsable", "--no-requeue", "--chdir=/", "--output=/dev/null")
    # Slurm could otherwise choose one of these nodes again if it has free CPUs.
    avoided = [*held, *_named_nodes(fields, "ExcNodeList")]
    chosen = [node for node in _named_nodes(fields, "ReqNodeList") if node not in held]
    lists = {"exclude": avoided, "nodelist": chosen[:nodes]}
    where = [f"--{key}={','.join(names)}" for key, names in lists.items() if names]
    words = (
        *quiet,
        f"--job-name={name}",
        f"--nodes={nodes}",
        *where,
        *_options_like(owner),
    )
    return run("sbatch", *words, *options, script=script).partition(";")[0]


def check_request(owner: Job, name: str, nodes: int, held: Sequence[str]) -> None:
    """Check that the site's limits allow the job that :func:`request` would submit.

    :raises SlurmError: if a limit forbids the job; the text names the limit
    """
    try:
        request(owner, name, nodes, held, "--test-only")
    except SlurmError as error:
        # Other messages only mean that nodes are not free at present.
        if "policy" in str(error):
            raise


def _named_nodes(fields: Mapping[str, str], key: str) -> list[str]:
    return hostnames(fields[key]) if key in fields else []


def _options_like(owner: Job) -> list[str]:
    """Return the options of ``sbatch`` that request nodes like the owner's nodes."""
    fields = owner.fields
    options = {
        option: fields[key]
        for option, key in {
            "partition": "Partition",
            "account": "Account",
            "qos": "QOS",
            "constraint": "Features",
            "reservation": "Reservation",
            "wckey": "WCKey",
        }.items()
        # a star marks the user's default WCKey, which applies anyway
        if key in fields and not fields[key].startswith("*")
    }
    # --mincpus, since a number of tasks would also affect the number of nodes
    options["mincpus"] = str(owner.cpus_per_node)
    if "MemPerTres" in fields:  # such as --mem-per-gpu
        memory = min((share.memory for share in owner.shares), default=0)
        options["mem"] = f"{memory}M"
    elif fields.get("MinMemoryNode") == "0":  # all memory of a node
        options["mem"] = "0"
    sizes = {
        "mem": "MinMemoryNode",
        "mem-per-cpu": "MinMemoryCPU",
        "tmp": "MinTmpDiskNode",
    }
    for option, key in sizes.items():
        if size := re.fullmatch(r"([\d.]+)([KMGT])", fields.get(key, "")):
            options[option] = f"{math.ceil(float(size[1]) * _MEGABYTES[size[2]])}M"
    if gres := owner.gres_option:
        options["gres"] = gres
    if fields.get("TimeLimit") == "UNLIMITED":
        options["time"] = "UNLIMITED"
    elif fields.get("EndTime", "").isdigit():
        seconds = int(fields["EndTime"]) - time.time()
        options["time"] = str(max(1, math.ceil(seconds / 60)))
    sharing = _SHARING_OPTIONS.get(fields.get("OverSubscribe", ""), [])
    return [*(f"--{option}={value}" for option, value in options.items()), *sharing]


def cancel(id_: str) -> None:
    """Cancel a job, which gives back its nodes."""
    run("scancel", id_)


def cancel_pending(name: str) -> None:
    """Cancel this user's pending jobs with a name."""
    run("scancel", f"--user={os.geteuid()}", "--state=PENDING", f"--name={name}")


def run(*words: str, script: str = "", folder: str | None = None) -> str:
    """Run one of Slurm's commands.

    :param script: the command's standard input
    :param folder: the command's working directory
    :returns: the command's standard output
    :raises SlurmError: if the command fails
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
    """Return the environment for Slurm's commands."""
    kept = {key: os.environ[key] for key in _VARIABLES if key in os.environ}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
