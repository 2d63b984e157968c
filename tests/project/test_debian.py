"""Another Debian in a folder: what a command in it sees, and what is left of its mounts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import debian
from tests.debian import DebianError
from tests.support.folders import ROOT

pytestmark = pytest.mark.process

# what .ci/release runs before it knows whether a release can be installed
_CI_PROGRAMS = "bash dirname python3".split()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root, whose programs are this machine's."""
    if os.getuid() != 0:
        pytest.skip("mounting needs root")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("no mounts here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = tmp_path / "root"
    for name in ("proc", "sys", "dev", "etc", "tmp"):
        (made / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "usr"):
        source = Path("/") / name
        if source.exists():
            (made / name).symlink_to(f"/machine{source.resolve()}")
    (made / "machine").mkdir()
    return made


def _run(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    words = debian.entering(root, ["sh", "-c", script])
    bound = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --rbind / "$0/machine"; exec "$@"',
    ]
    return subprocess.run(
        [*bound, str(root), *words], capture_output=True, text=True, timeout=60
    )


def test_a_command_sees_the_clone_and_few_devices(root: Path) -> None:
    done = _run(root, "pwd; cat Makefile | head -n 1; ls /dev; : >/dev/null; exit 3")
    assert done.returncode == 3, done.stderr
    where, line, *found = done.stdout.splitlines()
    assert where == debian.INSIDE
    assert line == (ROOT / "Makefile").read_text().splitlines()[0]
    assert {"null", "pts", "shm"} <= {*found}
    assert not any(name.startswith(("sd", "vd", "nvme", "loop")) for name in found)


def test_its_mounts_end_with_the_command(root: Path) -> None:
    assert _run(root, "true").returncode == 0
    assert str(root) not in Path("/proc/self/mounts").read_text()
    assert [*(root / "dev").iterdir()] == []
    # so that removing it removes nothing of this machine
    shutil.rmtree(root)
    assert Path("/dev/null").exists()
    assert (ROOT / "Makefile").exists()


def test_the_cache_of_pip_is_shared(root: Path, tmp_path: Path) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/wheel").touch()
    done = _run(root, "ls /var/cache/pip")
    assert done.stdout == "wheel\n", done.stderr


@pytest.mark.parametrize(
    ("codename", "other"), [("trixie", "bookworm"), ("bookworm", "trixie")]
)
def test_other_is_a_release_that_is_not_here(
    codename: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("debootstrap needs root")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        "platform.freedesktop_os_release", lambda: {"VERSION_CODENAME": codename}
    )
    monkeypatch.setattr(debian, "_bootstrap", lambda release, root: root.mkdir())
    # an empty root, in which no command can run
    with pytest.raises(DebianError, match=f"{other}: packages are missing"):
        debian.run(debian.OTHER, "true")


def test_ci_says_why_no_other_release_is_tested(tmp_path: Path) -> None:
    for name in _CI_PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        (tmp_path / name).symlink_to(program)
    done = subprocess.run(
        [ROOT / ".ci/release", "install"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    why = "debootstrap is not installed" if os.getuid() == 0 else "needs root"
    assert why in done.stdout.splitlines()[-1]


def test_a_release_that_does_not_exist_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("debootstrap needs root")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DebianError, match="moon: no such release, or no network"):
        debian.run("moon", "true")
    # the lock stays, so that whoever waits for it waits for the same file
    assert os.listdir(tmp_path / "sf_quantum") == ["moon.lock"]
