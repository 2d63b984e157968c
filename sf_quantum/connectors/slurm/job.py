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
ENDING      There is a sign of the job's end: its script has left a mark, or ``squeue`` no
            longer lists the job as active, or does not list it at all. Slurm is queried for
            the outcome. If the query fails, the job returns to its previous state, and the
            next sign triggers another query.
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

# consecutive polls without a job after which the job counts as ending
DENIALS = 3
# pending seconds after which the reason is logged
LONG_SECONDS = 10.0
# Longest time until Slurm notices the end of a script that has left its mark: several times
# its MessageTimeout (slurm.conf(5): 10 s), as the controller or a node may be busy.
UNNOTICED_SECONDS = 60.0

Found = TypeVar("Found", JobOutcome, QueueRow)


class BatchJobState(Enum):
    SUBMITTING = auto()
    QUEUED = auto()
    RUNNING = auto()
    ENDING = auto()
    ENDED = auto()
    ABANDONED = auto()
    SETTLED = auto()


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
        #: the reason for which Slurm never starts the job, once there is one
        self.refusal: asyncio.Future[str] = asyncio.Future()
        self._reported: set[str] = set()

    def unreported(
        self, rows: Sequence[QueueRow], now: float
    ) -> Iterator[PendingReason]:
        """Yield the reasons in ``squeue`` that are to be logged."""
        for row in rows:
            reason = row.reason.strip("()")
            if row.state != "PENDING" or reason in self._reported:
                continue
            if is_refusal(reason) and not self.refusal.done():
                self.refusal.set_result(reason)
            hopeless = answers.is_hopeless(reason)
            long = now - self.since >= LONG_SECONDS
            if hopeless or (long and not self._reported):
                self._reported.add(reason)
                yield PendingReason(reason, hopeless)


class BatchJob:
    """A Slurm job that runs a job of a step, or holds nodes for several jobs.

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
        #: of the tool whose job this is
        self.exit_codes = exit_codes.current()
        self.state = BatchJobState.SUBMITTING
        #: Slurm's id, empty until it is known
        self.slurm_job = ""
        #: names of the clusters that may run the job, empty for the login node's own cluster
        self.clusters = ""
        #: beginning of the job's comment in Slurm's queue, empty until it is submitted
        self.comment = ""
        #: the latest line of ``squeue``
        self.row: QueueRow | None = None
        #: the mark of its script
        self.mark: JobMark | None = None
        #: done when the nodes of an allocation are granted; cancelled if it ends before
        self.granted: asyncio.Future[JobMark] = asyncio.Future()
        self.ended: asyncio.Future[JobOutcome] = asyncio.Future()
        self.pending = PendingReasons()
        self._components: list[BatchJob] = []
        self._before = BatchJobState.SUBMITTING
        self._denials = 0
        # the state in the latest answer of scontrol, empty if there was none
        self._shown = ""
        # The worst end of a task of an array that was not good. Slurm may forget it before
        # the last task ends.
        self._failed_task: JobOutcome | None = None
        # ids of submissions that have succeeded
        self._well: set[str] = set()
        # Time at which squeue first listed the job as running after its end, on the event
        # loop's clock.
        self._unnoticed_since: float | None = None

    @property
    def active(self) -> bool:
        """Whether Slurm has accepted the job, and its outcome is still needed."""
        return self.state in _ACTIVE

    @property
    def leaves_lock(self) -> bool:
        """Whether a lock shows that the script has begun, and stops any second submission."""
        return self.group is None

    @property
    def unsettled(self) -> bool:
        """Whether only the journal entry is incomplete."""
        return self.state in (BatchJobState.ENDED, BatchJobState.ABANDONED)

    def exclude_foreign(self, rows: Iterable[Found]) -> list[Found]:
        """Return Slurm's rows or records without those of another job with the same id."""
        return [
            row for row in rows if not answers.is_foreign(row.comment, self.comment)
        ]

    def accepted(self, slurm_job: str, now: float) -> None:
        """Slurm has accepted the job; ``now`` is on the event loop's clock."""
        self.pending.since = now
        self.usage.submitted(slurm_job, self.group)
        # a mark may precede the answer of sbatch; the mark's job id takes precedence
        self.slurm_job = self.slurm_job or slurm_job
        self._be(BatchJobState.RUNNING if self.granted.done() else BatchJobState.QUEUED)
        if self.mark is not None:
            self.state = BatchJobState.ENDING

    def refused(self) -> None:
        """Slurm has refused the job, or the submission was given up."""
        self.state = BatchJobState.SETTLED

    def component(self, number: int, usage: NodeUsage) -> BatchJob:
        """Add a further component of a heterogeneous job, which leaves no mark."""
        component = BatchJob(self.name, usage, group=number)
        # components have consecutive job ids (sbatch(1), heterogeneous jobs)
        component_number = int(ids.number(self.slurm_job)) + number
        component.slurm_job = ids.of(str(component_number), ids.cluster(self.slurm_job))
        component.comment, component.clusters = self.comment, self.clusters
        component.accepted(self.slurm_job, self.pending.since)
        if self.granted.done():
            component._be(BatchJobState.RUNNING)
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
                job._be(BatchJobState.RUNNING)
        if not self.granted.done():
            self.granted.set_result(mark)

    def listed(self, rows: Sequence[QueueRow]) -> None:
        """``squeue`` has returned these rows of the job; none if it does not know the job."""
        self._denials = 0 if rows else self._denials + 1
        if rows:
            self.row = rows[0]
        if self.array:
            ended = (JobOutcome.of_row(row) for row in rows if row.over)
            failed = [
                one for one in (self._failed_task, *ended) if one and not one.good
            ]
            if failed:
                self._failed_task = answers.worst(failed, self.exit_codes)
        # a controller that has just started may not list the job yet
        if all(row.over for row in rows) and (rows or self._denials >= DENIALS):
            self.state = BatchJobState.ENDING
        elif rows:
            for row in rows:
                self.usage.seen(row)
            self._be(_where(*(row.state for row in rows)))

    def process_records(self, records: list[JobOutcome]) -> JobOutcome | None:
        """Return the outcome in the answer of ``scontrol``; None if the job has not ended."""
        # the script of a heterogeneous job runs in the first component
        outcome = answers.worst(records, self.exit_codes) if self.array else records[0]
        self._shown = outcome.state
        if all(one.state in states.ENDED for one in records):
            return outcome
        if self.mark is not None and outcome.is_later_run(self.mark.ended):
            self.mark = None
        self._be(_where(outcome.state))
        return None

    def unanswered(self) -> None:
        """The query for the outcome has failed."""
        self._shown = ""

    def is_proven(self, outcome: JobOutcome) -> bool:
        """Whether a successful outcome is confirmed by a mark.

        If an answer was lost and a job submitted twice, the second script finds the lock of
        the first, and ends successfully without running the command.
        """
        return self.mark is not None or not outcome.good

    def process_lock(self, owners: set[str], outcome: JobOutcome) -> JobOutcome | None:
        """Decide by the lock, which the first of two submissions acquires.

        :param owners: job ids in the lock files; more than one if tasks of an array have
            begun in both submissions
        :param outcome: outcome of this submission
        :returns: outcome of the job; None if another submission determines it
        """
        if not owners:
            return replace(outcome, state=LOST, reason=EndReason.NEVER_BEGAN)
        for owner in owners:
            if ids.same(owner, self.slurm_job):
                self.slurm_job = owner  # the owner also names the cluster that runs it
        if outcome.good:
            self._well.add(self.slurm_job)
        elif self.slurm_job in owners:
            return outcome
        if others := owners - self._well:
            self.slurm_job = min(others)
            return None
        return outcome

    def outcome_without_record(
        self, reason: EndReason = EndReason.FORGOTTEN
    ) -> JobOutcome:
        """Return the outcome in the mark; Slurm no longer has a record of the job.

        :param reason: reason of the loss that is reported if there is no mark
        """
        if self.mark is not None:
            return JobOutcome.of_mark(self.mark.slurm_job, self.mark)
        return JobOutcome(self.slurm_job, LOST, reason)

    def unrecorded(self, at: float) -> None:
        """Slurm has lost its record of the job before the job began: it has no id now."""
        self.usage.given_up(at)
        self.slurm_job, self.row, self._denials = "", None, 0
        self._before = BatchJobState.QUEUED

    def accepted_again(self, slurm_job: str) -> None:
        """Slurm has accepted the job once more."""
        self.usage.submitted(slurm_job)
        # unless the first submission has begun after all
        self.slurm_job = self.slurm_job or slurm_job

    def outcome_after_timeout(self) -> JobOutcome | None:
        """Return the outcome in the mark, as Slurm did not answer; None if out of date."""
        # a successful job that Slurm still lists as running may be cancelled or requeued
        if self.mark is None or (self._shown == "RUNNING" and not self.mark.exit_code):
            return None
        return JobOutcome.of_mark(self.mark.slurm_job, self.mark)

    def concluded(self, outcome: JobOutcome | None) -> None:
        """The query for the outcome has finished, with None if the job has not ended."""
        if self.state is BatchJobState.SETTLED:
            return
        if outcome is None:
            if self.state is BatchJobState.ENDING:
                self.state = self._before
            return
        if self._failed_task is not None:
            outcome = answers.worst([outcome, self._failed_task], self.exit_codes)
        if ids.number(outcome.slurm_job) == ids.number(self.slurm_job):
            # Slurm's record of a federated job does not name the cluster.
            outcome = replace(outcome, slurm_job=self.slurm_job)
        rows = [] if self.array or self.row is None else [self.row]
        is_listed = outcome in map(JobOutcome.of_row, rows)
        mark = self.mark
        if mark is not None and outcome.plain and not outcome.is_later_run(mark.ended):
            # the mark's times of the same run are precise; Slurm's are whole seconds
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
        """Whether the job, which has ended or was given up, is to be cancelled (again).

        A cancelled job may be requeued, and its node may fail after its mark. But Slurm may
        also not have noticed the end of the run that left the mark; a cancellation would then
        falsify Slurm's record of that run.

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
        """Whether ``squeue`` lists the run that has left the mark, and not a later run."""
        if self.mark is None or row.state not in states.RUNNING:
            return False
        ended, started = self.mark.ended, row.started
        return not row.restarts or (
            ended is not None and started is not None and started < ended
        )

    def _be(self, state: BatchJobState) -> None:
        """Set the state, or the state to return to if a query is in progress."""
        self._before = state
        # Slurm may answer after the job was abandoned
        if self.state in _UNENDED:
            self.state = state


def _where(*names: str) -> BatchJobState:
    running = states.RUNNING & {*names}
    return BatchJobState.RUNNING if running else BatchJobState.QUEUED
