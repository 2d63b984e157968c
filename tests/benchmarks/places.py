"""Whether ``make test`` passes in clones at five places, and what it leaves there.

    python -m tests.benchmarks.places [--only NAME ...] [TESTS ...]

It needs root, since each clone has a ``/tmp`` of its own (by a mount namespace), which is
compared before and after, and one belongs to an unprivileged user. The packages are those
of the environment that runs this; only the clone itself is installed. TESTS is what the
Makefile calls so; by default, all tests run.

Told are how each run ended, what is new in its ``/tmp``, in the clone (as git sees it) and
among the cgroups, and the processes that are still there.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
USER = "nobody"
MARK = "SFQ_PLACE"
# A Unix socket below a longer path cannot be bound.
SOCKET_BYTES = 108
# Those of others change all the time.
OURS = ("sfq", "slurm")
# Longest time after the run in which its processes may end.
END_SECONDS = 10.0


@dataclass(frozen=True)
class Place:
    """Where a clone is, and who tests it there.

    :param folder: of the clone, below that of the benchmark; with ``tmp`` first, it is
        below ``/tmp``
    :param before: what the shell does before ``make``
    :param shell: a shell that reads its command after ``-c``
    :param user: an unprivileged user, whose home the folder above the clone then is
    :param ignored: a signal that is ignored
    """

    name: str
    folder: str
    before: str = "umask 022"
    shell: tuple[str, ...] = ("/bin/sh",)
    user: str | None = None
    ignored: signal.Signals | None = None


PLACES = (
    Place("below /tmp", "tmp/clone"),
    Place("a path with a blank", "a folder/a clone"),
    Place("another user's home", "home/clone", "umask 077", user=USER),
    Place(
        "csh, SIGQUIT ignored",
        "csh/clone",
        shell=("/bin/csh", "-f"),
        ignored=signal.SIGQUIT,
    ),
    Place("a deep path", f"{'deep/' * (SOCKET_BYTES // 5)}clone"),
)


class Clone:
    """The repository at a place.

    :param base: a folder of its own, in which ``tmp`` is the clone's ``/tmp``
    """

    def __init__(self, place: Place, base: Path) -> None:
        self.place = place
        self.base = base
        self.temporary = base / "tmp"
        self.folder = base / place.folder
        self.mark = uuid.uuid4().hex

    def make(self) -> None:
        """Clone the commit that is checked out, with an environment that has its packages."""
        self.base.chmod(0o755)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.temporary.mkdir(exist_ok=True)
        self.temporary.chmod(0o1777)
        _run("git", "clone", "--quiet", str(ROOT), str(self.folder))
        environment = self.folder / ".venv"
        _run(python(), "-m", "venv", "--without-pip", str(environment))
        packages = sysconfig.get_path("purelib")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = environment / "lib" / version / "site-packages"
        (site / "packages.pth").write_text(f"{packages}\n")
        for script in Path(sysconfig.get_path("scripts")).iterdir():
            copied = environment / "bin" / script.name
            if not copied.exists() and _is_of_python(script):
                _, _, rest = script.read_text().partition("\n")
                # as pip begins scripts whose path is long, or has a blank
                begin = f"#!/bin/sh\n'''exec' \"{environment}/bin/python\" \"$0\" \"$@\"\n' '''\n"
                copied.write_text(f"{begin}{rest}")
                copied.chmod(0o755)
        _run(
            *(str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"),
            *("--no-deps", "--root-user-action=ignore"),
            *("--editable", str(self.folder)),
        )
        for done in ("installed", "installed-run"):
            (environment / done).touch()
        if self.place.user is not None:
            self._give(pwd.getpwnam(self.place.user))

    def _give(self, user: pwd.struct_passwd) -> None:
        home = self.folder.parent
        for path in (home, *home.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        home.chmod(0o700)

    def test(self, tests: str) -> int:
        """Run the tests.

        :returns: how ``make`` ended
        """
        place = self.place
        make = f"exec make test TESTS={shlex.quote(tests)}"
        if place.ignored is not None:  # which csh itself does not pass on
            trap = f"trap '' {place.ignored.name.removeprefix('SIG')}; {make}"
            make = f"exec /bin/sh -c {shlex.quote(trap)}"
        words = [*place.shell, "-c", f"{place.before}; {make}"]
        variables = {"SHELL": place.shell[0], MARK: self.mark}
        if place.user is not None:
            user = pwd.getpwnam(place.user)
            ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
            words = ["setpriv", *ids, *words]
            variables |= {"HOME": str(self.folder.parent), "USER": place.user}
            variables |= {"LOGNAME": place.user}
        # the clone may be below what is now /tmp
        folder = self.folder
        if folder.is_relative_to(self.temporary):
            folder = Path("/tmp") / folder.relative_to(self.temporary)
        inside = (
            f"mount --bind {shlex.quote(str(self.temporary))} /tmp && "
            f"cd {shlex.quote(str(folder))} && exec {shlex.join(words)}"
        )
        with open(self.base / "log", "wb") as log:
            return subprocess.run(
                ["unshare", "--mount", "--propagation=private", "sh", "-c", inside],
                env={**_environment(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            ).returncode

    def left(self) -> Iterator[str]:
        """What the run has left."""
        known = {self.folder, *self.folder.parents}
        for path in sorted(self.temporary.iterdir()):
            if path not in known:
                yield f"/tmp/{path.name}"
        git = ("git", "-c", "safe.directory=*", "-C", str(self.folder), "status")
        told = subprocess.run([*git, "--porcelain"], capture_output=True, text=True)
        yield from told.stdout.splitlines()
        deadline = time.monotonic() + END_SECONDS
        while (processes := [*self._processes()]) and time.monotonic() < deadline:
            time.sleep(0.2)
        yield from processes

    def _processes(self) -> Iterator[str]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                marked = process.environ().get(MARK) == self.mark
                if marked or any(str(self.base) in word for word in words):
                    yield f"process {process.pid}: {shlex.join(words)[:120]}"


def python() -> str:
    """An interpreter of this version, which other users can run if there is one."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    system = shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin")
    return system or os.path.realpath(sys.executable)


def cgroups() -> set[str]:
    """The cgroups that may be ours."""
    return {
        str(path)
        for path in Path("/sys/fs/cgroup").rglob("*/")
        if any(name in path.name for name in OURS)
    }


def _environment() -> dict[str, str]:
    kept = ("PATH", "LANG", "HOME", "USER", "LOGNAME", "TERM")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    own = sysconfig.get_path("scripts")
    parts = [part for part in variables["PATH"].split(os.pathsep) if part != own]
    return {**variables, "PATH": os.pathsep.join(parts)}


def _is_of_python(script: Path) -> bool:
    with open(script, "rb") as file:
        return script.is_file() and b"python" in file.readline(200)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def trial(place: Place, tests: str) -> list[str]:
    """Test a clone at a place.

    :returns: what is wrong
    """
    before = cgroups()
    base = Path(tempfile.mkdtemp(prefix="sfq-place-", dir="/var/tmp"))
    clone = Clone(place, base)
    try:
        clone.make()
        code = clone.test(tests)
        lines = (base / "log").read_text(errors="replace").splitlines()
        print(f"{place.name}: {lines[-1] if lines else 'no output'}", flush=True)
        wrong = [] if code == 0 else [f"make ended with {code}", *lines[-40:]]
        return [*wrong, *clone.left(), *sorted(cgroups() - before)]
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Test the clones, one after the other, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", metavar="TESTS")
    parser.add_argument(
        "--only", action="append", choices=[place.name for place in PLACES]
    )
    args = parser.parse_args(arguments)
    if os.geteuid() != 0:
        sys.exit("run it as root: each clone has a /tmp of its own")
    chosen = [one for one in PLACES if not args.only or one.name in args.only]
    if any(not Path(one.shell[0]).exists() for one in chosen):
        sys.exit("install csh, which is the shell at one of the places")
    bad = 0
    for place in chosen:
        wrong = trial(place, shlex.join(args.tests))
        bad += bool(wrong)
        for line in wrong:
            print(f"  {line}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} places: green, and nothing left")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
