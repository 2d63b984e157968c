"""What of Slurm was held when, for the run's journal (Contract 8)."""

from __future__ import annotations

from sf_quantum import journal
from sf_quantum.connectors.slurm.states import Outcome, Row


class Entry:
    """An allocation in the account: a job of its own, or one that holds nodes for others.

    :param quantum: whether its nodes are those of a QPU
    :param job: StreamFlow's name of the job, None if it serves more than one
    :param component: its number in a heterogeneous allocation, None if it is none
    """

    def __init__(
        self,
        deployment: str,
        service: str | None,
        strategy: str,
        partition: str | None,
        quantum: bool,
        job: str | None = None,
        component: int | None = None,
    ) -> None:
        self._about = {
            "deployment": deployment,
            "service": service,
            "strategy": strategy,
            "partition": partition,
            "quantum": quantum,
            "job": job,
        }
        self.allocation = ""
        self._component = component
        self._requested = 0.0
        self._started: float | None = None
        self._outcome: Outcome | None = None
        self._given_back: float | None = None
        self._nodes = 0
        self._since = 0.0
        self._over = False

    def requested(self, at: float) -> None:
        """The driver asks for it."""
        self._requested = at

    def submitted(self, slurm_job: str) -> None:
        """Slurm has taken it.

        :param slurm_job: its id, of a component the first one's
        """
        component = "" if self._component is None else f"+{self._component}"
        self.allocation = f"{slurm_job}{component}"
        self._write("requested", self._requested, 0)

    def granted(self, at: float) -> None:
        """Its script has begun."""
        self._started = at

    def seen(self, row: Row) -> None:
        """It is so in Slurm's queue now."""
        if row.state in ("RUNNING", "COMPLETING"):
            self._seen_on(row)
        elif row.state == "PENDING" and self._nodes:
            self._let_go(row.ended or row.started or self._started or self._requested)

    def ended(self, outcome: Outcome) -> None:
        """It is over, by its mark or by Slurm's word."""
        self._outcome = outcome
        if self._started is None:
            self._started = outcome.started

    @property
    def nodes(self) -> int:
        """How many it holds, as far as that is known."""
        return self._nodes

    def giving_back(self, at: float) -> None:
        """Slurm is asked to end it, perhaps not for the first time."""
        if self._given_back is None:
            self._given_back = at

    def settle(self, row: Row | None) -> None:
        """Close the entry with Slurm's own times, or where it has none with the script's.

        :param row: what Slurm says of it, None if it has forgotten
        """
        if self._over:
            return
        self._over = True
        ended = self._outcome.ended if self._outcome is not None else self._given_back
        if row is not None:
            self._seen_on(row)
        elif self._started is not None:
            self._hold(self._started, self._nodes or 1, None)
        if row is not None and row.ended is not None:
            ended = _within(row.ended, ended)
        self._let_go(ended if ended is not None else max(self._requested, self._since))

    def _seen_on(self, row: Row) -> None:
        # of a job that is completing Slurm shows only the nodes that are not free yet
        all_nodes = row.node_list and row.state != "COMPLETING"
        if all_nodes and row.started is not None:
            self._hold(row.started, row.nodes, row.node_list)

    def _hold(self, at: float, nodes: int, node_list: str | None) -> None:
        if nodes != self._nodes:
            began = self._requested if self._started is None else self._started
            at = _within(at, began)
            self._write("resized" if self._nodes else "granted", at, nodes, node_list)
            self._nodes, self._since = nodes, at

    def _let_go(self, at: float) -> None:
        self._nodes = 0
        self._write("released", at, 0)

    def _write(
        self, status: str, at: float, nodes: int, node_list: str | None = None
    ) -> None:
        record = journal.current()
        if record is not None:
            record.write(
                "allocation",
                allocation=self.allocation,
                slurm_job=self.allocation.split("+")[0],
                status=status,
                at=at,
                nodes=nodes,
                node_list=node_list or None,
                **self._about,
            )

    def record(self, job: str, submitted: float, outcome: Outcome) -> None:
        """Keep how a job of it ended.

        :param job: StreamFlow's name of it
        :param submitted: when it wanted its nodes, epoch seconds
        """
        record = journal.current()
        started, ended = outcome.started, outcome.ended
        if started is not None:
            started = _within(started, submitted)
        if ended is not None:
            ended = _within(ended, started or submitted)
        if record is not None:
            record.write(
                "slurm",
                slurm_job=outcome.slurm_job,
                allocation=self.allocation,
                submitted=submitted,
                started=started,
                ended=ended,
                state=outcome.state,
                exit_code=outcome.exit_code,
                signal=outcome.number,
                reason=outcome.reason,
                restarts=outcome.restarts,
                **{**self._about, "job": job},
            )


def _within(second: float, moment: float | None) -> float:
    """What a script says more precisely than Slurm, which keeps whole seconds."""
    if moment is not None and second <= moment < second + 1:
        return moment
    return second
