"""A run and its report, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, overload

from sf_quantum import journal
from sf_quantum.files import JSON
from sf_quantum.journal.events import Decision, End, Event, Overrun, RunWarning
from sf_quantum.reporting import report, run_usage
from sf_quantum.reporting.attempts import LOST, RUNNING, JobAttempt, collect, mark_lost
from sf_quantum.reporting.run_usage import RunUsage
from sf_quantum.text import plural

#: one attempt of a job
Row: TypeAlias = dict[str, str | int | float | None]


class Run:
    """A run of a StreamFlow file, read from its journal; the run may be in progress.

    :param where: a journal, or a StreamFlow file or folder, whose newest run is used
    :raises InputError: if there is no journal
    """

    def __init__(self, where: str | Path = ".") -> None:
        #: path of the journal
        self.path = report.locate(where)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def events(self) -> list[Event]:
        """Return the events of the journal, in order.

        :raises InputError: if the file is missing, or is not a journal
        """
        return journal.read(self.path)

    @property
    def status(self) -> str:
        """``completed``, ``failed``, ``cancelled``, ``running``, or ``lost`` (killed)."""
        return self.report().status

    def report(self) -> Report:
        """Return the current report on the run.

        :raises InputError: if the file is missing, or is not a journal
        """
        events = self.events()
        attempts = collect(events)
        ended, alive = journal.status(events), journal.is_open(self.path)
        if not alive:
            mark_lost(attempts)
        status = ended or (RUNNING if alive else LOST)
        return Report(self.path, status, events, attempts)


class Report(Sequence[Row]):
    """The attempts of a run's jobs, in the order in which they were scheduled.

    Each item is a dictionary with the same keys, so that ``pandas.DataFrame(report)`` is a
    table of the attempts:

    ``job``, the name in StreamFlow's log; ``step``, ``location``, ``attempt`` and ``status``;
    ``asked``, ``started`` and ``ended`` in epoch seconds; ``waited`` and ``ran`` in seconds;
    ``score``, if the step has one; ``qpu_jobs``, the number of QPU jobs, and ``qpu_seconds``,
    their usage; ``why``, the decision on a quantum candidate; ``exit_code``, ``error`` and
    ``remedy`` of a failure; ``reused_from``, the earlier run whose outputs were reused, if the
    job was not run. An unknown value is ``None``.

    Printed as text, the report is the table of ``sfq report``; in a notebook, it is a table
    and a timeline.

    :param status: status of the run, see :attr:`Run.status`
    :ivar usage: nodes and QPU time
    """

    def __init__(
        self, path: Path, status: str, events: list[Event], attempts: list[JobAttempt]
    ) -> None:
        self.path = path
        self.status = status
        self.attempts = attempts
        self.usage: RunUsage = run_usage.measure(events)
        ends = [event for event in events if isinstance(event, End)]
        self._reason = report.reason(ends[-1] if ends else None, attempts)
        self._decisions = [event for event in events if isinstance(event, Decision)]
        # Several candidate filters may record the same overrun of the run's budget.
        warned = {str(e): e for e in events if isinstance(e, Overrun | RunWarning)}
        self._overruns = [e for e in warned.values() if isinstance(e, Overrun)]
        self._warnings = [e for e in warned.values() if isinstance(e, RunWarning)]

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [*map(_row, self.attempts[index])]
        return _row(self.attempts[index])

    def __len__(self) -> int:
        return len(self.attempts)

    @property
    def failures(self) -> list[str]:
        """Why the run failed: the jobs whose last attempt failed, or another reason.

        The text about a job contains its location, exit code, errors and remedy.
        """
        return [*report.failures(self.attempts), *filter(None, [self._reason])]

    def to_json(self) -> dict[str, JSON]:
        """Return the whole report, in the format of ``sfq report --json``."""
        return {
            "status": self.status,
            "failures": [*self.failures],
            "jobs": [attempt.to_json() for attempt in self.attempts],
            "decisions": [event.to_json() for event in self._decisions],
            "overruns": [event.to_json() for event in self._overruns],
            "warnings": [event.text for event in self._warnings],
            "usage": self.usage.to_json(),
        }

    def __str__(self) -> str:
        warned: list[Overrun | RunWarning] = [*self._warnings, *self._overruns]
        table = report.table(self.attempts, self.status, self._reason, warned)
        tables = (table, run_usage.table(self.usage))
        return "\n\n".join(filter(None, tables))

    def _repr_html_(self) -> str:
        from sf_quantum.reporting import notebook  # matplotlib takes half a second

        return notebook.html(self.attempts, self.usage, self.title, self.failures)

    @property
    def title(self) -> str:
        """The run and its status, in one line."""
        return f"{self.path.stem}: {self.status}"

    def __repr__(self) -> str:
        name, jobs = type(self).__name__, len(self)
        return f"<{name} of {self.path.name}: {self.status}, {plural(jobs, 'attempt')} of jobs>"


def _row(attempt: JobAttempt) -> Row:
    return {
        "job": attempt.job,
        "step": attempt.step,
        "location": attempt.location,
        "attempt": attempt.attempt,
        "status": attempt.status,
        "asked": attempt.asked,
        "started": attempt.started,
        "ended": attempt.ended,
        "waited": attempt.waited,
        "ran": attempt.ran,
        "score": attempt.score,
        "qpu_jobs": sum(e.qpu_job is not None for e in attempt.qpu_jobs),
        "qpu_seconds": attempt.qpu_seconds,
        "why": attempt.why,
        "exit_code": attempt.exit_code,
        "error": attempt.error,
        "remedy": attempt.remedy,
        "reused_from": attempt.reused_from,
    }
