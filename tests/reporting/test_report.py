"""A run's journal as table, JSON, lines and picture."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest

from sf_quantum import journal
from sf_quantum.cli import main
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.reporting import pictures, report
from sf_quantum.reporting.attempts import JobAttempt
from sf_quantum.reporting.progress import print_progress
from sf_quantum.reporting.runs import Run
from tests.support.journals import (
    Event,
    a_run,
    collect,
    event,
    measure,
    progress,
    typed,
    write,
)


def test_every_attempt_is_a_row() -> None:
    first, failed, second = collect(a_run())
    assert (first.step, first.tag, first.loops) == ("loop/a", "0.0.1", 1)
    assert (first.job, first.location) == ("/loop/a/0.0.1", "nodes/c1")
    assert first.waited == pytest.approx(1.5)
    assert first.ran == pytest.approx(3.0)
    assert (failed.attempt, failed.status, failed.location) == (1, "failed", "qpu")
    assert failed.ran == pytest.approx(0.9)
    assert len(failed.qpu_jobs) == 1
    assert (second.attempt, second.status) == (2, "completed")
    assert second.waited == pytest.approx(0.2)


def test_a_job_has_its_name_of_the_journal_in_every_text() -> None:
    """StreamFlow's log, Slurm's messages and a service's purposes have it, too."""
    job = "/loop/a/0.1.2"
    run: list[Event] = [
        event(1, "/loop/a", "0.1.2", "waiting"),
        {"event": "reuse", "job": job, "reason": "changed"},
        {"event": "decision", "job": job, "targets": ["q"], "reason": "free"},
        event(2, "/loop/a", "0.1.2", "running"),
        {"event": "lease", "job": job, "qpu": "q", "status": "waiting"},
        {"event": "start", "job": job, "qpu": "q", "status": "waiting"},
        {"event": "nodes", "job": job, "status": "waiting"},
        {"event": "failure", "job": job, "exit_code": 1, "error": ""},
        event(3, "/loop/a", "0.1.2", "failed"),
        {"event": "end", "status": "failed", "job": job},
    ]
    *lines, _, _ = progress(run)  # the step's line of its candidates, and the end
    assert len(lines) == 8
    (row,) = collect(run)
    lines += [row.decision, *report.failures([row]), report.cells([row])[1][0]]
    assert [one for one in lines if job not in re.split("[ :]", one)] == []
    assert row.to_json()["job"] == job


def test_the_last_attempt_may_fail_too() -> None:
    (row,) = collect(
        [
            event(0, "/a", "0", "waiting"),
            event(1, "/a", "0", "running"),
            event(2, "/a", "0", "recovery"),
            event(9, "/a", "0", "failed"),
        ]
    )
    assert (row.status, row.ran) == ("failed", 1.0)


def test_the_table_has_a_line_a_row_and_totals() -> None:
    header, first, *_, totals = report.table(collect(a_run())).splitlines()
    assert header.split() == "job location waited ran attempt status".split()
    assert first.split() == "/loop/a/0.0.1 nodes/c1 1.50 s 3.00 s 1 completed".split()
    assert totals == (
        "2 jobs, 1 retry, 1 QPU job; 8.9 s elapsed, " "waited 1.8 s, ran 6.9 s"
    )


def test_a_qpu_that_does_not_tell_its_jobs_is_named() -> None:
    silent: Event = {"time": 5.9, "event": "qpu", "job": "/loop/b/0.1", "qpu": "acme"}
    events = a_run()
    events.insert(9, {**silent, "qpu_job": None})
    totals = report.totals(collect(events))
    assert "1 QPU job (not reported by acme); 8.9 s" in totals


def test_a_score_is_shown_where_a_job_left_one(tmp_path: Path) -> None:
    (tmp_path / "cwl.output.json").write_text('{"score": 0.83791, "again": false}')
    rows = collect(a_run(tmp_path))
    assert rows[0].score == pytest.approx(0.83791)
    assert "0.8379" in report.table(rows)
    assert any("score 0.8379" in line for line in progress(a_run(tmp_path)))


@pytest.mark.parametrize("content", ["", "[]", '{"score": "high"}', '{"again": true}'])
def test_an_output_without_a_score_is_no_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "cwl.output.json").write_text(content)
    assert collect(a_run(tmp_path))[0].score is None


def test_a_run_is_told_as_it_happens() -> None:
    assert list(progress(a_run())) == [
        "running   /loop/a/0.0.1 on nodes/c1",
        "completed /loop/a/0.0.1 on nodes/c1 in 3.0 s (waited 1.5 s)",
        "running   /loop/b/0.1 on qpu",
        "failed    /loop/b/0.1 on qpu in 0.9 s (waited 0.1 s) with 1 QPU job",
        "running   /loop/b/0.1 on nodes (attempt 2)",
        "completed /loop/b/0.1 on nodes/c1 (attempt 2) in 3.0 s (waited 0.2 s)",
        "run completed: 2 jobs, 1 retry, 1 QPU job; "
        "8.9 s elapsed, waited 1.8 s, ran 6.9 s",
    ]


def test_a_run_whose_driver_was_killed_is_told_too() -> None:
    *_, last = progress(a_run()[:5])
    assert last.startswith("run ended without its last event: its driver was killed")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_line_of_progress() -> None:
    terminal = Terminal()
    print_progress(typed(a_run()), terminal)
    text = terminal.getvalue()
    assert "\r\x1b[Krunning: /loop/a/0.0.1 on nodes/c1\r\x1b[Kcompleted /loop/a" in text
    assert text.count("\n") == 4
    assert text.endswith("ran 6.9 s\n\r\x1b[K")


def test_progress_shows_what_others_wrote_escaped() -> None:
    events = json.loads(json.dumps(a_run()).replace('"nodes', r'"\u001b[2Jnodes'))
    stream = io.StringIO()
    print_progress(typed(events), stream)
    assert r"\x1b[2J" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def of(file: Path) -> list[Event]:
    return [{"time": 0.0, "event": "run", "file": str(file)}]


def test_the_newest_run_is_found(tmp_path: Path) -> None:
    folder, file = tmp_path / journal.DIRECTORY, tmp_path / "streamflow.yml"
    file.write_text("version: v1.0")
    write(folder / "1.jsonl", of(file))
    path = write(folder / "2.jsonl", of(file))
    assert [report.locate(w) for w in (tmp_path, folder, file, path)] == [path] * 4


def test_the_run_of_another_file_is_not_that_of_this_one(tmp_path: Path) -> None:
    folder = tmp_path / journal.DIRECTORY
    file, other, third = (tmp_path / f"{name}.yml" for name in ("a", "b", "c"))
    for path in (file, other, third):
        path.write_text("version: v1.0")
    own = write(folder / "1.jsonl", of(file))
    newer = write(folder / "2.jsonl", of(other))
    write(folder / "3.jsonl", []).write_text("no journal\n")
    assert report.locate(file) == own
    newer.with_name("3.jsonl").unlink()
    assert report.locate(tmp_path) == newer
    with pytest.raises(
        InputError, match=r"c\.yml: no run is recorded in .*, only of .*b"
    ):
        report.locate(third)
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved / folder.relative_to(tmp_path))
    shutil.copy(other, moved)
    with pytest.raises(
        InputError, match=rf"of {other} \(was its folder moved or copied"
    ):
        report.locate(moved / other.name)


def test_a_configured_folder_is_found(tmp_path: Path) -> None:
    file = tmp_path / "streamflow.yml"
    path = write(tmp_path / "runs" / "1.jsonl", of(file))
    file.write_text(
        "scheduling: {scheduler: {type: sfq.journal, config: {directory: runs}}}"
    )
    assert report.locate(file) == path


def test_the_command_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "1.jsonl", a_run())
    assert main(["report", str(path)]) == 0
    table = report.table(collect(a_run()), "completed")
    assert "run completed: 2 jobs, " in table
    assert table in capsys.readouterr().out


def test_the_command_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "1.jsonl", a_run())
    assert main(["report", str(path), "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["jobs"]
    assert len(others) == 2
    assert (first["step"], first["waited"], first["ran"]) == ("loop/a", 1.5, 3.0)


def test_the_command_follows_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "1.jsonl", a_run())
    assert main(["report", str(path), "--follow"]) == 0
    assert capsys.readouterr().out.splitlines() == list(progress(a_run()))


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_command_draws_a_picture(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = write(tmp_path / "1.jsonl", a_run())
    picture = tmp_path / f"out.{suffix}"
    assert main(["report", str(path), "--timeline", str(picture)]) == 0
    assert picture.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}/none.jsonl"], "none.jsonl: cannot be read as a run's journal"),
        (["{}/none.yml"], "none.yml: cannot be read"),
        (["{}"], "no run is recorded in"),
        (["{}/empty.jsonl", "--timeline", "{}/a.png"], "nothing to draw"),
        (["{}/run.jsonl", "--timeline", "{}/none/a.png"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    runs = tmp_path / "runs"
    write(runs / "empty.jsonl", [{"time": 0.0, "event": "run", "run": "e"}])
    write(runs / "run.jsonl", a_run())
    where = runs if len(arguments) == 3 else tmp_path
    assert main(["report", *(word.format(where) for word in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_what_a_killed_driver_left_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(e)}\n" for e in a_run()[:5]))
    assert main(["report", str(path)]) == 0
    assert " lost" in capsys.readouterr().out


def a_decision(time: float, attempt: int, reason: str) -> Event:
    return {
        "time": time,
        "event": "decision",
        **{"job": "/loop/b/0.1", "attempt": attempt, "targets": ["cpu", "gpu"]},
        "reason": reason,
    }


def a_candidates_run() -> list[Event]:
    """The run in which the second job is a candidate, tried twice."""
    events = [
        *a_run(),
        a_decision(5.05, 1, "q is free"),
        a_decision(6.25, 2, "q broke"),
    ]
    return sorted(events, key=lambda event: float(str(event["time"])))


def test_why_a_candidate_went_there_is_below_the_table() -> None:
    rows = collect(a_candidates_run())
    assert [row.why for row in rows] == [
        "",
        "cpu or gpu: q is free",
        "cpu or gpu: q broke",
    ]
    header, *lines = report.table(rows).splitlines()
    assert header.endswith("status")
    assert all(len(line) <= len(header) + 3 for line in lines[: len(rows)])
    assert lines[len(rows) : len(rows) + 4] == [
        "",
        "/loop/b/0.1: cpu or gpu: q is free",
        "/loop/b/0.1 (attempt 2): cpu or gpu: q broke",
        "",
    ]
    assert report.cells(rows)[0][-1] == "why"
    assert rows[1].to_json()["why"] == "cpu or gpu: q is free"


def test_one_reason_of_many_jobs_is_one_line() -> None:
    rows = a_scatter(*[CLOSED] * 3)
    for row in rows:
        row.why = "host: the QPU is closed"
    lines = report.table(rows).splitlines()
    assert lines.count("/solve/0.0 and 2 others: host: the QPU is closed") == 1


def a_scatter(*jobs: tuple[str, str, str], mixed: str = "warn") -> list[JobAttempt]:
    """The rows of a step's jobs.

    :param jobs: each with its target, its status, and why it is not of the preferred kind
    """
    return [
        JobAttempt(
            *("solve", f"0.{number}", 0, 1, 0.0),
            status=status,
            target=target,
            quantum=target == "qpu",
            brief=brief,
            mixed=mixed,
            qpus=["qpu"],
        )
        for number, (target, status, brief) in enumerate(jobs)
    ]


ON_QPU = ("qpu", "completed", "")
CLOSED = ("host", "completed", "QPU closed")


def test_one_line_counts_the_jobs_of_a_candidate() -> None:
    many = [*[ON_QPU] * 4, *[CLOSED] * 2]
    line = "solve: 4 on qpu, 2 on host (QPU closed)"
    assert report.candidates(a_scatter(*many, mixed="allow")) == [line]
    mixing = "; results of QPUs and of classical targets are mixed"
    assert report.candidates(a_scatter(*many)) == [f"warning: {line}{mixing}"]
    several = a_scatter(CLOSED, ("host", "completed", "budget spent"), CLOSED)
    assert report.candidates(several) == [
        "solve: 3 on host (2 QPU closed; 1 budget spent)"
    ]
    ends = a_scatter(ON_QPU, ("qpu", "failed", ""), ("host", "cancelled", ""))
    assert report.candidates(ends) == ["solve: 1 on qpu, 1 failed, 1 cancelled"]
    assert report.candidates(collect(a_run())) == []


def test_report_and_json_name_each_exceeded_budget_once(tmp_path: Path) -> None:
    overrun: Event = {"event": "overrun", "used": 0.10388, "limit": 0.05}
    # two filters have the run's budget
    of_run = [
        {**overrun, "time": at, "step": None, "unit": "QPU seconds"}
        for at in (9.4, 9.5)
    ]
    of_step = {**overrun, "time": 9.5, "step": "/solve", "unit": "cost"}
    *before, end = a_run()
    events = [*before, *of_run, of_step, end]
    lines = [
        "warning: the budget of the run is exceeded: 0.10388 of 0.05 QPU seconds used",
        "warning: the budget of step /solve is exceeded: 0.10388 of 0.05 cost used",
    ]
    assert [*progress(events)][-3:-1] == lines
    told = Run(write(tmp_path / "run.jsonl", events)).report()
    assert str(told).count("\nwarning: the budget") == 2
    assert [line in str(told) for line in lines] == [True, True]
    assert told.to_json()["overruns"] == [of_run[-1], of_step]


def test_warnings_are_once_in_progress_report_and_json(tmp_path: Path) -> None:
    text = "budget.cost does not limit qpu"
    warning: Event = {"event": "warning", "time": 9.4, "text": text}
    first, *others = a_run()
    events = [first, warning, {**warning, "time": 9.5}, *others]
    line = f"warning: {text}"
    assert [at for at, shown in enumerate(progress(events)) if shown == line] == [0]
    shown = Run(write(tmp_path / "run.jsonl", events)).report()
    assert str(shown).splitlines().count(line) == 1
    assert shown.to_json()["warnings"] == [text]


@pytest.mark.parametrize(
    ("troubles", "targets", "warns"),
    [
        ((True, True), ("host", "host"), True),
        ((True, False), ("host", "host"), True),
        ((False, False), ("host", "host"), False),
        ((True, False), ("host", "qpu"), False),
    ],
)
def test_a_candidate_that_no_qpu_has_run_warns(
    troubles: tuple[bool, ...], targets: tuple[str, ...], warns: bool
) -> None:
    rows = a_scatter(*((one, "completed", "") for one in targets), mixed="allow")
    for row, trouble in zip(rows, troubles, strict=True):
        row.trouble = trouble
    (line,) = report.candidates(rows)
    assert line.endswith("; no result is from a QPU") == warns
    assert line.startswith("warning: ") == warns


@pytest.mark.parametrize("reused", ["host", "host/slow", "qpu", "other/fast"])
@pytest.mark.parametrize("completed", ["host", "qpu"])
def test_reused_jobs_count_in_a_mixture(reused: str, completed: str) -> None:
    events: list[Event] = []

    def add(time: float, target: str, status: str) -> None:
        deployment, _, service = target.partition("/")
        job: Event = {
            "time": time,
            "event": "job",
            "job": f"/s/0.{time:g}",
            "step": "/s",
        }
        where: Event = {"deployment": deployment, "service": service, "locations": []}
        count: Event = {"tag": f"0.{time:g}", "loops": 0, "attempt": 1, "output": None}
        events.append({**job, **where, **count, "status": status})

    add(1, "", "waiting")
    events.append(
        {"time": 1, "event": "reuse", "job": "/s/0.1", "run": "r", "reason": ""}
    )
    add(1, reused, "reused")
    add(2, "", "waiting")
    decision: Event = {"time": 2, "event": "decision", "job": "/s/0.2", "reason": "x"}
    kind: Event = {"quantum": completed == "qpu", "targets": [completed]}
    qpus: Event = {"asked": [{"name": "qpu"}, {"name": "other/fast"}], "mixed": "warn"}
    events.append({**decision, **kind, **qpus})
    for status in ("running", "completed"):
        add(2, completed, status)
    (line,) = report.candidates(collect(events))
    is_mixed = (reused in ("qpu", "other/fast")) != (completed == "qpu")
    assert line.startswith("warning: ") == is_mixed
    assert f"1 on {completed}, 1 reused from {reused}" in line


def test_reused_jobs_are_told_in_one_line_for_each_step() -> None:
    def event(number: int, step: str, status: str, **fields: JSON) -> Event:
        job: Event = {"job": f"/{step}/0.{number}", "step": f"/{step}"}
        where: Event = {"tag": f"0.{number}", "loops": 0, "attempt": 1, "output": None}
        place: Event = {"deployment": "host", "service": None, "locations": []}
        kind: Event = {"event": "job", "status": status, "time": float(number)}
        return {**job, **where, **place, **kind, **fields}

    events: list[Event] = []
    for number in range(40):
        step = "a" if number % 2 else "b"
        events.append(event(number, step, "waiting"))
        events.append(event(number, step, "waiting", event="reuse", run="r", reason=""))
        events.append(event(number, step, "reused"))
    events.append(event(40, "c", "waiting"))
    events.append(event(40, "c", "waiting", event="reuse", run="r", reason=""))
    events.append(event(40, "c", "reused"))
    events.append(event(41, "c", "waiting"))
    events.append(event(41, "c", "running"))
    events.append({"event": "end", "time": 99.0, "status": "failed"})
    *lines, _ = progress(events)
    assert lines[:4] == [
        "reused    b: 20 jobs (20 on host) from run r",
        "reused    a: 20 jobs (20 on host) from run r",
        "reused    /c/0.40 on host from run r",
        "running   /c/0.41 on host",
    ]


def test_the_line_stands_before_the_end_of_the_run() -> None:
    *_, line, last = progress(a_candidates_run())
    assert line.startswith("loop/b: 1 on ")
    assert last.startswith("run completed: ")


def test_a_decision_is_told_as_it_is_made() -> None:
    lines = list(progress(a_candidates_run()))
    at = lines.index("decided   /loop/b/0.1 on cpu or gpu: q is free")
    assert lines[at + 1] == "running   /loop/b/0.1 on qpu"


def test_the_picture_says_why(tmp_path: Path) -> None:
    rows = collect(a_candidates_run())
    sizes = []
    for reason in ("", "q is free"):
        for row in rows:
            row.why = reason
        pictures.draw_timeline(rows * 10, tmp_path / "t.png")
        data = (tmp_path / "t.png").read_bytes()
        sizes.append(int.from_bytes(data[20:24], "big"))  # PNG, IHDR: the height
    # twenty lines and one that says how many more there are
    assert sizes[1] - sizes[0] == pytest.approx(130 * 0.17 * 21, abs=2)


def test_decisions_are_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "1.jsonl", a_candidates_run())
    assert main(["report", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["why"] for row in told["jobs"]][1:] == [
        "cpu or gpu: q is free",
        "cpu or gpu: q broke",
    ]
    assert [one["reason"] for one in told["decisions"]] == ["q is free", "q broke"]


def test_waits_for_leases_and_nodes_are_no_running_time() -> None:
    events = a_run()
    of_job: Event = {"time": 5.5, "job": "/loop/b/0.1"}
    lease: Event = {**of_job, "event": "lease", "qpu": "acme", "reason": "new laser"}
    events[8:8] = [
        {**lease, "status": "waiting", "seconds": 0.1},
        {**lease, "status": "granted", "seconds": 0.4},
        {**of_job, "event": "slurm", "submitted": 5.6, "started": 5.7},
        {**of_job, "event": "qpu", "qpu_job": "1", "found": True},
    ]
    row = collect(events)[1]
    tenth = pytest.approx(0.1)
    assert row.waits == {
        "a lease of acme": 0.4,
        "its submission": tenth,
        "nodes": tenth,
    }
    assert row.waited == pytest.approx(0.7)
    assert row.ran == pytest.approx(0.3)
    assert "1 QPU job found again, not paid twice" in row.remarks
    assert "waiting   /loop/b/0.1 for acme: new laser" in progress(events)


def test_a_qpu_job_that_is_found_again_counts_once() -> None:
    events = a_run()
    job: Event = {"event": "qpu", "job": "/loop/b/0.1", "qpu": "q", "qpu_job": "1"}
    events[8] = {**job, "time": 5.9, "qpu_seconds": 2.0, "found": False}
    found: Event = {**job, "time": 9.0, "qpu_seconds": 2.0, "found": True}
    events[14:14] = [found, {**found, "time": 9.1, "qpu_seconds": None}]
    rows = collect(events)
    first, second = [row for row in rows if row.step == "loop/b"]
    assert first.qpu_jobs == []
    assert [one.qpu_seconds for one in second.qpu_jobs] == [2.0]
    assert "1 QPU job found again, not paid twice" in second.remarks
    told = report.totals(rows)
    assert "1 QPU job, 1 of them found again (2 s on the QPU);" in told
    assert measure(events).qpu_seconds == {("q", "1"): 2.0}


def test_a_failure_is_in_the_table_and_in_the_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure: Event = {"time": 2, "event": "failure", "job": "/a/0.1", "attempt": 1}
    events: list[Event] = [
        event(0, "/a", "0.1", "waiting"),
        event(1, "/a", "0.1", "running"),
        {**failure, "exit_code": 127, "error": "first\nno such command"},
        event(2, "/a", "0.1", "failed"),
        {"time": 3, "event": "end", "status": "failed"},
    ]
    path = write(tmp_path / "run.jsonl", [{"time": 0, "event": "run"}, *events])
    assert main(["report", str(path)]) == 0
    table = capsys.readouterr().out
    assert "/a/0.1 on nodes/c1 failed with exit code 127:\n  first\n  no such" in table
    assert main(["report", "--json", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "failed"
    assert (told["jobs"][0]["exit_code"], "PATH" in told["jobs"][0]["remedy"]) == (
        127,
        True,
    )
    assert main(["report", "--follow", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  no such command" in lines
    assert lines[-1].startswith("run failed: ")


@pytest.mark.parametrize("failed", [True, False])
def test_a_reason_is_told_once(
    failed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of a job with its failure, and any other by itself."""
    failure: Event = {"time": 2, "event": "failure", "job": "/a/0.1", "attempt": 1}
    end: Event = {"time": 3, "event": "end", "status": "failed"}
    events: list[Event] = [
        {"time": 0, "event": "run"},
        event(0, "/a", "0.1", "waiting"),
        event(1, "/a", "0.1", "running"),
        {**failure, "exit_code": 3, "error": "the cause"},
        event(2, "/a", "0.1", "failed" if failed else "completed"),
        {
            **end,
            "reason": "a on nodes failed: the cause",
            "job": "/a/0.1" if failed else None,
        },
    ]
    path = str(write(tmp_path / "run.jsonl", events))
    main(["report", path])
    table = capsys.readouterr().out
    assert table.count("the cause") == 1
    main(["report", "--follow", path])
    assert capsys.readouterr().out.removesuffix(table).count("the cause") == 1
    main(["report", "--json", path])
    assert len(json.loads(capsys.readouterr().out)["failures"]) == 1


def test_the_failure_of_an_attempt_before_the_last_has_its_line() -> None:
    events = a_run()
    failure: Event = {"time": 6, "event": "failure", "job": "/loop/b/0.1", "attempt": 1}
    events.insert(9, {**failure, "exit_code": 3, "error": "the cause"})
    table = report.table(collect(events), "completed")
    (line,) = [line for line in table.splitlines() if "the cause" in line]
    assert line == "/loop/b/0.1: exit code 3: the cause"


def test_a_failed_run_without_a_reason_names_the_log() -> None:
    assert "StreamFlow's log" in report.table(collect(a_run()), "failed")


def test_hosts_are_cut_to_what_distinguishes_them() -> None:
    def shown(*hosts: str) -> list[str]:
        rows = [JobAttempt("a", "0", 0, 1, 0.0, f"site/s/{one}") for one in hosts]
        return [line[1] for line in report.cells(rows)[1:]]

    assert shown("n1.a.org", "n2.a.org,n3.a.org") == ["site/s/n1", "site/s/n2,n3"]
    assert shown("n1.a.org", "n1.b.org") == ["site/s/n1.a", "site/s/n1.b"]
    assert shown("n1.a.org", "n1") == ["site/s/n1.a", "site/s/n1"]
    assert shown("10.0.0.1", "10.0.0.2") == ["site/s/10.0.0.1", "site/s/10.0.0.2"]


def waits(*events: Event, end: str = "completed") -> list[Event]:
    """A job that runs from 1 to 9 by StreamFlow's clock, with what it waits for."""

    def job(time: float, status: str) -> Event:
        return event(time, "/a", "0", status, deployment="q", locations=["q"])

    return [
        job(0.0, "waiting"),
        job(1.0, "running"),
        *({**one, "job": "/a/0", "qpu": "q"} for one in events),
        job(9.0, end),
        {"time": 9.0, "event": "end", "status": end},
    ]


LEASE: Event = {"event": "lease", "reason": "it is closed", "seconds": 0.0}
START: Event = {"event": "start", "seconds": 0.0}
REQUEST: Event = {"event": "allocation"}
NODES: Event = {"event": "nodes", "seconds": 0.0}


@pytest.mark.parametrize(
    ("begin", "end", "line"),
    [
        ({**LEASE, "status": "waiting"}, {**LEASE, "status": "granted"}, "q: it is closed"),
        ({**START, "status": "waiting"}, {**START, "status": "started"}, "q: it is being started"),
        ({**REQUEST, "status": "requested", "at": 1.0}, {**REQUEST, "status": "granted", "at": 6.0}, "nodes of q"),
        ({**NODES, "status": "waiting"}, {**NODES, "status": "granted"}, "nodes of q"),
    ],
)  # fmt: skip
def test_a_job_that_waits_is_not_running(begin: Event, end: Event, line: str) -> None:
    events = waits({"time": 1.0, **begin}, {"time": 6.0, **end, "seconds": 5.0})
    lines = [*progress(events)]
    assert lines[:3] == [
        "running   /a/0 on q",
        f"waiting   /a/0 for {line}",
        "running   /a/0 on q",
    ]
    assert lines[3] == "completed /a/0 on q in 3.0 s (waited 6.0 s)"
    (row,) = collect(events[:3])
    assert row.state == "waiting"
    # one that never got it has not run
    (row,) = collect(waits({"time": 1.0, **begin}, end="cancelled"))
    assert (row.waited, row.ran) == (9.0, 0.0)


SLURM: Event = {"time": 8.5, "event": "slurm", "submitted": 1.5, "started": 6.0}


@pytest.mark.parametrize("grant", [None, 2.0, 8.25, 8.75, 9.5])
def test_a_wait_for_nodes_is_slurms_whenever_it_is_seen(grant: float | None) -> None:
    """A poll sees the grant late, after the end of a short job, or never."""
    request = {"time": 1.5, **REQUEST, "status": "requested", "at": 1.5}
    granted = {"time": grant, **REQUEST, "status": "granted", "at": 5.0}
    others = [request, *([granted] if grant else []), SLURM]
    (row,) = collect(_in_order(waits(*others)))
    waited = {"its submission": 0.5, "nodes": 4.5}
    assert (row.waits, row.state) == (waited, "completed")
    assert (row.waited, row.ran) == (1.0 + 0.5 + 4.5, 3.0)


def test_a_job_that_slurm_ran_anew_says_so() -> None:
    """Also when no poll has seen the first run, which lost its node."""
    run = waits({**SLURM, "restarts": 2})
    (row,) = collect(run)
    assert row.remarks == "waited 4.5 s for nodes; requeued by Slurm, run 3"
    *_, end, _ = progress(run)
    assert (
        end == "completed /a/0 on q in 3.0 s (waited 6.0 s) (requeued by Slurm, run 3)"
    )


def test_nodes_that_were_there_at_once_are_no_wait() -> None:
    # the request is seen a moment before
    request = {"time": 1.5, **REQUEST, "status": "requested", "at": 1.5}
    (row,) = collect(waits(request, {**SLURM, "started": 1.5}))
    assert (row.waited, row.ran) == (1.5, 7.5)


def test_the_time_before_a_submission_is_a_wait() -> None:
    (row,) = collect(waits({**SLURM, "submitted": 4.0}))
    assert row.waits == {"its submission": 3.0, "nodes": 2.0}
    assert row.remarks.startswith("waited 3.0 s for its submission; waited 2.0 s for")
    assert (row.waited, row.ran) == (1.0 + 3.0 + 2.0, 3.0)


def test_a_job_without_nodes_has_not_run() -> None:
    request = {"time": 1.5, **REQUEST, "status": "requested", "at": 1.5}
    lost = {**SLURM, "time": 9.0, "started": None}
    (row,) = collect(waits(request, lost, end="failed"))
    assert row.waits == {"its submission": 0.5, "nodes": 7.5}


def test_a_job_whose_nodes_are_taken_waits_again() -> None:
    request = {"time": 1.0, **REQUEST, "status": "requested", "at": 1.0}
    granted = {**REQUEST, "status": "granted"}
    events = waits(
        request,
        {**granted, "time": 2.0, "at": 2.0},
        {**REQUEST, "time": 3.0, "status": "released", "at": 3.0},
        {**NODES, "time": 3.0, "status": "waiting"},
        {**granted, "time": 6.0, "at": 6.0},
        {**SLURM, "submitted": 1.0},
    )
    assert [line.partition(" ")[0] for line in progress(events)] == [
        *("running", "waiting", "running", "waiting", "running", "completed", "run")
    ]
    (row,) = collect(events[:6])
    assert row.state == "waiting"
    # the second in which it had nodes, in vain, is not one of waiting
    for seen in (events, events[:7]):
        (row,) = collect(seen)
        assert row.waits == {"nodes": 1.0 + 3.0}
    (row,) = collect(events)
    assert (row.waited, row.ran) == (5.0, 4.0)


def _in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda one: float(str(one["time"])))


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("__LOCAL__/slurmctld", "cluster/compute"),
        ("cluster/slurmctld", "cluster/compute"),
        ("login1.site/slurmctld", "cluster/compute/login1"),
        ("__LOCAL__", "cluster/compute"),
        ("c1,c2", "cluster/compute/c1,c2"),
    ],
)
def test_a_location_is_named_by_what_distinguishes_it(
    location: str, shown: str
) -> None:
    start = event(1, "/a", "0", "running", deployment="cluster", locations=[location])
    rows = collect([{**start, "service": "compute"}])
    assert report.cells(rows)[1][1] == shown
