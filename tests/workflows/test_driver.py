"""The process in which StreamFlow runs."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from sf_quantum.workflows.driver import imported
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.process

LEFT = """
import threading
from sf_quantum.workflows import driver

driver.END_SECONDS = 0.1
threading.Thread(target=threading.Event().wait).start()
driver.end(3)
"""


def test_a_driver_ends_although_a_thread_waits() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], timeout=SECONDS, check=False)
    assert done.returncode == 3


def test_a_driver_gets_a_long_order_and_holds_its_locks_until_it_ends(
    tmp_path: Path,
) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"
    lock.touch()
    driver = imported()
    with lock.open("w") as ours, lock.open("w") as others:
        fcntl.flock(ours, fcntl.LOCK_EX)
        driver.process.send_signal(signal.SIGSTOP)
        driver.begin(["version"], {"LONG": "x" * 100_000}, log, [ours.fileno()])
        ours.close()
        with pytest.raises(BlockingIOError):
            fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
        driver.process.send_signal(signal.SIGCONT)
        assert driver.process.wait(SECONDS) == 0
        fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert version("streamflow") in log.read_text()


def test_a_driver_that_is_dismissed_ends() -> None:
    driver = imported()
    driver.dismiss()
    assert driver.process.returncode is not None
