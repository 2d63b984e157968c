"""What a test suspends goes on, also if the test fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.suspending import suspended
from tests.support.waiting import until

TESTS = Path(__file__).parents[1]
HELPER = TESTS / "support" / "suspending.py"

pytestmark = pytest.mark.process


@pytest.fixture
def sleeper() -> Iterator[psutil.Process]:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid)
        process.kill()


def test_a_process_goes_on_after_a_failure(sleeper: psutil.Process) -> None:
    def fail() -> None:
        with suspended(sleeper):
            until(lambda: sleeper.status() == psutil.STATUS_STOPPED, "it is stopped")
            raise TimeoutError

    with pytest.raises(TimeoutError):
        fail()
    until(lambda: sleeper.status() != psutil.STATUS_STOPPED, "it goes on")


def test_a_process_may_end_while_it_is_suspended(sleeper: psutil.Process) -> None:
    with suspended(sleeper):
        sleeper.kill()
        sleeper.wait()


def test_nothing_else_suspends_a_process() -> None:
    files = {*TESTS.rglob("*.py")} - {HELPER}
    call = ".suspend" + "()"
    assert [one for one in files if call in one.read_text()] == []
