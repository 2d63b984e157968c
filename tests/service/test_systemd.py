"""The shipped unit under a real systemd, booted in namespaces of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.service.http.tokens import token_entry
from tests.support.folders import ROOT
from tests.support.service import example_bqm
from tests.support.waiting import until

pytestmark = pytest.mark.process

UNSHARE = "unshare --pid --mount --uts --ipc --cgroup --fork --kill-child".split()
SYSTEMD = Path("/lib/systemd/systemd")
# A scratch copy of the root file system, with what systemd needs around it. Units that
# would look after the machine are masked.
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
root=$1/root
mount -t proc proc "$root/proc"
mount -o bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount -o bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
rm -rf "$root/etc/systemd/system" "$root/opt/sfq" "$root/var/lib/private/sfq"
mkdir -p "$root/etc/systemd/system" "$root/etc/sfq" "$root/opt" \\
    "$root/run/systemd/system" "$root/run/systemd/system-generators"
for generator in /lib/systemd/system-generators/*; do
    ln -s /dev/null "$root/run/systemd/system-generators/${generator##*/}"
done
for unit in modules-load sysctl sysusers tmpfiles-setup tmpfiles-setup-dev udevd \\
    udev-trigger random-seed update-utmp machine-id-commit; do
    ln -s /dev/null "$root/run/systemd/system/systemd-$unit.service"
done
ln -s "$2" "$root/opt/sfq"
shift
# a clone or a Python below /tmp, whose place the tmpfs above has taken
for folder; do
    case $folder in /tmp/*)
        mkdir -p "$root$folder"
        mount -o rbind "$folder" "$root$folder"
    esac
done
mount --make-rshared "$root"
exec env -i container=test PATH="$PATH" chroot "$root" /lib/systemd/systemd --system \\
    --unit=basic.target --log-target=journal --show-status=false
"""
FOLDERS = [sys.prefix, sys.base_prefix, str(ROOT)]
# The unit's ProtectHome and PrivateTmp hide the folders of users, and with them a clone. A
# folder is bound from the host's tree, whatever hides it in the unit's. Tests run beside
# others, and a start takes longer than on a machine that serves.
DROP_IN = f"""
[Service]
SupplementaryGroups=sfq
ProtectHome=tmpfs
TimeoutStartSec=150
BindReadOnlyPaths={" ".join(FOLDERS)}
"""
CONFIGURATION = """
listen: {socket: /run/sfq/qpu.sock}
state: /var/lib/sfq
auth: {mode: token, tokens: tokens.yml}
device: {time_scale: 0}
"""


class Host:
    """A systemd that has booted."""

    def __init__(self, folder: Path) -> None:
        mounts = map(str.split, Path("/proc/mounts").read_text().splitlines())
        groups = [where for _, where, kind, *_ in mounts if kind == "cgroup2"]
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line[4:] for line in lines if line.startswith("0::/"))
        self._group = Path(groups[0], own, f"sfq-test-{os.getpid()}")
        self._group.mkdir()
        self._boot = subprocess.Popen(
            [
                *("sh", "-c", 'echo $$ > "$1"; shift; exec "$@"', "sh"),
                str(self._group / "cgroup.procs"),
                *(*UNSHARE, "sh", "-c", BOOT, "sh", str(folder), *FOLDERS),
            ]
        )

    @property
    def pid(self) -> int | None:
        """The first process there, as this machine counts."""
        thread = f"/proc/{self._boot.pid}/task/{self._boot.pid}"
        children = Path(thread, "children").read_text().split()
        return int(children[0]) if children else None

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def is_up(self) -> bool:
        assert self._boot.poll() is None, "it has ended"
        ready = self.pid and (self.root / "run/systemd/private").exists()
        return bool(ready) and self.run("systemctl", "is-system-running") == "running"

    def run(self, *command: str) -> str:
        """Run a command there, and return what it prints."""
        enter = ("nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-r", "-w")
        done = subprocess.run(
            [*enter, *command], stdout=subprocess.PIPE, check=False, text=True
        )
        return done.stdout.strip()

    def start(self) -> None:
        """Start the service; it is up when this returns."""
        self.run("systemctl", "start", "sfq-serve")
        told = self.run("journalctl", "-o", "cat")
        assert self.run("systemctl", "is-active", "sfq-serve") == "active", told

    def stop(self) -> None:
        """End all of its processes, and leave nothing behind."""
        self._boot.send_signal(signal.SIGKILL)
        self._boot.wait()
        groups = [Path(folder) for folder, _, _ in os.walk(self._group, topdown=False)]
        events = self._group / "cgroup.events"
        until(lambda: "populated 0" in events.read_text(), "all processes have ended")
        for group in groups:
            group.rmdir()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    if not SYSTEMD.exists() or shutil.which("unshare") is None:
        pytest.skip("systemd or unshare is not installed")
    probe = subprocess.run([*UNSHARE, "mount", "-t", "cgroup2", "none", "/mnt"])
    if probe.returncode:
        pytest.skip("this user may not make namespaces with cgroup2")
    made = Host(tmp_path)
    try:
        until(made.is_up, "systemd is up")
        yield made
    finally:
        made.stop()


def test_the_unit_serves_and_takes_tokens_back(host: Host) -> None:
    folder = host.root / "etc/sfq"
    tokens = folder / "tokens.yml"
    host.run("groupadd", "--system", "sfq")
    tokens.write_text(
        "".join(
            f"- {json.dumps(token_entry(user, f'{user}s token', admin=False))}\n"
            for user in ("ada", "bob")
        )
    )
    tokens.chmod(0o640)
    host.run("chgrp", "sfq", "/etc/sfq/tokens.yml")
    (folder / "qpu-service.yml").write_text(CONFIGURATION)
    units = host.root / "etc/systemd/system"
    shutil.copy(ROOT / "deployments/sfq-serve.service", units)
    (units / "sfq-serve.service.d").mkdir()
    (units / "sfq-serve.service.d/test.conf").write_text(DROP_IN)
    host.run("systemctl", "daemon-reload")
    host.start()

    def client(user: str, **headers: str) -> Client:
        headers["Authorization"] = f"Bearer {user}s token"
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return Client(f"unix:{host.root}/run/sfq/qpu.sock", headers)

    def status() -> str:
        return host.run("systemctl", "show", "-P", "StatusText", "sfq-serve")

    # a job is computed within the unit's limits
    lease = str(client("ada").request("POST", "/v1/leases", {}).json()["id"])
    body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": "a"}
    under = client("ada", X_SFQ_Lease=lease)
    job = under.request("POST", "/v1/jobs", body).json()["id"]
    path = f"/v1/jobs/{job}?wait=30"
    assert client("ada").request("GET", path).json()["state"] == "Completed"

    # a token that is taken back is invalid at once
    assert client("bob").request("GET", "/v1/jobs").status == 200
    host.run("sed", "-i", "/bob/d", "/etc/sfq/tokens.yml")
    assert client("bob").request("GET", "/v1/jobs").status == 401
    assert client("ada").request("GET", "/v1/jobs").status == 200

    host.run("systemctl", "reload", "sfq-serve")
    until(lambda: status() == "reloaded the configuration", "a reload")
    (folder / "qpu-service.yml").write_text(f"vqpus: many\n{CONFIGURATION}")
    host.run("systemctl", "reload", "sfq-serve")
    until(lambda: "vqpus" in status(), "a reload that is refused")
    assert host.run("systemctl", "is-active", "sfq-serve") == "active"
    (folder / "qpu-service.yml").write_text(CONFIGURATION)

    # a backup that root has restored
    sfq = ("/opt/sfq/bin/sfq", "admin", "backup", "/root/backup")
    host.run(*sfq, "--state", "/var/lib/sfq")
    host.run("systemctl", "stop", "sfq-serve")
    state = "/var/lib/sfq/service.sqlite"
    host.run("install", "-m", "600", "/root/backup", state)
    host.run("chown", "--reference=/var/lib/sfq", state)
    host.start()
    assert client("ada").request("GET", path).json()["state"] == "Completed"
