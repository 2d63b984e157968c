"""The processes that act for single jobs, and the logging of errors about single jobs."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from sf_quantum.errors import QpuError

logger = logging.getLogger("sfq-slurm-watch")


class Children:
    """The processes that act for jobs, at most one for each job.

    :param program: the command ``sfq``
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __contains__(self, job: int) -> bool:
        return job in self._running

    def start(self, job: int, words: list[str]) -> None:
        """Start ``sfq`` for a job."""
        self._running[job] = subprocess.Popen(
            [self._program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def reap(self) -> None:
        """Forget the processes that have ended."""
        self._running = {
            job: child for job, child in self._running.items() if child.poll() is None
        }


@contextmanager
def logged(job: int) -> Iterator[None]:
    """Log an error about one job, which must not affect other jobs."""
    try:
        yield
    except QpuError as error:
        logger.info("job %d: %s", job, error)
