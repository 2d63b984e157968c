"""The process above a lab's daemons: starts and stops them, and outlives none of them.

It adopts whatever the daemons and their jobs leave behind (``PR_SET_CHILD_SUBREAPER``),
so that nothing of the lab is left once it has no child. It ends when nobody is connected
to its socket any more: a user of the lab that is killed is one less all the same.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path, PurePath

import psutil

from sf_quantum.connectors.guardian import processes
from tests.support import lab_site
from tests.support.suspending import suspended

SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SIGNALS = {"stop": signal.SIGTERM, "kill": signal.SIGKILL}


def missing() -> str:
    """What of Slurm is not installed, and how to install it; empty if nothing is."""
    for program in ("slurmctld", "slurmd", "munged"):
        if shutil.which(program, path=SYSTEM_PATH) is None:
            return f"{program} is not installed (apt-get install slurm-wlm munge)"
    return ""


@functools.cache
def version() -> tuple[int, int]:
    """Return the release of the Slurm installed here, such as ``(24, 11)``."""
    words = ["slurmctld", "-V"]
    environment = {**os.environ, "PATH": SYSTEM_PATH}
    said = subprocess.run(words, env=environment, capture_output=True, text=True).stdout
    year, month, *_ = said.split()[-1].split(".")
    return int(year), int(month)


def munged_command(folder: Path, key: Path) -> list[str]:
    """What runs a MUNGE daemon in the foreground, with its socket ``s`` in a folder."""
    options = {
        "key-file": key,
        "socket": folder / "s",
        "pid-file": folder / "pid",
        "seed-file": folder / "seed",
    }
    # its warnings are about folders that others may write to, as /tmp
    command = ["munged", "--force", "--foreground"]
    return [*command, *(f"--{name}={path}" for name, path in options.items())]


class Supervisor:
    """The daemons of a lab, by name: ``munged``, ``slurmctld``, and those of the nodes.

    A cluster with a folder of its own has it before the name: ``lab2/slurmctld``.

    :param folder: where each daemon's output goes
    :param run: has the sockets
    :param stays: whether it goes on when nobody is connected
    """

    def __init__(self, folder: Path, run: Path, *, stays: bool) -> None:
        self._folder = folder
        self._run = run
        self._stays = stays
        self._daemons: dict[str, int] = {}
        self._exits: dict[int, asyncio.Event] = {}
        self._users: set[asyncio.StreamWriter] = set()
        self._deserted = asyncio.Event()
        self._ended = asyncio.Event()

    async def serve(self, listening: socket.socket) -> None:
        """Do what users of the lab ask for, until the last has gone or one ends it."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        await asyncio.start_unix_server(self._attend, sock=listening)
        await self._ended.wait()
        # nobody else can come from here on
        (self._run / "control").unlink()
        loop.remove_signal_handler(signal.SIGCHLD)
        _kill_descendants()
        shutil.rmtree(self._run)
        await self._dismiss()

    async def _attend(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._users.add(writer)
        self._deserted.clear()
        with suppress(ConnectionError):
            while line := await reader.readline():
                answer = await self._do(*line.decode().split())
                writer.write(f"{answer}\n".encode())
        self._users.remove(writer)
        writer.close()
        if not self._users:
            self._deserted.set()
            if not self._stays:
                self._ended.set()

    async def _dismiss(self) -> None:
        for exit_ in self._exits.values():
            exit_.set()
        for user in self._users:
            user.close()
        await self._deserted.wait()

    async def _do(self, action: str, name: str = "") -> str:
        match action:
            case "running":
                return " ".join(self._daemons)
            case "start" if name not in self._daemons:
                self._start(name)
            case "stop" | "kill" if name in self._daemons:
                pid = self._daemons[name]
                os.kill(pid, _SIGNALS[action])
                await self._exits[pid].wait()
            case "end":
                self._ended.set()
            case _:
                return f"cannot {action} {name}"
        return ""

    def _start(self, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # what it says before it has its log open
        output = str(self._folder / f"{name}.out")
        # killed with this process, even if that is killed
        command = ["setpriv", "--pdeathsig", "KILL", *self._command(name)]
        pid = os.posix_spawnp(
            command[0],
            command,
            {
                **os.environ,
                "PATH": SYSTEM_PATH,
                "SLURM_CONF": str((self._folder / name).with_name("slurm.conf")),
                # the controller writes jobcomp's times without saying in which zone
                **({"TZ": "UTC"} if name.endswith("slurmctld") else {}),
                **lab_site.environment(name, self._run),
            },
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, output, flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setpgroup=0,
        )
        self._daemons[name] = pid
        self._exits[pid] = asyncio.Event()

    def _command(self, name: str) -> list[str]:
        if (command := lab_site.command(name, self._run)) is not None:
            return command
        match PurePath(name).name:
            case "munged":
                return munged_command(self._run, self._run / "key")
            case "slurmctld":
                # Slurm 26.05 writes the usage of its associations every five minutes, and
                # does not start again without it if it was killed before.
                return ["slurmctld", "-D", *(["-i"] if version() >= (26, 5) else [])]
            case node:
                return ["slurmd", "-D", "-N", node]

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if pid in self._exits:
                    self._daemons = {n: p for n, p in self._daemons.items() if p != pid}
                    self._exits.pop(pid).set()


def _kill_descendants() -> None:
    # what loses its parent becomes a child of this process: no child left, nothing left
    with suppress(ChildProcessError):
        while True:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            os.waitpid(-1, 0)


def kill_steps(log: Path) -> None:
    """Kill what jobs run on a node, with no chance to tell.

    :param log: of the node's daemon, which its job steps write to as well
    """
    steps = [p for p in processes() if _is_step(p, log)]
    # a step that sees its processes end would still tell the controller of it
    with suspended(*steps):
        family = list(steps)
        for step in steps:
            with suppress(psutil.NoSuchProcess):
                family += step.children(recursive=True)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _is_step(process: psutil.Process, log: Path) -> bool:
    with suppress(psutil.Error):
        return process.name().startswith("slurmstepd") and str(log) in {
            file.path for file in process.open_files()
        }
    return False


def main(folder: str, run: str, listening: str, lock: str, stays: str) -> None:
    """Supervise a lab.

    :param listening: the descriptor of its socket
    :param lock: that of the file whose lock says that it runs
    """
    os.set_inheritable(int(lock), False)
    # a killed controller's script daemon can dump its core into the working directory
    os.chdir(folder)
    supervisor = Supervisor(Path(folder), Path(run), stays=stays == "stays")
    asyncio.run(supervisor.serve(socket.socket(fileno=int(listening))))


if __name__ == "__main__":
    main(*sys.argv[1:])
