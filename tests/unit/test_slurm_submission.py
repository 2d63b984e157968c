"""What ``sbatch`` says, and the command that runs it once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sf_quantum.connectors.slurm import submission

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    "text",
    [
        f"{FAILED}Unable to contact slurm controller (connect failure)",
        f"{FAILED}Socket timed out on send/recv operation",
        f"{FAILED}Zero Bytes were transmitted or received",
        f"{FAILED}Resource temporarily unavailable",
        f"{FAILED}Unable to create job record, try again",
        f"{FAILED}Slurm backup controller in standby mode",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: AssocMaxSubmitJobLimit\n"
        f"{FAILED}Job violates accounting/QOS policy (job submit limit, ...)",
        f"sbatch: error: QOSGrpSubmitJobsLimit\n{FAILED}Job violates accounting/QOS policy",
    ],
)
def test_passing(text: str) -> None:
    assert submission.passing(text, 1)


@pytest.mark.parametrize(
    "text",
    [
        f"{FAILED}Invalid partition name specified",
        f"{FAILED}Invalid account or account/partition combination specified",
        f"{FAILED}Invalid generic resource (gres) specification",
        f"{FAILED}Requested node configuration is not available",
        "sbatch: error: QOSMaxWallDurationPerJobLimit\n"
        f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size ...)",
        "sh: 1: sbatch: not found",
        "",
    ],
)
def test_for_good(text: str) -> None:
    assert not submission.passing(text, 1)


def test_accepted() -> None:
    assert submission.accepted("sbatch: warning: so what\n12;cluster\n", 0) == "12"
    assert submission.accepted("12\n", 1) is None
    assert submission.accepted("", 0) is None


def test_words() -> None:
    text = f"sbatch: error: invalid  partition: nix\n{FAILED}Invalid partition name\n"
    assert submission.words(text) == (
        "invalid partition: nix; Batch job submission failed: Invalid partition name"
    )
    assert submission.words("\n") == "it said nothing"


class Commands:
    """Stand-ins for ``sbatch`` and ``squeue``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "spool").mkdir()
        self.put("sbatch", "cat >$0.got; echo >>$0.tries; echo 42")
        self.put("squeue", "true")

    def put(self, name: str, script: str) -> None:
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def submit(self) -> tuple[str, int]:
        spool = str(self._folder / "spool")
        command = submission.command(
            spool, "sfq:run:key", "key", "--mem=1", "#!/bin/sh\n'$x"
        )
        done = subprocess.run(
            ["sh", "-c", command],
            env={"PATH": f"{self._folder}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout, done.returncode

    def tries(self) -> int:
        return len((self._folder / "sbatch.tries").read_text().splitlines())


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


def test_it_submits_once(commands: Commands, tmp_path: Path) -> None:
    assert commands.submit() == ("42\n", 0)
    assert commands.submit() == ("42\n", 0)
    assert commands.tries() == 1
    assert (tmp_path / "sbatch.got").read_text() == "#!/bin/sh\n'$x\n"


def test_a_job_whose_answer_was_lost_is_found_in_the_queue(commands: Commands) -> None:
    commands.put("sbatch", "echo >>$0.tries; exit 1")
    assert commands.submit() == ("", 1)
    commands.put("squeue", "echo 'sfq:run:other 41'; echo 'sfq:run:key 43'")
    assert commands.submit() == ("43\n", 0)
    assert commands.tries() == 1


def test_a_job_whose_answer_was_lost_is_found_by_its_script(
    commands: Commands, tmp_path: Path
) -> None:
    commands.put("sbatch", "echo >>$0.tries; exit 1")
    commands.submit()
    (tmp_path / "spool/key.lock").write_text("44\n")
    assert commands.submit() == ("44\n", 0)


def test_nothing_is_submitted_again_while_the_queue_cannot_be_asked(
    commands: Commands,
) -> None:
    commands.put("sbatch", "echo >>$0.tries; exit 1")
    commands.submit()
    commands.put("squeue", "echo away >&2; exit 1")
    assert commands.submit() == ("away\n", submission.UNKNOWN)
    assert submission.passing("away\n", submission.UNKNOWN)
    assert commands.tries() == 1
