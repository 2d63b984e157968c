"""A filter's warnings and remarks on its targets and jobs; each is given once."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.candidates.attempts import Attempt, Attempts
from sf_quantum.candidates.decision import (
    Decision,
    Exclusion,
    Obstacle,
    QuantumTarget,
    StepRules,
    describe,
)
from sf_quantum.candidates.forecast import Forecast
from sf_quantum.candidates.targets import StatusReply
from sf_quantum.qpu import QpuStatus


class Remarks(journal.Warnings):
    """The warnings of a filter, and its remarks on hints.

    :param name: name of the filter
    """

    def __init__(self, name: str, attempts: Attempts) -> None:
        super().__init__()
        self._name = name
        self._attempts = attempts
        # reasons for missing statuses since the QPU's last status, by QPU
        self._silences: defaultdict[str, set[Obstacle]] = defaultdict(set)
        # pairs of a step and a QPU whose service contradicts the step's hint
        self._contradicted: set[tuple[str, str]] = set()

    def warn_of_forecasts(self, forecasts: Mapping[str, Forecast]) -> None:
        """Warn of targets whose wait for nodes could not be predicted."""
        for name, forecast in forecasts.items():
            if forecast.why:
                self.warn(
                    f"Filter {self._name}: the wait for nodes of {name} is taken from "
                    f"earlier jobs, since it {forecast.why}"
                )

    def warn_of_unknown_spending(
        self, rules: StepRules, replies: Mapping[str, StatusReply]
    ) -> None:
        """Warn of QPUs whose usage or cost the budget does not include."""
        for name, reply in replies.items() if rules.limits_cost else ():
            reported = isinstance(reply, QpuStatus) and reply.cost_per_second is None
            if reported and self._attempts.estimates.cost(name) is None:
                self.warn(
                    f"Filter {self._name}: the cost of a QPU second of {name} is unknown, "
                    f"so budget.cost does not limit it: add costs: {{{name}: ...}}"
                )
        if rules.has_budget:
            for name in sorted(self._attempts.history.unmetered):
                self.warn(
                    f"Filter {self._name}: QPU {name} does not report the usage of jobs, "
                    "so the budget does not include it"
                )

    def warn_of_mixing(
        self, attempt: Attempt, decision: Decision, kinds: tuple[int, int]
    ) -> None:
        """Warn, once per step, if the step's jobs run on targets of both kinds."""
        if attempt.rules.mixed == "warn" and kinds[decision.quantum] > 0:
            self.warn(
                f"Filter {self._name}: jobs of step {attempt.step} run on QPUs and on "
                "classical targets; mixed: refuse forbids it, mixed: allow keeps quiet",
                is_recorded=True,
            )

    def warn_of_silence(self, name: str, reply: StatusReply) -> None:
        """Warn if a QPU reports no status: once per cause, until the QPU reports it again.

        Without this rule, a job that waits for the usage of other jobs, and queries the QPU
        every second, would repeat the warning.
        """
        if not isinstance(reply, Exclusion):
            self._silences.pop(name, None)
        elif reply.cause not in self._silences[name]:
            self._silences[name].add(reply.cause)
            if logger.isEnabledFor(logging.WARNING):
                text = f"QPU {name} {describe(reply)}; it is considered offline"
                logger.warning(text)

    def on_hints(self, attempt: Attempt, qpus: Sequence[QuantumTarget]) -> str:
        """Return the remarks, each given once, on hints that the services contradict."""
        # One remark per step and QPU: its text changes with each estimate of the service, so
        # texts cannot be compared.
        new = {
            name: remark
            for name in (qpu.name for qpu in qpus)
            if (attempt.step, name) not in self._contradicted
            and (remark := self._attempts.estimates.remark(attempt, name))
        }
        self._contradicted |= {(attempt.step, name) for name in new}
        return "; ".join(new.values())
