"""The nodes that a program currently has, and the scripts that start processes on them."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sf_quantum.errors import InputError
from sf_quantum.files import cannot_write, replacing
from sf_quantum.malleability.slurm import Allocation

# Variables: id of the program's own job, number of nodes that the program wants, and number
# of tasks per node.
JOB_VARIABLE, WANTED_VARIABLE = "SFQ_NODES_JOB", "SFQ_NODES_WANTED"
TASKS_VARIABLE = "SFQ_TASKS_PER_NODE"
# The scripts start steps in several jobs, so they clear Slurm's variables for this job.
_CLEAR = r"""for variable in $(env | sed -n 's/^\(SLURM_[A-Za-z0-9_]*\)=.*/\1/p'); do
  [ "$variable" = SLURM_CONF ] || unset "$variable"
done"""
# mpiexec would start its processes with `srun`, but a step cannot span two jobs. So this
# script starts mpiexec's daemon on each node as a step of the job that holds the node.
_LAUNCH = """\
#!/bin/sh
# mpiexec's launcher: HOST COMMAND...
while case ${{1-}} in -*) true ;; *) false ;; esac; do shift; done
host=$1
shift
case $host in
{cases}
*) echo "$0: $host is none of the nodes" >&2; exit 1
esac
{clear}
exec srun --jobid="$job" --nodelist="$host" --nodes=1 --ntasks=1 --cpus-per-task={cpus}{gpus} \\
  --mem=0 --overlap --mpi=none --input=none --quiet /bin/sh -c "$*"
"""
# A script named srun, which starts the program in all jobs.
_SRUN = """\
#!/bin/sh
# srun on all nodes: a step of each job
{clear}
pids=
code=0
{steps}
for pid in $pids; do wait "$pid" || code=$?; done
exit "$code"
"""


@dataclass(frozen=True)
class Nodes:
    """The nodes of a program: the nodes of its own job and of jobs that hold further nodes.

    :param allocations: allocations of these jobs, the program's own job first
    :param tasks_per_node: tasks per node that the program's own job requested
    :param cpus_per_node: CPUs per node of the program's own job
    :param gpus_per_task: value of ``--gpus-per-task``; empty if GPUs were not requested per
        task
    :param gres: resources of the job on each node, in the format of ``--gres``
    """

    allocations: tuple[Allocation, ...]
    tasks_per_node: int
    cpus_per_node: int
    gpus_per_task: str = ""
    gres: str = ""

    @property
    def names(self) -> list[str]:
        """The names of all nodes."""
        return [name for allocation in self.allocations for name in allocation.nodes]

    def variables(self, folder: Path, wanted: int) -> dict[str, str | None]:
        """Return the variables that describe the nodes to Slurm, ``mpiexec`` and the program.

        :param folder: folder of the scripts, see :meth:`write`
        :param wanted: number of nodes that the program wants outside its QPU calls
        :returns: environment variables; ``None`` for variables to be unset
        """
        nodes = self.allocations[0].nodes
        times = f"(x{len(nodes)})" if len(nodes) > 1 else ""
        hosts, launch = str(folder / "hosts"), str(folder / "launch")
        return {
            "SFQ_NODES": " ".join(self.names),
            "SFQ_NUM_NODES": str(len(self.names)),
            JOB_VARIABLE: self.allocations[0].job,
            WANTED_VARIABLE: str(wanted),
            TASKS_VARIABLE: str(self.tasks_per_node),
            "SFQ_SRUN": str(folder / "srun"),
            # MPICH
            "HYDRA_HOST_FILE": hosts,
            "HYDRA_LAUNCHER": "rsh",
            "HYDRA_LAUNCHER_EXEC": launch,
            "HYDRA_RMK": "user",
            # Open MPI
            "OMPI_MCA_orte_default_hostfile": hosts,
            "OMPI_MCA_plm": "rsh",
            "OMPI_MCA_plm_rsh_agent": launch,
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
            "OMPI_MCA_ras": "^slurm",
            # Slurm; for the program's own job only
            **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), ",".join(nodes)),
            **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(nodes))),
            "SLURM_JOB_CPUS_PER_NODE": f"{self.cpus_per_node}{times}",
            "SLURM_TASKS_PER_NODE": f"{self.tasks_per_node}{times}",
            **dict.fromkeys(
                ("SLURM_NTASKS", "SLURM_NPROCS"), str(self.tasks_per_node * len(nodes))
            ),
        }

    def write(self, folder: Path, wanted: int) -> None:
        """Write the files that the variables name, and a shell script that sets the variables.

        :param folder: folder for the files ``environment.sh``, ``hosts``, ``launch`` and
            ``srun``
        :raises InputError: if the folder cannot be written to
        """
        cases = [
            f"{'|'.join(allocation.nodes)}) job={allocation.job} ;;"
            for allocation in self.allocations
        ]
        tasks, cpus = self.tasks_per_node, self.cpus_per_node
        each = f"--ntasks-per-node={tasks} --cpus-per-task={max(1, cpus // tasks)}"
        gpus = ""
        if self.gpus_per_task:
            each += f" --gpus-per-task={self.gpus_per_task}"
            # The daemon is a single task, but its processes use all GPUs of the node.
            gpus = f" --gres={self.gres}"
        steps = [
            f"srun --jobid={allocation.job} --nodes={len(allocation.nodes)} {each} --overlap "
            '"$@" &\npids="$pids $!"'
            for allocation in self.allocations
        ]
        hosts = [name for name in self.names for _ in range(tasks)]
        launch = _LAUNCH.format(
            cases="\n".join(cases), clear=_CLEAR, cpus=cpus, gpus=gpus
        )
        srun = _SRUN.format(steps="\n".join(steps), clear=_CLEAR)
        _write(folder / "launch", launch.splitlines())
        _write(folder / "srun", srun.splitlines())
        _write(folder / "hosts", hosts)
        lines = [
            f"unset {key}" if value is None else f"export {key}={shlex.quote(value)}"
            for key, value in self.variables(folder, wanted).items()
        ]
        _write(folder / "environment.sh", lines)
        for script in ("launch", "srun"):
            (folder / script).chmod(0o700)


def _write(path: Path, lines: Iterable[str]) -> None:
    with replacing(path, private=True) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def make_folder(path: Path) -> None:
    """Make the folder for :meth:`Nodes.write`; only the user can replace scripts in it.

    :raises QuantumError: if the folder cannot be made, or belongs to another user
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise cannot_write(path, error) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise InputError(f"{path}: not a folder of yours; remove it")
