"""``sfq.journal``: StreamFlow's default scheduler, extended to write the journal."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from streamflow.core.config import BindingConfig
from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.core.scheduling import (
    Hardware,
    HardwareRequirement,
    JobAllocation,
    LocationAllocation,
)
from streamflow.core.workflow import Job, Status
from streamflow.scheduling.scheduler import DefaultScheduler
from streamflow.version import VERSION

from sf_quantum.connectors import guardian, hints
from sf_quantum.connectors.tracebacks import traceback_filter
from sf_quantum.connectors.wrapper import ObservedConnector, Observer
from sf_quantum.errors import InputError
from sf_quantum.journal import (
    COMMAND,
    DIRECTORY,
    RESUME,
    Journal,
    events,
    resuming,
)
from sf_quantum.journal.feasibility import Feasibility, required_of
from sf_quantum.journal.reuse import Reusable, Reuse, ReuseFilter
from sf_quantum.journal.run_record import ENDED, RunRecord
from sf_quantum.journal.steps import Steps
from sf_quantum.version import __version__

if TYPE_CHECKING:
    from streamflow.core.context import StreamFlowContext

# Longest wait at the end of a run for the results of its completed jobs.
RECORD_SECONDS = 10.0


class JournalScheduler(DefaultScheduler):
    """Records the targets and status changes of all jobs in a journal.

    :param directory: folder of the journals, relative to the StreamFlow file's folder
    :param retry_delay: seconds until scheduling is retried for a job for which no target has
        room, as in StreamFlow's default scheduler
    """

    def __init__(
        self,
        context: StreamFlowContext,
        directory: str = DIRECTORY,
        retry_delay: int | None = None,
    ) -> None:
        super().__init__(context, retry_delay)
        traceback_filter().shortens = True
        self._directory = Path(context.config["path"]).parent / directory
        # Jobs must not inherit these variables: they may drive other runs.
        self._resumes = os.environ.pop(RESUME, "") == "1"
        self._command = os.environ.pop(COMMAND, "")
        self._reuse = Reuse(context)
        self._recording: set[asyncio.Task[None]] = set()
        # reused results of earlier runs, by job
        self._reused: dict[str, events.Result] = {}
        # Created with the first job, since `streamflow list` also creates a scheduler.
        self._record: RunRecord | None = None
        self._closing = False
        self._observers: dict[str, tuple[Observer, Callable[[str], None]]] = {}
        self._driver: asyncio.Task[None] | None = None
        with suppress(RuntimeError):  # outside of an event loop
            self._driver = asyncio.current_task()
        self._steps = Steps(context)
        self._feasibility = Feasibility(context)
        self._lock = asyncio.Lock()

    async def schedule(
        self,
        job: Job,
        binding_config: BindingConfig,
        hardware_requirement: HardwareRequirement | None,
    ) -> None:
        """Schedule a job; its waiting time begins with the call."""
        if (record := self._record) is None:
            guardian.current()
            record = self._record = RunRecord(
                self._open(),
                self._steps,
                self.job_allocations,
                self._reused,
                self._driver,
                parent=self._command,
            )
            _running.append(self)
        attempt = record.begin(job)
        if len(binding_config.targets) == 1 and not binding_config.filters:
            hints.put(job.name, hints.JobHints(is_bound_once=True))
        traceback_filter().forget(job.name)
        async with self._lock:  # a job is recorded only after the loops are known
            # A recovery has its own workflow, with steps of the first workflow.
            if attempt == 1:
                await self._steps.add(job.workflow_id, self._reuse)
        self._reused.pop(job.name, None)
        record.write(job.name, Status.WAITING)
        try:
            if not await self._takes_over(
                record.journal, attempt, job, binding_config, hardware_requirement
            ):
                await self._feasibility.check(job, binding_config, hardware_requirement)
                await super().schedule(job, binding_config, hardware_requirement)
        except Exception as error:
            if self._closing:
                # at the end, the engine removes the locations of waiting jobs
                record.write(job.name, Status.CANCELLED)
                raise
            where = " or ".join(one.deployment.name for one in binding_config.targets)
            message = str(error) or type(error).__name__
            record.failures.add_error(job.name, None, f"{where}: {message}")
            record.write(job.name, Status.FAILED)
            raise
        record.write(job.name, Status.FIREABLE)

    def observe(
        self, job: str, observer: Observer, completed: Callable[[str], None]
    ) -> None:
        """Observe the end of a job's command, and the job's completion with its outputs."""
        self._observers[job] = (observer, completed)

    def get_connector(self, job_name: str) -> Connector:
        """Return the connector of a job, which reports the end of the job's command."""
        connector = super().get_connector(job_name)
        if (result := self._reused.get(job_name)) is not None:
            return self._reuse.outputs(connector, result, self._ended)
        return ObservedConnector(connector, self._ended)

    async def _takes_over(
        self,
        record: Journal,
        attempt: int,
        job: Job,
        binding_config: BindingConfig,
        requirement: HardwareRequirement | None,
    ) -> bool:
        """Complete a job with an earlier run's result; return whether such a result exists.

        The job then occupies no slot of its location, and no filter chooses its target.
        """

        first = binding_config.targets[0]
        await self._reuse.prepare(job, lambda: required_of(requirement, job, first))
        if not self._resumes or attempt > 1:
            return False
        filters = map(self._get_binding_filter, binding_config.filters)
        reuse_filters = [one for one in filters if isinstance(one, ReuseFilter)]
        reusable = await self._reuse.find(record, job, binding_config, reuse_filters)
        if reusable is None:
            return False
        await self._allocate_reused(
            job, reusable, required_of(requirement, job, reusable.target)
        )
        self._reused[job.name] = reusable.result
        return True

    async def _allocate_reused(
        self, job: Job, reusable: Reusable, required: Hardware
    ) -> None:
        """Register the location of a job's outputs in StreamFlow, as if the job ran there."""
        hardware = await self._resolve_hardware_requirement(
            reusable.connector, reusable.location, required
        )
        location = reusable.location.location
        key = posixpath.join(reusable.connector.deployment_name, location.name)
        self.job_allocations[job.name] = JobAllocation(
            job=job.name,
            target=reusable.target,
            locations=[location],
            status=Status.FIREABLE,
            hardware=hardware[key],
        )
        # StreamFlow searches here for the job if the job must run again.
        self.location_allocations.setdefault(location.deployment, {}).setdefault(
            location.name, LocationAllocation(location.name, location.deployment)
        )

    async def _free_resources(
        self, connector: Connector, job_allocation: JobAllocation
    ) -> None:
        if job_allocation.job not in self._reused:  # reused jobs occupy no resources
            await super()._free_resources(connector, job_allocation)

    async def notify_status(self, job_name: str, status: Status) -> None:
        """Record the status of a job, and free its resources if it has ended.

        :raises asyncio.CancelledError: if the job starts although the run is ending and its
            deployment was already removed
        """
        record = self._record
        is_lost = self._closing and self._has_lost_its_deployment(job_name)
        if is_lost and status == Status.RUNNING:
            raise asyncio.CancelledError
        if status == Status.COMPLETED and record is not None:
            record.completed.add(job_name)
            recording = asyncio.create_task(
                self._reuse.completed(
                    record.journal,
                    record.jobs[job_name],
                    self.job_allocations[job_name],
                )
            )
            self._recording.add(recording)
            recording.add_done_callback(self._recording.discard)
            # shielded from the end of the run, which the next job may cause meanwhile
            await asyncio.shield(recording)
        try:
            if not is_lost:
                await super().notify_status(job_name, status)
        finally:  # this call is often cancelled together with its job
            if record is not None:
                record.write(job_name, status)
        if status in ENDED or status == Status.RECOVERY:
            hints.discard(job_name)
        if status == Status.COMPLETED and job_name in self._observers:
            _, completed = self._observers.pop(job_name)
            completed(job_name)
        if status == Status.FAILED and record is not None:
            record.standstill.watch()

    def _has_lost_its_deployment(self, job: str) -> bool:
        allocation = self.job_allocations.get(job)
        return allocation is None or (
            self.context.deployment_manager.get_connector(
                allocation.target.deployment.name
            )
            is None
        )

    def _ended(self, job: str, exit_code: int | None, output: str) -> None:
        """Keep the error of a command until its job has failed; notify its observer."""
        if exit_code != 0 and self._record is not None:
            self._record.failures.add_error(job, exit_code, output)
        if exit_code is not None:
            self._reuse.ended(job, exit_code)
        if job in self._observers:
            self._observers[job][0](job, exit_code, output)

    async def close(self) -> None:
        self._closing = True
        if self in _running:
            _running.remove(self)
        if (record := self._record) is not None and not record.is_closed:
            record.standstill.stop()
            if self._recording:
                await asyncio.wait(self._recording, timeout=RECORD_SECONDS)
            await record.end()
        await super().close()

    @classmethod
    def get_schema(cls) -> str:
        return files("sf_quantum").joinpath("schemas/journal.json").read_text("utf-8")

    def _open(self) -> Journal:
        config = self.context.config
        file = Path(config["path"]).resolve()
        try:
            with resuming(self._directory, file) if self._resumes else nullcontext():
                journal = Journal(self._directory, resumes=self._resumes)
                journal.start(
                    file=str(file),
                    workflows=list(config.get("workflows", {})),
                    versions={"sf_quantum": __version__, "streamflow": VERSION},
                )
        except InputError as error:
            raise WorkflowDefinitionException(str(error)) from error
        traceback_filter().log = journal.log
        return journal


# a filter has no reference to its run; a driver process has one run at a time
_running: list[JournalScheduler] = []


def current() -> JournalScheduler | None:
    """Return the scheduler of the run that this process drives, if it is ``sfq.journal``."""
    return _running[-1] if _running else None
