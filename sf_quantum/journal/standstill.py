"""The end of runs that a failed job has brought to a standstill."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from streamflow.core.utils import get_job_step_name
from streamflow.core.workflow import Status
from streamflow.log_handler import logger

from sf_quantum.connectors.tracebacks import traceback_filter
from sf_quantum.journal import HOUSEKEEPING

# A run with a failed job is stuck if nothing changes for this long.
STUCK_SECONDS = 3.0
UNSTARTED = {Status.WAITING, Status.FIREABLE}
ACTIVE = {*UNSTARTED, Status.RUNNING, Status.RECOVERY, Status.ROLLBACK}


class Standstill:
    """Cancels the driver of a run in which no other job can run.

    In StreamFlow 0.2.0rc3, if a scattered step fails in a loop, the step's gather step and
    the loop wait for each other.

    :param driver: task of StreamFlow's command, if any
    :param statuses: current status of each job
    """

    def __init__(
        self, driver: asyncio.Task[None] | None, statuses: Mapping[str, Status]
    ) -> None:
        self._driver = driver
        self._statuses = statuses
        self._changes = 0
        self._watch: asyncio.Task[None] | None = None
        #: whether the driver was cancelled
        self.has_ended_run = False

    def changed(self) -> None:
        """Record that the status of a job has changed."""
        self._changes += 1

    def watch(self) -> None:
        """Watch the run, since a job has failed."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._end_if_stuck())

    def stop(self) -> None:
        """Stop watching, since the run ends."""
        if self._watch is not None:
            self._watch.cancel()

    async def _end_if_stuck(self) -> None:
        """Cancel the driver once no job is active and nothing has changed for a while."""
        changes = -1
        while changes != self._changes or self._is_active():
            changes = self._changes
            await asyncio.sleep(STUCK_SECONDS)
        failed = [name for name, s in self._statuses.items() if s == Status.FAILED]
        if self._driver is not None:
            self.has_ended_run = True
            logger.error(
                f"FAILED {', '.join(failed)}; nothing else can run, so the run is ended."
            )
            # StreamFlow does not catch the cancellation of its main task, so the interpreter
            # would print a traceback.
            sys.excepthook = _log_conclusion
            self._driver.cancel()

    def _is_active(self) -> bool:
        steps = {name: get_job_step_name(name) for name in self._statuses}
        failed = {steps[n] for n, s in self._statuses.items() if s == Status.FAILED}
        return any(
            status in ACTIVE and not steps[name].endswith(HOUSEKEEPING)
            # A failed step starts no further jobs.
            and not (status in UNSTARTED and steps[name] in failed)
            for name, status in self._statuses.items()
        )


def _log_conclusion(*_: object) -> None:
    logger.error(traceback_filter().conclusion)
