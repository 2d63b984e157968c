"""``sfq.journal``: StreamFlow's default scheduler, which also writes the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from streamflow.core.config import BindingConfig
from streamflow.core.deployment import Connector
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.core.scheduling import HardwareRequirement
from streamflow.core.utils import get_job_step_name, get_job_tag
from streamflow.core.workflow import Job, Status
from streamflow.log_handler import logger
from streamflow.scheduling.scheduler import DefaultScheduler
from streamflow.version import VERSION

from sf_quantum import __version__
from sf_quantum.connectors import guardian
from sf_quantum.connectors.wrapper import ObservedConnector, Observer
from sf_quantum.errors import InputError
from sf_quantum.journal import DIRECTORY, HOUSEKEEPING, Journal

if TYPE_CHECKING:
    from streamflow.core.context import StreamFlowContext

# a run with a failed job is stuck if nothing changes for this long
STUCK_SECONDS = 3.0
UNSTARTED = {Status.WAITING, Status.FIREABLE}
ACTIVE = {*UNSTARTED, Status.RUNNING, Status.RECOVERY, Status.ROLLBACK}
ENDED = {Status.SKIPPED, Status.COMPLETED, Status.FAILED, Status.CANCELLED}
LOOP = "-loop-combinator"


class JournalScheduler(DefaultScheduler):
    """Records the targets and status changes of all jobs (Contract 8).

    :param directory: of the journals, relative to the StreamFlow file's folder
    :param retry_delay: as in StreamFlow's default scheduler
    """

    def __init__(
        self,
        context: StreamFlowContext,
        directory: str = DIRECTORY,
        retry_delay: int | None = None,
    ) -> None:
        super().__init__(context, retry_delay)
        self._directory = Path(context.config["path"]).parent / directory
        # opened by the first job, since `streamflow list` also creates a scheduler
        self._journal: Journal | None = None
        self._closed = False
        self._observers: dict[str, tuple[Observer, Callable[[str], None]]] = {}
        self._driver: asyncio.Task[None] | None = None
        with suppress(RuntimeError):  # outside of an event loop
            self._driver = asyncio.current_task()
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, int] = {}
        self._events = 0
        self._statuses: dict[str, Status] = {}
        self._workflows: set[int] = set()
        self._loops: set[str] = set()
        self._lock = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._stuck = False

    async def schedule(
        self,
        job: Job,
        binding_config: BindingConfig,
        hardware_requirement: HardwareRequirement | None,
    ) -> None:
        """Schedule a job; its waiting time begins with the call."""
        if self._journal is None:
            guardian.current()
            self._journal = self._open()
            _running.append(self)
        self._jobs[job.name] = job
        self._attempts[job.name] = self._attempts.get(job.name, 0) + 1
        async with self._lock:  # jobs are recorded after the loops are known
            if self._attempts[job.name] == 1 and job.workflow_id not in self._workflows:
                self._workflows.add(job.workflow_id)
                # in a tag, loops and scatters look the same
                steps = await self.context.database.get_workflow_steps(job.workflow_id)
                names = [
                    str(step["name"]) for step in steps if step["name"].endswith(LOOP)
                ]
                self._loops |= {name.removesuffix(LOOP) for name in names}
        self._record(job.name, Status.WAITING)
        try:
            await super().schedule(job, binding_config, hardware_requirement)
        except Exception:
            self._record(job.name, Status.FAILED)
            raise
        self._record(job.name, Status.FIREABLE)

    def observe(
        self, job: str, observer: Observer, completed: Callable[[str], None]
    ) -> None:
        """Observe the end of a job's command, and its completion with its outputs."""
        self._observers[job] = (observer, completed)

    def get_connector(self, job_name: str) -> Connector:
        """The connector of a job, which reports the job's end if it is observed."""
        connector = super().get_connector(job_name)
        if job_name not in self._observers:
            return connector
        return ObservedConnector(connector, self._observers[job_name][0])

    async def notify_status(self, job_name: str, status: Status) -> None:
        try:
            await super().notify_status(job_name, status)
        finally:  # this call itself is often cancelled with its job
            self._record(job_name, status)
        if status == Status.COMPLETED and job_name in self._observers:
            _, completed = self._observers.pop(job_name)
            completed(job_name)
        if status == Status.FAILED and self._watch is None:
            self._watch = asyncio.create_task(self._end_if_stuck())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self in _running:
            _running.remove(self)
        if self._journal is not None and not self._closed:
            outcome = await self._outcome()
            for name, status in list(self._statuses.items()):
                # on Ctrl-C, StreamFlow cancels its jobs only later
                if outcome != Status.COMPLETED and status not in ENDED:
                    self._record(name, Status.CANCELLED)
            # the last event, whatever happens to those before it
            async with AsyncExitStack() as stack:
                stack.callback(self._end, self._journal, outcome)
                for settle in self._journal.before_end:
                    stack.push_async_callback(settle)
        await super().close()

    @classmethod
    def get_schema(cls) -> str:
        return files("sf_quantum").joinpath("schemas/journal.json").read_text("utf-8")

    def _open(self) -> Journal:
        config = self.context.config
        try:
            journal = Journal(self._directory)
        except InputError as error:
            raise WorkflowDefinitionException(str(error)) from error
        journal.start(
            file=str(Path(config["path"]).resolve()),
            workflows=list(config.get("workflows", {})),
            versions={"sf_quantum": __version__, "streamflow": VERSION},
        )
        return journal

    def _end(self, journal: Journal, outcome: Status) -> None:
        self._closed = True
        journal.write("end", status=outcome.name.lower())
        journal.close()

    def _record(self, name: str, status: Status) -> None:
        if self._journal is None or self._closed or self._statuses.get(name) == status:
            return
        self._statuses[name] = status
        self._events += 1
        job, step = self._jobs[name], get_job_step_name(name)
        # that of the last attempt, while the job waits
        allocation = self.job_allocations.get(name)
        allocation = None if status == Status.WAITING else allocation
        target = allocation.target if allocation else None
        self._journal.write(
            "job",
            job=name,
            step=step,
            tag=get_job_tag(name),
            loops=sum(PurePosixPath(step).is_relative_to(n) for n in self._loops),
            status=status.name.lower(),
            attempt=self._attempts[name],
            output=job.output_directory,
            deployment=target.deployment.name if target else None,
            service=target.service if target else None,
            locations=(
                [place.name for place in allocation.locations] if allocation else []
            ),
        )

    async def _end_if_stuck(self) -> None:
        """End a run that a failed job has brought to a standstill.

        In StreamFlow 0.2.0rc3, when a scattered step fails in a loop, its gather step and
        the loop wait for each other.
        """
        events = -1
        while events != self._events or self._active():
            events = self._events
            await asyncio.sleep(STUCK_SECONDS)
        failed = [name for name, s in self._statuses.items() if s == Status.FAILED]
        if self._driver is not None and not self._closed:
            self._stuck = True
            logger.error(
                f"FAILED {', '.join(failed)}; nothing else can run, so the run is ended."
            )
            self._driver.cancel()

    def _active(self) -> bool:
        steps = {name: get_job_step_name(name) for name in self._statuses}
        failed = {steps[n] for n, s in self._statuses.items() if s == Status.FAILED}
        return any(
            status in ACTIVE and not steps[name].endswith(HOUSEKEEPING)
            # a failed step starts no other job
            and not (status in UNSTARTED and steps[name] in failed)
            for name, status in self._statuses.items()
        )

    async def _outcome(self) -> Status:
        if self._stuck:
            return Status.FAILED
        if self._driver is not None and self._driver.cancelling():
            return Status.CANCELLED
        for id_ in self._workflows:
            row = await self.context.database.get_workflow(id_)
            if row["status"] != Status.COMPLETED.value:
                return Status.FAILED
        return Status.COMPLETED


# a filter does not know its run; a driver process is one run
_running: list[JournalScheduler] = []


def current() -> JournalScheduler | None:
    """The scheduler of the run that this process drives, if it is ``sfq.journal``."""
    return _running[-1] if _running else None
