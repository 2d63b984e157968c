"""The tests' event loops end what they leave running."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from streamflow.deployment.connector.local import LocalConnector

from tests.support.waiting import until

pytestmark = pytest.mark.process


async def cancelled(folder: Path, command: str) -> None:
    """Cancel a command of StreamFlow's connector as soon as its process has begun."""
    connector = LocalConnector("local", str(folder))
    (found,) = (await connector.get_available_locations()).values()
    pid = folder / "pid"
    line = f"echo $$ > {pid}; {command.format(pid=pid)}"
    job = asyncio.create_task(
        connector.run(found.location, [line], capture_output=True, job_name="/s/0")
    )
    loop = asyncio.get_running_loop()
    while not (pid.exists() and pid.read_text()):
        # each turn of the loop lasts long enough for the process to begin before it has
        # the pipes
        loop.call_soon(time.sleep, 0.02)
        await asyncio.sleep(0)
    job.cancel()
    with suppress(asyncio.CancelledError):
        await job


def is_running(pid: int) -> bool:
    """Whether a process runs; one whose parent has ended may wait for its status to be read."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


# the shell of the last one has ended when the loop closes, and another has its pipes
@pytest.mark.parametrize(
    "command",
    ["exec sleep 1000", "sleep 1000; true", "sleep 1000 & echo $! > {pid}; exit"],
)
def test_a_loop_ends_what_it_leaves_running(tmp_path: Path, command: str) -> None:
    asyncio.run(cancelled(tmp_path, command))
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_running(pid), "the end of the process")
    # else it reports pipes and a process that nothing has closed, and fails this test
    gc.collect()
