"""The guardian, with real drivers that are ended in every way."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from sf_quantum.connectors import guardian
from tests.support.service import running_service
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.process

# starts what the test asks for, says when it is there, and waits to be ended
DRIVER = """
import signal, subprocess, sys
from sf_quantum.connectors import guardian
assert guardian.current() is guardian.current()
{body}
print(flush=True)
signal.pause()
"""
CHILD = """
subprocess.Popen(["sh", "-c", "sleep 3600 & sleep 3600"], close_fds=False)
"""
# on SIGTERM it leaves a file, and stays
STUBBORN = """
code = '''
import signal
signal.signal(signal.SIGTERM, lambda *_: open({file!r}, "w").close())
print(flush=True)
while True:
    signal.pause()
'''
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
"""


class Family:
    """The processes of one test."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.drivers: list[subprocess.Popen[bytes]] = []

    def driver(self, body: str) -> subprocess.Popen[bytes]:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER.format(body=body)],
            env={**os.environ, "SFQ_TEST": self.mark},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.drivers.append(driver)
        assert driver.stdout is not None
        driver.stdout.readline()
        return driver

    def commands(self) -> list[str]:
        """The command lines of those that live."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SFQ_TEST") == self.mark:
                    found.append(" ".join(process.cmdline()))
            except (psutil.Error, OSError):
                continue
        return found

    def guardians(self) -> list[str]:
        """The command lines of the drivers' guardians."""
        return [line for line in self.commands() if " -m sf_quantum." in line]

    def await_none(self) -> None:
        """Wait until nobody is left."""
        until(lambda: not self.commands())


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    for driver in made.drivers:
        driver.kill()
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_children_and_grandchildren_end_with_the_driver(
    family: Family, number: signal.Signals
) -> None:
    driver = family.driver(CHILD)
    until(lambda: family.commands().count("sleep 3600") == 2)
    driver.send_signal(number)
    driver.wait()
    family.await_none()


def test_who_has_no_environment_any_more_ends_with_the_driver(
    family: Family, tmp_path: Path
) -> None:
    # neither has its parent, which has ended
    words = ["env", "-i", "sh", "-c", f"sleep 3333 & echo $! >{tmp_path}/pid"]
    driver = family.driver(f"subprocess.run({words})")
    orphan = psutil.Process(int((tmp_path / "pid").read_text()))
    assert "SFQ_DRIVER" not in orphan.environ()
    driver.kill()
    driver.wait()
    until(lambda: not orphan.is_running(), "the orphan to end")


def test_who_ignores_sigterm_is_killed(family: Family, tmp_path: Path) -> None:
    terminated = tmp_path / "terminated"
    driver = family.driver(STUBBORN.format(file=str(terminated)))
    driver.kill()
    driver.wait()
    family.await_none()
    assert terminated.exists()


def test_ctrl_c_on_a_terminal_does_not_hit_the_guardian(family: Family) -> None:
    driver = family.driver(CHILD)
    os.killpg(driver.pid, signal.SIGINT)
    driver.wait()
    family.await_none()


def test_a_driver_that_ends_well_does_not_wait(family: Family) -> None:
    driver = family.driver("print(flush=True); sys.exit()")
    assert driver.wait(timeout=SECONDS) == 0
    family.await_none()


def test_folders_are_removed_last(family: Family, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "file").touch()
    driver = family.driver(
        f"guardian.current().remove({str(folder)!r})\n"
        f"guardian.current().remove('{tmp_path}/gone')"
    )
    assert folder.exists()
    driver.kill()
    driver.wait()
    until(lambda: not folder.exists())
    family.await_none()


LEASE = "guardian.current().hold('sfq', 'q', {config!r}, {token!r})\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_leases_are_given_back(family: Family, number: signal.Signals) -> None:
    with running_service(vqpus=3) as service:
        tokens = [service.acquire() for _ in range(3)]
        config = {"url": service.url}
        body = "".join(LEASE.format(config=config, token=token) for token in tokens)
        # one that nobody answers for, and one that the driver gave back itself
        body += LEASE.format(config={"url": "unix:/nowhere/s"}, token="lost")
        body += f"guardian.current().release({tokens[2]!r})"
        driver = family.driver(body)
        # a process shows no environment while it is being started
        until(lambda: bool(family.guardians()))
        assert not any(token in line for token in tokens for line in family.guardians())
        driver.send_signal(number)
        driver.wait()
        until(lambda: [lease.id for lease in service.queue.leases.held] == tokens[2:])


def test_a_lease_that_was_given_back_is_nobodys_any_more() -> None:
    first, second = (guardian.Lease("sfq", "q", {}, token) for token in "ab")
    told: list[guardian.Message] = [first, guardian.Folder("f"), second]
    told.append(guardian.Release("a"))
    assert guardian.left_held(told) == [second]


LINES: list[tuple[guardian.Message, bytes]] = [
    (guardian.Folder("/f"), b'{"folder": "/f"}\n'),
    (
        guardian.Lease("sfq", "q", {"url": "unix:/s"}, "t"),
        b'{"type": "sfq", "name": "q", "config": {"url": "unix:/s"}, "hold": "t"}\n',
    ),
    (
        guardian.SlurmJobs({"url": "http://h", "user": None}, "sfq:run:"),
        b'{"slurmrestd": {"url": "http://h", "user": null}, "hold": "sfq:run:"}\n',
    ),
    (guardian.Release("t"), b'{"release": "t"}\n'),
]


@pytest.mark.parametrize(("message", "line"), LINES)
def test_a_message_is_read_as_it_was_sent(
    message: guardian.Message, line: bytes
) -> None:
    assert json.dumps(asdict(message)).encode() + b"\n" == line
    assert guardian.read(line) == message
    with pytest.raises(ValueError, match="cut short"):
        guardian.read(line[:-1])


def test_a_driver_goes_on_without_its_guardian(family: Family) -> None:
    driver = family.driver(
        "guardian.current()._process.kill(); guardian.current()._process.wait()\n"
        "guardian.current().remove('/nowhere')"
    )
    assert driver.poll() is None


NESTED = """
inner = '''{inner}'''
subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE).stdout.readline()
subprocess.Popen(["sleep", "1111"])
"""


@pytest.fixture
def nested(family: Family) -> subprocess.Popen[bytes]:
    inner = DRIVER.format(body='subprocess.Popen(["sleep", "2222"])')
    return family.driver(NESTED.format(inner=inner))


def test_an_inner_driver_takes_only_its_own(
    family: Family, nested: subprocess.Popen[bytes]
) -> None:
    inner = _inner(nested)
    inner.kill()
    until(lambda: "sleep 2222" not in family.commands())
    assert "sleep 1111" in family.commands()


def test_an_outer_driver_takes_the_inner_one_too(
    family: Family, nested: subprocess.Popen[bytes]
) -> None:
    nested.kill()
    nested.wait()
    family.await_none()


def test_only_what_carries_the_mark_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(
        psutil.Process, "terminate", lambda self: ended.append(self.pid)
    )
    guardian.end_processes(str(uuid.uuid4()))
    assert ended == []


def test_a_process_that_cannot_be_ended_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen(["sleep", "60"])
    unkillable = psutil.Process(child.pid)
    monkeypatch.setattr(guardian, "_marked", lambda _: iter([unkillable]))
    monkeypatch.setattr(guardian, "_signal", lambda *_, **__: None)
    monkeypatch.setattr(guardian, "GIVE_UP_SECONDS", 0.2)
    thread = threading.Thread(target=guardian.end_processes, args=("m",), daemon=True)
    try:
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive()
    finally:
        child.kill()
        child.wait()


def test_leases_do_not_wait_for_processes_nor_for_a_broken_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    given = threading.Event()
    met: list[bool] = []
    folder_line = json.dumps({"folder": str(folder)}).encode() + b"\n"
    lines = b"\xff{\n[1]\n%s{}\n%s{" % (LINES[1][1], folder_line)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    monkeypatch.setattr(sys, "argv", ["guardian", "m"])
    monkeypatch.setattr(guardian.Lease, "end", lambda _: given.set())
    monkeypatch.setattr(
        guardian, "end_processes", lambda _: met.append(given.wait(SECONDS))
    )
    guardian.main()
    assert met == [True]
    assert not folder.exists()


def _inner(driver: subprocess.Popen[bytes]) -> psutil.Process:
    return next(
        child
        for child in psutil.Process(driver.pid).children()
        if "sleep" in child.cmdline()[-1]
    )


def test_a_process_is_looked_at_anew_each_time() -> None:
    """One that has the id of another that has ended is not taken for that one."""
    first, second = ({one.pid: one for one in guardian.processes()} for _ in range(2))
    assert first[os.getpid()] is not second[os.getpid()]
