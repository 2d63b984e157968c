"""A Slurm job that gives back nodes while it uses a QPU, and regains nodes afterwards."""

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
# Longest wait for steps and programs to end, such as the daemons of an mpiexec that has ended.
_STEPS_SECONDS = 10.0
# How long to retry while Slurm does not answer, to cancel requests that may have reached it.
_AWAY_SECONDS = 60.0
# Slurm's reasons for a job that waits only for its turn or for free nodes
_USUAL_REASONS = ("None", "Priority", "Resources", "Prolog")
# states of jobs that wait for their nodes
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED")


class MalleableJob:
    """The Slurm job of this process, and the jobs that hold further nodes for it.

    Slurm can shrink a job, but at many sites it does not let the job grow again. So further
    nodes are allocated to separate jobs, which end with this job. They are found by name, so
    each call begins by reading the current state from Slurm. Each change is written to files
    and to this process's environment variables, see :class:`Nodes`.

    :param variables: environment variables that Slurm has set for this process
    :param tell: function that is called with a line of text about each change
    """

    def __init__(
        self, variables: Mapping[str, str], tell: Callable[[str], None]
    ) -> None:
        self.id = variables["SLURM_JOB_ID"]
        if "SLURM_HET_SIZE" in variables:
            raise InputError(
                f"job {self.id} is heterogeneous, and Slurm shrinks no such job"
            )
        self._record = slurm.job(self.id)
        self._node = variables.get("SLURMD_NODENAME")
        self._tell = tell
        self.folder = Path.cwd() / f"sfq-nodes-{self.id}"
        # A job inherits these variables if another job has submitted it.
        is_own = variables.get(JOB_VARIABLE) == self.id
        self._tasks_per_node = _tasks_per_node(variables, is_own, self._record)
        self.nodes = self._read_nodes()
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
        :raises SlurmError: if Slurm refuses to shrink the job (some nodes may then already
            have been given back), or if a limit of the site forbids the request for further
            nodes (no node has then been given back)
        """
        self._record.check_alike()
        make_folder(self.folder)
        lock_nodes(self.folder)
        # A program that was killed while it waited for nodes may have left a request behind.
        slurm.cancel_pending(self.name)
        # Write the variables and files first, so the program has them even if Slurm refuses.
        self._update()
        before = self.nodes.names
        if keep < len(before):
            kept = self._nodes_to_keep(keep)
            self._check_shared(kept)
            self._check_limits(kept)
            self._check_steps(kept)
            try:
                self._release(kept)
            finally:
                self._update()
            self._tell(f"job {self.id} keeps {keep} of {len(before)} nodes")

    def _release(self, kept: list[str]) -> None:
        for allocation in self.nodes.allocations:
            left = [name for name in allocation.nodes if name in kept]
            if not left:
                slurm.cancel(allocation.job)
            elif len(left) < len(allocation.nodes):
                slurm.shrink(allocation.name, left)

    def _nodes_to_keep(self, keep: int) -> list[str]:
        """Return the names of the nodes to keep.

        :raises InputError: if more nodes must be kept
        """
        nodes = self._record.allocation.nodes
        batch = nodes[:1] if self._record.fields.get("BatchFlag") == "1" else ()
        here = [self._node] if self._node in self.nodes.names else []
        needed = [*dict.fromkeys([*batch, *here])]
        if keep < len(needed):
            raise InputError(
                f"job {self.id} cannot keep {keep} nodes: its batch script runs on "
                f"{needed[0]} and this program on {needed[-1]}; keep {len(needed)}"
            )
        # The job of this process has to keep at least one node.
        first = [*needed, *nodes[:1], *self.nodes.names]
        return [*dict.fromkeys(first)][:keep]

    def _check_shared(self, kept: list[str]) -> None:
        """Check that Slurm can shrink the jobs that would keep only a part of their nodes.

        :raises InputError: if it cannot
        """
        # If an exclusive job gives back a node, Slurm 22.05 may regard the node as in use
        # until slurmctld is restarted.
        resized = [
            allocation.job
            for allocation in self.nodes.allocations
            if 0 < len({*allocation.nodes} & {*kept}) < len(allocation.nodes)
        ]
        fields = self._record.fields
        gpus = tres.parse(fields.get("TresPerJob", ""))
        if resized and any(resource.name == "gpu" for resource in gpus):
            # Slurm starts no steps in a job that has fewer GPUs than it requested.
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
        # Jobs of an earlier call count towards the user's limits, but are cancelled before
        # the request. The check would count them, so it is skipped if there are any.
        if missing > 0 and len(self.nodes.allocations) == 1:
            slurm.check_request(self._record, self.name, missing, kept)

    def _check_steps(self, kept: list[str]) -> None:
        """Wait until no step runs on the nodes to give back.

        :raises InputError: if a step still runs there at the end of the wait
        """
        deadline = Deadline(_STEPS_SECONDS)
        for pause in _POLLS.pauses():
            running = (
                s
                for allocation in self.nodes.allocations
                for s in slurm.steps(allocation.name)
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
        """Wait until the program has as many nodes as it wants, or accept fewer after a time.

        :param wait_seconds: seconds after which the program continues with the nodes that are
            free; ``None`` for no limit
        :param stop: event that ends the wait when set
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
        """Cancel requests whose acceptance was not confirmed; if granted, use their nodes."""
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
        """Request nodes until the deadline; if they are not granted, accept fewer."""
        if (
            self._request_and_wait(missing, deadline, stop)
            or missing == 1
            or stop.is_set()
        ):
            return
        # Request a range of nodes in a new job. If the first request were changed to a range
        # instead of cancelled, Slurm would only allocate the fewest nodes with enough CPUs.
        fewer = f"--nodes=1-{missing}"
        self._request_and_wait(missing, Deadline(_LOWERED_SECONDS), stop, fewer)

    def _request_and_wait(
        self, missing: int, deadline: Deadline, stop: threading.Event, *options: str
    ) -> bool:
        """Request nodes and wait for them; cancel the request if the wait ends first."""
        held = self.nodes.names
        id_ = slurm.request(self._record, self.name, missing, held, *options)
        nodes = plural(missing, "node")
        self._tell(f"waiting for {'up to ' * bool(options)}{nodes} (job {id_})")
        started = False
        try:
            started = self._await_start(id_, deadline, stop)
        finally:
            if not started:
                slurm.cancel(id_)
        return started

    def _await_start(self, id_: str, deadline: Deadline, stop: threading.Event) -> bool:
        """Wait for the start of a job; return whether the job has started in time."""
        reported = ""
        for pause in _POLLS.pauses():
            try:
                state, reason = slurm.state(id_)
            except SlurmError as error:
                # The job may still wait while slurmctld is restarted.
                state, reason = "PENDING", f"Slurm ({error})"
            if state == "RUNNING":
                return True
            if state not in _WAITING:
                raise SlurmError(f"job {id_} for them ended as {state or 'unknown'}")
            if reason not in ("", reported, *_USUAL_REASONS):
                self._tell(f"job {id_} waits for {reason}")
                reported = reason
            if deadline.left <= 0 or stop.wait(min(pause, deadline.left)):
                return False
        raise AssertionError

    def _read_nodes(self) -> Nodes:
        """Return the nodes of this job, and of the jobs that hold further nodes for it."""
        further = slurm.named(self.name, "RUNNING")
        record = self._record
        return Nodes(
            (
                record.allocation,
                *(
                    Allocation(id_, (*slurm.hostnames(expression),))
                    for id_, expression in further
                ),
            ),
            self._tasks_per_node,
            record.cpus_per_node,
            record.gpus_per_task,
            record.gres_option,
        )

    def _update(self) -> None:
        """Read the job's state again, and write it to the program's files and variables."""
        self._record = slurm.job(self.id)
        self.nodes = self._read_nodes()
        self.nodes.write(self.folder, self.wanted)
        for key, value in self.nodes.variables(self.folder, self.wanted).items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _tasks_per_node(
    variables: Mapping[str, str], is_own: bool, record: slurm.Job
) -> int:
    """Return the number of tasks per node of a job, which must be the same on all nodes.

    :param is_own: whether an earlier call in this job has set the variables of this package
    :raises InputError: if the nodes have different numbers of tasks
    """
    if is_own and variables.get(TASKS_VARIABLE, "").isdigit():
        return int(variables[TASKS_VARIABLE])
    shape = variables.get("SLURM_TASKS_PER_NODE", "1")
    if "SLURM_STEP_ID" in variables:
        # Slurm has set the variable for the current step, which may have fewer tasks than
        # the job.
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

    :returns: descriptor of the lock; the lock is held until no process has the descriptor
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
            break  # Some file systems do not support locks.
    return lock


@cache
def cancelled_with_process(name: str, lock: int) -> subprocess.Popen[bytes]:
    """Start a process that cancels the jobs of a name when this process ends, even by SIGKILL.

    :param lock: descriptor from :func:`lock_nodes`; the lock is held until the jobs are
        cancelled, since the next program would otherwise use the nodes of these jobs
    """
    # Nothing is written to the pipe; `cat` ends when this process does.
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
