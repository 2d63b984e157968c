"""Journals with lines that are JSON, but no whole events: no reader fails."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from streamflow.core.workflow import Status

from sf_quantum import journal
from sf_quantum.candidates.history import History, earlier_runs
from sf_quantum.connectors.slurm.allocation import history
from sf_quantum.connectors.slurm.allocation.forecast import JobForecast
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.journal import Journal, events, results
from sf_quantum.journal.events import FIELDS, KINDS, STATUSES, QueriedQpu
from sf_quantum.planning.measured import fitting, journals
from sf_quantum.reporting import pictures, progress, run_usage
from sf_quantum.reporting.runs import Report, Run
from sf_quantum.workflows import runs
from tests.support.journals import Event, line, read, typed, whole

NAME = "20261127T000000.000Z-1.jsonl"
VALUES: list[JSON] = [None, True, 0, -7, 1.5, 1e12, 10**400]
VALUES += [float("nan"), float("-inf"), "", "x", "0.x", "0.1.2", "\ud800\x00\x1b[2J"]
VALUES += ["waiting", "granted", "resized", [], ["x"], [[1]], [None]]
VALUES += [{}, {"x": [1]}, {"command": {}, "inputs": {"x": 1}}]


def a_run(file: Path) -> list[Event]:
    """One step of a loop on Slurm with a QPU, which fails and is tried again."""
    job: Event = {"job": "/s/0.1", "step": "/s", "tag": "0.1", "loops": 1, "attempt": 1}
    place: Event = {"deployment": "d", "service": "s"}
    held: Event = {"allocation": "7", "slurm_job": "7", "strategy": "per-step"}
    held |= {**place, "job": "/s/0.1", "quantum": True, "partition": "q"}
    ran: Event = {**held, "submitted": 1.0, "started": 3.0, "ended": 9.0}
    again: Event = {**job, "attempt": 2}
    waits: Event = {"job": "/s/0.1", "seconds": 2.0}
    queried = asdict(QueriedQpu("d/s"))
    parts: list[Event] = [
        {"event": "run", "run": "r", "file": str(file), "workflows": ["w"]},
        {"event": "reuse", "job": "/s/0.1", "run": None, "reason": "changed"},
        {"event": "job", **job, "status": "waiting"},
        {"event": "decision", **job, "targets": ["d/s"], "asked": [queried]},
        {"event": "start", **waits, "qpu": "q", "status": "waiting"},
        {"event": "lease", **waits, "qpu": "q", "status": "waiting", "reason": "held"},
        {"event": "lease", **waits, "qpu": "q", "status": "granted"},
        {"event": "nodes", **waits, **place, "status": "waiting"},
        {"event": "allocation", **held, "status": "requested", "at": 1.0},
        {"event": "allocation", **held, "status": "granted", "at": 3.0, "nodes": 2},
        {"event": "job", **job, **place, "status": "running", "locations": ["c1"]},
        {"event": "qpu", "job": "/s/0.1", "qpu": "q", "qpu_job": "1", "qpu_seconds": 1},
        {"event": "failure", **job, "exit_code": 1, "error": "no"},
        {"event": "job", **job, **place, "status": "recovery", "locations": ["c1"]},
        {"event": "job", **again, "status": "waiting"},
        {"event": "job", **again, **place, "status": "running", "locations": ["c1"]},
        {"event": "slurm", **ran, "state": "COMPLETED"},
        {"event": "allocation", **held, "status": "released", "at": 9.0},
        {"event": "result", "job": "/s/0.1"},
        {"event": "job", **again, **place, "status": "completed", "locations": ["c1"]},
        {"event": "warning", "text": "no price"},
        {"event": "overrun", "step": None, "used": 2.0, "limit": 1.0},
        {"event": "end", "status": "completed"},
    ]
    return [whole({**part, "time": float(at)}) for at, part in enumerate(parts)]


def test_each_state_of_streamflow_is_one_of_a_job() -> None:
    assert {one.name.lower() for one in Status} | {"reused"} == STATUSES


def damaged(event: Event) -> Iterator[tuple[str, Event]]:
    """The event without each of its fields, and with some other values of each.

    Each comes with the name of the field.
    """
    chosen = random.Random(str(event))
    for name in event:
        yield name, {key: value for key, value in event.items() if key != name}
        for value in chosen.sample(VALUES, 4):
            yield name, {**event, name: value}
    yield "all", {"time": event["time"], "event": event["event"]}
    # the fields of the other kinds, and all of them in a kind of a later version
    fields: Event = {field.name: [{}] for kind in FIELDS.values() for field in kind}
    yield "more", {**fields, **event}
    yield "later", {**fields, "event": "of a later version", "time": 1}


def read_everything(path: Path, file: Path) -> Report:
    """Let each reader of journals read one, and return the report."""
    events = journal.read(path)
    told = Run(path).report()
    assert json.dumps(told.to_json())
    assert str(told)
    assert len(told[:]) == len(told)
    assert [*progress.progress_lines(journal.follow(path))]
    assert run_usage.overall([told.usage])
    runs._resume_line(file, path.parent)
    record = Journal(path.parent, resumes=True)
    try:
        record.start(str(file), [], {})
        assert record.first.is_file()
        results.earlier(record)
        of_filter = History()
        of_filter.add(of_filter.read(record))
        assert of_filter.spent() is not None
    finally:
        record.close()
        record.path.unlink()
    of_filter.add(earlier_runs(path.parent, file))
    of_filter.times("/s", "d/s")
    history.replay(events, "d", "s", JobForecast(1.0))
    fitting.fit(journals.read([path.parent], file))
    return told


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "streamflow.yml"
    path.write_text(
        "scheduling: {scheduler: {type: sfq.journal, config: {directory: runs}}}"
    )
    (tmp_path / "runs").mkdir()
    return path.resolve()


def test_the_run_has_an_event_of_each_kind(file: Path) -> None:
    events = a_run(file)
    assert {event["event"] for event in events} == {*KINDS}
    path = file.parent / "runs" / NAME
    path.write_text("".join(map(line, events)))
    got = read(path)
    assert all(a.items() <= b.items() for a, b in zip(got, events, strict=True))
    told = read_everything(path, file)
    assert [row.status for row in told.attempts] == ["failed", "completed"]


@pytest.mark.parametrize("number", range(len(a_run(Path()))))
def test_no_reader_fails_at_a_damaged_event(number: int, file: Path) -> None:
    events = a_run(file)
    path = file.parent / "runs" / NAME
    before, after = (
        "".join(map(line, e)) for e in (events[:number], events[number + 1 :])
    )
    readings = set[tuple[str, str]]()
    for field, event in damaged(events[number]):
        path.write_text(f"{before}{json.dumps(event)}\n{after}")
        if number == 0 and not ("time" in event and event.get("event") == "run"):
            with pytest.raises(InputError, match="line 1: not an event of a run's"):
                journal.read(path)
            continue
        reading = journal.read(path)
        assert len(reading) >= len(events) - 1
        # most values of a field have the line left out, which readers meet once for each
        if (field, str(reading)) not in readings:
            readings.add((field, str(reading)))
            told = read_everything(path, file)
    pictures.timeline(told.attempts)


def test_a_last_line_without_its_end_counts_if_it_is_whole(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = file.parent / "runs" / NAME
    events = a_run(file)
    text = "".join(map(line, events))
    path.write_text(text.removesuffix("\n"))
    assert journal.read(path) == [*typed(events)]
    assert [*journal.follow(path)] == [*typed(events)]
    assert Run(path).status == "completed"
    path.write_text(text[:-3])  # it was killed as it wrote this
    assert journal.read(path) == [*typed(events[:-1])]
    assert [*journal.follow(path)] == [*typed(events[:-1])]
    assert not caplog.records


def test_a_journal_of_one_line_needs_no_line_end(file: Path) -> None:
    path = file.parent / "runs" / NAME
    path.write_text(line(a_run(file)[0]).removesuffix("\n"))
    assert journal.newest(path.parent, file) == path


@pytest.mark.parametrize("twice", ["each", "all"])
def test_repeated_lines_count_once(
    file: Path, twice: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = file.parent / "runs" / NAME
    lines = [*map(line, a_run(file))]
    path.write_text("".join(lines))
    told = str(Run(path).report())
    repeated = [one for one in lines for _ in range(2)]
    path.write_text("".join(repeated if twice == "each" else lines * 2))
    assert journal.read(path) == [*typed(a_run(file))]
    assert [*journal.follow(path)] == [*typed(a_run(file))]
    assert str(Run(path).report()) == told
    first = 2 if twice == "each" else len(lines) + 1
    assert caplog.messages[0] == (
        f"{path}, line {first}: repeats an earlier line; such lines are left out"
    )


def test_a_decision_of_an_earlier_version_has_no_size() -> None:
    content = whole({"event": "decision", "time": 1.0})
    for name in ("variables", "reads"):
        del content[name]
    decision = events.parse(json.dumps(content).encode())
    assert isinstance(decision, events.Decision)
    assert (decision.variables, decision.reads) == (None, None)
    del content["targets"]
    with pytest.raises(events.DamagedError, match="targets is missing"):
        events.parse(json.dumps(content).encode())
