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

# All other variables of a job are removed: they would change the options and the output of
# these commands, or may be credentials.
_VARIABLES = "PATH LD_LIBRARY_PATH HOME USER LOGNAME SLURM_CONF".split()
_TIMEOUT_SECONDS = 120.0
# Pause of a job that holds further nodes, between checks whether its owner still runs.
PAUSE_SECONDS = 5
# options for the values of a job's OverSubscribe
_SHARING = {
    "NO": ["--exclusive"],
    "USER": ["--exclusive=user"],
    "MCS": ["--exclusive=mcs"],
    "YES": ["--oversubscribe"],
}
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
    """A command of Slurm failed; the text is its message."""


@dataclass(frozen=True)
class Allocation:
    """The nodes of one Slurm job.

    :param nodes: their names, the batch script's node first
    :param task: name of the job as a task of an array, such as ``6_1``: the id of an array's
        last task stands for the whole array in Slurm's commands
    """

    job: str
    nodes: tuple[str, ...]
    task: str = ""

    @property
    def name(self) -> str:
        """The name by which Slurm's commands find this job only."""
        return self.task or self.job


@dataclass(frozen=True)
class Job:
    """A job as ``scontrol show job`` describes it.

    :param fields: fields such as ``Partition``, without empty ones
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
        """The value of ``--gpus-per-task``, if the job has it."""
        requested = tres.parse(self.fields.get("TresPerTask", ""))
        gpus = [str(one).removeprefix("gpu:") for one in requested if one.name == "gpu"]
        return ",".join(gpus)

    @property
    def gres_option(self) -> str:
        """Resources of the job on each node, in the format of ``--gres``."""
        return ",".join(map(str, self.gres()))

    def gres(self, share: records.Share | None = None) -> list[tres.Resource]:
        """Return the other resources that a node needs, such as GPUs.

        If resources were not requested per node (``--gpus-per-task``), these are the job's
        resources on a node. QPUs are left out: the job that requested one has its lease.

        :param share: the job's share of the node; by default the first share
        """
        by_node = tres.parse(self.fields.get("TresPerNode", ""))
        others = {
            one.name
            for key in ("TresPerTask", "TresPerSocket", "TresPerJob")
            for one in tres.parse(self.fields.get(key, ""))
        }.difference(one.name for one in by_node)
        share = share or next(iter(self.shares), None)
        allocated = tres.parse(share.gres) if share else []
        return [
            *(one for one in by_node if one.name != "qpu"),
            *(one for one in allocated if one.name in others - {"qpu"} and one.units),
        ]

    def check_alike(self) -> None:
        """Check that further nodes can be like each node of the job.

        :raises InputError: if its nodes differ, or a constraint applies to them together
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
    """Describe a running job.

    :raises SlurmError: if the job is not running, or Slurm does not answer
    """
    text = run("scontrol", "--details", "show", "job", id_)
    # The id of an array's last task is also the id of the array.
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
    """List this user's jobs with a name and some states: id and expression of nodes."""
    wanted = ("--me", f"--name={name}", f"--states={','.join(states)}")
    form = f"--format={squeue.ALLOCATIONS_FORMAT}"
    return squeue.allocations(run("squeue", "--noheader", *wanted, form))


def state(id_: str) -> tuple[str, str]:
    """Return Slurm's state of a job and its reason; empty once Slurm has forgotten the job."""
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
    """Let a job keep only some of its nodes, and give back the others."""
    # scontrol writes scripts into its working directory
    with tempfile.TemporaryDirectory(prefix="sfq-") as folder:
        keep = f"NodeList={','.join(nodes)}"
        run("scontrol", "update", f"JobId={job_name}", keep, folder=folder)


def request(
    owner: Job, name: str, nodes: int, held: Sequence[str], *options: str
) -> str:
    """Submit a job that holds further nodes, like those of a job, until that job ends.

    :param name: name of the new job
    :param held: the nodes that the program already has
    :param options: further options of ``sbatch``, which take precedence
    :returns: id of the new job
    """
    fields = owner.fields
    script = _HOLD.format(
        owner=owner.allocation.name, start=fields["StartTime"], pause=PAUSE_SECONDS
    )
    quiet = ("--parsable", "--no-requeue", "--chdir=/", "--output=/dev/null")
    # Slurm could otherwise choose a node again if the program does not have all its CPUs.
    avoided = [*held, *_named_nodes(fields, "ExcNodeList")]
    chosen = [one for one in _named_nodes(fields, "ReqNodeList") if one not in held]
    lists = {"exclude": avoided, "nodelist": chosen[:nodes]}
    where = [f"--{key}={','.join(names)}" for key, names in lists.items() if names]
    words = (*quiet, f"--job-name={name}", f"--nodes={nodes}", *where, *_like(owner))
    return run("sbatch", *words, *options, script=script).partition(";")[0]


def check_request(owner: Job, name: str, nodes: int, held: Sequence[str]) -> None:
    """Check that the site's limits allow the user the job of :func:`request`.

    :raises SlurmError: if a limit does not; the text names it
    """
    try:
        request(owner, name, nodes, held, "--test-only")
    except SlurmError as error:
        # Other messages are about nodes that are not free at present.
        if "policy" in str(error):
            raise


def _named_nodes(fields: Mapping[str, str], key: str) -> list[str]:
    return hostnames(fields[key]) if key in fields else []


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
            "wckey": "WCKey",
        }.items()
        # a star marks the user's default
        if key in fields and not fields[key].startswith("*")
    }
    # a number of tasks would also set the number of nodes
    options["mincpus"] = str(owner.cpus_per_node)
    if "MemPerTres" in fields:  # such as --mem-per-gpu
        memory = min((one.memory for one in owner.shares), default=0)
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
    sharing = _SHARING.get(fields.get("OverSubscribe", ""), [])
    return [*(f"--{option}={value}" for option, value in options.items()), *sharing]


def cancel(id_: str) -> None:
    """Cancel a job, and give its nodes back."""
    run("scancel", id_)


def cancel_pending(name: str) -> None:
    """Cancel this user's jobs with a name that wait for their nodes."""
    run("scancel", f"--user={os.geteuid()}", "--state=PENDING", f"--name={name}")


def run(*words: str, script: str = "", folder: str | None = None) -> str:
    """Run one of Slurm's commands.

    :param script: its standard input
    :param folder: its working directory
    :returns: its standard output
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
