"""The table of a run's attempts, texts about the run's end, and the path of its journal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypeAlias

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, mapping
from sf_quantum.journal import ADVICE, DIRECTORY, SCHEDULER, elsewhere, events, newest
from sf_quantum.journal.failures import described
from sf_quantum.reporting.aligned import align
from sf_quantum.reporting.attempts import LOST, REUSED, RUNNING, SKIPPED, JobAttempt
from sf_quantum.text import escaped, plural, rounded

WHY = "why"
HEADER = [*"job location waited ran attempt status score".split(), WHY]
NUMBERS = ("waited", "ran", "attempt", "score")
# Address of a host, which some locations have instead of a name.
_ADDRESS = re.compile(r"[\d.:]+|.*:.*:.*")
#: descriptions of a run's end, by status
WORDS = {
    "cancelled": "was stopped before its end",
    LOST: "ended without its last event: its driver was killed, or the disk was full",
    RUNNING: "in progress",
}
NO_REASON = "no reason is recorded: see StreamFlow's log, in the folder of the outputs"
Warned: TypeAlias = events.Overrun | events.RunWarning


def locate(where: str | Path) -> Path:
    """Find the newest journal of a StreamFlow file or folder.

    :param where: a StreamFlow file, a folder that contains journals or
        ``.streamflow/sfq``, or a journal, which is returned unchanged
    :raises InputError: if there is no journal
    """
    where, file = Path(where), None
    if where.is_dir():
        folders = [where / DIRECTORY, where]
    elif where.suffix in (".yml", ".yaml"):
        file = where.resolve()
        folders = [file.parent / _directory(_scheduler(where))]
    else:
        return where
    for folder in folders:
        if (journal := newest(folder, file)) is not None:
            return journal
    others = elsewhere(folders[0], file) if file is not None else ""
    raise InputError(
        f"{where}: no run is recorded in {folders[0]}{others}; "
        "name a journal, or run a StreamFlow file that has the scheduler sfq.journal"
    )


def journals_of(file: Path) -> Path:
    """Return the folder of the journals of a StreamFlow file's runs.

    :raises InputError: if the runs have no journal
    """
    scheduler = _scheduler(file)
    if scheduler.get("type") != SCHEDULER:
        raise InputError(f"{file}: its runs have no journal; {ADVICE}")
    return file.resolve().parent / _directory(scheduler)


def table(
    rows: list[JobAttempt],
    status: str = "",
    reason: str = "",
    warned: Iterable[Warned] = (),
) -> str:
    """Return a table of a run's attempts, and a description of the run's end.

    :param status: status of the run; if empty, the end is not described
    :param reason: why the run failed, if no job is the cause
    :param warned: warnings and exceeded budgets of the run
    """
    text = align(_without_empty(rows, [""] * len(rows)), right=NUMBERS)
    if notes := _notes(rows):
        text += ["", *notes]
    why = [*failures(rows), *filter(None, [escaped(reason)])]
    if status == "failed" and not why:
        why = [NO_REASON]
    warnings = map(warning, warned)
    last = [*candidates(rows), *warnings, conclusion(status, rows)]
    return "\n".join([*text, "", *why, *last])


def warning(event: Warned) -> str:
    """Return one line for a warning, or a budget that a run has exceeded."""
    return escaped(f"warning: {event}")


def conclusion(status: str, rows: list[JobAttempt]) -> str:
    """Return one line on the run's end, with totals."""
    return ": ".join(filter(None, (_ended(status), totals(rows))))


def _ended(status: str) -> str:
    return status and f"run {WORDS.get(status, status)}"


def cells(rows: list[JobAttempt]) -> list[tuple[str, ...]]:
    """Return the cells of the table, header first; empty ``score`` and ``why`` are omitted."""
    return _without_empty(rows, _remarks(rows))


def _without_empty(rows: list[JobAttempt], whys: list[str]) -> list[tuple[str, ...]]:
    short = _short_names({row.location for row in rows})
    texts = (
        _cells(row, short.get(row.location, ""), text)
        for row, text in zip(rows, whys, strict=True)
    )
    columns = zip(HEADER, *texts, strict=True)
    shown = [c for c in columns if c[0] not in ("score", WHY) or any(c[1:])]
    return list(zip(*shown, strict=True))


def failures(rows: list[JobAttempt]) -> list[str]:
    """Return the errors of the jobs whose last attempt has failed, with remedies."""
    return [
        described(row.job, row.location, row.exit_code, row.error, [""])
        for row in _failed(rows)
    ]


def reason(end: events.End | None, rows: list[JobAttempt]) -> str:
    """Return why a run has failed; empty if the failed jobs explain the failure.

    :param end: last event of the run; ``None`` if the journal lacks it
    """
    if end is None or end.job in {row.job for row in _failed(rows)}:
        return ""
    return end.reason or ""


def _failed(rows: list[JobAttempt]) -> list[JobAttempt]:
    """Return the last attempts of all jobs whose last attempt has failed."""
    last = {row.job: row for row in rows}
    return [row for row in last.values() if row.status == "failed"]


def candidates(rows: list[JobAttempt]) -> list[str]:
    """Return a line per quantum candidate: the number of its jobs by target, and reasons.

    An example is ``solve: 4 on qpu, 2 on host (QPU closed)``. The line begins with
    ``warning:`` if the jobs ran on targets of both kinds and the filter's rule for this is
    ``warn``, or if no job ran on a QPU and a QPU had failed or did not reply.
    """
    last = {row.job: row for row in rows}
    steps: dict[str, list[JobAttempt]] = {}
    for row in last.values():
        steps.setdefault(row.step, []).append(row)
    return [
        _candidate(step, jobs)
        for step, jobs in steps.items()
        if any(row.quantum is not None for row in jobs)
    ]


def _candidate(step: str, jobs: list[JobAttempt]) -> str:
    """Return the line of one candidate; see :func:`candidates`."""
    done = [row for row in jobs if row.status == "completed"]
    parts = []
    for target in dict.fromkeys(row.target for row in done):
        on_target = [row for row in done if row.target == target]
        why = Counter(row.brief for row in on_target if row.brief)
        if len(why) == 1 and why.total() == len(on_target):
            reasons = f" ({next(iter(why))})"
        else:
            counted_reasons = [f"{number} {brief}" for brief, number in why.items()]
            reasons = f" ({'; '.join(counted_reasons)})" if why else ""
        parts.append(f"{len(on_target)} on {target}{reasons}")
    others = Counter(
        f"{row.status} from {row.target}" if row.status == REUSED else row.status
        for row in jobs
        if row.status != "completed"
    )
    parts += [f"{number} {status}" for status, number in others.items()]
    line = f"{step}: {', '.join(parts)}"
    # a reused job has no decision
    qpus = {name for row in jobs for name in row.qpus}
    ended = [row for row in jobs if row.status in ("completed", REUSED)]
    kinds = {
        row.target in qpus if row.status == REUSED else row.quantum for row in ended
    }
    if len(kinds - {None}) > 1 and any(row.mixed == "warn" for row in jobs):
        return f"warning: {line}; results of QPUs and of classical targets are mixed"
    if kinds == {False} and any(row.trouble for row in ended):
        return f"warning: {line}; no result is from a QPU"
    return line


def totals(rows: list[JobAttempt]) -> str:
    """Return one line with the numbers of jobs, retries and QPU jobs, and the times."""
    # skipped jobs are left out: the journal records them only at the end of the run
    begun = [row for row in rows if row.status != SKIPPED]
    ends = [row.ended for row in begun if row.ended is not None]
    elapsed = max(ends) - min(row.asked for row in begun) if ends else 0.0
    retried = sum(row.attempt > 1 for row in rows)
    reused = sum(row.status == REUSED for row in rows)
    not_run = f"{reused} of them reused, " if reused else ""
    if skipped := len(rows) - len(begun):
        not_run += f"{skipped} of them skipped (when), "
    jobs = [event for row in rows for event in row.qpu_jobs]
    reported = [event for event in jobs if event.qpu_job is not None]
    silent = sorted({event.qpu for event in jobs if event.qpu_job is None})
    unknown = f" (not reported by {', '.join(silent)})" if silent else ""
    used = sum(event.qpu_seconds or 0.0 for event in reported)
    cost = f" ({rounded(used)} s on the QPU)" if used else ""
    found = sum(event.found is True for event in reported)
    again = f", {found} of them found again" if found else ""
    return (
        f"{plural(len(rows) - retried, 'job')}, {not_run}{plural(retried, 'retry')}, "
        f"{plural(len(reported), 'QPU job')}{again}{cost}{unknown}; "
        f"{elapsed:.1f} s elapsed, "
        f"waited {sum(row.waited or 0 for row in rows):.1f} s, "
        f"ran {sum(row.ran or 0 for row in rows):.1f} s"
    )


def _short_names(locations: Collection[str]) -> dict[str, str]:
    """Shorten the host names in locations, but keep all hosts distinct.

    ``a.one.org`` becomes ``a``, or ``a.one`` if another host is ``a.two.org``.
    """
    parts = {one: [*one.split("/")[:-1], one.split("/")[-1]] for one in locations}
    hosts = {host for names in parts.values() for host in names[-1].split(",")}
    named = {host for host in hosts if "." in host and not _ADDRESS.fullmatch(host)}
    labels = max((host.count(".") + 1 for host in named), default=1)
    for count in range(1, labels + 1):
        cut = {host: ".".join(host.split(".")[:count]) for host in named}
        if len({*cut.values()} | (hosts - named)) == len(hosts):
            break
    return (
        {
            one: "/".join(
                [*names[:-1], ",".join(cut.get(h, h) for h in names[-1].split(","))]
            )
            for one, names in parts.items()
        }
        if named
        else {one: one for one in locations}
    )


def _remarks(rows: list[JobAttempt]) -> list[str]:
    """Return the remarks on each attempt, with the failure if another attempt followed."""
    last = {(row.job, row.attempt) for row in _failed(rows)}
    failures = ("" if (row.job, row.attempt) in last else row.failure for row in rows)
    return [
        "; ".join(filter(None, (row.remarks, failure)))
        for row, failure in zip(rows, failures, strict=True)
    ]


def _notes(rows: list[JobAttempt]) -> list[str]:
    """Return a line for each text of the column ``why``, too long for a terminal's table."""
    jobs: dict[str, list[str]] = {}
    for row, text in zip(rows, _remarks(rows), strict=True):
        attempt = f" (attempt {row.attempt})" if row.attempt > 1 else ""
        jobs.setdefault(text, []).append(f"{row.job}{attempt}")
    jobs.pop("", None)
    return [escaped(f"{_and_others(names)}: {text}") for text, names in jobs.items()]


def _and_others(names: list[str]) -> str:
    first, *others = names
    return f"{first} and {plural(len(others), 'other')}" if others else first


def _cells(row: JobAttempt, location: str, text: str) -> tuple[str, ...]:
    return (
        row.job,
        location or "-",
        _seconds(row.waited),
        _seconds(row.ran),
        str(row.attempt),
        row.state,
        "" if row.score is None else f"{row.score:.4f}",
        text,
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _scheduler(file: Path) -> dict[str, JSON]:
    from sf_quantum import yaml  # slow, and only needed for a StreamFlow file

    try:
        content = mapping(yaml.parse(file.read_text("utf-8")).content)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except (yaml.NotYamlError, UnicodeDecodeError):
        return {}
    return mapping(mapping(content.get("scheduling")).get("scheduler"))


def _directory(scheduler: dict[str, JSON]) -> str:
    return str(mapping(scheduler.get("config")).get("directory", DIRECTORY))
