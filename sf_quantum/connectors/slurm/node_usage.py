"""Journal entries about the nodes that a Slurm job requests, holds and frees."""

from __future__ import annotations

import time

from sf_quantum import journal
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.connectors.slurm.transport.answers import JobOutcome
from sf_quantum.journal import events
from sf_quantum.slurm import ids
from sf_quantum.slurm.squeue import QueueRow


class NodeUsage:
    """Records the nodes of a Slurm job over time in the run's journal.

    :param strategy: name of the allocation strategy
    :param job: StreamFlow's name of the job; ``None`` if the nodes serve several jobs
    """

    def __init__(
        self,
        deployment: str,
        service: SlurmService,
        strategy: str,
        *,
        job: str | None = None,
    ) -> None:
        self._deployment, self._service = deployment, service
        self._strategy, self._job = strategy, job
        #: number of nodes that the job holds, if known
        self.nodes = 0
        self._allocation = self._slurm_job = ""
        self._requested = 0.0
        self._started: float | None = None
        self._ended: float | None = None
        self._held_since = 0.0
        self._pending_reason: str | None = None
        self._settled = False

    def requested(self, at: float) -> None:
        self._requested = at

    def submitted(self, slurm_job: str, group: int | None = None) -> None:
        """Slurm has accepted the job, or the component ``group`` of a heterogeneous job."""
        number = ids.number(slurm_job)
        component_id = number if group is None else f"{number}+{group}"
        self._slurm_job = slurm_job
        self._allocation = ids.of(component_id, ids.cluster(slurm_job))
        self._write_held("requested", self._requested)

    def started(self, at: float) -> None:
        self._started = at

    def seen(self, row: QueueRow) -> None:
        """``squeue`` has listed the job with this row."""
        if row.state in ("RUNNING", "COMPLETING"):
            self._note_nodes(row)
        elif row.state == "PENDING":
            self._pending_reason = row.reason.strip("()") or None
            if self.nodes:
                ended = row.ended or row.started or self._started or self._requested
                # The times may be those of the expected next run, and in the future.
                self._release(min(ended, time.time()))
                self._record_requeue()

    def given_up(self, at: float) -> None:
        """Slurm has lost its record of the request."""
        self._release(at)

    def given_back(self, at: float) -> None:
        """The driver has released the nodes; further calls have no effect."""
        if self._ended is None:
            self._ended = at

    def ended(self, outcome: JobOutcome) -> None:
        """The job has ended, according to its mark or to Slurm."""
        self._ended = outcome.ended
        if self._started is None:
            self._started = outcome.started

    def settle(self, row: QueueRow | None) -> None:
        """Complete the entry with Slurm's times or, without a row, with the script's times."""
        if self._settled:
            return
        self._settled = True
        ended = self._ended
        if row is not None:
            self._note_nodes(row)
        elif self._started is not None:
            self._hold(self._started, self.nodes or 1, None)
        if row is not None and row.ended is not None:
            ended = _more_precise(row.ended, ended)
        requested = max(self._requested, self._held_since)
        self._release(requested if ended is None else ended)

    def record(self, job: str, submitted: float, outcome: JobOutcome) -> None:
        """Record the outcome of a job that requested nodes at ``submitted``."""
        started, ended = outcome.started, outcome.ended
        if started is not None:
            started = _more_precise(started, submitted)
        if ended is not None:
            ended = _more_precise(ended, started or submitted)
        if (record := journal.current()) is not None:
            record.write(
                events.Slurm(
                    deployment=self._deployment,
                    service=self._service.name or None,
                    strategy=self._strategy,
                    partition=self._service.partition,
                    quantum=self._service.on_quantum_nodes,
                    job=job,
                    allocation=self._allocation,
                    slurm_job=ids.number(outcome.slurm_job),
                    slurm_cluster=ids.cluster(outcome.slurm_job) or None,
                    submitted=submitted,
                    started=started,
                    ended=ended,
                    state=outcome.state,
                    exit_code=outcome.exit_code,
                    signal=outcome.signal,
                    reason=outcome.reason,
                    restarts=outcome.restarts,
                )
            )

    def _note_nodes(self, row: QueueRow) -> None:
        # For a COMPLETING job, Slurm lists only the nodes that are not free yet.
        all_nodes = row.node_list and row.state != "COMPLETING"
        if all_nodes and row.started is not None:
            self._hold(row.started, row.nodes, row.node_list)

    def _hold(self, at: float, nodes: int, node_list: str | None) -> None:
        if nodes != self.nodes:
            began = self._requested if self._started is None else self._started
            status = "resized" if self.nodes else "granted"
            self.nodes, self._held_since = nodes, _more_precise(at, began)
            self._write_held(status, self._held_since, node_list)

    def _release(self, at: float) -> None:
        self.nodes = 0
        self._write_held("released", at)

    def _record_requeue(self) -> None:
        """Record that the job waits again for nodes, as Slurm has requeued it."""
        if self._job is not None and (record := journal.current()) is not None:
            record.write(
                events.Nodes(
                    job=self._job,
                    deployment=self._deployment,
                    service=self._service.name or None,
                    status="waiting",
                    seconds=0.0,
                )
            )

    def _write_held(self, status: str, at: float, node_list: str | None = None) -> None:
        """Write into the run's journal how many nodes the job holds from now on."""
        if (record := journal.current()) is not None:
            record.write(
                events.Allocation(
                    deployment=self._deployment,
                    service=self._service.name or None,
                    strategy=self._strategy,
                    partition=self._service.partition,
                    quantum=self._service.on_quantum_nodes,
                    job=self._job,
                    allocation=self._allocation,
                    slurm_job=ids.number(self._slurm_job),
                    slurm_cluster=ids.cluster(self._slurm_job) or None,
                    status=status,
                    at=at,
                    nodes=self.nodes,
                    node_list=node_list or None,
                    pending_reason=self._pending_reason,
                )
            )


def _more_precise(second: float, moment: float | None) -> float:
    """Return the more precise of two times of one event; Slurm's times are whole seconds.

    :param second: Slurm's time
    :param moment: a precise time, used if it rounds down to ``second``
    """
    if moment is not None and second <= moment < second + 1:
        return moment
    return second
