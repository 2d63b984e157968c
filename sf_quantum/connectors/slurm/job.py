"""The life of a Slurm job, from ``sbatch`` to its last entry in the journal.

::

                  accepted           starts
      SUBMITTING ──────────> QUEUED ────────> RUNNING
          │                    │ ^ <────────── │ ^
          │                    │ │  requeued   │ │
          │      a mark, or no │ │             │ │ no outcome: the query failed,
          │     longer active  v │             v │ or the job runs (again)
          │                   ENDING <───────────┘
          │ refused              │ the outcome
          v                      v
       SETTLED <───────────── ENDED
            Slurm's own times

      QUEUED, RUNNING, ENDING ── given up ──> ABANDONED ──> SETTLED

SUBMITTING  ``sbatch`` is run until Slurm accepts or refuses the job.
QUEUED      Slurm has accepted the job, which is not known to run.
RUNNING     The nodes are granted.
ENDING      There is a sign of the job's end: its script has left a mark (a line with exit code
            and times), or ``squeue`` no longer lists the job as active, or does not list it at
            all. Slurm is queried for the outcome. If the query fails, the job returns to its
            previous state, and the next sign triggers another query.
ENDED       The outcome is known and has been passed to the step. The journal entry still
            lacks the times at which Slurm granted and freed the nodes, unless the outcome
            is from ``squeue``, which also lists these times.
ABANDONED   The outcome is no longer needed. The cancellation of the job is repeated until
            Slurm reports its end; a pending query that returns an outcome makes it ENDED.
SETTLED     The journal entry is complete.

Only :class:`~sf_quantum.connectors.slurm.queue.SlurmQueue` changes the state of a job, with
the methods of :class:`BatchJob` that are named after events. Other classes read the
attributes and await ``granted`` and ``ended``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar

from sf_quantum.connectors import exit_codes
from sf_quantum.connectors.slurm.node_usage import NodeUsage
from sf_quantum.connectors.slurm.refusals import is_refusal
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.connectors.slurm.transport.answers import (
    LOST,
    EndReason,
    JobOutcome,
)
from sf_quantum.slurm import ids, states
from sf_quantum.slurm.squeue import QueueRow

# number of consecutive answers of squeue without a job after which the job is regarded as
# ending
DENIALS = 3
# seconds for which a job is pending before the reason is logged
LONG_SECONDS = 10.0
# Longest time until Slurm notices the end of a script that has left its mark: a multiple of
# MessageTimeout (slurm.conf(5): 10 s), as the controller or a node may be busy.
UNNOTICED_SECONDS = 60.0

Found = TypeVar("Found", JobOutcome, QueueRow)


class BatchJobState(Enum):
    """A state of a job; see the module."""

    SUBMITTING = auto()
    QUEUED = auto()
    RUNNING = auto()
    ENDING = auto()
    ENDED = auto()
    ABANDONED = auto()
    SETTLED = auto()


# states in which the outcome is still needed, and in which the job has not ended
_ACTIVE = {BatchJobState.QUEUED, BatchJobState.RUNNING, BatchJobState.ENDING}
_UNENDED = {BatchJobState.SUBMITTING, BatchJobState.QUEUED, BatchJobState.RUNNING}


@dataclass(frozen=True)
class PendingReason:
    """Slurm's reason why a job is pending, and whether it will probably never start."""

    reason: str
    hopeless: bool


class PendingReasons:
    """The reasons why a job is pending, each of which is logged once."""

    def __init__(self) -> None:
        #: time of the submission on the event loop's clock
        self.since = 0.0
        #: done with the reason, if Slurm reports a reason why it never starts the job
        self.refusal: asyncio.Future[str] = asyncio.Future()
        self._reported: set[str] = set()

    def unreported(
        self, rows: Sequence[QueueRow], now: float
    ) -> Iterator[PendingReason]:
        """Yield the reasons in rows of ``squeue`` that have to be logged now."""
        for row in rows:
            reason = row.reason.strip("()")
            if row.state != "PENDING" or reason in self._reported:
                continue
            if is_refusal(reason) and not self.refusal.done():
                self.refusal.set_result(reason)
            hopeless = answers.is_hopeless(reason)
            is_long = now - self.since >= LONG_SECONDS
            if hopeless or (is_long and not self._reported):
                self._reported.add(reason)
                yield PendingReason(reason, hopeless)


class BatchJob:
    """A Slurm job that runs a workflow job, or holds nodes for several workflow jobs.

    Its script acquires a *lock* file before it runs the command, so that a job that was
    submitted twice runs only once, and leaves a *mark* at its end.

    :param name: name of the job in messages
    :param array: whether the job is an array, each task of which has its own lock and mark
    :param group: number of the component, if the job is heterogeneous
    """

    def __init__(
        self,
        name: str,
        usage: NodeUsage,
        *,
        array: bool = False,
        group: int | None = None,
    ) -> None:
        #: name of the job's files in the spool, and part of its comment in Slurm's queue
        self.key = uuid.uuid4().hex
        self.name = name
        self.array = array
        self.group = group
        self.usage = usage
        #: exit codes of the tool that the job runs
        self.exit_codes = exit_codes.current()
        self.state = BatchJobState.SUBMITTING
        #: Slurm's id, empty until it is known
        self.slurm_job = ""
        #: names of the clusters that may run the job; empty for the login node's own cluster
        self.clusters = ""
        #: beginning of the job's comment in Slurm's queue; empty until the job is submitted
        self.comment = ""
        #: latest row of the job in ``squeue``
        self.row: QueueRow | None = None
        #: mark that the job's script has left
        self.mark: JobMark | None = None
        #: done when the nodes of an allocation are granted; cancelled if the job ends first
        self.granted: asyncio.Future[JobMark] = asyncio.Future()
        self.ended: asyncio.Future[JobOutcome] = asyncio.Future()
        self.pending = PendingReasons()
        self._components: list[BatchJob] = []
        self._previous_state = BatchJobState.SUBMITTING
        self._denials = 0
        # the state in the latest answer of scontrol; empty if there was no answer
        self._state_in_scontrol = ""
        # Worst outcome of an array's tasks that have failed so far: Slurm may forget a task
        # before the last task ends.
        self._failed_task: JobOutcome | None = None
        # ids of the Slurm jobs of this job that have succeeded
        self._succeeded_ids: set[str] = set()
        # Time on the event loop's clock at which squeue first listed the job as running after
        # the job's end.
        self._unnoticed_since: float | None = None

    @property
    def active(self) -> bool:
        """Whether Slurm has accepted the job, and its outcome is still needed."""
        return self.state in _ACTIVE

    @property
    def leaves_lock(self) -> bool:
        """Whether the script uses a lock, which ends any second submission of the job."""
        return self.group is None

    @property
    def unsettled(self) -> bool:
        """Whether only the journal entry is incomplete."""
        return self.state in (BatchJobState.ENDED, BatchJobState.ABANDONED)

    def exclude_foreign(self, rows: Iterable[Found]) -> list[Found]:
        """Return the rows or records of this job, without other jobs that had the same id."""
        return [
            row for row in rows if not answers.is_foreign(row.comment, self.comment)
        ]

    def accepted(self, slurm_job: str, now: float) -> None:
        """Slurm has accepted the job; ``now`` is on the event loop's clock."""
        self.pending.since = now
        self.usage.submitted(slurm_job, self.group)
        # The mark may arrive before the answer of sbatch; its job id takes precedence.
        self.slurm_job = self.slurm_job or slurm_job
        self._set_state(
            BatchJobState.RUNNING if self.granted.done() else BatchJobState.QUEUED
        )
        if self.mark is not None:
            self.state = BatchJobState.ENDING

    def refused(self) -> None:
        """Slurm has refused the job, or the submission was given up."""
        self.state = BatchJobState.SETTLED

    def component(self, number: int, usage: NodeUsage) -> BatchJob:
        """Add a further component of a heterogeneous job; such a component leaves no mark."""
        component = BatchJob(self.name, usage, group=number)
        # Components have consecutive job ids (sbatch(1), heterogeneous jobs).
        component_number = int(ids.number(self.slurm_job)) + number
        component.slurm_job = ids.of(str(component_number), ids.cluster(self.slurm_job))
        component.comment, component.clusters = self.comment, self.clusters
        component.accepted(self.slurm_job, self.pending.since)
        if self.granted.done():
            component._set_state(BatchJobState.RUNNING)
            if not self.granted.cancelled():
                usage.started(self.granted.result().started)
        self._components.append(component)
        return component

    def marked(self, mark: JobMark) -> None:
        """The script has left a mark: the nodes are granted, or the job has ended."""
        if not self.active and self.state is not BatchJobState.SUBMITTING:
            return
        mark = replace(mark, slurm_job=ids.found(mark.slurm_job, self.clusters))
        self.slurm_job = mark.slurm_job
        if mark.exit_code is not None:
            self.mark = mark
            if self.active:
                self.state = BatchJobState.ENDING
            return
        for job in (self, *self._components):
            job.usage.started(mark.started)
            if job.active:
                job._set_state(BatchJobState.RUNNING)
        if not self.granted.done():
            self.granted.set_result(mark)

    def listed(self, rows: Sequence[QueueRow]) -> None:
        """``squeue`` has returned these rows of the job; none if it does not list the job."""
        self._denials = 0 if rows else self._denials + 1
        if rows:
            self.row = rows[0]
        if self.array:
            ended = (JobOutcome.of_row(row) for row in rows if row.over)
            failed = [
                outcome
                for outcome in (self._failed_task, *ended)
                if outcome and not outcome.good
            ]
            if failed:
                self._failed_task = answers.worst(failed, self.exit_codes)
        # Several answers without the job are required, since a controller that has just
        # started may not list the job yet.
        if all(row.over for row in rows) and (rows or self._denials >= DENIALS):
            self.state = BatchJobState.ENDING
        elif rows:
            for row in rows:
                self.usage.seen(row)
            self._set_state(_active_state(*(row.state for row in rows)))

    def process_records(self, records: list[JobOutcome]) -> JobOutcome | None:
        """Return the outcome in scontrol's answer; ``None`` if the job has not ended."""
        # The first record is the component in which a heterogeneous job's script runs.
        outcome = answers.worst(records, self.exit_codes) if self.array else records[0]
        self._state_in_scontrol = outcome.state
        if all(record.state in states.ENDED for record in records):
            return outcome
        if self.mark is not None and outcome.is_later_run(self.mark.ended):
            self.mark = None
        self._set_state(_active_state(outcome.state))
        return None

    def unanswered(self) -> None:
        """The query for the outcome has failed."""
        self._state_in_scontrol = ""

    def is_proven(self, outcome: JobOutcome) -> bool:
        """Return whether a mark confirms a successful outcome; other outcomes need no mark.

        If Slurm's answer was lost and the job was submitted twice, the second script finds the
        lock of the first, and ends successfully without running the command.
        """
        return self.mark is not None or not outcome.good

    def process_lock(self, owners: set[str], outcome: JobOutcome) -> JobOutcome | None:
        """Determine the outcome from the lock, which the first of two submissions acquires.

        :param owners: job ids in the lock files; several if tasks of an array have begun in
            both submissions
        :param outcome: outcome of this submission
        :returns: outcome of the job; ``None`` if another submission determines it
        """
        if not owners:
            return replace(outcome, state=LOST, reason=EndReason.NEVER_BEGAN)
        for owner in owners:
            if ids.same(owner, self.slurm_job):
                self.slurm_job = owner  # includes the cluster that runs the job
        if outcome.good:
            self._succeeded_ids.add(self.slurm_job)
        elif self.slurm_job in owners:
            return outcome
        if others := owners - self._succeeded_ids:
            self.slurm_job = min(others)
            return None
        return outcome

    def outcome_without_record(
        self, reason: EndReason = EndReason.FORGOTTEN
    ) -> JobOutcome:
        """Return the outcome from the mark, as Slurm no longer has a record of the job.

        :param reason: reason that is reported if there is no mark
        """
        if self.mark is not None:
            return JobOutcome.of_mark(self.mark.slurm_job, self.mark)
        return JobOutcome(self.slurm_job, LOST, reason)

    def unrecorded(self, at: float) -> None:
        """Slurm has lost its record of the job before the job began; the id is void."""
        self.usage.given_up(at)
        self.slurm_job, self.row, self._denials = "", None, 0
        self._previous_state = BatchJobState.QUEUED

    def accepted_again(self, slurm_job: str) -> None:
        """Slurm has accepted a second submission of the job."""
        self.usage.submitted(slurm_job)
        # If the first submission has begun after all, its id is kept.
        self.slurm_job = self.slurm_job or slurm_job

    def outcome_after_timeout(self) -> JobOutcome | None:
        """Return the mark's outcome, as Slurm did not answer; ``None`` if it is unreliable."""
        # A job that succeeded, but that Slurm still lists as running, may yet be cancelled or
        # requeued.
        if self.mark is None or (
            self._state_in_scontrol == "RUNNING" and not self.mark.exit_code
        ):
            return None
        return JobOutcome.of_mark(self.mark.slurm_job, self.mark)

    def concluded(self, outcome: JobOutcome | None) -> None:
        """The query for the outcome has finished; ``None`` if the job has not ended."""
        if self.state is BatchJobState.SETTLED:
            return
        if outcome is None:
            if self.state is BatchJobState.ENDING:
                self.state = self._previous_state
            return
        if self._failed_task is not None:
            outcome = answers.worst([outcome, self._failed_task], self.exit_codes)
        if ids.number(outcome.slurm_job) == ids.number(self.slurm_job):
            # Slurm's record of a federated job lacks the cluster, so the known id is kept.
            outcome = replace(outcome, slurm_job=self.slurm_job)
        rows = [] if self.array or self.row is None else [self.row]
        is_listed = outcome in map(JobOutcome.of_row, rows)
        mark = self.mark
        if mark is not None and outcome.plain and not outcome.is_later_run(mark.ended):
            # The mark is from the same run, and its times are more precise than Slurm's, which
            # are whole seconds.
            ended = mark.ended or outcome.ended
            outcome = replace(outcome, started=mark.started, ended=ended)
        self.usage.ended(outcome)
        self.state = BatchJobState.ENDED
        if not self.ended.done():
            self.ended.set_result(outcome)
        if not self.granted.done():
            self.granted.cancel()
        if is_listed:  # the row also has Slurm's own times
            self.settled(rows)

    def abandoned(self) -> None:
        """The outcome is no longer needed."""
        if self.active:
            self.state = BatchJobState.ABANDONED

    def settled(self, rows: Sequence[QueueRow]) -> None:
        """Complete the journal entry if Slurm has freed the nodes or forgotten the job."""
        if all(row.over or (row.freed and self.usage.nodes) for row in rows):
            self.usage.settle(rows[0] if rows else None)
            self.state = BatchJobState.SETTLED

    def outlives_its_end(self, rows: Sequence[QueueRow], now: float) -> bool:
        """Return whether the job, which ended or was given up, has to be cancelled (again).

        A cancelled job may be requeued, as may a job whose node fails after the job left its
        mark. But Slurm may only not have noticed yet that the run with the mark has ended; a
        cancellation would then falsify Slurm's record of this run.

        :param now: time on the event loop's clock
        """
        lasting = [row for row in rows if row.lasts]
        wanted = self.state is BatchJobState.ENDED
        if not (lasting and wanted and all(map(self._has_left_mark, lasting))):
            return bool(lasting)
        if self._unnoticed_since is None:
            self._unnoticed_since = now
        return now - self._unnoticed_since >= UNNOTICED_SECONDS

    def _has_left_mark(self, row: QueueRow) -> bool:
        """Return whether ``squeue`` lists the run that left the mark, and not a later run."""
        if self.mark is None or row.state not in states.RUNNING:
            return False
        ended, started = self.mark.ended, row.started
        return not row.restarts or (
            ended is not None and started is not None and started < ended
        )

    def _set_state(self, state: BatchJobState) -> None:
        """Set the state; during a query for the outcome, set the state to return to."""
        self._previous_state = state
        # Slurm may answer after the job was abandoned.
        if self.state in _UNENDED:
            self.state = state


def _active_state(*names: str) -> BatchJobState:
    running = states.RUNNING & {*names}
    return BatchJobState.RUNNING if running else BatchJobState.QUEUED
