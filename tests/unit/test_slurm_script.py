"""The scripts leave marks that tell how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sf_quantum.connectors.slurm import options, script


def start(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    path = tmp_path / "script"
    path.write_text(script.job(str(tmp_path), "key", body))
    return subprocess.Popen(
        ["sh", path],
        env={**os.environ, "SLURM_JOB_ID": "5"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def mark(tmp_path: Path) -> script.Mark:
    (found,) = script.marks((tmp_path / "key.mark").read_text())
    return found


@pytest.mark.parametrize("code", [0, 3])
def test_the_mark(tmp_path: Path, code: int) -> None:
    began = time.time()
    with start(tmp_path, f"#!/bin/bash -e\necho out\nexit {code}") as process:
        assert process.communicate()[0] == "out\n"
    assert process.returncode == code
    found = mark(tmp_path)
    assert (found.key, found.slurm_job, found.exit_code) == ("key", "5", code)
    assert found.ended is not None
    assert began <= found.started <= found.ended <= time.time()
    assert not (tmp_path / "key.sh").exists()


def test_a_second_submission_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "key.lock").write_text("4\n")
    with start(tmp_path, "#!/bin/sh\necho out") as process:
        assert process.communicate()[0] == ""
    assert process.returncode == 0
    assert not (tmp_path / "key.mark").exists()


@pytest.mark.parametrize(
    ("body", "code"),
    [("", -signal.SIGTERM), ("trap 'exit 0' TERM", 0)],
    ids=["dies", "ends-well"],
)
def test_one_that_is_ended_leaves_no_mark(tmp_path: Path, body: str, code: int) -> None:
    with start(
        tmp_path, f"#!/bin/sh\n{body}\necho begun\nsleep 60 >/dev/null & wait"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        process.wait(10)
    assert process.returncode == code
    assert not (tmp_path / "key.mark").exists()


def test_signals_reach_the_command(tmp_path: Path) -> None:
    body = (
        "#!/bin/sh\ntrap 'exit 8' USR1; trap 'echo interrupted' INT\necho begun\n"
        "while :; do sleep 0.05; done"
    )
    with start(tmp_path, body) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(10) == 8
    assert mark(tmp_path).exit_code == 8


def test_directives() -> None:
    body = "#!/bin/sh\n#SBATCH -o out -J name\n\n# so\necho\n#SBATCH --array=1\n"
    assert options.directives(body) == ["#SBATCH -o out -J name"]
    assert options.says(body, "-o", "--output")
    assert options.says(body, "-J", "--job-name")
    assert not options.says(body, "-a", "--array")
    assert script.job("/spool", "key", body).startswith(
        "#!/bin/sh\n#SBATCH -o out -J name\n"
    )
