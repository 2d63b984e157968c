"""A Slurm job that gives nodes back while it uses a QPU, and gets nodes afterwards."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from sf_quantum.backoff import Backoff
from sf_quantum.deadline import Deadline
from sf_quantum.errors import InputError
from sf_quantum.files import cannot_write
from sf_quantum.malleability import slurm
from sf_quantum.malleability.program_nodes import (
    JOB_VARIABLE,
    TASKS_VARIABLE,
    WANTED_VARIABLE,
    Nodes,
    make_folder,
)
from sf_quantum.malleability.slurm import Allocation, SlurmError
from sf_quantum.slurm import tres
from sf_quantum.text import plural

# pauses between checks, for example of whether a waiting job has its nodes
_POLLS = Backoff(0.1, 5.0, growth=1.5)
# After a request for fewer nodes, Slurm's scheduler allocates free nodes within this time.
_LOWERED_SECONDS = 10.0
# Longest wait for steps and programs to end, such as the daemons of an ended mpiexec.
_STEPS_SECONDS = 10.0
# Longest wait for a Slurm that does not answer, to cancel requests that it may have received.
_AWAY_SECONDS = 60.0
# reasons of a job that waits for its turn or for free nodes
_USUAL = ("None", "Priority", "Resources", "Prolog")
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED")


class MalleableJob:
    """The Slurm job of this process, and the jobs that hold further nodes for it.

    Slurm can shrink a job, but at many sites it does not let the job grow again: the further
    nodes are allocated to separate jobs, which end with this one. These jobs are found by
    name, so each call begins by reading the current state from Slurm. Each change is written
    to files and to this process's environment variables, see :class:`Nodes`.

    :param variables: environment variables that Slurm has set for this process
    :param tell: function that is called with a line about each change
    """

    def __init__(
        self, variables: Mapping[str, str], tell: Callable[[str], None]
    ) -> None:
        self.id = variables["SLURM_JOB_ID"]
        if "SLURM_HET_SIZE" in variables:
            raise InputError(
                f"job {self.id} is heterogeneous, and Slurm shrinks no such job"
            )
        self._own = slurm.job(self.id)
        self._here = variables.get("SLURMD_NODENAME")
        self._tell = tell
        self.folder = Path.cwd() / f"sfq-nodes-{self.id}"
        # a job inherits these variables from the job that has submitted it
        is_own = variables.get(JOB_VARIABLE) == self.id
        self._tasks_per_node = _tasks_per_node(variables, is_own, self._own)
        self.nodes = self._look()
        nodes_wanted = variables.get(
            WANTED_VARIABLE if is_own else "SLURM_JOB_NUM_NODES", ""
        )
        #: number of nodes that the program wants outside its QPU calls
        self.wanted = (
            int(nodes_wanted) if nodes_wanted.isdigit() else len(self.nodes.names)
        )

    @property
    def name(self) -> str:
        """The name of the jobs that hold further nodes."""
        return f"sfq-nodes-{self.id}"

    def shrink(self, keep: int) -> None:
        """Give back all but ``keep`` nodes; keep this process's and the batch script's nodes.

        :raises InputError: if more nodes must be kept, or steps run on the nodes to give back
        :raises SlurmError: if Slurm refuses; some nodes may then have been given back, but
            none if a limit of the site would prevent a request for further nodes
        """
        self._own.check_alike()
        make_folder(self.folder)
        lock_nodes(self.folder)
        # a program that was killed while it waited for nodes has left its request behind
        slurm.cancel_pending(self.name)
        # Write the program's variables and files first, so it has them even if Slurm refuses.
        self._update()
        before = self.nodes.names
        if keep < len(before):
            kept = self._kept(keep)
            self._check_shared(kept)
            self._check_limits(kept)
            self._check_steps(kept)
            try:
                self._release(kept)
            finally:
                self._update()
            self._tell(f"job {self.id} keeps {keep} of {len(before)} nodes")

    def _release(self, kept: list[str]) -> None:
        for one in self.nodes.allocations:
            left = [name for name in one.nodes if name in kept]
            if not left:
                slurm.cancel(one.job)
            elif len(left) < len(one.nodes):
                slurm.shrink(one.name, left)

    def _kept(self, keep: int) -> list[str]:
        nodes = self._own.allocation.nodes
        batch = nodes[:1] if self._own.fields.get("BatchFlag") == "1" else ()
        here = [self._here] if self._here in self.nodes.names else []
        needed = [*dict.fromkeys([*batch, *here])]
        if keep < len(needed):
            raise InputError(
                f"job {self.id} cannot keep {keep} nodes: its batch script runs on "
                f"{needed[0]} and this program on {needed[-1]}; keep {len(needed)}"
            )
        # this process's own job has to keep a node
        first = [*needed, *nodes[:1], *self.nodes.names]
        return [*dict.fromkeys(first)][:keep]

    def _check_shared(self, kept: list[str]) -> None:
        # Slurm 22.05 may count a node that an exclusive job gives back as in use until
        # slurmctld is restarted
        resized = [
            one.job
            for one in self.nodes.allocations
            if 0 < len({*one.nodes} & {*kept}) < len(one.nodes)
        ]
        fields = self._own.fields
        gpus = tres.parse(fields.get("TresPerJob", ""))
        if resized and any(one.name == "gpu" for one in gpus):
            # Slurm would start no step in a job that has fewer GPUs than it requested.
            raise InputError(
                f"job {resized[0]} has requested its GPUs for all nodes together (--gpus); "
                "submit with --gpus-per-node"
            )
        if resized and fields.get("OverSubscribe") == "NO":
            raise InputError(
                f"job {resized[0]} has its nodes exclusively, and Slurm may not give such "
                "nodes to others after a shrink; request CPUs (--cpus-per-task), or submit "
                "with the nodes to keep and let --regrow-to get the others"
            )

    def _check_limits(self, kept: list[str]) -> None:
        missing = self.wanted - len(kept)
        # An earlier call's jobs count towards the user's limits, but are cancelled first.
        if missing > 0 and len(self.nodes.allocations) == 1:
            slurm.check_request(self._own, self.name, missing, kept)

    def _check_steps(self, kept: list[str]) -> None:
        deadline = Deadline(_STEPS_SECONDS)
        for pause in _POLLS.pauses():
            running = (
                s for one in self.nodes.allocations for s in slurm.steps(one.name)
            )
            lost = [
                (step, name)
                for step, names in running
                for name in names
                if name not in kept
            ]
            if not lost:
                return
            if deadline.left <= 0:
                step, name = lost[0]
                raise InputError(
                    f"job {self.id} cannot give back {name}, on which step {step} runs; "
                    "wait for its end"
                )
            time.sleep(pause)

    def grow(self, wait_seconds: float | None, stop: threading.Event) -> None:
        """Wait until the program has as many nodes as it wants, or continue with fewer.

        :param wait_seconds: seconds after which the program continues with the nodes that are
            free; ``None`` for no limit
        :param stop: set to end the wait
        """
        try:
            # A node may have failed while the program used the QPU.
            self._update()
            missing = self.wanted - len(self.nodes.names)
            if missing <= 0:
                return
            self._allocate(missing, Deadline(wait_seconds), stop)
            self._update()
        except SlurmError as error:
            self._tell(f"no further nodes: {error}")
            self._withdraw(stop)
        self._tell(f"job {self.id} has {len(self.nodes.names)} of {self.wanted} nodes")

    def _withdraw(self, stop: threading.Event) -> None:
        """Cancel requests whose answer from Slurm was lost, or use their nodes."""
        deadline = Deadline(_AWAY_SECONDS)
        for pause in _POLLS.pauses():
            try:
                slurm.cancel_pending(self.name)
                self._update()
                return
            except SlurmError as error:
                if deadline.left <= 0 or stop.wait(min(pause, deadline.left)):
                    text = f"requests for nodes may be left ({error}); cancel them:"
                    self._tell(f"{text} scancel --state=PENDING --name={self.name}")
                    return

    def _allocate(
        self, missing: int, deadline: Deadline, stop: threading.Event
    ) -> None:
        if self._allocated(missing, deadline, stop) or missing == 1 or stop.is_set():
            return
        # This request is a new job. If the cancelled request were changed to a range of nodes
        # instead, Slurm would give it only as few nodes as suffice for its number of CPUs.
        fewer = f"--nodes=1-{missing}"
        self._allocated(missing, Deadline(_LOWERED_SECONDS), stop, fewer)

    def _allocated(
        self, missing: int, deadline: Deadline, stop: threading.Event, *options: str
    ) -> bool:
        """Request nodes and wait for them; cancel the request if the wait ends before."""
        held = self.nodes.names
        id_ = slurm.request(self._own, self.name, missing, held, *options)
        nodes = plural(missing, "node")
        self._tell(f"waiting for {'up to ' * bool(options)}{nodes} (job {id_})")
        started = False
        try:
            started = self._started(id_, deadline, stop)
        finally:
            if not started:
                slurm.cancel(id_)
        return started

    def _started(self, id_: str, deadline: Deadline, stop: threading.Event) -> bool:
        """Wait for the start of a job; return whether the job has started in time."""
        reported = ""
        for pause in _POLLS.pauses():
            try:
                state, reason = slurm.state(id_)
            except SlurmError as error:
                # Without an answer, the job may still wait: slurmctld may be back soon.
                state, reason = "PENDING", f"Slurm ({error})"
            if state == "RUNNING":
                return True
            if state not in _WAITING:
                raise SlurmError(f"job {id_} for them ended as {state or 'unknown'}")
            if reason not in ("", reported, *_USUAL):
                self._tell(f"job {id_} waits for {reason}")
                reported = reason
            if deadline.left <= 0 or stop.wait(min(pause, deadline.left)):
                return False
        raise AssertionError

    def _look(self) -> Nodes:
        further = slurm.named(self.name, "RUNNING")
        record = self._own
        return Nodes(
            (
                record.allocation,
                *(Allocation(id_, (*slurm.hostnames(on),)) for id_, on in further),
            ),
            self._tasks_per_node,
            record.cpus_per_node,
            record.gpus_per_task,
            record.gres_option,
        )

    def _update(self) -> None:
        self._own = slurm.job(self.id)
        self.nodes = self._look()
        self.nodes.write(self.folder, self.wanted)
        for key, value in self.nodes.variables(self.folder, self.wanted).items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _tasks_per_node(
    variables: Mapping[str, str], is_own: bool, record: slurm.Job
) -> int:
    """Return the number of tasks per node of a job, which all nodes have in common.

    :param is_own: whether an earlier call in this job has set the variables
    :raises InputError: if the nodes have different numbers of tasks
    """
    if is_own and variables.get(TASKS_VARIABLE, "").isdigit():
        return int(variables[TASKS_VARIABLE])
    shape = variables.get("SLURM_TASKS_PER_NODE", "1")
    if "SLURM_STEP_ID" in variables:
        # Slurm has set the variable for the step, which may have fewer tasks than the job.
        nodes = int(variables.get("SLURM_JOB_NUM_NODES", len(record.allocation.nodes)))
        tasks, rest = divmod(int(record.fields.get("NumTasks", nodes)), nodes)
        shape = f"{tasks + 1},{tasks}" if rest else str(tasks)
    if match := re.fullmatch(r"(\d+)(?:\(x\d+\))?", shape):
        return max(1, int(match[1]))
    raise InputError(
        f"job {record.allocation.name} has {shape} tasks on its nodes; submit with --nodes "
        "and --ntasks-per-node, so that all nodes are alike"
    )


@cache
def lock_nodes(folder: Path) -> int:
    """Keep other programs of the job from changing its nodes until this process ends.

    :returns: descriptor of the lock, which is held until no process has the descriptor
    :raises InputError: if another program holds the lock
    """
    path = folder / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise cannot_write(path, error) from error
    deadline = Deadline(_STEPS_SECONDS)
    for pause in _POLLS.pauses():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if deadline.left > 0:
                time.sleep(pause)
                continue
            os.close(lock)
            raise InputError(
                f"{path}: another program of the job has given nodes back, and still runs; "
                "let one program do so at a time"
            ) from None
        except OSError:
            break  # Some file systems have no locks.
    return lock


@cache
def cancelled_with_process(name: str, lock: int) -> subprocess.Popen[bytes]:
    """Start a process that cancels a name's jobs when this process ends, even by SIGKILL.

    :param lock: descriptor of :func:`lock_nodes`; the lock is held until the jobs are
        cancelled, since the next program would otherwise use the nodes of these jobs
    """
    # nobody writes to the pipe: it is closed when this process ends
    reading, _ = os.pipe()
    script = f'cat >/dev/null; scancel --user="$(id -un)" --name={shlex.quote(name)}'
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", script],
            env=slurm.environment(),
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            start_new_session=True,
        )
    finally:
        os.close(reading)
