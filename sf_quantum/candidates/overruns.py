"""Reports of exceeded budgets at the end of a run."""

from __future__ import annotations

from sf_quantum import journal
from sf_quantum.candidates.attempts import Attempt, Attempts
from sf_quantum.candidates.decision import CandidateJob, StepRules, overruns
from sf_quantum.journal import events


class OverrunWatch:
    """Watches the budgets of a filter's steps; reports exceeded budgets at the run's end.

    :param name: name of the filter
    :param timeout: longest time in seconds for reading the run's journal
    """

    def __init__(
        self, name: str, attempts: Attempts, warnings: journal.Warnings, timeout: float
    ) -> None:
        self._name = name
        self._attempts = attempts
        self._warnings = warnings
        self._timeout = timeout
        # rules with a budget, by step; only steps that had a job on a QPU
        self._rules: dict[str, StepRules] = {}

    def watch(self, attempt: Attempt) -> None:
        """Have the budgets of the attempt's step checked at the end of the run."""
        record = journal.current()
        if record is None or not attempt.rules.has_budget:
            return
        self._rules[attempt.step] = attempt.rules
        if self._report_overruns not in record.before_end:
            # Callbacks run in reverse order: this callback is the last, when connectors have
            # recorded the usage of the last jobs.
            record.before_end.insert(0, self._report_overruns)

    async def _report_overruns(self) -> None:
        """Record the budgets that jobs have exceeded by unexpected usage, and warn of them."""
        record = journal.current()
        await self._attempts.history.update(self._timeout)
        run, exceeded = self._attempts.spent(), {}
        for step, rules in self._rules.items():
            job = CandidateJob(run=run, step=self._attempts.spent(step))
            for (scope, unit), used, limit in overruns(rules, job):
                exceeded[step if scope == "step" else None, unit] = used, limit
        for (of, unit), (used, limit) in exceeded.items():
            overrun = events.Overrun(step=of, unit=unit, used=used, limit=limit)
            self._warnings.warn(f"Filter {self._name}: {overrun}", is_recorded=True)
            if record is not None:
                record.write(overrun)
