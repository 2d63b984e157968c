"""Credentials that are renewed, without a host that accepts them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sf_quantum.connectors import ssh
from sf_quantum.connectors.ssh import Renewal

pytestmark = pytest.mark.process


async def test_what_a_command_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # as `ssh` does that leaves a connection for others
    await Renewal("site", f"sleep 1000 >/dev/null & echo $! >{pid}").run()
    os.kill(int(pid.read_text()), signal.SIGKILL)


async def test_a_command_that_takes_too_long_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssh, "COMMAND_SECONDS", 0.01)
    with pytest.raises(ConnectionError, match="took over"):
        await Renewal("site", "exec sleep 1000").run()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo first >&2; echo no agent >&2; exit 1", "exit code 1: no agent"),
        ("exit 2", "exit code 2: it printed no error"),
    ],
)
async def test_why_a_command_fails(command: str, why: str) -> None:
    with pytest.raises(ConnectionError, match=why):
        await Renewal("site", command).run()
