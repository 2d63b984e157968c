"""Two runs at once: refused iff they share a folder of outputs or a database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sf_quantum.errors import InputError
from sf_quantum.workflows.locks import refuse_sharing

# The program waits, as a driver does, with the descriptors of its run.
DRIVER = "import sys; sys.stdin.read()"


def write(folder: Path, name: str, connection: str) -> Path:
    database = f"{{type: sqlite, config: {{connection: '{connection}'}}}}"
    (folder / name).write_text(f"version: v1.0\ndatabase: {database}\n")
    return folder / name


def test_what_two_runs_share_is_refused_in_one_line(tmp_path: Path) -> None:
    one, other = (write(tmp_path, f"{n}.yml", f"{n}.db") for n in ("one", "other"))
    copy = write(tmp_path, "copy.yml", "one.db")
    out, free = tmp_path / "out", tmp_path / "free"
    with refuse_sharing(one, out):
        for file, outdir, shared in (
            (one, out, f"another run uses {tmp_path}/one.db and {out}; wait"),
            (copy, free, f"another run uses {tmp_path}/one.db; wait"),
            (other, out, f"another run uses {out}; wait until it has ended, or give"),
        ):
            with (
                pytest.raises(InputError, match=shared) as refusal,
                refuse_sharing(file, outdir),
            ):
                pass
            assert "\n" not in str(refusal.value)
        with refuse_sharing(other, free):
            pass
    with refuse_sharing(one, out):
        pass


def test_databases_in_memory_are_not_shared(tmp_path: Path) -> None:
    file = write(tmp_path, "one.yml", ":memory:")
    with refuse_sharing(file, tmp_path / "a"), refuse_sharing(file, tmp_path / "b"):
        assert not (tmp_path / ":memory:.lock").exists()


def test_runs_without_a_database_share_streamflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (file := tmp_path / "one.yml").write_text("version: v1.0\n")
    with (
        refuse_sharing(file, tmp_path / "a"),
        pytest.raises(InputError, match=r"sqlite\.db; wait"),
        refuse_sharing(file, tmp_path / "b"),
    ):
        pass


@pytest.mark.process
def test_a_driver_holds_the_locks_until_it_is_killed(tmp_path: Path) -> None:
    file, out = write(tmp_path, "one.yml", "one.db"), tmp_path / "out"
    with refuse_sharing(file, out) as locks:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, pass_fds=locks
        )
    with driver:
        with (
            pytest.raises(InputError, match="another run uses"),
            refuse_sharing(file, out),
        ):
            pass
        driver.kill()
        driver.wait()
        with refuse_sharing(file, out):
            pass


def test_a_folder_that_cannot_be_written_is_not_shared(tmp_path: Path) -> None:
    file = write(tmp_path, "one.yml", ":memory:")
    (tmp_path / "file").write_text("")
    with refuse_sharing(file, tmp_path / "file" / "out") as locks:
        assert locks == []
