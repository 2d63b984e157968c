"""A step of StreamFlow, as the fingerprints of its jobs see it."""

from __future__ import annotations

from collections.abc import Callable

from streamflow.core.scheduling import Hardware

from sf_quantum.files import JSON
from sf_quantum.journal.fingerprints import (
    COMMAND,
    CommandDigests,
)


def step(**parameters: JSON) -> dict[str, JSON]:
    command: dict[str, JSON] = {
        "base_command": ["sh"],
        "processors": [],
        "time_limit": None,
        **parameters,
    }
    return {"recoverable": True, "command": {"type": COMMAND, "params": command}}


async def command(
    parameters: dict[str, JSON], hardware: Callable[[], Hardware] = Hardware
) -> str:
    digests = CommandDigests()
    digests.add("/a", parameters)
    return await digests.of("/a", hardware)
