"""The process in which StreamFlow runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
