"""A real Slurm on one machine, in a folder of its own: ``make lab``, and the tests'."""

from __future__ import annotations

import argparse
import fcntl
import getpass
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TextIO

from sf_quantum.errors import QpuError
from sf_quantum.net import munge
from tests import debian
from tests.support import lab_conf, lab_site
from tests.support.folders import ROOT
from tests.support.lab_cluster import Cluster, Daemons, LabError
from tests.support.lab_conf import FIRST, SECOND, Options
from tests.support.lab_supervisor import kill_steps, missing

_ATTEMPTS = 5


class Lab(Cluster):
    """A Slurm that runs as long as some process has it open, unless it is to stay.

    :param folder: has slurm.conf, the daemons' logs, and Slurm's state
    :raises LabError: if none runs there
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(Daemons(folder), "")

    @property
    def second(self) -> Cluster:
        """The second cluster of the site mode."""
        return Cluster(self._daemons, f"{SECOND}/")

    def federate(self) -> None:
        """Make both clusters of the site mode a federation, which is for ever.

        Their job ids have the cluster's number in the upper bits from here on.
        """
        clusters = f"clusters={FIRST},{SECOND}"
        self.output("sacctmgr", "--immediate", "add", "federation", "both", clusters)
        show = ("scontrol", "show", "federation")
        self.wait_for(
            lambda: all("Synced:Yes" in c.output(*show) for c in (self, self.second)),
            "a federation",
        )

    def close(self) -> None:
        """Use it no more; unless it is to stay, the last who does so ends it."""
        self._daemons.close()

    def end(self) -> None:
        """End it for everyone, and wait until nothing of it runs."""
        # unless it has ended already
        with suppress(LabError):
            self._daemons.ask("end")
        self.close()
        with _lock(self.folder):
            pass

    def bring_up(self, options: Options) -> None:
        """Start the daemons, and wait until all nodes are idle."""
        self._start("munged")
        self.wait_for(self._has_munge, "munged answers")
        if options.site:
            self._bring_up_accounting()
        daemons = [name for layout in options.clusters for name in layout.daemons]
        for name in daemons:
            self._start(name)
        clusters = [Cluster(self._daemons, one.prefix) for one in options.clusters]
        for cluster in clusters:
            cluster.wait_for_controller()
        if options.site:
            self._start(lab_site.REST)
            self._add_accounts(len(clusters))
        self.wait_for(
            lambda: self._daemons.alive(daemons)
            and all({*one.nodes().values()} == {"idle"} for one in clusters),
            "all nodes idle",
        )

    def _bring_up_accounting(self) -> None:
        daemon = lab_site.DATABASE
        self._start(daemon)
        database = self._daemons.run / "private" / "m"
        self.wait_for(
            lambda: self._daemons.alive([daemon]) and database.exists(), daemon
        )
        daemon = lab_site.ACCOUNTING
        self._start(daemon)
        self.wait_for(
            lambda: self._daemons.alive([daemon])
            and self.run("sacctmgr", "show", "cluster").returncode == 0,
            daemon,
        )

    def _add_accounts(self, clusters: int) -> None:
        known = ("sacctmgr", "-nP", "show", "cluster", "format=ControlPort")
        # commands find another cluster by it
        self.wait_for(
            lambda: len({*self.output(*known).split()} - {"0"}) == clusters,
            "slurmdbd knows the clusters",
        )
        add = ("sacctmgr", "--immediate", "add")
        self.output(*add, "qos", lab_site.QOS)
        allowed = f"qos=normal,{lab_site.QOS}"
        self.output(*add, "account", ",".join(lab_site.ACCOUNTS), allowed)
        user = getpass.getuser()
        if user != "root":  # who is an administrator of accounts, with one of his own
            self.output(*add, "user", user, f"account={lab_site.ACCOUNTS[0]}")

    def _start(self, name: str) -> None:
        self._daemons.ask(f"start {name}")

    def _has_munge(self) -> bool:
        with suppress(QpuError):
            munge.encode(str(self.munge_socket))
            return True
        return not self._daemons.alive(["munged"])


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
        supervisor = [sys.executable, "-m", "tests.support.lab_supervisor"]
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
        if path.is_dir():  # "run" is a link to one
            shutil.rmtree(path.resolve(), ignore_errors=True)
        if path.name != "lock":
            with suppress(FileNotFoundError):
                path.unlink()


def _kill_all_steps(folder: Path) -> None:
    # of a lab whose supervisor was killed, and the daemons with it
    for log in folder.rglob("*.log"):
        kill_steps(log)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument("--folder", type=Path, default=ROOT / ".lab")
    told = "Debian to run it on, such as trixie: see tests/debian.py (default: this machine)"
    parser.add_argument("--release", help=told)
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


def _elsewhere(release: str) -> int:
    """Do the same on another release of Debian, and tell how to get there."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--release")
    _, words = parser.parse_known_args()
    if not any(word.startswith("--folder") for word in words):
        words += ["--folder", f".lab-{release}"]
    script = 'make --silent .venv/installed && exec .venv/bin/python -m tests.lab "$@"'
    code = debian.run(release, "sh", "-c", script, "sh", *words)
    if code == 0 and "stop" not in words:
        print(f"all of that after: python3 -m tests.debian {release}")
    return code


def main() -> None:
    """Start or stop a lab that stays, or say whether it runs."""
    arguments = _arguments()
    if arguments.release:
        try:
            sys.exit(_elsewhere(arguments.release))
        except debian.DebianError as error:
            sys.exit(str(error))
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
