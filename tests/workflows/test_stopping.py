"""However the driver ends, nothing of what it started is left ("Stopping")."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum import journal
from tests.support import forking
from tests.support.forking import Command
from tests.support.service_process import QpuService
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]


@pytest.fixture(autouse=True)
def real(project: Project) -> None:
    """No process of the project's stands for another."""
    project.path.remove(forking.stand_ins())


@pytest.fixture
def running(project: Project, until: Until) -> Iterator[Command]:
    """A driver in mid-job: on the QPU for minutes, and on a node for hours."""
    project.deployment("qpu", "sfq.emulator", technology="neutral-atom", timeScale=1)
    project.deployment("nodes", "sfq.nodes", names=["c1"])
    project.solve("solve", "qpu")
    # a grandchild as well, which does not end with its parent
    project.step("work", "sleep 3600 &\nsleep 3600", "nodes")
    driver = project.start()
    until(project.on_qpu, "the QPU job")
    until(lambda: len(project.commands("sleep 3600")) == 2, "the node's job")
    yield driver
    with suppress(ProcessLookupError):
        driver.kill()
    driver.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("group", [False, True], ids=["driver", "group"])
def test_nothing_is_left(
    project: Project,
    until: Until,
    running: Command,
    number: signal.Signals,
    group: bool,
) -> None:
    if group:
        os.killpg(running.pid, number)  # as Ctrl-C on a terminal does
    else:
        running.send_signal(number)
    running.wait(timeout=SECONDS)
    until(lambda: not project.processes(), "the last process to end")
    assert project.leftovers() == []
    path = journal.newest(project.folder / journal.DIRECTORY)
    assert path is not None
    assert not journal.is_open(path)


def test_ctrl_c_is_in_the_journal(
    project: Project, until: Until, running: Command
) -> None:
    running.send_signal(signal.SIGINT)
    running.wait(timeout=SECONDS)
    until(lambda: not project.processes(), "the last process to end")
    events = project.events()
    assert [event["event"] for event in events].index("end") == len(events) - 1
    assert events[-1]["status"] == "cancelled"
    assert [event["state"] for event in events if event["event"] == "qpu"] == [
        "Cancelled"
    ]
    assert project.jobs("solve", "cancelled")
    assert project.jobs("work", "cancelled")


def test_the_guardian_ends_with_a_driver_that_ends_well(
    project: Project, until: Until
) -> None:
    project.deployment("nodes", "sfq.nodes", names=["c1"])
    project.step("work", "true", "nodes")
    assert project.run() == 0, project.log
    until(lambda: not project.processes(), "the guardian to end")


def test_the_emulator_works_over_ssh(project: Project, until: Until, sshd: int) -> None:
    _over_ssh(project, sshd)
    project.deployment("nodes", "sfq.nodes", names=["c1", "c2"], wraps="host")
    project.solve("solve", "qpu")
    project.step("work", "echo done >out", "nodes", scatter=3)
    assert project.run() == 0, project.log
    assert len(project.jobs("work", "completed")) == 3
    (qpu,) = [event for event in project.events() if event["event"] == "qpu"]
    assert qpu["state"] == "Completed"
    until(lambda: not project.processes(), "the last process to end")
    assert project.leftovers() == []
    assert not project.service_folder().exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_service_ends_with_its_ssh_connection(
    project: Project, until: Until, sshd: int, number: signal.Signals
) -> None:
    _over_ssh(project, sshd, technology="neutral-atom", timeScale=1)
    project.solve("solve", "qpu")
    driver = project.start()
    until(project.on_qpu, "the QPU job")
    driver.send_signal(number)
    driver.wait(timeout=SECONDS)
    until(lambda: not project.commands("sfq serve"), "the service to end")
    until(lambda: not project.commands("sfq solve"), "the job to end")
    until(lambda: not project.service_folder().exists(), "its folder to go")
    assert list(project.temporary.glob("sfq-*")) == []


def test_a_qpu_of_its_own_is_used_over_ssh(
    project: Project, until: Until, sshd: int, tmp_path: Path
) -> None:
    # one that is occupied is so for minutes, however slow the machine is
    service = QpuService(tmp_path / "service", "--vqpus", "2", "--time-scale", "20")
    file = service.with_tokens("ada")
    service.start()
    try:
        _over_ssh(project, sshd)
        project.deployment(
            "qpu", "sfq.rest", wraps="host", url=service.url, tokenFile=file
        )
        project.solve("solve", "qpu")
        assert project.run() == 0, project.log
        assert service.jobs() == ["Completed"]
        assert project.leftovers() == []
        # and given back, whatever happens to the driver
        blocker = service.occupy()
        driver = project.start()
        until(lambda: service.jobs() == ["Completed", "Queued"], "the QPU job")
        driver.kill()
        driver.wait()
        until(lambda: service.held() == ["of the test"], "the guardian")
        service.release(blocker)
    finally:
        service.kill()


def _over_ssh(project: Project, port: int, **config: str | int) -> None:
    project.deployment(
        "host",
        "ssh",
        nodes=[f"127.0.0.1:{port}"],
        username=subprocess.check_output(["id", "-un"], text=True).strip(),
        sshKey=str(project.folder / "sshd" / "user"),
        checkHostKey=False,
    )
    project.deployment("qpu", "sfq.emulator", wraps="host", **config)
