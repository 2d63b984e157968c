"""Writes the results of jobs to the journal, and reuses results of earlier runs."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from streamflow.core.config import BindingConfig
from streamflow.core.deployment import Connector, ExecutionLocation, Target
from streamflow.core.exception import WorkflowExecutionException
from streamflow.core.scheduling import AvailableLocation, Hardware, JobAllocation
from streamflow.core.utils import get_job_step_name
from streamflow.core.workflow import Job

from sf_quantum.connectors.wrapper import Invocation, ObservedConnector, Observer
from sf_quantum.connectors.wrapper import Result as CommandResult
from sf_quantum.files import JSON, mapping
from sf_quantum.journal import Journal, events, fingerprints, results
from sf_quantum.journal.events import Fingerprint, Inputs
from sf_quantum.journal.fingerprints import CommandDigests, Uncertain
from sf_quantum.journal.results import SAME, Earlier, difference

if TYPE_CHECKING:
    from streamflow.core.context import StreamFlowContext

# existing files are removed first, since they may be links to inputs, which must not change
_COPY = "cp -af --remove-destination {output} ."
# links fail if a file belongs to another user, or is on another file system
_LINK = f"cp -alf {{output}} . 2>/dev/null || {_COPY}"


@runtime_checkable
class ReuseFilter(Protocol):
    """A binding filter that may prevent the reuse of an earlier run's result."""

    async def why_not_reused(
        self, job: Job, targets: Sequence[Target], target: Target
    ) -> str:
        """Return why a job must run again; empty if its result may be reused.

        :param targets: targets of the job's binding
        :param target: the one of these targets on which the job has completed
        """
        ...


@dataclass(frozen=True)
class Reusable:
    """A result of an earlier run that is valid for a job, and its location."""

    result: events.Result
    target: Target
    connector: Connector
    location: AvailableLocation


class Reuse:
    """The results of a run's jobs: new results, and results reused from earlier runs."""

    def __init__(self, context: StreamFlowContext) -> None:
        self._context = context
        self._commands = CommandDigests()
        # Fingerprints of targets by deployment and service.
        self._targets: dict[tuple[str, str | None], str] = {}
        # Command and inputs of each job that runs, or the reason why they are unknown.
        self._prepared: dict[str, tuple[str, Inputs] | Uncertain] = {}
        self._exit_codes: dict[str, int] = {}
        self._placing = _LINK
        self._earlier: asyncio.Task[Earlier] | None = None

    def add_step(self, name: str, parameters: dict[str, JSON]) -> None:
        """Add a step, with its parameters in StreamFlow's database."""
        self._commands.add(name, parameters)
        command = mapping(mapping(parameters.get("command")).get("params"))
        if command.get("inplace_update"):
            # the step may change other jobs' outputs: links would change earlier runs' outputs
            self._placing = _COPY

    def outputs(
        self, connector: Connector, result: events.Result, observer: Observer
    ) -> ReusedOutputs:
        """Return the connector of a job that is not run, see :class:`ReusedOutputs`."""
        return ReusedOutputs(connector, result, self._placing, observer)

    async def prepare(self, job: Job, hardware: Callable[[], Hardware]) -> None:
        """Record the dependencies of a job's result, before the job runs.

        :param hardware: function that evaluates the hardware that the job requires
        """
        self._exit_codes.pop(job.name, None)
        try:
            command = await self._commands.of(get_job_step_name(job.name), hardware)
            inputs = await fingerprints.of_inputs(self._context, job)
            self._prepared[job.name] = (command, inputs)
        except Uncertain as error:
            self._prepared[job.name] = error

    def ended(self, job: str, exit_code: int) -> None:
        """Record the exit code of a job's command."""
        self._exit_codes[job] = exit_code

    async def completed(
        self, record: Journal, job: Job, allocation: JobAllocation
    ) -> None:
        """Write the result of a completed job to the journal, if it can be reused."""
        prepared = self._prepared.pop(job.name, None)
        exit_code = self._exit_codes.pop(job.name, None)
        if not isinstance(prepared, tuple) or exit_code is None:
            return
        target, location = allocation.target, allocation.locations[0]
        connector = self._connector(target)
        contents = await _contents(connector, location, job.output_directory or "")
        if contents is None:
            return
        record.write(
            events.Result(
                job=job.name,
                fingerprint=Fingerprint(*prepared, await self._digest(target)),
                locations=[one.name for one in allocation.locations],
                output=job.output_directory or "",
                local=location.local,
                exit_code=exit_code,
                contents=contents,
            )
        )

    async def find(
        self,
        record: Journal,
        job: Job,
        binding: BindingConfig,
        filters: Sequence[ReuseFilter] = (),
    ) -> Reusable | None:
        """Find a prepared job's result in earlier runs; write the decision to the journal.

        :param filters: filters of the job's binding that may prevent reuse; with filters,
            only the result of the latest run that has started the job is considered
        """
        if self._earlier is None:
            reading = asyncio.to_thread(results.earlier, record)
            self._earlier = asyncio.create_task(reading)
        earlier = await asyncio.shield(self._earlier)
        if job.name not in earlier.started:
            return None
        latest = earlier.started[job.name]
        prepared = self._prepared[job.name]
        if not isinstance(prepared, tuple):
            _write_decision(record, job, None, latest, str(prepared))
            return None
        reasons = []
        candidates = earlier.results.get(job.name, [])
        if filters:
            candidates = [one for one in candidates if one.run == latest]
        for run, result in candidates:
            outcome = await self._check(result, prepared, binding)
            if isinstance(outcome, Reusable):
                outcome = await _filtered(filters, job, binding, outcome)
            if isinstance(outcome, Reusable):
                _write_decision(record, job, run, latest, SAME)
                self.ended(job.name, result.exit_code)
                return outcome
            reasons.append(outcome)
        # the journal gets the reason about the latest attempt, which users expect
        reason = "it was not completed"
        if candidates and candidates[0].run == latest:
            reason = reasons[0]
        elif job.name in earlier.completed:
            reason = "the journal has no whole result of it"
        _write_decision(record, job, None, latest, reason)
        return None

    async def _check(
        self,
        result: events.Result,
        prepared: tuple[str, Inputs],
        binding: BindingConfig,
    ) -> Reusable | str:
        """Return the result if it is valid for the job, or else the reason."""
        digest = result.fingerprint.target
        targets = [one for one in binding.targets if await self._digest(one) == digest]
        fingerprint = Fingerprint(*prepared, digest if targets else "")
        reason = difference(fingerprint, result.fingerprint)
        for target in targets if not reason else ():
            outcome = await self._look(result, target)
            if isinstance(outcome, Reusable):
                return outcome
            reason = reason or outcome
        return reason

    async def _look(self, result: events.Result, target: Target) -> Reusable | str:
        """Return the result if its outputs exist at a target, or else the reason."""
        connector = self._connector(target)
        available = await connector.get_available_locations(service=target.service)
        places = [available[name] for name in result.locations if name in available]
        place = next(iter([*places, *available.values()]), None)
        if place is None or place.location.local != result.local:
            return "its location is gone"
        contents = await _contents(connector, place.location, result.output)
        if contents is None:
            return "its outputs are gone"
        if contents != result.contents:
            return "its outputs have changed"
        return Reusable(result, target, connector, place)

    async def _digest(self, target: Target) -> str:
        key = (target.deployment.name, target.service)
        if key not in self._targets:
            self._targets[key] = await asyncio.to_thread(
                fingerprints.of_target, self._context, target
            )
        return self._targets[key]

    def _connector(self, target: Target) -> Connector:
        name = target.deployment.name
        connector = self._context.deployment_manager.get_connector(name)
        if connector is None:
            raise WorkflowExecutionException(f"Deployment {name} is not deployed.")
        return connector


async def _filtered(
    filters: Sequence[ReuseFilter], job: Job, binding: BindingConfig, reusable: Reusable
) -> Reusable | str:
    """Return the result, or the reason why a filter prevents its reuse."""
    for one in filters:
        if why := await one.why_not_reused(job, binding.targets, reusable.target):
            return why
    return reusable


def _write_decision(
    record: Journal, job: Job, run: str | None, latest: str, reason: str
) -> None:
    if reason:
        record.write(events.Reuse(job=job.name, run=run, latest=latest, reason=reason))


async def _contents(
    connector: Connector, location: ExecutionLocation, folder: str
) -> str | None:
    with suppress(WorkflowExecutionException):
        return await fingerprints.of_folder(connector, location, folder)
    return None


class ReusedOutputs(ObservedConnector):
    """Puts outputs of an earlier run into place instead of running the job's command.

    :param placing: shell command that puts the outputs in ``{output}`` into place
    :param observer: observer of the job, which is called as if the command ran
    """

    def __init__(
        self,
        connector: Connector,
        result: events.Result,
        placing: str,
        observer: Observer,
    ) -> None:
        super().__init__(connector, observer)
        self._result = result
        self._placing = placing

    async def invoke(self, invocation: Invocation) -> CommandResult:
        """Link or copy the files into the work directory."""
        if invocation.job_name is None:
            return await super().invoke(invocation)
        output = shlex.quote(f"{self._result.output}/.")
        script = self._placing.format(output=output)
        result = await super().invoke(
            Invocation(
                invocation.location,
                ["sh", "-c", shlex.quote(script)],
                workdir=invocation.workdir,
                capture_output=True,
            )
        )
        message, status = result or ("", 1)
        if status != 0:
            raise WorkflowExecutionException(
                f"The outputs of job {invocation.job_name} in {self._result.output} could "
                f"not be reused: {message}"
            )
        return "", self._result.exit_code
