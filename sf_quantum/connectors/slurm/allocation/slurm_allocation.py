"""Batch jobs that only hold nodes, and the jobs that run on them one at a time."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace

from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors.slurm import sbatch_options, scripts
from sf_quantum.connectors.slurm.allocation.limits import JobLength, ShortLimit
from sf_quantum.connectors.slurm.allocation.step import Step
from sf_quantum.connectors.slurm.allocation.step_job import (
    AllocationGone,
    StepJob,
    read_result,
    with_limit,
)
from sf_quantum.connectors.slurm.job import BatchJob
from sf_quantum.connectors.slurm.node_usage import NodeUsage
from sf_quantum.connectors.slurm.queue import SlurmQueue, capitalized
from sf_quantum.connectors.slurm.refusals import SlurmRefusal
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.connectors.slurm.transport.answers import (
    EndReason,
    JobOutcome,
)
from sf_quantum.files import JSON
from sf_quantum.slurm import ids, states
from sf_quantum.slurm.squeue import QueueRow

# Pause between two queries while an ending allocation is COMPLETING.
STATE_PAUSE_SECONDS = 0.2
RETRY_SECONDS = 1.0
# Pause between two checks whether a job has begun.
BEGIN_SECONDS = 2.0


class SlurmAllocation:
    """A batch job that only holds its nodes, or one component of such a job.

    See :class:`~sf_quantum.connectors.slurm.allocation.step.Allocation`.

    :ivar limit: time limit of the allocation, if shorter than that of its service
    """

    def __init__(
        self,
        queue: SlurmQueue,
        leader: BatchJob,
        component: BatchJob,
        service: SlurmService,
    ) -> None:
        self.limit = ShortLimit()
        # latest step, which runs the latest job
        self._step: Step | None = None
        self.queue = queue
        self._login = queue.login
        self.leader = leader
        self.own = component
        self._service = service
        self._given_back = False
        self._is_useless = False
        self._was_used = False

    @staticmethod
    async def request(
        queue: SlurmQueue,
        strategy: str,
        name: str,
        held: Sequence[SlurmService],
        directives: Sequence[str],
        **overrides: JSON,
    ) -> list[SlurmAllocation]:
        """Submit a job that only holds nodes, with a component for each service.

        :param overrides: see :func:`sf_quantum.connectors.slurm.sbatch_options.words`
        :raises SlurmRefusal: if Slurm refuses the job
        """
        deployment = queue.deployment
        usages = [NodeUsage(deployment, service, strategy) for service in held]
        leader = BatchJob(name, usages[0], group=0 if len(held) > 1 else None)
        seconds = queue.orphan_seconds
        try:
            await queue.submit(
                leader,
                sbatch_options.holder_options(deployment, held, **overrides),
                scripts.holder(queue.login.spool, leader.key, directives, seconds),
                note=sbatch_options.note(held[0]),
                at_once=sbatch_options.at_once_options(
                    deployment, held, directives, **overrides
                ),
                clusters=held[0].clusters,
            )
        except SlurmRefusal as refusal:
            raise SlurmRefusal(str(refusal), held) from None
        components = [
            queue.follow_component(leader, number, usage)
            for number, usage in enumerate(usages[1:], start=1)
        ]
        return [
            SlurmAllocation(queue, leader, component, service)
            for component, service in zip((leader, *components), held, strict=True)
        ]

    @property
    def refusal(self) -> asyncio.Future[str]:
        """The reason why Slurm never grants the nodes, once Slurm reports such a reason."""
        return self.own.pending.refusal

    def never_granted(self) -> SlurmRefusal:
        """Return the error for a job whose nodes Slurm never grants."""
        reason = self.refusal.result()
        return SlurmRefusal(
            f"Slurm will never start {self.own.name}: {reason}", [self._service]
        )

    @property
    def over(self) -> bool:
        """Whether the allocation cannot run further jobs."""
        return self._given_back or self._is_useless or self._has_ended

    @property
    def _has_ended(self) -> bool:
        return self.leader.ended.done() or self.own.ended.done()

    def lasts(self, length: JobLength) -> bool:
        """Return whether the allocation's remaining time suffices for a job, as far as known.

        It always suffices in an unused allocation with the time limit of its service, since a
        new allocation would not run longer.
        """
        if (end := self._short_end) is not None:
            return time.time() <= self.limit.latest_start(length.limit, end)
        row = self._row
        return not self._was_used or row is None or length.fits(row, time.time())

    @property
    def _row(self) -> QueueRow | None:
        row = self.own.row
        return row if row is not None and row.state == "RUNNING" else None

    @property
    def _short_end(self) -> float | None:
        granted = self.leader.granted
        if not granted.done() or granted.cancelled():
            return None
        return self.limit.end(self._row, granted.result().started)

    async def granted(self) -> SlurmAllocation:
        """Wait until the nodes are granted.

        :raises WorkflowExecutionException: if the allocation ends first; the message has the
            reason
        :raises AllocationGone: if Slurm has lost its record of a heterogeneous allocation,
            which the queue does not submit again
        """
        try:
            await asyncio.shield(self.leader.granted)
        except asyncio.CancelledError:
            if not self.leader.ended.done():
                raise
            lost = self.leader.ended.result().reason == EndReason.UNRECORDED
            if lost and not self.leader.leaves_lock:
                raise AllocationGone from None
            raise WorkflowExecutionException(
                f"{capitalized(self.leader.name)} was not granted: "
                f"{self.leader.ended.result().sentence()}."
            ) from None
        return self

    async def run(self, job: StepJob, requested: float) -> JobOutcome:
        """Run a job to its end.

        :param requested: time at which the job requested nodes, in epoch seconds
        :raises AllocationGone: if the allocation ended before the job began
        """
        self._was_used = True
        while not self.over:
            # If the limit was shortened, the remaining time may be too short by now.
            if self._short_end and not self.lasts(JobLength(job.seconds, 0)):
                self._is_useless = True
                break
            self._step = step = self._new_step(job)
            try:
                mark = await step.run()
            except asyncio.CancelledError:
                # If the allocation has ended, so have its steps, and the spool may soon be
                # removed.
                if not self.over:
                    await step.cancel()
                raise
            outcome = await self._outcome(step, job, mark)
            if outcome is not None:
                outcome = with_limit(job, outcome)
                self.own.usage.record(job.name, requested, outcome)
                output = step.path("out")
                return await read_result(self._login, job, outcome, output, mark)
            await asyncio.sleep(RETRY_SECONDS)
        raise AllocationGone

    def _new_step(self, job: StepJob) -> Step:
        end = self._short_end
        latest = None if end is None else self.limit.latest_start(job.seconds, end)
        return Step(self, job, latest)

    async def end_with(self, seconds: int) -> None:
        """Lower the allocation's time limit in Slurm, once its last job has begun.

        :param seconds: time limit of the job, at which the job ends itself
        """
        while True:
            await asyncio.sleep(BEGIN_SECONDS)
            if self._step is None:
                continue
            row, file = self._row, shlex.quote(self._step.path("began"))
            text, _ = await self._login.ask(f"cat {file} && date +%s")
            # The file contains 0 until the job begins, and is removed when the job ends.
            now = re.fullmatch(r"[1-9][\d.]*\s+(\d+)\s*", text)
            if row is not None and row.started and now is not None:
                break
        job_end = float(now[1]) + seconds
        if minutes := self.limit.lower(row.started, row.ended, job_end):
            at = answers.at(ids.cluster(self.own.slurm_job))
            number, patience = ids.number(self.own.slurm_job), answers.PATIENCE_SECONDS
            await self._login.ask(
                f"plain timeout {patience} scontrol{at} update JobId={number} "
                f"TimeLimit={minutes}"
            )

    async def give_back(self) -> None:
        """End the allocation or, if it is heterogeneous, only this component."""
        if not self._given_back and not self._has_ended:
            self.own.usage.given_back(time.time())
            self._given_back = True
            await self.queue.scancel(
                ids.component(self.leader.slurm_job, self.own.group)
            )
        self.own.abandoned()

    async def _outcome(
        self, step: Step, job: StepJob, mark: JobMark
    ) -> JobOutcome | None:
        """Return how a job ended.

        :returns: ``None`` if the job has to be started again
        :raises AllocationGone: if the allocation ended before the job began
        """
        end = await self._allocation_end(mark)
        if end is not None and end.good:
            # Even if the allocation ended successfully, a job that is lost with it has not.
            end = replace(end, state="CANCELLED", reason=EndReason.ALLOCATION_ENDED)
        # The mark of a job that ended before the allocation is valid. (The allocation's times
        # are whole seconds.)
        if mark.ended is not None and (
            end is None or (end.ended is not None and mark.ended < end.ended)
        ):
            return JobOutcome.of_mark(self.own.slurm_job, mark)
        # On a cluster without CPU binding, srun prints this line for every step.
        common = "lacks support for cpu binding"
        errors = shlex.quote(step.path("srun"))
        text, status = await self._login.ask(f"grep -v '{common}' {errors}")
        error = " ".join(text.split()) if status == 0 else ""
        code = mark.exit_code or 0
        if not mark.started:
            if end is not None or answers.is_node_trouble(error):
                self._is_useless = True
                raise AllocationGone
            if answers.is_temporary(error, code):
                return None
        if end is not None:
            return end
        now = time.time()
        began, limit = mark.started, job.seconds
        late = began and limit is not None and now - began >= limit
        return JobOutcome(
            self.own.slurm_job,
            "TIMEOUT" if late else "FAILED",
            error or EndReason.NO_EXIT_CODE,
            exit_code=code or 1,
            started=began or None,
            ended=now,
        )

    async def _allocation_end(self, mark: JobMark) -> JobOutcome | None:
        """Return how the allocation ended.

        :returns: ``None`` if it runs, or if Slurm does not answer and the job left a mark
        """
        while True:
            for batch_job in (self.own, self.leader):
                if batch_job.ended.done():
                    return batch_job.ended.result()
            answer = await self.queue.controller.records(self.own.slurm_job)
            records = self.own.exclude_foreign(answer or [])
            if states.unknown(record.state for record in records):
                records = []
            if records and records[0].state == "RUNNING":
                return None
            if records and records[0].state in states.ENDED:
                return records[0]
            marked = mark.ended is not None
            if not records and marked and answer != []:
                return None
            await asyncio.sleep(STATE_PAUSE_SECONDS)
