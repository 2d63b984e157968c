"""Runs the service's endless tasks, and restarts tasks that die."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from sf_quantum import backoff

Work: TypeAlias = Callable[[], Coroutine[None, None, None]]
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _SupervisedTask:
    """A task that should run until the supervisor stops it.

    :param error: reason why the task does not run at present; ``None`` if it runs
    """

    name: str
    work: Work
    pauses: Iterator[float] = field(default_factory=lambda: backoff.TASK.pauses())
    began: float = 0.0
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    error: str | None = None


class Supervisor:
    """The endless tasks of a service; belongs to the event loop's thread."""

    def __init__(self) -> None:
        #: number of times that each task has died
        self.deaths: Counter[str] = Counter()
        self._tasks: list[_SupervisedTask] = []
        self._stopped = False

    def run(self, name: str, work: Work) -> None:
        """Run a task until :meth:`stop`; if the task ends, restart it after a pause."""
        self.deaths[name] = 0
        self._tasks.append(task := _SupervisedTask(name, work))
        self._start(task)

    def stop(self) -> None:
        """Cancel all tasks."""
        self._stopped = True
        for task in self._tasks:
            if task.timer is not None:
                task.timer.cancel()
            if task.task is not None:
                task.task.cancel()

    @property
    def problem(self) -> str | None:
        """A message about a task that does not run at present; ``None`` if all tasks run."""
        for task in self._tasks:
            if task.error is not None:
                return f"the background task {task.name!r} does not run: {task.error}"
        return None

    def _start(self, supervised: _SupervisedTask) -> None:
        supervised.error, supervised.began = None, time.monotonic()
        supervised.task = asyncio.create_task(supervised.work(), name=supervised.name)
        supervised.task.add_done_callback(partial(self._on_end, supervised))

    def _on_end(self, supervised: _SupervisedTask, task: asyncio.Task[None]) -> None:
        if self._stopped:
            return
        # a CancelledError of a library is not a stop of the service
        error = None if task.cancelled() else task.exception()
        supervised.error = str(error) or type(error).__name__ if error else "it ended"
        self.deaths[supervised.name] += 1
        if time.monotonic() - supervised.began > backoff.TASK.longest_seconds:
            supervised.pauses = backoff.TASK.pauses()
        seconds = next(supervised.pauses)
        text = "the background task %r died, and is started again in %g s: %s"
        logger.error(text, supervised.name, seconds, supervised.error, exc_info=error)
        supervised.timer = asyncio.get_running_loop().call_later(
            seconds, self._start, supervised
        )
