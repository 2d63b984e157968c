"""Another release of Debian on this machine: ``python3 -m tests.debian trixie make test``.

``other`` stands for trixie (Debian 13), or for bookworm (Debian 12) where trixie runs.
The release is installed once, in a folder of the user's cache. A command runs in it with
this clone as ``/sf_quantum``, and with a virtual environment of its own. Mounts are seen by
the command and its children alone, and are gone with the last of them.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL

from tests.support.folders import ROOT

#: where commands see the clone
INSIDE = "/sf_quantum"
#: stands for a release that this machine does not run
OTHER = "other"
_NEEDED = ("debootstrap", "unshare", "chroot", "mount")
# Before there are packages: a root that is cut short is made anew, so dpkg need not wait for
# the disk after each file, and what packages only recommend is half of all.
_SETTINGS = {
    "etc/dpkg/dpkg.cfg.d/unsafe-io": "force-unsafe-io\n",
    "etc/apt/apt.conf.d/recommends": 'APT::Install-Recommends "false";\n',
    # a mirror may keep a snapshot of a release that is not out, whose signature is good for a week
    "etc/apt/apt.conf.d/snapshot": 'Acquire::Check-Valid-Until "false";\n',
    # no package starts a service, since the machine's own may run
    "usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",
}
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_DEBIAN = "http://deb.debian.org/debian"
_PIP_CACHE = "/var/cache/pip"
# The mounts of a root, whose folder is $1, with the clone $2 and pip's cache $3. Its /dev has
# the few devices that programs need: who removes the root can harm no other.
_MOUNTS = f"""
set -e
root=$1 clone=$2
# StreamFlow looks for the mount of /
mount --rbind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0 1 2; do
  ln -s /proc/self/fd/$number "$root/dev/$(echo stdin stdout stderr | cut -d ' ' -f $((number + 1)))"
done
for file in /etc/hosts /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ ! -e "$file" ] || [ ! -d "$root${{file%/*}}" ] || cp "$file" "$root$file"
done
mkdir -p "$root{INSIDE}" "$root/opt/sf_quantum" "$clone/.venv"
mount --bind "$clone" "$root{INSIDE}"
mount --bind "$root/opt/sf_quantum" "$root{INSIDE}/.venv"
# many packages are the same for each Python
mkdir -p "$3" "$root{_PIP_CACHE}"
mount --bind "$3" "$root{_PIP_CACHE}"
shift 3
exec chroot "$root" /bin/sh -ec 'cd {INSIDE}; exec "$@"' sh "$@"
"""


class DebianError(Exception):
    """The release cannot be installed here."""


def run(release: str, *command: str) -> int:
    """Run a command in a release, which is installed first if need be.

    :returns: its exit code
    :raises DebianError: if the release cannot be installed
    """
    if os.getuid() != 0:
        raise DebianError("another release of Debian needs root: try it with sudo")
    if lacking := [name for name in _NEEDED if shutil.which(name) is None]:
        packages = "debootstrap mount util-linux"
        raise DebianError(f"{lacking[0]} is not installed (apt-get install {packages})")
    if subprocess.run(["unshare", "--mount", "true"], stderr=DEVNULL).returncode:
        raise DebianError("another release of Debian needs mounts, which fail here")
    root = _installed(_other() if release == OTHER else release)
    # a terminal's signals reach the command itself
    return subprocess.run(entering(root, command), env=_environment()).returncode


def _other() -> str:
    try:
        codename = platform.freedesktop_os_release().get("VERSION_CODENAME")
    except OSError:
        codename = None
    return "bookworm" if codename == "trixie" else "trixie"


def _installed(release: str) -> Path:
    """Return the folder of a release, complete with what the tests need."""
    root = _cache() / "sf_quantum" / release
    root.parent.mkdir(parents=True, exist_ok=True)
    with open(root.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _bootstrap(release, root)
        # the service's page is the same in each
        install = [".ci/install", "--without-browser"]
        _check(entering(root, install), f"{root}: packages are missing")
    return root


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _bootstrap(release: str, root: Path) -> None:
    partial = root.with_suffix(".partial")
    _remove(partial)
    for name, text in _SETTINGS.items():
        file = partial / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    print(f"installing Debian {release} in {root} (some minutes)", flush=True)
    words = ["debootstrap", "--variant=minbase", release, str(partial), _mirror()]
    # A debootstrap that is older than the release has no script of its name; that of unstable
    # is the one which each new release links to.
    if not (_SCRIPTS / release).exists():
        words.append(str(_SCRIPTS / "sid"))
    # it mounts /proc in the root, and leaves it there if it is killed
    try:
        _check(
            ["unshare", "--mount", *words], f"{release}: no such release, or no network"
        )
        partial.rename(root)
    except DebianError:
        _remove(partial)
        raise


def _remove(folder: Path) -> None:
    if not folder.exists():
        return
    mounted = Path("/proc/self/mounts").read_text()
    if f" {folder}/" in mounted:
        raise DebianError(f"{folder}: something is mounted in it (findmnt -R)")
    _check(["rm", "-r", "--one-file-system", str(folder)], f"{folder} stays")


def _mirror() -> str:
    """The mirror this machine uses, if it is a Debian, and Debian's own otherwise."""
    if shutil.which("apt-get") is None:
        return _DEBIAN
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    words += ["Created-By: Packages", "Label: Debian"]
    found = subprocess.run(words, capture_output=True, text=True).stdout.split()
    return found[0] if found else _DEBIAN


def entering(root: Path, command: Sequence[str]) -> list[str]:
    """Return the words that run a command in a root."""
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNTS]
    return [*words, "sh", str(root), str(ROOT), str(_cache() / "pip"), *command]


def _environment() -> dict[str, str]:
    # the path of this machine, such as that of a virtual environment, has no meaning there
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    dropped = ("VIRTUAL_ENV", "PYTHONPATH", "TMPDIR", "MAKEFLAGS", "MAKELEVEL")
    kept = {k: v for k, v in os.environ.items() if k not in dropped}
    return {**kept, "PATH": path, "LC_ALL": "C.UTF-8", "PIP_CACHE_DIR": _PIP_CACHE}


def _check(command: list[str], otherwise: str) -> None:
    if subprocess.run(command, env=_environment()).returncode != 0:
        raise DebianError(otherwise)


def main() -> None:
    """Run a command in a release, or a shell."""
    match sys.argv[1:]:
        case [release, *command] if not release.startswith("-"):
            try:
                sys.exit(run(release, *(command or ["bash"])))
            except DebianError as error:
                sys.exit(str(error))
        case _:
            sys.exit(f"usage: python3 -m tests.debian RELEASE [COMMAND]\n\n{__doc__}")


if __name__ == "__main__":
    main()
