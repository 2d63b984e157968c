"""However the driver ends, no job of it is left on Slurm ("Stopping")."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.candidate_runs import outcome
from tests.support.forking import Command
from tests.support.slurm_jobs import over_ssh

if TYPE_CHECKING:
    from tests.lab import Lab
    from tests.support.projects import Project
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
ASKED = [signal.SIGINT, signal.SIGTERM]


class Run:
    """A driver with a job that runs, one that waits, and one that is being submitted."""

    def __init__(self, project: Project, lab: Lab, until: Until) -> None:
        self._project = project
        self._lab = lab
        self._until = until
        # what else uses the lab has other names
        self._name = f"w{project.mark[:8]}"
        folder = project.folder / "stand-ins"
        folder.mkdir(exist_ok=True)
        project.path.insert(0, str(folder))
        self._submitting = folder / "submitting"
        slow = folder / "sbatch"
        slow.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *{self._name}-coming*)\n'
            f"  touch {self._submitting}\n"
            f"  while [ -e {self._submitting} ]; do sleep 0.05; done\n"
            "  sleep 0.5;;\nesac\n"
            f'SLURM_CONF={lab.conf} exec /usr/bin/sbatch "$@"\n'
        )
        slow.chmod(0o755)
        for name in ("squeue", "scancel", "scontrol"):
            command = folder / name
            command.write_text(
                f'#!/bin/sh\nSLURM_CONF={lab.conf} exec /usr/bin/{name} "$@"\n'
            )
            command.chmod(0o755)

    def start(self) -> Command:
        for kind in ("now", "waiting", "coming"):
            self._project.step(f"{self._name}-{kind}", "sleep 300", f"slurm-{kind}")
        driver = self._project.start()
        self._until(lambda: len(self.jobs()) == 2 and self._running(), "two jobs")
        self._until(self._submitting.exists, "the third to be submitted")
        return driver

    def jobs(self) -> list[str]:
        lines = self._lab.output("squeue", "-h", "-o", "%j %T").splitlines()
        return [line for line in lines if line.startswith(self._name)]

    def _running(self) -> bool:
        # and its script has begun
        return bool(self._project.commands("sleep 300"))

    def end(self, driver: Command, number: signal.Signals) -> None:
        """End the driver, and wait until nothing is left of it."""
        self._submitting.unlink()
        driver.send_signal(number)
        driver.wait(timeout=SECONDS)
        # over SSH a driver that was killed has 45 s to come back
        until(lambda: not self.jobs(), "the jobs to end")
        try:
            until(lambda: not self._project.processes(), "the processes to end")
        except TimeoutError:
            left = [
                f"{one} {one.cmdline()} {one.environ().get('SLURM_JOB_NAME')}"
                for one in self._project.processes()
            ]
            told = self._lab.output("scontrol", "-o", "show", "jobs")
            pytest.fail("\n".join([*left, told, self._project.log]))
        try:
            until(lambda: not self._project.leftovers(), "the files to go")
        except TimeoutError:
            left = [
                str(path)
                for one in self._project.leftovers()
                for path in one.rglob("*")
            ]
            pytest.fail("\n".join([*left, self._project.log]))


@pytest.fixture
def run(project: Project, lab: Lab, until: Until) -> Run:
    return Run(project, lab, until)


@pytest.fixture
def started(project: Project, run: Run) -> Iterator[Command]:
    """The driver, over the local machine or what ``host`` names by then."""
    (project.folder / "later.sh").write_text(
        "#!/bin/sh\n#SBATCH --begin=now+1hour\n{{streamflow_command}}\n"
    )
    wraps = {"wraps": "host"} if "host" in project.deployments else {}
    for kind in ("now", "waiting", "coming"):
        template = {"file": "later.sh"} if kind == "waiting" else {}
        project.deployment(
            f"slurm-{kind}", "sfq.slurm", pollingInterval=1, **template, **wraps
        )
    driver = run.start()
    yield driver
    with suppress(ProcessLookupError):
        driver.kill()
    driver.wait()


@pytest.mark.parametrize("number", SIGNALS)
def test_nothing_is_left(
    project: Project,
    run: Run,
    started: Command,
    number: signal.Signals,
) -> None:
    run.end(started, number)


@pytest.fixture
def background() -> Iterator[None]:
    """As a shell that is not interactive starts commands with ``&``."""
    kept = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, kept)


def test_nothing_is_left_of_a_driver_in_the_background(
    background: None,
    project: Project,
    run: Run,
    started: Command,
) -> None:
    run.end(started, signal.SIGTERM)
    assert outcome(project) == "cancelled"


@pytest.fixture
def host(project: Project, run: Run, request: pytest.FixtureRequest) -> None:
    # the server's PATH is that of the project then
    over_ssh(project, request.getfixturevalue("sshd"))


@pytest.mark.parametrize("number", SIGNALS)
def test_nothing_is_left_over_ssh(
    project: Project,
    host: None,
    run: Run,
    started: Command,
    number: signal.Signals,
) -> None:
    run.end(started, number)
