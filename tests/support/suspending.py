"""Processes that are held up for a while, and go on whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil


@contextmanager
def suspended(*processes: psutil.Process) -> Iterator[None]:
    """Suspend processes for the block, also those that end in it.

    A test that fails in the block would otherwise leave a daemon without a sign of life, and
    all tests that follow would wait for it.
    """
    with ExitStack() as stack:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
            stack.callback(_resume, process)
        yield


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
