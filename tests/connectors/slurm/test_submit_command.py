"""What ``sbatch`` says, and the command that runs it once."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from pathlib import Path

import pytest

from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.sbatch_options import at_once_options
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport import answers, submit_command
from sf_quantum.connectors.slurm.transport.submit_command import submission_command
from sf_quantum.files import JSON

pytestmark = pytest.mark.process

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
        "sbatch: error: 'b' can't be reached now, or it is an invalid entry for "
        "--cluster.  Use 'sacctmgr list clusters' to see available clusters.",
        f"sbatch: error: QOSGrpSubmitJobsLimit\n{FAILED}Job violates accounting/QOS policy",
    ],
)
def test_passing(text: str) -> None:
    assert answers.is_temporary(text, 1)


@pytest.mark.parametrize(
    "text",
    [
        f"{FAILED}Invalid partition name specified",
        f"{FAILED}Invalid account or account/partition combination specified",
        f"{FAILED}Invalid generic resource (gres) specification",
        f"{FAILED}Requested node configuration is not available",
        "sbatch: error: QOSMaxWallDurationPerJobLimit\n"
        f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size ...)",
        "sbatch: error: No cluster 'b' known by database.\n"
        "sbatch: error: 'b' can't be reached now, or it is an invalid entry for --cluster.",
        "sh: 1: sbatch: not found",
        "",
    ],
)
def test_for_good(text: str) -> None:
    assert not answers.is_temporary(text, 1)


def test_accepted() -> None:
    assert (
        answers.submitted_job("sbatch: warning: so what\n12;cluster\n", 0)
        == "12;cluster"
    )
    assert answers.submitted_job("12\n", 1) is None
    assert answers.submitted_job("", 0) is None


def test_words() -> None:
    text = f"sbatch: error: invalid  partition: nix\n{FAILED}Invalid partition name\n"
    assert answers.in_one_line(text) == (
        "invalid partition: nix; Batch job submission failed: Invalid partition name"
    )
    assert answers.in_one_line("\n") == "no message"


class Commands:
    """Stand-ins for ``sbatch`` and ``squeue``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pass_fds: tuple[int, ...] = ()
        (folder / "spool").mkdir()
        self.put("sbatch", "cat >$0.got; echo >>$0.tries; echo 42")
        self.put("squeue", "true")

    def put(self, name: str, script: str) -> None:
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def submit(self, at_once: str | None = None, **variables: str) -> tuple[str, int]:
        spool = str(self._folder / "spool")
        command = submission_command(
            spool,
            "key",
            "#!/bin/sh\n'$x",
            comment="sfq:run:key",
            options="--mem=1",
            at_once=at_once,
        )
        done = subprocess.run(
            ["sh", "-c", command],
            env={"PATH": f"{self._folder}:{os.environ['PATH']}", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=self.pass_fds,
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


@pytest.mark.parametrize("told", ["42", "42;cluster"])
def test_what_a_wrapper_prints_is_no_id(commands: Commands, told: str) -> None:
    script = f"echo Project 7 has 100 h left; echo '{told}'; echo Since 1999: be kind"
    commands.put("sbatch", f"cat >/dev/null; echo >>$0.tries; {script}")
    assert commands.submit() == (f"{told}\n", 0)
    # nor when it is asked again
    assert commands.submit() == (f"{told}\n", 0)
    assert commands.tries() == 1


def test_a_job_whose_answer_was_lost_is_found_in_the_queue(commands: Commands) -> None:
    commands.put("sbatch", "echo >>$0.tries; exit 1")
    assert commands.submit() == ("", 1)
    commands.put(
        "squeue", "echo '41 PENDING sfq:run:other'; echo '43 PENDING sfq:run:key'"
    )
    assert commands.submit() == ("43;\n", 0)
    assert commands.tries() == 1


def test_a_job_whose_answer_was_lost_is_found_by_its_script(
    commands: Commands, tmp_path: Path
) -> None:
    commands.put("sbatch", "echo >>$0.tries; exit 1")
    commands.submit()
    for lock in ("spool/key.lock", "spool/key-3.lock"):
        (tmp_path / lock).write_text("44\n")
        assert commands.submit() == ("44\n", 0)
        (tmp_path / lock).unlink()
        (tmp_path / "spool/key.id").unlink()
    (tmp_path / "spool/keys-3.lock").write_text("44\n")
    assert commands.submit() == ("", 1)


def test_nothing_is_resubmitted_while_the_queue_is_silent(
    commands: Commands,
) -> None:
    commands.put("sbatch", "echo >>$0.tries; exit 1")
    commands.submit()
    commands.put("squeue", "echo away >&2; exit 1")
    assert commands.submit() == ("away\n", scripts.UNKNOWN)
    assert answers.is_temporary("away\n", scripts.UNKNOWN)
    assert commands.tries() == 1


class Salloc:
    """Stand-ins for what gives free nodes at once: job 50, until it is cancelled."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        self._folder = folder
        self._commands = commands
        commands.put(
            "salloc", 'env >$0.env; echo "$@" >>$0.ran; echo Granted job allocation 50'
        )
        self.starts("$(date +%s)")
        self.queue("50 RUNNING sfq:run:key-a")
        commands.put("scancel", 'echo "$@" >>$0.ran; rm -f ${0%/*}/there')
        self.holds("touch ${0%/*}/spool/key.up")
        (folder / "there").touch()

    def starts(
        self, at: str, then: str = "cat >$0.got; echo >>$0.tries; echo 42"
    ) -> None:
        """When Slurm would start it, and what sbatch does."""
        self._commands.put(
            "sbatch",
            f"""case "$*" in *--test-only*)
              echo "sbatch: Job 9 to start at {at} using 1 processors" >&2; exit
            esac
            {then}""",
        )

    def queue(self, line: str) -> None:
        """What is in it, as long as 50 is."""
        self._commands.put(
            "squeue",
            f"""case "$*" in
              *--jobs=*) cat ${{0%/*}}/there >/dev/null 2>&1 && echo RUNNING; exit 0
            esac
            echo '{line}'""",
        )

    def holds(self, script: str) -> None:
        """What comes of the step that holds it."""
        self._commands.put("srun", f'env >$0.env; echo "$@" >>$0.ran\n{script}')

    def submit(self, **variables: str) -> str:
        text, code = self._commands.submit("--qos=q", **variables)
        assert code == 0, text
        return text

    def ran(self, name: str) -> list[str]:
        path = self._folder / f"{name}.ran"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, name: str, count: int = 1) -> None:
        deadline = time.monotonic() + 10
        while len(self.ran(name)) < count:
            assert time.monotonic() < deadline, name
            time.sleep(0.01)

    def variables(self, name: str) -> dict[str, str]:
        lines = (self._folder / f"{name}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def salloc(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Salloc:
    monkeypatch.setattr(scripts, "PAUSE_SECONDS", 0.02)
    return Salloc(commands, tmp_path)


def test_free_nodes_are_taken_at_once(salloc: Salloc, tmp_path: Path) -> None:
    outer = {"SALLOC_QOS": "x", "SLURM_JOB_ID": "1", "SRUN_X": "x", "SLURM_CONF": "c"}
    assert salloc.submit(**outer) == "50\n"
    # and are given back by a hold that has ended well
    salloc.until("scancel")
    (line,) = salloc.ran("salloc")
    assert "--comment=sfq:run:key-a " in line
    for name in ("salloc", "srun"):
        given = salloc.variables(name)
        assert {key: given.get(key) for key in outer} == {
            **dict.fromkeys(outer),
            "SLURM_CONF": "c",
        }
    assert salloc.variables("srun")["SLURM_SUBMIT_DIR"] == os.getcwd()
    assert not (tmp_path / "sbatch.tries").exists()
    # the answer was lost, but it is held
    assert salloc.submit() == "50\n"
    assert len(salloc.ran("srun")) == 1


@pytest.mark.parametrize("name", ["SBATCH_QOS", "SLURM_CLUSTERS"])
def test_sbatch_has_variables_of_its_own(salloc: Salloc, name: str) -> None:
    assert salloc.submit(**{name: "x"}) == "42\n"
    assert salloc.ran("salloc") == []
    assert salloc.ran("srun") == []


def test_what_was_not_had_at_once_is_not_the_job(
    salloc: Salloc, commands: Commands
) -> None:
    commands.put("salloc", 'echo "$@" >>$0.ran; exit 1')
    salloc.starts("$(date +%s)", "exit 1")
    assert commands.submit("") == ("", 1)
    # the record that it leaves
    (found,) = re.findall(r"--comment=(\S+)", salloc.ran("salloc")[0])
    salloc.queue(f"{found} 50 FAILED")
    commands.put("sbatch", "echo 42")
    assert salloc.submit() == "42\n"
    assert salloc.ran("srun") == []


@pytest.mark.parametrize("reason", ["Priority", "Resources", "None"])
def test_nothing_is_asked_for_at_once_that_slurm_would_refuse(
    salloc: Salloc, reason: str
) -> None:
    salloc.queue(reason)
    assert salloc.submit() == "42\n"
    assert salloc.ran("salloc") == []


@pytest.mark.parametrize("at", ["$(($(date +%s) + 60))", "soon"])
def test_nodes_that_are_not_free_are_not_asked_for_at_once(
    salloc: Salloc, at: str
) -> None:
    salloc.starts(at)
    assert salloc.submit() == "42\n"
    assert salloc.ran("salloc") == []


def test_an_allocation_whose_answer_was_lost_is_looked_for(
    salloc: Salloc, commands: Commands
) -> None:
    lost = "salloc: error: Unable to allocate resources: Socket timed out"
    commands.put("salloc", f"echo '{lost}' >&2; exit 1")
    assert commands.submit("--qos=q") == (f"{lost}\n", scripts.UNKNOWN)
    assert salloc.submit() == "50\n"
    salloc.until("srun")


def test_an_allocation_without_a_hold_gets_one(salloc: Salloc, tmp_path: Path) -> None:
    # all that is left of a connection that was lost when salloc had it
    (tmp_path / "spool/key.tried").touch()
    assert salloc.submit() == "50\n"
    salloc.until("scancel")
    assert len(salloc.ran("srun")) == 1
    assert salloc.ran("salloc") == []


def test_an_allocation_whose_hold_has_not_begun_gets_another(
    salloc: Salloc, tmp_path: Path
) -> None:
    for name in ("id", "given"):
        (tmp_path / f"spool/key.{name}").write_text("50\n")
    assert salloc.submit() == "50\n"
    salloc.until("scancel")
    assert len(salloc.ran("srun")) == 1


def test_an_allocation_outlives_the_srun_of_its_hold(
    salloc: Salloc, tmp_path: Path
) -> None:
    salloc.holds("[ $(wc -l <$0.ran) -gt 2 ]")
    salloc.submit()
    salloc.until("scancel")
    assert len(salloc.ran("srun")) == 3


def test_an_allocation_whose_hold_never_begins_is_given_back(
    salloc: Salloc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "TRIES", 3)
    salloc.holds("exit 1")
    salloc.submit()
    salloc.until("scancel")
    assert len(salloc.ran("srun")) == 3


@pytest.mark.parametrize("failing", ["exit 1", "exec sleep 600"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_hold_ends_soon_after_its_cluster_is_gone(
    salloc: Salloc,
    commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    begun: bool,
) -> None:
    """Without a driver, no command of Slurm's is waited for longer than a minute."""
    monkeypatch.setattr(submit_command, "PATIENCE_SECONDS", 1)
    up = "touch ${0%/*}/spool/key.up; " if begun else ""
    gone = (
        f"printf '#!/bin/sh\\n{failing}\\n' | tee ${{0%/*}}/squeue >${{0%/*}}/scancel"
    )
    salloc.holds(f"{up}{gone}; exit 1")
    ended, held = os.pipe()
    commands.pass_fds = (held,)
    assert salloc.submit() == "50\n"
    os.close(held)
    # the shell that watches the allocation holds the other end
    assert select.select([ended], [], [], 30)[0] == [ended]
    assert os.read(ended, 1) == b""
    os.close(ended)
    assert len(salloc.ran("srun")) == 1


def test_a_hold_outlives_a_silent_controller_while_its_driver_lives(
    salloc: Salloc, commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "spool/alive").touch()
    commands.put(
        "squeue",
        'case "$*" in *--jobs=*) echo away >&2; exit 1; esac\n'
        "echo '50 RUNNING sfq:run:key-a'",
    )
    salloc.holds("touch ${0%/*}/spool/key.up; [ $(wc -l <$0.ran) -gt 2 ]")
    salloc.submit()
    salloc.until("scancel")
    assert len(salloc.ran("srun")) == 3


def test_no_hold_is_started_that_cannot_be_written(
    salloc: Salloc, commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "spool/key.new").symlink_to("/dev/full")
    text, code = commands.submit("")
    assert (code, "No space left" in text) == (74, True)
    assert salloc.ran("scancel") == ["50"]
    assert salloc.ran("srun") == []


@pytest.mark.parametrize(
    ("nodes", "nodelist", "expected"),
    [
        (None, None, True),
        (1, "c1", True),
        (2, None, False),
        ("1-2", None, False),
        (None, "c[1-2]", False),
        (None, "c1,c2", False),
    ],
)
def test_one_node_is_taken_at_once(nodes: JSON, nodelist: JSON, expected: bool) -> None:
    service = SlurmService(nodes=nodes, nodelist=nodelist)
    assert (at_once_options("s", [service], []) is not None) == expected
    assert at_once_options("s", [service], [], nodes=2) is None
