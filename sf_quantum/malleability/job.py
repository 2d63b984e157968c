"""A Slurm job that gives nodes back while it uses a QPU, and gets others afterwards."""

from __future__ import annotations

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
from sf_quantum.malleability import slurm
from sf_quantum.malleability.program_nodes import (
    JOB_VARIABLE,
    WANTED_VARIABLE,
    Nodes,
    make_folder,
)
from sf_quantum.malleability.slurm import Allocation, SlurmError
from sf_quantum.text import plural

# looks at a job that waits for its nodes
_LOOKS = Backoff(0.1, 5.0, growth=1.5)
# After this time, Slurm's scheduler has looked for the nodes that are free
_LOWERED_SECONDS = 10.0
# the daemons of an mpiexec that has ended may take some time to end
_STEPS_SECONDS = 10.0
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED")


class MalleableJob:
    """The Slurm job of this process, and the jobs that hold further nodes for it.

    Slurm can shrink a job, but many sites' Slurm does not let it grow again: the further
    nodes are allocated to jobs of their own, which end with this one. They are found by
    their name, so that each call begins with what Slurm says. Each change is written to
    files and to this process's environment variables, see :class:`Nodes`.

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
        tasks = re.match(r"\d+", variables.get("SLURM_TASKS_PER_NODE", ""))
        self._tasks_per_node = int(tasks[0]) if tasks else 1
        self.nodes = self._look()
        # a job that this one has submitted has inherited its variables
        is_own = variables.get(JOB_VARIABLE) == self.id
        nodes_wanted = variables.get(
            WANTED_VARIABLE if is_own else "SLURM_JOB_NUM_NODES", ""
        )
        #: how many nodes the program is to have outside its QPU calls
        self.wanted = (
            int(nodes_wanted) if nodes_wanted.isdigit() else len(self.nodes.names)
        )

    @property
    def name(self) -> str:
        """The name of the jobs that hold further nodes."""
        return f"sfq-nodes-{self.id}"

    def shrink(self, keep: int) -> None:
        """Give back all nodes but some, this process's and the batch script's among them.

        :raises InputError: if these have to be more, or steps run on the others
        :raises SlurmError: if Slurm refuses; nodes may then have been given back
        """
        before = self.nodes.names
        make_folder(self.folder)
        if keep < len(before):
            kept = self._kept(keep)
            self._check_shared(kept)
            self._check_steps(kept)
            for one in self.nodes.allocations:
                left = [name for name in one.nodes if name in kept]
                if not left:
                    slurm.cancel(one.job)
                elif len(left) < len(one.nodes):
                    slurm.shrink(one.job, left)
            self._tell(f"job {self.id} keeps {keep} of {len(before)} nodes")
        self._update()

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
        # its own job has to keep a node
        first = [*needed, *nodes[:1], *self.nodes.names]
        return [*dict.fromkeys(first)][:keep]

    def _check_shared(self, kept: list[str]) -> None:
        # Slurm 22.05 may count a node that an exclusive job gives back as in use until
        # slurmctld starts again
        resized = [
            one.job
            for one in self.nodes.allocations
            if 0 < len({*one.nodes} & {*kept}) < len(one.nodes)
        ]
        if resized and self._own.fields.get("OverSubscribe") == "NO":
            raise InputError(
                f"job {resized[0]} has its nodes exclusively, and Slurm may not give such "
                "nodes to others after a shrink; request CPUs (--cpus-per-task), or submit "
                "with the nodes to keep and let --regrow-to get the others"
            )

    def _check_steps(self, kept: list[str]) -> None:
        deadline = Deadline(_STEPS_SECONDS)
        for pause in _LOOKS.pauses():
            running = (
                s for one in self.nodes.allocations for s in slurm.steps(one.job)
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

    def grow(self, patience: float | None, stop: threading.Event) -> None:
        """Wait until the program has as many nodes as it wants again, or go on with fewer.

        :param patience: seconds after which it goes on with the nodes that are free then;
            ``None`` for as long as it takes
        :param stop: set to end the wait
        """
        missing = self.wanted - len(self.nodes.names)
        if missing <= 0:
            return
        try:
            self._allocate(missing, Deadline(patience), stop)
            self._update()
        except SlurmError as error:
            self._tell(f"no further nodes: {error}")
        self._tell(f"job {self.id} has {len(self.nodes.names)} of {self.wanted} nodes")

    def _allocate(
        self, missing: int, deadline: Deadline, stop: threading.Event
    ) -> None:
        id_ = slurm.request(self._own, self.name, missing, self.nodes.names)
        self._tell(f"waiting for {plural(missing, 'node')} (job {id_})")
        started = False
        try:
            started = self._started(id_, deadline, stop)
            if not started and missing > 1 and not stop.is_set():
                slurm.lower(id_, missing)
                started = self._started(id_, Deadline(_LOWERED_SECONDS), stop)
        finally:
            if not started:
                slurm.cancel(id_)

    def _started(self, id_: str, deadline: Deadline, stop: threading.Event) -> bool:
        for pause in _LOOKS.pauses():
            state = slurm.state(id_)
            if state == "RUNNING":
                return True
            if state not in _WAITING:
                raise SlurmError(f"job {id_} for them ended as {state or 'unknown'}")
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


@cache
def cancelled_with_process(name: str) -> subprocess.Popen[bytes]:
    """Have the jobs of a name cancelled when this process ends, also by SIGKILL."""
    # nobody writes to the pipe: its end is the end of this process
    reading, _ = os.pipe()
    script = f'cat >/dev/null; scancel --user="$(id -un)" --name={shlex.quote(name)}'
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", script],
            env=slurm.environment(),
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(reading)
