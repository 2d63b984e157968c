"""Slurm's commands on a cluster of the lab, and the daemons that a test may fail."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import lab_jobcomp
from tests.support.lab_jobcomp import Completed
from tests.support.lab_supervisor import kill_steps
from tests.support.waiting import until


class LabError(Exception):
    """The lab cannot be started, or does not do what it was asked to."""


class Daemons:
    """The lab's daemons, which its supervisor starts and stops.

    :param folder: has their output
    :raises LabError: if none runs there
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._control = socket.socket(socket.AF_UNIX)
        self._control.settimeout(60)
        self._answers = self._control.makefile("r")
        try:
            #: has their sockets
            self.run = Path(os.readlink(folder / "run"))
            self._control.connect(str(self.run / "control"))
            self.ask("running")
        except (OSError, LabError) as error:
            self.close()
            raise LabError(f"{folder}: no lab runs here") from error

    def ask(self, request: str) -> str:
        """Ask the supervisor.

        :raises LabError: if it cannot do what it was asked to, or has ended
        """
        try:
            self._control.sendall(f"{request}\n".encode())
            answer = self._answers.readline()
        except OSError as error:
            raise LabError(f"{self.folder}: the lab is silent: {error}") from error
        if not answer or answer.startswith("cannot "):
            raise LabError(f"{self.folder}: {answer.strip() or 'the lab has ended'}")
        return answer.strip()

    def alive(self, names: list[str]) -> bool:
        """Whether they run, which is always true.

        :raises LabError: if one has ended
        """
        running = self.ask("running").split()
        if ended := [name for name in names if name not in running]:
            raise LabError(f"{', '.join(ended)} ended by itself\n{self.said()}")
        return True

    def said(self) -> str:
        """The last lines of each."""
        tails = {
            log.relative_to(self.folder)
            .with_suffix(""): log.read_text(errors="replace")
            .splitlines()[-8:]
            for log in sorted(self.folder.rglob("*.out"))
        }
        return "\n".join(f"{name}: {line}" for name in tails for line in tails[name])

    def wait_for(
        self, condition: Callable[[], bool], what: str, seconds: float = 30
    ) -> None:
        """Ask until something is so.

        :param what: it is, in words, for the error
        :raises LabError: if it is not in time
        """
        try:
            until(condition, what, seconds)
        except TimeoutError as error:
            raise LabError(f"{error}\n{self.said()}") from None

    def close(self) -> None:
        """Use them no more; unless they are to stay, the last who does so ends them."""
        self._answers.close()
        self._control.close()


class Cluster:
    """A cluster of the lab.

    :param prefix: of its folder in that of the lab, and of its daemons' names
    """

    def __init__(self, daemons: Daemons, prefix: str) -> None:
        self.folder = daemons.folder / prefix
        self.conf = self.folder / "slurm.conf"
        self.wait_for = daemons.wait_for
        self._daemons = daemons
        self._prefix = prefix

    @property
    def munge_socket(self) -> Path:
        """The socket of the lab's own MUNGE daemon."""
        return self._daemons.run / "s"

    @property
    def environment(self) -> dict[str, str]:
        """What turns Slurm's commands to this cluster."""
        return {"SLURM_CONF": str(self.conf), "MUNGE_SOCKET": str(self.munge_socket)}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the lab's environment, however it ends."""
        return subprocess.run(
            command,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def output(self, *command: str) -> str:
        """Run a command with the lab's environment.

        :returns: what it prints
        :raises LabError: if it fails, with what it says
        """
        result = self.run(*command)
        if result.returncode != 0:
            raise LabError(f"{' '.join(command)}: {result.stderr.strip()}")
        return result.stdout.strip()

    def submit(self, *arguments: str) -> int:
        """Submit with ``sbatch``.

        :returns: the job's id
        """
        return int(self.output("sbatch", "--parsable", *arguments).split(";")[0])

    def jobs(self) -> list[int]:
        """The ids of the jobs that wait, run, or are completing."""
        return [int(id_) for id_ in self.output("squeue", "-h", "-o", "%A").split()]

    def state(self, job: int) -> str:
        """A job's state in Slurm's words, as long as Slurm remembers it."""
        found = re.search(
            r"JobState=(\w+)", self.output("scontrol", "show", "job", str(job))
        )
        return found[1] if found else ""

    def nodes(self) -> dict[str, str]:
        """Each node's state: ``idle``, ``mixed``, ``allocated``, ``down``, ``down*``..."""
        lines = self.output("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        return {name: state for name, state in map(str.split, lines)}

    def jobcomp(self) -> list[Completed]:
        """The jobs that have ended, in Slurm's own record; a requeue is an entry too."""
        return lab_jobcomp.read(self.folder / "jobcomp")

    def wait_idle(self, seconds: float = 30) -> None:
        """Wait until no job is in the queue and every node is idle."""
        self.wait_for(
            lambda: not self.jobs() and set(self.nodes().values()) == {"idle"},
            "no jobs, and all nodes idle",
            seconds,
        )

    def stop_node(self, name: str) -> None:
        """Fail a node: its daemon and its job steps are killed with no chance to tell.

        What a job has detached from itself goes on until the lab ends.
        """
        self._daemons.ask(f"kill {self._prefix}{name}")
        kill_steps(self.folder / f"{name}.log")

    def lose_node(self, name: str) -> None:
        """Fail a node, and let Slurm know at once.

        A short timeout of Slurm's would also take nodes down that are only slow. Until it is
        started, no other job gets the node, which a late answer of its daemon to the
        controller would return to service.
        """
        update = ("scontrol", "update", f"nodename={name}", "reason=lost")
        self.output(*update, "state=drain")
        self.stop_node(name)
        self.output(*update, "state=down")

    def start_node(self, name: str) -> None:
        """Start a node's daemon, and wait until Slurm has the node back."""
        self._daemons.ask(f"start {self._prefix}{name}")
        self.wait_for(
            lambda: not re.search(r"down|unknown|\*", self.nodes()[name]),
            f"{name} is back",
        )
        if "drain" in self.nodes()[name]:
            self.output("scontrol", "update", f"nodename={name}", "state=undrain")

    def stop_controller(self) -> None:
        """Stop the controller; jobs run on."""
        self._daemons.ask(f"stop {self._prefix}slurmctld")

    def kill_controller(self) -> None:
        """Kill the controller, which may lose the jobs of its last five seconds."""
        self._daemons.ask(f"kill {self._prefix}slurmctld")

    def start_controller(self) -> None:
        """Start the controller, and wait until it answers."""
        self._daemons.ask(f"start {self._prefix}slurmctld")
        self.wait_for_controller()

    def restart_controller(self) -> None:
        """Stop the controller and start it again."""
        self.stop_controller()
        self.start_controller()

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Let the controller forget the jobs of the block, whose ids others get.

        A controller that is killed does so with the jobs of its last five seconds.
        """
        saved, copy = self.folder / "state", self.folder / "copy"
        self.stop_controller()
        shutil.copytree(saved, copy)
        self.start_controller()
        yield
        self.kill_controller()
        shutil.rmtree(saved)
        copy.rename(saved)
        self.start_controller()

    def wait_for_controller(self) -> None:
        """Wait until the controller answers."""
        self.wait_for(
            lambda: self._daemons.alive([f"{self._prefix}slurmctld"])
            and self.run("scontrol", "ping").returncode == 0,
            "slurmctld answers",
        )
