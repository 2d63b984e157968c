"""Reports, at the end of a run, of budgets that are exceeded."""

from __future__ import annotations

from sf_quantum import journal
from sf_quantum.candidates.attempts import Attempt, Attempts
from sf_quantum.candidates.decision import CandidateJob, StepRules, overruns
from sf_quantum.journal import events


class OverrunWatch:
    """The budgets of a filter's steps; the end of the run reports exceeded budgets.

    :param name: name of the filter
    :param timeout: seconds for which the run's journal may be read
    """

    def __init__(
        self, name: str, attempts: Attempts, warnings: journal.Warnings, timeout: float
    ) -> None:
        self._name = name
        self._attempts = attempts
        self._warnings = warnings
        self._timeout = timeout
        # rules with a budget, by the steps that had a job on a QPU
        self._rules: dict[str, StepRules] = {}

    def watch(self, attempt: Attempt) -> None:
        """Report at the end of the run if the budget of the attempt's step is exceeded."""
        record = journal.current()
        if record is None or not attempt.rules.has_budget:
            return
        self._rules[attempt.step] = attempt.rules
        if self._report not in record.before_end:
            # The first callback is awaited last, when connectors have recorded the usage of
            # the last jobs.
            record.before_end.insert(0, self._report)

    async def _report(self) -> None:
        """Record the budgets that are exceeded, since a job used more than expected."""
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
