"""The life of a Slurm job, from ``sbatch`` to its last entry in the journal.

::

                  accepted           starts
      SUBMITTING ──────────> QUEUED ────────> RUNNING
          │                    │ ^ <────────── │ ^
          │                    │ │  requeued   │ │
          │      a mark, or no │ │             │ │ no outcome: Slurm could not be asked,
          │     longer active  v │             v │ or the job runs (again)
          │                   ENDING <───────────┘
          │ refused              │ the outcome
          v                      v
       SETTLED <───────────── ENDED
            Slurm's own times

      QUEUED, RUNNING, ENDING ── nobody waits for it ──> ABANDONED ──> SETTLED

SUBMITTING  ``sbatch`` is tried until Slurm accepts or refuses the job.
QUEUED      Slurm has the job; as far as is known it does not run.
RUNNING     It has its nodes.
ENDING      There is a sign of its end: the mark of its script, or ``squeue`` no longer
            lists it as active, or does not know it. Slurm is being asked how it ended.
            "I could not ask" is no answer: the job goes back to where it was, and the
            next sign has it asked about again.
ENDED       The outcome is known and is what the step gets. The journal waits for the
            times at which Slurm took and freed the nodes.
ABANDONED   Nobody waits for it. It is cancelled until Slurm says that it is over; an answer
            about its end that is still on its way makes it ENDED.
SETTLED     The journal has everything.

Only :class:`~sf_quantum.connectors.slurm.queue.SlurmQueue` moves a job, by the methods of
:class:`BatchJob` that are named after what happened. Everyone else reads its attributes
and awaits ``granted`` and ``ended``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from sf_quantum import journal
from sf_quantum.connectors.slurm import answers
from sf_quantum.connectors.slurm.answers import (
    LOST,
    EndReason,
    JobOutcome,
    QueueRow,
)
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.services import Service

# how often Slurm may deny that it knows a job before it is asked how that ended
DENIALS = 3
# pending for so long, a job is worth a message
LONG_SECONDS = 10.0


class BatchJobState(Enum):
    """See the module."""

    SUBMITTING = auto()
    QUEUED = auto()
    RUNNING = auto()
    ENDING = auto()
    ENDED = auto()
    ABANDONED = auto()
    SETTLED = auto()


_ACTIVE = {BatchJobState.QUEUED, BatchJobState.RUNNING, BatchJobState.ENDING}


@dataclass(frozen=True)
class PendingReason:
    """Why a job does not start, worth a message once.

    :param reason: in Slurm's words
    :param hopeless: it will not pass by itself
    """

    reason: str
    hopeless: bool


class BatchJob:
    """A job of Slurm's: a step's own, or one that holds nodes for others.

    :param name: what it is called in messages
    :param usage: its entries in the journal
    :param array: it is an array, whose tasks leave no marks
    """

    def __init__(self, name: str, usage: NodeUsage, *, array: bool = False) -> None:
        #: what its files and its comment in Slurm's queue are named after
        self.key = uuid.uuid4().hex
        self.name = name
        self.array = array
        self.usage = usage
        self.state = BatchJobState.SUBMITTING
        #: Slurm's id, empty until it is known
        self.slurm_job = ""
        #: its latest line in ``squeue``
        self.row: QueueRow | None = None
        #: what its script left when it ended
        self.mark: JobMark | None = None
        #: done when a job that holds nodes has them; cancelled if it never will
        self.granted: asyncio.Future[JobMark] = asyncio.Future()
        self.ended: asyncio.Future[JobOutcome] = asyncio.Future()
        self._components: list[BatchJob] = []
        self._before = BatchJobState.SUBMITTING
        self._denials = 0
        # the state in Slurm's latest answer to how it ended, empty if there was none
        self._shown = ""
        self._reported: set[str] = set()
        self._queued_at = 0.0

    @property
    def active(self) -> bool:
        """Whether Slurm has it, and its end is waited for."""
        return self.state in _ACTIVE

    @property
    def unsettled(self) -> bool:
        """Whether only the journal still waits for its end."""
        return self.state in (BatchJobState.ENDED, BatchJobState.ABANDONED)

    def accepted(self, slurm_job: str, now: float) -> None:
        """Slurm has taken it.

        :param now: on the event loop's clock
        """
        self._queued_at = now
        self.usage.submitted(slurm_job)
        # its script may have been quicker than the answer of sbatch, and knows better
        self.slurm_job = self.slurm_job or slurm_job
        granted = self.granted.done()
        self._be(BatchJobState.RUNNING if granted else BatchJobState.QUEUED)
        if self.mark is not None:
            self.state = BatchJobState.ENDING

    def refused(self) -> None:
        """Slurm has not taken it, or it was given up before."""
        self.state = BatchJobState.SETTLED

    def component(self, slurm_job: str, usage: NodeUsage) -> BatchJob:
        """A further component of a heterogeneous job, which leaves no mark.

        :param slurm_job: its own id
        """
        component = BatchJob(self.name, usage)
        component.slurm_job = slurm_job
        component.state = self.state
        component._queued_at = self._queued_at
        usage.submitted(self.slurm_job)
        if self.granted.done() and not self.granted.cancelled():
            usage.started(self.granted.result().started)
        self._components.append(component)
        return component

    def marked(self, mark: JobMark) -> None:
        """Its script left a mark: it has its nodes, or it has ended."""
        if not self.active and self.state is not BatchJobState.SUBMITTING:
            return
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
        """``squeue`` answered.

        :param rows: its own, none if Slurm does not know it
        """
        self._denials = 0 if rows else self._denials + 1
        if rows:
            self.row = rows[0]
        # a single denial may come from a controller that has just started
        if all(row.over for row in rows) and (rows or self._denials >= DENIALS):
            self.state = BatchJobState.ENDING
        elif rows:
            for row in rows:
                self.usage.seen(row)
            self._be(_where(*(row.state for row in rows)))

    def pending_reasons(
        self, rows: Sequence[QueueRow], now: float
    ) -> Iterator[PendingReason]:
        """Why it does not start, if that is worth a message that there was none of yet.

        :param now: on the event loop's clock
        """
        for row in rows:
            reason = row.reason.strip("()")
            hopeless = answers.is_hopeless(reason)
            if row.state != "PENDING" or reason in self._reported:
                continue
            if hopeless or (
                not self._reported and now - self._queued_at >= LONG_SECONDS
            ):
                self._reported.add(reason)
                yield PendingReason(reason, hopeless)

    def shown(self, records: list[JobOutcome]) -> JobOutcome | None:
        """``scontrol`` answered.

        :param records: its own; more than one for an array or several components
        :returns: how it ended, None if it will run (again), or still runs
        """
        # a job of several components has the script in its first
        outcome = answers.worst(records) if self.array else records[0]
        self._shown = outcome.state
        if all(one.state in answers.ENDED for one in records):
            return outcome
        if self.mark is not None and outcome.is_later_run(self.mark.ended):
            self.mark = None
        self._be(_where(outcome.state))
        return None

    def unanswered(self) -> None:
        """Slurm could not be asked how it ended."""
        self._shown = ""

    def is_proven(self, outcome: JobOutcome) -> bool:
        """Whether a success has left a mark.

        Submitted twice because an answer was lost, a job ends well without having done
        anything: its script finds the other's lock.
        """
        return self.mark is not None or self.array or not outcome.good

    def locked(self, owner: str, outcome: JobOutcome) -> JobOutcome | None:
        """The lock of its script was read, which the first of two submissions takes.

        :param owner: the Slurm job in it, empty if there is none
        :param outcome: of this one
        :returns: how the job ended, None if it is the other that matters
        """
        if owner == self.slurm_job:
            return outcome
        if owner.isdecimal():
            self.slurm_job = owner
            return None
        return replace(outcome, state=LOST, reason=EndReason.NEVER_BEGAN)

    def forgotten(self) -> JobOutcome:
        """Slurm knows the job no longer: only its mark may."""
        if self.mark is not None:
            return JobOutcome.of_mark(self.mark.slurm_job, self.mark)
        return JobOutcome(self.slurm_job, LOST, EndReason.FORGOTTEN)

    def undetermined(self) -> JobOutcome | None:
        """Slurm did not say in time how it ended.

        :returns: the outcome by its mark, None if that is not to be trusted
        """
        # what still runs for Slurm although it ended well may be cancelled, or run again
        if self.mark is None or (self._shown == "RUNNING" and not self.mark.exit_code):
            return None
        return JobOutcome.of_mark(self.mark.slurm_job, self.mark)

    def concluded(self, outcome: JobOutcome | None) -> None:
        """The question how it ended has been answered, with None if it has not ended."""
        if self.state is BatchJobState.SETTLED:
            return
        if outcome is None:
            if self.state is BatchJobState.ENDING:
                self.state = self._before
            return
        outcome = self._timed(outcome)
        self.usage.ended(outcome)
        self.state = BatchJobState.ENDED
        if not self.ended.done():
            self.ended.set_result(outcome)
        if not self.granted.done():
            self.granted.cancel()

    def abandoned(self) -> None:
        """Nobody waits for it any more."""
        if self.active:
            self.state = BatchJobState.ABANDONED

    def settled(self, rows: Sequence[QueueRow]) -> None:
        """Put Slurm's own times into the journal, if it has them.

        :param rows: its own in ``squeue``, none if Slurm does not know it
        """
        if all(row.over or (row.freed and self.usage.nodes) for row in rows):
            self.usage.settle(rows[0] if rows else None)
            self.state = BatchJobState.SETTLED

    def _be(self, state: BatchJobState) -> None:
        """Be queued or running, now or after a question that has no answer."""
        self._before = state
        if self.state is not BatchJobState.ENDING:
            self.state = state

    def _timed(self, outcome: JobOutcome) -> JobOutcome:
        """Take the times from the mark of the same run, since Slurm's are whole seconds."""
        mark = self.mark
        if mark is None or not outcome.plain or outcome.is_later_run(mark.ended):
            return outcome
        return replace(outcome, started=mark.started, ended=mark.ended or outcome.ended)


def _where(*states: str) -> BatchJobState:
    running = {"RUNNING", "COMPLETING", "SUSPENDED"} & {*states}
    return BatchJobState.RUNNING if running else BatchJobState.QUEUED


class NodeUsage:
    """What of Slurm a job held when, for the run's journal (Contract 8).

    :param deployment: its name
    :param service_name: None for the deployment's default
    :param strategy: ``per-step``, ``reserved`` or ``elastic``
    :param job: StreamFlow's name of the job, None if it serves more than one
    :param component: its number in a heterogeneous job, None if it is none
    """

    def __init__(
        self,
        deployment: str,
        service_name: str | None,
        service: Service,
        strategy: str,
        *,
        job: str | None = None,
        component: int | None = None,
    ) -> None:
        self._about = {
            "deployment": deployment,
            "service": service_name,
            "strategy": strategy,
            "partition": service.partition,
            "quantum": service.on_quantum_nodes,
            "job": job,
        }
        #: how many nodes it holds, as far as that is known
        self.nodes = 0
        self._allocation = ""
        self._component = "" if component is None else f"+{component}"
        self._requested = 0.0
        self._started: float | None = None
        self._ended: float | None = None
        self._held_since = 0.0
        self._settled = False

    def requested(self, at: float) -> None:
        """The driver asks for it."""
        self._requested = at

    def submitted(self, slurm_job: str) -> None:
        """Slurm has taken it.

        :param slurm_job: its id, of a component the first one's
        """
        self._allocation = f"{slurm_job}{self._component}"
        self._write("requested", self._requested, 0)

    def started(self, at: float) -> None:
        """Its script has begun."""
        self._started = at

    def seen(self, row: QueueRow) -> None:
        """``squeue`` lists it."""
        if row.state in ("RUNNING", "COMPLETING"):
            self._seen_on(row)
        elif row.state == "PENDING" and self.nodes:
            self._release(row.ended or row.started or self._started or self._requested)

    def given_back(self, at: float) -> None:
        """Slurm is asked to end it, perhaps not for the first time."""
        if self._ended is None:
            self._ended = at

    def ended(self, outcome: JobOutcome) -> None:
        """It is over, by its mark or by Slurm's word."""
        self._ended = outcome.ended
        if self._started is None:
            self._started = outcome.started

    def settle(self, row: QueueRow | None) -> None:
        """Close the entry with Slurm's own times, or where it has none with the script's.

        :param row: what Slurm says of it, None if it has forgotten
        """
        if self._settled:
            return
        self._settled = True
        ended = self._ended
        if row is not None:
            self._seen_on(row)
        elif self._started is not None:
            self._hold(self._started, self.nodes or 1, None)
        if row is not None and row.ended is not None:
            ended = _refined(row.ended, ended)
        requested = max(self._requested, self._held_since)
        self._release(requested if ended is None else ended)

    def record(self, job: str, submitted: float, outcome: JobOutcome) -> None:
        """Record how a job in it ended.

        :param job: StreamFlow's name of it
        :param submitted: when it wanted its nodes, epoch seconds
        """
        record = journal.current()
        started, ended = outcome.started, outcome.ended
        if started is not None:
            started = _refined(started, submitted)
        if ended is not None:
            ended = _refined(ended, started or submitted)
        if record is not None:
            record.write(
                "slurm",
                slurm_job=outcome.slurm_job,
                allocation=self._allocation,
                submitted=submitted,
                started=started,
                ended=ended,
                state=outcome.state,
                exit_code=outcome.exit_code,
                signal=outcome.signal,
                reason=outcome.why,
                restarts=outcome.restarts,
                **{**self._about, "job": job},
            )

    def _seen_on(self, row: QueueRow) -> None:
        # of a job that is completing Slurm lists only the nodes that are not free yet
        all_nodes = row.node_list and row.state != "COMPLETING"
        if all_nodes and row.started is not None:
            self._hold(row.started, row.nodes, row.node_list)

    def _hold(self, at: float, nodes: int, node_list: str | None) -> None:
        if nodes != self.nodes:
            began = self._requested if self._started is None else self._started
            at = _refined(at, began)
            self._write("resized" if self.nodes else "granted", at, nodes, node_list)
            self.nodes, self._held_since = nodes, at

    def _release(self, at: float) -> None:
        self.nodes = 0
        self._write("released", at, 0)

    def _write(
        self, status: str, at: float, nodes: int, node_list: str | None = None
    ) -> None:
        record = journal.current()
        if record is not None:
            record.write(
                "allocation",
                allocation=self._allocation,
                slurm_job=self._allocation.split("+")[0],
                status=status,
                at=at,
                nodes=nodes,
                node_list=node_list or None,
                **self._about,
            )


def _refined(second: float, moment: float | None) -> float:
    """The more precise time of the same event, since Slurm keeps whole seconds."""
    if moment is not None and second <= moment < second + 1:
        return moment
    return second
