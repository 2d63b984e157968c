"""How ``make`` installs, what it says where it cannot, and for what it waits."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from tests.support.folders import ROOT

pytestmark = pytest.mark.process

# a virtual environment whose pip fails
PYTHON = """\
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "%s" >&2\\nexit 1\\n' "$WHY" >"$3/bin/python"
chmod +x "$3/bin/python"
"""


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("ERROR: No matching distribution found for hatchling>=1.27", True),
        ("ERROR: No space left on device", False),
    ],
)
def test_without_an_index_it_tells_how_to_install(
    tmp_path: Path, why: str, told: bool
) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    names = [f"VENV={tmp_path}/venv", f"PYTHON={python}", f"WHY={why}"]
    done = subprocess.run(
        ["make", "-C", str(ROOT), *names, f"{tmp_path}/venv/installed-run"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert why in done.stdout
    assert ("'Install it' in README.md tells" in done.stdout) == told
    assert "## Install it" in (ROOT / "README.md").read_text()


def test_a_virtual_environment_that_is_there_keeps_its_python(tmp_path: Path) -> None:
    present = tmp_path / "venv/bin/python"
    present.parent.mkdir(parents=True)
    present.write_text("#!/bin/sh\n")
    present.chmod(0o755)
    other = tmp_path / "python"
    other.write_text(PYTHON)
    other.chmod(0o755)
    names = [f"VENV={tmp_path}/venv", f"PYTHON={other}"]
    target = tmp_path / "venv/installed-run"
    done = subprocess.run(["make", "-C", str(ROOT), *names, str(target)])
    assert done.returncode == 0
    assert present.read_text() == "#!/bin/sh\n"
    assert target.exists()


def _present(folder: Path, python: str) -> list[str]:
    """Make an environment whose Python is a script, and make's variables for it."""
    present = folder / "venv/bin/python"
    present.parent.mkdir(parents=True)
    present.write_text(f"#!/bin/sh\n{python}\n")
    present.chmod(0o755)
    return ["make", "-C", str(ROOT), f"VENV={folder}/venv"]


def test_an_installation_waits_for_what_runs(tmp_path: Path) -> None:
    make, target = _present(tmp_path, "exit 0"), tmp_path / "venv/installed-run"
    with (tmp_path / "venv/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with subprocess.Popen(
            [*make, str(target)], stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            assert any(line.startswith("waiting for") for line in running.stdout)
            assert not target.exists()
            fcntl.flock(lock, fcntl.LOCK_UN)
            running.communicate()
    assert running.returncode == 0
    assert target.exists()


@pytest.mark.parametrize("target", ["run", "benchmark", "lab", "lab-stop"])
def test_what_runs_holds_the_lock(tmp_path: Path, target: str) -> None:
    make = _present(tmp_path, f"! flock --nonblock {tmp_path}/venv/lock true")
    for mark in ("installed-run", "installed"):
        (tmp_path / "venv" / mark).touch()
    done = subprocess.run([*make, f"KERNELS={ROOT}/Makefile", target])
    assert done.returncode == 0
