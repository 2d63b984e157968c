"""``sfq.journal``: StreamFlow's default scheduler, which also writes the journal."""

from __future__ import annotations

import asyncio
import os
import posixpath
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from streamflow.core.config import BindingConfig
from streamflow.core.deployment import Connector, Target
from streamflow.core.exception import WorkflowDefinitionException
from streamflow.core.scheduling import (
    Hardware,
    HardwareRequirement,
    JobAllocation,
    LocationAllocation,
)
from streamflow.core.utils import get_job_step_name, get_job_tag
from streamflow.core.workflow import Job, Status
from streamflow.log_handler import logger
from streamflow.scheduling.scheduler import DefaultScheduler
from streamflow.version import VERSION

from sf_quantum.connectors import guardian
from sf_quantum.connectors.tracebacks import FAILED, traceback_filter
from sf_quantum.connectors.wrapper import ObservedConnector, Observer
from sf_quantum.errors import InputError
from sf_quantum.files import mapping, number
from sf_quantum.journal import (
    COMMAND,
    DIRECTORY,
    HOUSEKEEPING,
    RESUME,
    Journal,
    events,
    resuming,
)
from sf_quantum.journal.failures import (
    described,
    last_lines,
    message_lines,
    part_of_workflow,
    summarised,
)
from sf_quantum.journal.reuse import Reusable, Reuse, ReuseFilter
from sf_quantum.text import plural
from sf_quantum.version import __version__

if TYPE_CHECKING:
    from streamflow.core.context import StreamFlowContext

# a run with a failed job is stuck if nothing changes for this long
STUCK_SECONDS = 3.0
# Time that the end of a run waits for the results of its completed jobs.
RECORD_SECONDS = 10.0
UNSTARTED = {Status.WAITING, Status.FIREABLE}
ACTIVE = {*UNSTARTED, Status.RUNNING, Status.RECOVERY, Status.ROLLBACK}
ENDED = {Status.SKIPPED, Status.COMPLETED, Status.FAILED, Status.CANCELLED}
LOOP = "-loop-combinator"
KILLED = "its sfq run was killed, which has stopped it"
DROPPED = "had not ended when all outputs of the workflow were there; let an output depend on it"


@dataclass(frozen=True)
class _Failure:
    """Why a run has failed.

    :param reason: one line, for the journal
    :param text: lines for the terminal; a remedy is among them
    :param job: the job that has failed; ``None`` if another part of the workflow has
    :param attempt: its attempt; 0 without a job
    """

    reason: str
    text: str
    job: str | None = None
    attempt: int = 0


class JournalScheduler(DefaultScheduler):
    """Records the targets and status changes of all jobs in a journal.

    :param directory: folder of the journals, relative to the StreamFlow file's folder
    :param retry_delay: seconds until a job that no target has room for is scheduled
        again, as in StreamFlow's default scheduler
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
        # not for the jobs, which may drive runs of their own
        self._resumes = os.environ.pop(RESUME, "") == "1"
        self._command = os.environ.pop(COMMAND, "")
        self._reuse = Reuse(context)
        self._recording: set[asyncio.Task[None]] = set()
        # the jobs that are not run, with the results of earlier runs
        self._reused: dict[str, events.Result] = {}
        # opened by the first job, since `streamflow list` also creates a scheduler
        self._journal: Journal | None = None
        # the run has begun to end; its last event is written
        self._closing = self._closed = False
        self._observers: dict[str, tuple[Observer, Callable[[str], None]]] = {}
        # exit code and errors of the commands that have failed, by job
        self._errors: dict[str, tuple[int | None, str]] = {}
        # the latest failure of each job, in the order of their times
        self._failures: dict[str, _Failure] = {}
        self._driver: asyncio.Task[None] | None = None
        with suppress(RuntimeError):  # outside of an event loop
            self._driver = asyncio.current_task()
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, int] = {}
        self._events = 0
        self._statuses: dict[str, Status] = {}
        # Jobs whose latest attempt StreamFlow reports as completed; this precedes their
        # records.
        self._completed: set[str] = set()
        self._workflows: set[int] = set()
        self._loops: set[str] = set()
        # The condition of each step, by the step of StreamFlow's that evaluates it.
        self._conditions: dict[str, str] = {}
        # deployments, services and requirements that some location meets
        self._possible: set[tuple[str, str | None, str]] = set()
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
        traceback_filter().forget(job.name)
        async with self._lock:  # jobs are recorded after the loops are known
            if self._attempts[job.name] == 1 and job.workflow_id not in self._workflows:
                self._workflows.add(job.workflow_id)
                # A tag does not distinguish loops from scatters.
                steps = await self.context.database.get_workflow_steps(job.workflow_id)
                names = [
                    str(step["name"]) for step in steps if step["name"].endswith(LOOP)
                ]
                self._loops |= {name.removesuffix(LOOP) for name in names}
                for step in steps:
                    self._reuse.add_step(str(step["name"]), step["params"])
                    if str(step["name"]).endswith("-when"):
                        expression = mapping(step["params"]).get("expression")
                        self._conditions[str(step["name"])] = str(expression)
        self._reused.pop(job.name, None)
        self._completed.discard(job.name)
        self._record(job.name, Status.WAITING)
        try:
            if not await self._takes_over(
                self._journal, job, binding_config, hardware_requirement
            ):
                await self._refuse_impossible(job, binding_config, hardware_requirement)
                await super().schedule(job, binding_config, hardware_requirement)
        except Exception as error:
            if self._closing:
                # the engine takes the locations away from under jobs that wait
                self._record(job.name, Status.CANCELLED)
                raise
            where = " or ".join(one.deployment.name for one in binding_config.targets)
            message = str(error) or type(error).__name__
            self._errors[job.name] = (None, f"{where}: {message}")
            self._record(job.name, Status.FAILED)
            raise
        self._record(job.name, Status.FIREABLE)

    def observe(
        self, job: str, observer: Observer, completed: Callable[[str], None]
    ) -> None:
        """Observe the end of a job's command, and its completion with its outputs."""
        self._observers[job] = (observer, completed)

    def get_connector(self, job_name: str) -> Connector:
        """The connector of a job, which reports the end of its command."""
        connector = super().get_connector(job_name)
        if (result := self._reused.get(job_name)) is not None:
            return self._reuse.outputs(connector, result, self._ended)
        return ObservedConnector(connector, self._ended)

    async def _takes_over(
        self,
        record: Journal,
        job: Job,
        binding_config: BindingConfig,
        requirement: HardwareRequirement | None,
    ) -> bool:
        """Whether a job is completed by the result of an earlier run.

        It then takes no slot of its location, and no filter chooses its target.
        """

        first = binding_config.targets[0]
        await self._reuse.prepare(job, lambda: _required(requirement, job, first))
        if not self._resumes or self._attempts[job.name] > 1:
            return False
        filters = map(self._get_binding_filter, binding_config.filters)
        reuse_filters = [one for one in filters if isinstance(one, ReuseFilter)]
        reusable = await self._reuse.find(record, job, binding_config, reuse_filters)
        if reusable is None:
            return False
        await self._allocate_reused(
            job, reusable, _required(requirement, job, reusable.target)
        )
        self._reused[job.name] = reusable.result
        return True

    async def _refuse_impossible(
        self,
        job: Job,
        binding_config: BindingConfig,
        requirement: HardwareRequirement | None,
    ) -> None:
        """Refuse a job that no location of its targets could ever run.

        StreamFlow 0.2.0rc3 would let it wait without limit. Targets that a filter chooses
        from are not asked, since that deploys them.

        :raises WorkflowDefinitionException: if the job requires more than each has
        """
        if requirement is None or binding_config.filters:
            return
        lacking = []
        for target in binding_config.targets:
            required = _required(requirement, job, target)
            need = target.deployment.name, target.service, _shown(required)
            if need in self._possible:
                return
            largest = await self._largest(target, required)
            if largest is None:
                self._possible.add(need)
                return
            lacking.append(f"{target.deployment.name} has {_shown(largest)}")
        what = f"the job requires {_shown(required)}, and {'; '.join(lacking)}"
        raise WorkflowDefinitionException(what)

    async def _largest(self, target: Target, required: Hardware) -> Hardware | None:
        """The largest location of a target; ``None`` if one may have enough."""
        name = target.deployment.name
        connector = self.context.deployment_manager.get_connector(name)
        if connector is None:
            return None
        locations = await connector.get_available_locations(service=target.service)
        hardware = [location.hardware for location in locations.values()]
        reported = [one for one in hardware if one is not None]
        if len(reported) < len(hardware) or not reported:
            return None
        if any(_has_enough(one, required) for one in reported):
            return None
        return max(reported, key=lambda one: one.cores)

    async def _allocate_reused(
        self, job: Job, reusable: Reusable, required: Hardware
    ) -> None:
        """Tell StreamFlow where the outputs of a job are, as if it ran there."""
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
        # where StreamFlow looks for the job if it has to run again
        self.location_allocations.setdefault(location.deployment, {}).setdefault(
            location.name, LocationAllocation(location.name, location.deployment)
        )

    async def _free_resources(
        self, connector: Connector, job_allocation: JobAllocation
    ) -> None:
        if job_allocation.job not in self._reused:  # these have taken none
            await super()._free_resources(connector, job_allocation)

    async def notify_status(self, job_name: str, status: Status) -> None:
        if status == Status.COMPLETED and self._journal is not None:
            self._completed.add(job_name)
            recording = asyncio.create_task(
                self._reuse.completed(
                    self._journal, self._jobs[job_name], self.job_allocations[job_name]
                )
            )
            self._recording.add(recording)
            recording.add_done_callback(self._recording.discard)
            # a job that follows has its outputs already, and may end the run
            await asyncio.shield(recording)
        try:
            await super().notify_status(job_name, status)
        finally:  # this call itself is often cancelled with its job
            self._record(job_name, status)
        if status == Status.COMPLETED and job_name in self._observers:
            _, completed = self._observers.pop(job_name)
            completed(job_name)
        if status == Status.FAILED and self._watch is None:
            self._watch = asyncio.create_task(self._end_if_stuck())

    def _ended(self, job: str, exit_code: int | None, output: str) -> None:
        """Keep why a command has failed, until its job has; tell its observer."""
        if exit_code != 0:
            self._errors[job] = (exit_code, output)
        if exit_code is not None:
            self._reuse.ended(job, exit_code)
        if job in self._observers:
            self._observers[job][0](job, exit_code, output)

    async def close(self) -> None:
        self._closing = True
        if self._watch is not None:
            self._watch.cancel()
        if self in _running:
            _running.remove(self)
        if self._journal is not None and not self._closed:
            if self._recording:
                await asyncio.wait(self._recording, timeout=RECORD_SECONDS)
            outcome = await self._outcome()
            if outcome == Status.FAILED:
                self._fail_jobs_of_steps()
            # where something else has failed, the other jobs are cancelled
            reported = outcome == Status.FAILED and (
                self._failures or traceback_filter().step_errors
            )
            if (
                outcome != Status.CANCELLED
                and not reported
                and self._fail_dropped_jobs()
            ):
                outcome = Status.FAILED
            for name, status in list(self._statuses.items()):
                # on Ctrl-C, StreamFlow cancels its jobs only later
                if outcome != Status.COMPLETED and status not in ENDED:
                    self._record(name, Status.CANCELLED)
            # the last event, whatever happens to those before it
            async with AsyncExitStack() as stack:
                stack.callback(self._end, self._journal, outcome)
                for settle in self._journal.before_end:
                    stack.push_async_callback(settle)
                await self._record_skipped(self._journal)
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

    def _end(self, journal: Journal, outcome: Status) -> None:
        self._closed = True
        failure = None
        if outcome == Status.FAILED:
            failure = (
                self._job_failure() or self._engine_failure() or self._last_failure()
            )
            self._conclude(journal, failure)
        reason = failure.reason if failure else None
        if outcome == Status.CANCELLED and self._command not in ("", str(os.getppid())):
            reason = KILLED
        journal.write(
            events.End(
                status=outcome.name.lower(),
                reason=reason,
                job=failure.job if failure else None,
            )
        )
        journal.close()

    def _record(self, name: str, status: Status) -> None:
        if self._journal is None or self._closed or self._statuses.get(name) == status:
            return
        self._statuses[name] = status
        self._events += 1
        word = status.name.lower()
        if name in self._reused:
            if status in (Status.FIREABLE, Status.RUNNING):
                return
            word = "reused" if status == Status.COMPLETED else word
        job, step = self._jobs[name], get_job_step_name(name)
        # The allocation of a waiting job is that of its last attempt.
        allocation = self.job_allocations.get(name)
        allocation = None if status == Status.WAITING else allocation
        target = allocation.target if allocation else None
        if status in (Status.FAILED, Status.RECOVERY):
            where = target.deployment.name if target else ""
            # Reports call StreamFlow's own local deployment so.
            where = where.replace("__LOCAL__", "local")
            self._record_failure(self._journal, name, where)
        self._journal.write(
            events.Job(
                job=name,
                step=step,
                tag=get_job_tag(name),
                loops=self._depth(step),
                status=word,
                attempt=self._attempts[name],
                output=job.output_directory,
                deployment=target.deployment.name if target else None,
                service=target.service if target else None,
                locations=(
                    [place.name for place in allocation.locations] if allocation else []
                ),
            )
        )

    def _depth(self, step: str) -> int:
        """The number of loops around a step."""
        return sum(PurePosixPath(step).is_relative_to(loop) for loop in self._loops)

    def _fail_jobs_of_steps(self) -> None:
        """Record the jobs as failed that an error of the engine has ended.

        A job's folders are made and its inputs are copied between its schedule and its run,
        and StreamFlow tells the scheduler nothing if that fails.
        """
        for error in traceback_filter().step_errors:
            if self._statuses.get(error.job, Status.COMPLETED) not in ENDED:
                self._errors[error.job] = (None, error.message)
                self._record(error.job, Status.FAILED)

    def _fail_dropped_jobs(self) -> bool:
        """Record the jobs as failed that StreamFlow has dropped, and return if there are any.

        StreamFlow 0.2.0rc3 may end a run, as completed, when the workflow has all outputs,
        although a job that none of them depends on has not ended.
        """
        dropped = [
            name
            for name, status in self._statuses.items()
            # one that had completed may be rolled back for others, and not be needed again
            if status not in ENDED
            and name not in self._completed
            and not get_job_step_name(name).endswith(HOUSEKEEPING)
        ]
        for name in dropped:
            self._errors[name] = (None, DROPPED)
            self._record(name, Status.FAILED)
            logger.error(f"FAILED {name} {DROPPED}")
        return bool(dropped)

    def _record_failure(self, journal: Journal, name: str, where: str) -> None:
        """Record why the current attempt of a job has failed."""
        attempt = self._attempts[name]
        recorded = self._failures.pop(name, None)
        if recorded is not None and recorded.attempt == attempt:
            # it was recovered in vain
            self._failures[name] = recorded
            return
        exit_code, output = self._errors.pop(name, (None, ""))
        if exit_code is None:
            error = message_lines(output or traceback_filter().latest())
        else:
            error = last_lines(output)
        journal.write(
            events.Failure(job=name, attempt=attempt, exit_code=exit_code, error=error)
        )
        self._failures[name] = _Failure(
            reason=summarised(name, where, exit_code, error),
            text=described(name, where, exit_code, error),
            job=name,
            attempt=attempt,
        )

    def _job_failure(self) -> _Failure | None:
        """The first failure of a job that was not recovered, if there is one."""
        return next(
            (
                failure
                for name, failure in self._failures.items()
                # StreamFlow's own steps fail because another one has
                if not get_job_step_name(name).endswith(HOUSEKEEPING)
                and self._statuses[name] == Status.FAILED
            ),
            None,
        )

    def _engine_failure(self) -> _Failure | None:
        """Say why a run has failed in which no job has: where, and the first message."""
        errors = [
            error
            for error in traceback_filter().step_errors
            # an attempt that was recovered
            if error.job not in self._completed
        ]
        for error in errors or traceback_filter().step_errors:
            where = get_job_step_name(error.job) if error.job else error.step
            reason = f"{part_of_workflow(where)}: {' '.join(error.message.split())}"
            if (condition := self._conditions.get(where)) is not None:
                reason += f": it is {condition}"
            return _Failure(reason, reason)
        for name, failure in self._failures.items():
            if name not in self._completed:
                return failure
        return None

    def _last_failure(self) -> _Failure:
        """Why a run has failed, of which no step of the engine says it."""
        error = workflow_error(self._driver)
        reason = " ".join(str(error).split()) or type(error).__name__
        if error is None:
            reason = (
                "StreamFlow gave no reason; its log is in the folder of the outputs"
            )
        return _Failure(reason, reason)

    async def _record_skipped(self, journal: Journal) -> None:
        """Record the jobs that a ``when`` has left out, for which StreamFlow makes none.

        Its conditional step then puts a null where the outputs of the job would be.
        """
        database = self.context.database
        for workflow in self._workflows:
            for row in await database.get_workflow_steps(workflow):
                if not str(row["type"]).endswith(".CWLConditionalStep"):
                    continue
                step = str(row["name"]).removesuffix("-when")
                ran = self._tags_below(step)
                ports = mapping(row["params"].get("skip_ports")).values()
                for port in [*ports][:1]:
                    for one in await database.get_port_tokens(int(number(port))):
                        token = await database.get_token(one)
                        if token["value"] is None and token["tag"] not in ran:
                            self._write_skipped(journal, step, str(token["tag"]))

    def _tags_below(self, step: str) -> set[str]:
        """The tags of a step's jobs, and those from which theirs were made in it."""
        tags = (
            get_job_tag(name).split(".")
            for name in self._statuses
            if PurePosixPath(get_job_step_name(name)).is_relative_to(step)
        )
        return {
            ".".join(tag[:count]) for tag in tags for count in range(1, len(tag) + 1)
        }

    def _write_skipped(self, journal: Journal, step: str, tag: str) -> None:
        journal.write(
            events.Job(
                job=posixpath.join(step, tag),
                step=step,
                tag=tag,
                loops=self._depth(step),
                status="skipped",
                attempt=1,
                output=None,
                deployment=None,
                service=None,
                locations=[],
            )
        )

    def _conclude(self, journal: Journal, failure: _Failure) -> None:
        """Let the last lines on the terminal say why the run has failed."""
        lines = [failure.text, f"report: sfq report {journal.file}"]
        if journal.log.exists():
            lines.append(f"tracebacks: {journal.log}")
        traceback_filter().conclusion = "\n".join([FAILED, *lines])

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
            # StreamFlow leaves the cancellation of its main task to the interpreter
            sys.excepthook = _log_conclusion
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
        return (
            Status.COMPLETED if workflow_error(self._driver) is None else Status.FAILED
        )


def workflow_error(driver: asyncio.Task[None] | None) -> BaseException | None:
    """The error with which a workflow has ended outside of its steps, if with one.

    StreamFlow 0.2.0rc3 closes its scheduler before it logs it.

    :param driver: the task of StreamFlow's command
    """
    for frame in driver.get_stack() if driver is not None else ():
        for task in frame.f_locals.get("workflow_tasks", ()):
            if task.done() and not task.cancelled() and task.exception():
                return cast(BaseException, task.exception())
    return None


def _required(
    requirement: HardwareRequirement | None, job: Job, target: Target
) -> Hardware:
    """What a job requires of a target, as StreamFlow evaluates it."""
    if requirement is None:
        return Hardware()
    folder = target.workdir
    return requirement.eval(
        Job(job.name, job.workflow_id, job.inputs, folder, folder, folder)
    )


def _has_enough(hardware: Hardware, required: Hardware) -> bool:
    return hardware.cores >= required.cores and hardware.memory >= required.memory


def _shown(hardware: Hardware) -> str:
    """The cores and the memory, in words."""
    cores = plural(hardware.cores, "core")
    return f"{cores} and {hardware.memory:,.0f} MiB of memory"


def _log_conclusion(*_: object) -> None:
    logger.error(traceback_filter().conclusion)


# a filter does not know its run; a driver process is one run
_running: list[JournalScheduler] = []


def current() -> JournalScheduler | None:
    """The scheduler of the run that this process drives, if it is ``sfq.journal``."""
    return _running[-1] if _running else None
