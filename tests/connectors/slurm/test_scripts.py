"""The scripts leave marks that tell how they ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sf_quantum.connectors.slurm import scripts
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.process


def start(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    return run(tmp_path, scripts.job(str(tmp_path), "key", body))


def run(folder: Path, text: str, **variables: str) -> subprocess.Popen[str]:
    """Run a script in a group of its own; commands in the folder are Slurm's."""
    path = folder / "script"
    path.write_text(text)
    own = {
        "SLURM_JOB_ID": "5",
        "SLURM_CLUSTER_NAME": "b",
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    return subprocess.Popen(
        ["sh", path],
        env={**os.environ, **own, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def mark(tmp_path: Path) -> scripts.JobMark:
    (found,) = scripts.marks((tmp_path / "key.mark").read_text())
    return found


@pytest.mark.parametrize("code", [0, 3])
def test_the_mark(tmp_path: Path, code: int) -> None:
    began = time.time()
    with start(tmp_path, f"#!/bin/bash -e\necho out\nexit {code}") as process:
        assert process.communicate()[0] == "out\n"
    assert process.returncode == code
    found = mark(tmp_path)
    assert (found.key, found.slurm_job, found.exit_code) == ("key", "5;b", code)
    assert found.ended is not None
    assert began <= found.started <= found.ended <= time.time()


def test_a_second_submission_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "key.lock").write_text("4\n")
    with start(tmp_path, "#!/bin/sh\necho out") as process:
        assert process.communicate()[0] == ""
    assert process.returncode == 0
    assert not (tmp_path / "key.mark").exists()


def test_each_task_of_an_array_runs_in_one_submission(tmp_path: Path) -> None:
    (tmp_path / "key-1.lock").write_text("4\n")
    text = scripts.task(str(tmp_path), "key", "#!/bin/sh\necho out; exit 3")
    for number, code in (("1", 0), ("2", 3), ("2", 3)):
        tasks = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": number}
        with run(tmp_path, text, **tasks) as process:
            assert process.communicate()[0] == "out\n" * bool(code)
        assert process.returncode == code
    assert (tmp_path / "key-2.lock").read_text() == "7;b\n"


@pytest.mark.parametrize(
    "command",
    [
        "trap '' TERM; (trap '' TERM; sleep 100) & echo $!; wait",
        "sleep 100 & echo $!; wait",
    ],
)
def test_the_time_limit_ends_a_command_with_its_children(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "LATE_SECONDS", 0)
    text = scripts.job(str(tmp_path), "key", f"#!/bin/sh\n{command}", seconds=1)
    with run(tmp_path, text) as process:
        # at the end of its output, no process of the job is left
        child = process.communicate()[0]
    assert process.returncode == scripts.LATE
    assert mark(tmp_path).exit_code == scripts.LATE
    assert not Path(f"/proc/{child.strip()}").exists()
    assert not (tmp_path / "key.late").exists()


def test_a_signal_for_the_command_ends_no_time_limit(tmp_path: Path) -> None:
    body = "#!/bin/sh\ntrap 'echo told' USR1\necho begun\nwhile :; do sleep 0.05; done"
    script = scripts.job(str(tmp_path), "key", body, seconds=2)
    with run(tmp_path, script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGUSR1)
        assert process.stdout.readline().strip() in ("told", "User defined signal 1")
        assert process.wait(SECONDS) == scripts.LATE


def test_a_command_within_its_time_limit(tmp_path: Path) -> None:
    text = scripts.job(str(tmp_path), "key", "#!/bin/sh\nexit 3", seconds=1000)
    with run(tmp_path, text) as process:
        assert process.communicate()[0] == ""
    assert process.returncode == 3
    assert mark(tmp_path).exit_code == 3


def full(folder: Path, *names: str) -> None:
    """Let there be no room for these files."""
    for name in names:
        (folder / name).symlink_to("/dev/full")


def command(folder: Path, name: str, *lines: str) -> None:
    """Make a command that tells how often it was run, in a file beside it."""
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", 'echo "$@" >>$0.ran', *lines, ""]))
    path.chmod(0o755)


def test_a_lock_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "key.lock").touch()
    with start(tmp_path, "#!/bin/sh\necho out") as process:
        assert process.communicate()[0] == ""
    assert process.returncode == 74
    gone = scripts.job(str(tmp_path / "gone"), "key", "#!/bin/sh\necho out")
    with run(tmp_path, gone) as process:
        assert "out\n" not in process.communicate()[0]
    assert process.returncode == 74


def test_half_a_script_is_not_run(tmp_path: Path) -> None:
    full(tmp_path, "key.sh")
    with start(tmp_path, "#!/bin/sh\necho out") as process:
        assert "out\n" not in process.communicate()[0]
    assert process.returncode == 74


@pytest.mark.parametrize("file", ["key.step", "key.began"])
def test_half_a_step_is_not_run(tmp_path: Path, file: str) -> None:
    full(tmp_path, file)
    command(tmp_path, "srun")
    with run(
        tmp_path,
        scripts.srun(str(tmp_path), "key", slurm_job="5", options="", body="echo"),
    ) as process:
        process.wait(SECONDS)
    assert process.returncode == 74
    assert not (tmp_path / "srun.ran").exists()


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return path.read_text()


def test_a_step_that_could_not_tell_of_its_start_has_a_mark(tmp_path: Path) -> None:
    command(tmp_path, "srun", f": >{tmp_path}/key.began", "exit 74")
    with run(
        tmp_path,
        scripts.srun(str(tmp_path), "key", slurm_job="5", options="", body="echo"),
    ):
        (found,) = scripts.marks(wait_for(tmp_path / "key.mark"))
    assert found == scripts.JobMark("key", "5", 74, 0.0, None, 0)


def test_a_step_whose_mark_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    body = scripts.step(
        str(tmp_path), "key", "#!/bin/sh", streams=">&1", holder="holder", group=None
    )
    (tmp_path / "holder.env").touch()
    full(tmp_path, "key.tmp")
    with run(tmp_path, body) as process:
        process.wait(SECONDS)
    # which is what the login node's `srun` looks for
    assert float((tmp_path / "key.began").read_text()) > 0


def test_srun_is_told_nothing_by_an_outer_job(tmp_path: Path) -> None:
    command(tmp_path, "srun", "env >$0.env; mv $0.env $0.done")
    text = scripts.srun(str(tmp_path), "key", slurm_job="5", options="", body="echo")
    outer = {"SRUN_DEBUG": "3", "SALLOC_QOS": "x", "SLURM_QOS": "x", "SLURM_CONF": "c"}
    with run(tmp_path, text, **outer):
        said = wait_for(tmp_path / "srun.done")
    words = [line for line in said.splitlines() if line.split("=")[0] in outer]
    assert words == ["SLURM_CONF=c"]


def test_the_batch_script_of_slurm_26_05_is_no_step(tmp_path: Path) -> None:
    text = scripts.holder(str(tmp_path), "key", [], orphan_seconds=60)
    with run(tmp_path, text, SLURM_STEP_ID="-5") as process:
        assert wait_for(tmp_path / "key.up") == ""
        process.terminate()
    assert mark(tmp_path).exit_code is None


@pytest.mark.parametrize("file", ["key.env", "key.tmp"])
def test_a_hold_that_can_tell_nothing_fails(tmp_path: Path, file: str) -> None:
    full(tmp_path, file)
    with run(
        tmp_path, scripts.holder(str(tmp_path), "key", [], orphan_seconds=60)
    ) as process:
        process.wait(SECONDS)
    assert process.returncode == 74
    assert not (tmp_path / "key.mark").exists()


def test_a_second_hold_waits_for_the_end_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "PAUSE_SECONDS", 0.02)
    listed = tmp_path / "steps"
    listed.write_text("5.0 key-hold\n5.2 job\n5.10 key-hold\n")
    command(tmp_path, "squeue", f"cat {listed}")
    command(tmp_path, "scontrol")
    # Slurm's controller is away for a while
    command(tmp_path, "scancel", "[ $(wc -l <$0.ran) -gt 2 ]")
    text = scripts.holder(str(tmp_path), "key", [], orphan_seconds=60)
    with run(tmp_path, text, SLURM_STEP_ID="10") as process:
        asked = tmp_path / "squeue.ran"
        wait_for(asked)
        while len(asked.read_text().splitlines()) < 3:
            time.sleep(0.01)
        assert not (tmp_path / "key.up").exists()
        # a file that is read is not written
        (tmp_path / "new").write_text("5.2 job\n5.10 key-hold\n")
        (tmp_path / "new").rename(listed)
        # nobody gives a sign of life
        assert process.wait(SECONDS) == 0
    assert mark(tmp_path).exit_code is None
    assert (tmp_path / "scancel.ran").read_text() == "5\n" * 3


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
        process.wait(SECONDS)
    assert process.returncode == code
    assert not {"key.mark", "key.sh"} & {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["date", "wc"])
@pytest.mark.parametrize("number", ["TERM", "HUP", "USR1"])
def test_a_mark_is_whole_though_a_signal_comes(
    tmp_path: Path, name: str, number: str
) -> None:
    """Slurm sends it to each process of the job, also to those that the script starts."""
    real = shutil.which(name)
    # `date` is first asked for the time of the start
    once = f"[ ! -e {tmp_path}/key.sh ] || kill -{number} 0"
    command(tmp_path, name, once, f'exec {real} "$@"')
    (tmp_path / "key.out").write_text("out")
    script = scripts.job(str(tmp_path), "key", "#!/bin/sh\n")
    with run(tmp_path, script) as process:
        assert process.wait(SECONDS) == 0
    found = mark(tmp_path)
    assert found.ended is not None
    assert found.output_bytes == 3


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
        assert process.wait(SECONDS) == 8
    assert mark(tmp_path).exit_code == 8


def test_directives() -> None:
    comments = " \t\n# so\n   # indented\n\t#SBATCH --array=2\n"
    body = f"#!/bin/sh\n{comments}#SBATCH -o out -J name\necho\n#SBATCH --array=1\n"
    assert scripts.directives(body) == ["#SBATCH -o out -J name"]
    assert scripts.has_option(body, "-o", "--output")
    assert scripts.has_option(body, "-J", "--job-name")
    assert not scripts.has_option(body, "-a", "--array")
    assert scripts.job("/spool", "key", body).startswith(
        "#!/bin/sh\n#SBATCH -o out -J name\n"
    )
