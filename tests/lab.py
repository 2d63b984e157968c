"""A real Slurm on one machine, in a folder of its own: ``make lab``, and the tests'."""

from __future__ import annotations

import argparse
import fcntl
import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TextIO

from sf_quantum.errors import QpuError
from sf_quantum.net import munge
from tests import lab_conf, lab_jobcomp, lab_site
from tests.lab_conf import Options
from tests.lab_jobcomp import Completed
from tests.lab_supervisor import kill_steps, missing
from tests.waiting import until

ROOT = Path(__file__).parent.parent
_ATTEMPTS = 5


class LabError(Exception):
    """The lab cannot be started, or does not do what it was asked to."""


class Lab:
    """A Slurm that runs as long as some process has it open, unless it is to stay.

    :param folder: has slurm.conf, the daemons' logs, and Slurm's state
    :raises LabError: if none runs there
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._control = socket.socket(socket.AF_UNIX)
        self._control.settimeout(60)
        self._answers = self._control.makefile("r")
        try:
            self._run = Path(os.readlink(folder / "run"))
            self._control.connect(str(self._run / "control"))
            self._ask("running")
        except (OSError, LabError) as error:
            self.close()
            raise LabError(f"{folder}: no lab runs here") from error

    @property
    def munge_socket(self) -> Path:
        """The socket of the lab's own MUNGE daemon."""
        return self._run / "s"

    @property
    def environment(self) -> dict[str, str]:
        """What turns Slurm's commands to this lab."""
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
            raise LabError(f"{error}\n{self._said()}") from None

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
        self._ask(f"kill {name}")
        kill_steps(self.folder / f"{name}.log")

    def start_node(self, name: str) -> None:
        """Start a node's daemon, and wait until Slurm has the node back."""
        self._ask(f"start {name}")
        self.wait_for(
            lambda: not re.search(r"down|unknown|\*", self.nodes()[name]),
            f"{name} is back",
        )

    def stop_controller(self) -> None:
        """Stop the controller; jobs run on."""
        self._ask("stop slurmctld")

    def kill_controller(self) -> None:
        """Kill the controller, which may lose the jobs of its last five seconds."""
        self._ask("kill slurmctld")

    def start_controller(self) -> None:
        """Start the controller, and wait until it answers."""
        self._ask("start slurmctld")
        self._wait_for_controller()

    def restart_controller(self) -> None:
        """Stop the controller and start it again."""
        self.stop_controller()
        self.start_controller()

    def close(self) -> None:
        """Use it no more; unless it is to stay, the last who does so ends it."""
        self._answers.close()
        self._control.close()

    def end(self) -> None:
        """End it for everyone, and wait until nothing of it runs."""
        # unless it has ended already
        with suppress(LabError):
            self._ask("end")
        self.close()
        with _lock(self.folder):
            pass

    def bring_up(self, options: Options) -> None:
        """Start the daemons, and wait until all nodes are idle."""
        self._ask("start munged")
        self.wait_for(self._has_munge, "munged answers")
        if options.site:
            self._bring_up_accounting()
        names = options.classical + options.quantum
        for name in ("slurmctld", *names):
            self._ask(f"start {name}")
        self._wait_for_controller()
        if options.site:
            self._ask(f"start {lab_site.REST}")
            self._add_accounts()
        self.wait_for(
            lambda: self._alive(names) and set(self.nodes().values()) == {"idle"},
            "all nodes idle",
        )

    def _bring_up_accounting(self) -> None:
        daemon = lab_site.DATABASE
        self._ask(f"start {daemon}")
        database = self._run / "private" / "m"
        self.wait_for(lambda: self._alive([daemon]) and database.exists(), daemon)
        daemon = lab_site.ACCOUNTING
        self._ask(f"start {daemon}")
        self.wait_for(
            lambda: self._alive([daemon])
            and self.run("sacctmgr", "show", "cluster").returncode == 0,
            daemon,
        )

    def _add_accounts(self) -> None:
        add = ("sacctmgr", "--immediate", "add")
        self.output(*add, "account", ",".join(lab_site.ACCOUNTS))
        user = getpass.getuser()
        if user != "root":  # who is an administrator of accounts, with one of his own
            self.output(*add, "user", user, f"account={lab_site.ACCOUNTS[0]}")

    def _wait_for_controller(self) -> None:
        self.wait_for(
            lambda: self._alive(["slurmctld"])
            and self.run("scontrol", "ping").returncode == 0,
            "slurmctld answers",
        )

    def _has_munge(self) -> bool:
        with suppress(QpuError):
            munge.encode(str(self.munge_socket))
            return True
        return not self._alive(["munged"])

    def _alive(self, names: list[str]) -> bool:
        running = self._ask("running").split()
        if ended := [name for name in names if name not in running]:
            raise LabError(f"{', '.join(ended)} ended by itself\n{self._said()}")
        return True

    def _said(self) -> str:
        tails = {
            log.stem: log.read_text(errors="replace").splitlines()[-8:]
            for log in sorted(self.folder.glob("*.out"))
        }
        return "\n".join(f"{name}: {line}" for name in tails for line in tails[name])

    def _ask(self, request: str) -> str:
        try:
            self._control.sendall(f"{request}\n".encode())
            answer = self._answers.readline()
        except OSError as error:
            raise LabError(f"{self.folder}: the lab is silent: {error}") from error
        if not answer or answer.startswith("cannot "):
            raise LabError(f"{self.folder}: {answer.strip() or 'the lab has ended'}")
        return answer.strip()


def start(folder: Path, options: Options, *, stays: bool = False) -> Lab:
    """Start a lab, in place of an earlier one that has left its files there.

    :param folder: made if need be
    :param stays: whether it runs on when nobody uses it
    :raises LabError: if the folder has other things in it, or with what the logs say
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "lock").exists():
        raise LabError(f"{folder}: has files that are not a lab's")
    for attempt in range(_ATTEMPTS):
        lab = _supervised(folder, options, stays=stays)
        try:
            lab.bring_up(options)
        except BaseException as error:
            lab.end()
            # somebody was quicker with one of the ports
            if "already in use" in str(error) and attempt < _ATTEMPTS - 1:
                continue
            raise
        return lab
    raise AssertionError


@contextmanager
def running(folder: Path, options: Options) -> Iterator[Lab]:
    """Start a lab, and end it at the end of the block."""
    lab = start(folder, options)
    try:
        yield lab
    finally:
        lab.end()


@contextmanager
def shared(folder: Path, options: Options) -> Iterator[Lab]:
    """Use the lab in a folder, which the first to come starts and the last one ends."""
    folder.mkdir(exist_ok=True, parents=True)
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        try:
            lab = Lab(folder)
        except LabError:
            lab = start(folder, options)
    try:
        yield lab
    finally:
        lab.close()


def _supervised(folder: Path, options: Options, *, stays: bool) -> Lab:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _lock(folder) as lock,
        socket.socket(socket.AF_UNIX) as listening,
        socket.socket(socket.AF_UNIX) as user,
    ):
        _clear(folder)
        run = Path(tempfile.mkdtemp(prefix="sfq-"))
        # for munged's socket, which every user may pass to
        run.chmod(0o755)
        (folder / "run").symlink_to(run)
        lab_conf.write(folder, run, options)
        listening.bind(str(run / "control"))
        listening.listen()
        # a user before there is a supervisor, which ends even if this process is killed now
        user.connect(str(run / "control"))
        supervisor = [sys.executable, "-m", "tests.lab_supervisor"]
        lifetime = "stays" if stays else "goes"
        inherited = listening.fileno(), lock.fileno()
        arguments = map(str, (folder, run, *inherited, lifetime))
        with open(folder / "supervisor.out", "wb") as log:
            subprocess.run(
                ["setsid", "--fork", *supervisor, *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                check=True,
            )
        # held by the supervisor alone, it fails with it
        listening.close()
        return Lab(folder)


@contextmanager
def _lock(folder: Path) -> Iterator[TextIO]:
    # the supervisor inherits it: who has it knows that none runs
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _clear(folder: Path) -> None:
    _kill_all_steps(folder)
    for path in folder.iterdir():
        if path.name in ("run", "state"):
            shutil.rmtree(path.resolve(), ignore_errors=True)
            path.unlink(missing_ok=True)
        elif path.name != "lock":
            path.unlink()


def _kill_all_steps(folder: Path) -> None:
    # of a lab whose supervisor was killed, and the daemons with it
    for log in folder.glob("*.log"):
        kill_steps(log)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument("--folder", type=Path, default=ROOT / ".lab")
    for field in fields(Options):
        option = f"--{field.name.replace('_', '-')}"
        told = _told(field.name)
        if isinstance(field.default, bool):
            parser.add_argument(option, action="store_true", help=told)
        elif isinstance(field.default, tuple):
            parser.add_argument(
                option, action="append", default=[], help=f"{told}; more than once"
            )
        else:
            shown = f"{told} (default: {field.default or 'none'})"
            parser.add_argument(
                option, type=type(field.default), default=field.default, help=shown
            )
    return parser.parse_args()


def _told(option: str) -> str:
    """What the docstring of the options says of one."""
    text = " ".join((Options.__doc__ or "").split())
    (told,) = re.findall(rf":param {option}: (.*?)(?= :param|$)", text)
    return str(told).replace("``", "")


def main() -> None:
    """Start or stop a lab that stays, or say whether it runs."""
    arguments = _arguments()
    folder = arguments.folder.resolve()
    try:
        match arguments.action:
            case "start":
                _start(folder, arguments)
            case "stop":
                print(_stop(folder))
            case "status":
                _describe(Lab(folder))
    except LabError as error:
        sys.exit(str(error))


def _start(folder: Path, arguments: argparse.Namespace) -> None:
    if lacking := missing():
        raise LabError(lacking)
    with suppress(LabError):
        lab = Lab(folder)
        print("the lab already runs")
        _describe(lab)
        return
    values = {f.name: getattr(arguments, f.name) for f in fields(Options)}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    _describe(start(folder, Options(**values), stays=True))


def _stop(folder: Path) -> str:
    try:
        Lab(folder).end()
    except LabError as error:
        _kill_all_steps(folder)
        return str(error)
    return f"{folder}: the lab has ended"


def _describe(lab: Lab) -> None:
    print(lab.output("sinfo", "-h", "-o", "%P: %D nodes %N, %c CPUs each, gres %G, %a"))
    print(f"use it:  export SLURM_CONF={lab.conf}")
    print(f"stop it: python -m tests.lab stop --folder {lab.folder}")


if __name__ == "__main__":
    main()
