"""The record of a run: written whole, read whatever happened to the writer."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path

import pytest

from sf_quantum import journal
from sf_quantum.errors import InputError
from sf_quantum.journal.events import KINDS, DamagedError, parse
from tests.support.folders import ROOT
from tests.support.journals import Event, append, read, write


@pytest.fixture
def written(tmp_path: Path) -> Iterator[journal.Journal]:
    made = journal.Journal(tmp_path / "journals")
    made.start("streamflow.yml", ["main"], {"streamflow": "0"})
    yield made
    made.close()


def test_events_come_back_in_order_with_their_times(written: journal.Journal) -> None:
    append(written, {"event": "job", "job": "/a/0", "status": "running"})
    append(written, {"event": "end", "status": "completed"})
    events = read(written.path)
    assert [event["event"] for event in events] == ["run", "job", "end"]
    assert events[0]["pid"] == os.getpid()
    assert events[0]["run"] == written.path.stem
    assert events[1]["status"] == "running"
    times = [event["time"] for event in events]
    assert times == sorted(times, key=lambda time: float(str(time)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_lists_every_field_of_an_event(kind: str) -> None:
    text = (ROOT / "docs/reference/journal.md").read_text()
    (row,) = re.findall(rf"^\| `{kind}` \|.*", text, re.MULTILINE)
    names = {one.name for one in fields(KINDS[kind])} - {"time"}
    assert names <= {*re.findall(r"`(\w+)`", row)}


LINES = [
    '{"time": 1.0, "event": "lease", "job": "/a/0", "qpu": "q", "status": "waiting", '
    '"reason": "held", "seconds": 0.0}',
    '{"time": 1.0, "event": "result", "job": "/a/0", "fingerprint": {"command": "c", '
    '"inputs": {"x": {"": "d"}}, "target": "t"}, "locations": ["n"], "output": "/o", '
    '"local": true, "exit_code": 0, "contents": "d"}',
    '{"time": 1.0, "event": "slurm", "deployment": "d", "service": null, "strategy": '
    '"per-step", "partition": "p", "quantum": false, "job": "/a/0", "allocation": "7", '
    '"slurm_job": "7", "slurm_cluster": null, "submitted": 1.0, "started": null, "ended": '
    'null, "state": "FAILED", "exit_code": 1, "signal": 0, "reason": "", "restarts": 0}',
]


@pytest.mark.parametrize("line", LINES, ids=["lease", "result", "slurm"])
def test_an_event_is_written_as_it_was_read(
    written: journal.Journal, line: str
) -> None:
    written.write(parse(line.encode()))
    assert written.path.read_text().splitlines()[1] == line


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"c"', "1", "fingerprint is not a fingerprint"),
        ('{"": "d"}', '{"": 1}', "fingerprint is not a fingerprint"),
        ('"exit_code": 0, ', "", "exit_code is missing"),
        ("true, ", '"yes", ', "local is not a flag"),
        ('["n"]', "[1]", "locations is not a list of texts"),
    ],
)
def test_a_damaged_result_is_described(old: str, new: str, why: str) -> None:
    with pytest.raises(DamagedError, match=f"^{why}$"):
        parse(LINES[1].replace(old, new).encode())


def test_a_torn_last_line_is_left_out(written: journal.Journal) -> None:
    with written.path.open("a") as file:
        file.write('{"time": 1, "event": "jo')
    assert [event["event"] for event in read(written.path)] == ["run"]


DAMAGED = ["nonsense", "[1]", '{"event": "job"}', "\xff"]


@pytest.mark.parametrize("line", DAMAGED)
def test_what_is_not_a_journal_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line}\n", encoding="latin-1")
    with pytest.raises(InputError, match=r"a\.jsonl, line 1: not an event"):
        read(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name,value",
        '{"deployments": {}}',
        '{"time": 1, "event": "login"}\n',
        '{"time": 1, "event": "job"}\n',
    ],
    ids=["empty", "no line", "JSON", "another log", "half a job"],
)
def test_another_file_is_no_journal(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=r"a\.jsonl, line 1: not an event"):
        read(path)
    with suppress(InputError):
        assert [*journal.follow(path)] == []  # it ends


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_hides_no_other(
    written: journal.Journal, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    with written.path.open("a", encoding="latin-1") as file:
        file.write(f"{line}\n")
    append(written, {"event": "end", "status": "completed"})
    assert [event["event"] for event in read(written.path)] == ["run", "end"]
    assert "line 2: not an event; the line is left out" in caplog.text
    followed = [event.kind for event in journal.follow(written.path)]
    assert followed == ["run", "end"]


def test_a_missing_journal_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as a run's journal"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="cannot be read as a run's journal"):
        list(journal.follow(tmp_path / "none.jsonl"))


def test_an_unwritable_folder_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="name a writable folder as the scheduler"):
        journal.Journal(tmp_path / "file" / "journals")


def test_a_full_disk_does_not_end_the_run(
    written: journal.Journal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    append(written, {"event": "job", "job": "/a/0"})
    assert "event lost: No space left on device" in caplog.text


def test_a_line_cut_short_by_a_full_disk_is_cut_back(
    written: journal.Journal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:9]))
        append(written, {"event": "job", "job": "/a/0"})
    assert "event lost: No space left on device" in caplog.text
    append(written, {"event": "end", "status": "completed"})
    lines = [json.loads(line) for line in written.path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["run", "end"]


def test_runs_of_one_process_have_journals_of_their_own(tmp_path: Path) -> None:
    runs = [journal.Journal(tmp_path) for _ in range(20)]
    names = [run.path.name for run in runs]
    assert len(set(names)) == 20
    assert names == sorted(names)
    for run in runs:
        run.close()


def test_nothing_is_written_after_the_end(written: journal.Journal) -> None:
    before = written.path.read_bytes()
    written.close()
    append(written, {"event": "job", "job": "/a/0"})
    written.close()
    assert written.path.read_bytes() == before
    assert not journal.is_open(written.path)


def test_the_current_journal_is_that_of_the_process(tmp_path: Path) -> None:
    assert journal.current() is None
    made = journal.Journal(tmp_path)
    assert journal.current() is None
    made.start("streamflow.yml", [], {})
    assert journal.current() is made
    made.close()
    assert journal.current() is None


def test_the_newest_is_the_last_to_start(tmp_path: Path) -> None:
    assert journal.newest(tmp_path) is None
    for name in ("20260102T000000Z-1", "20260103T000000Z-1", "20260101T000000Z-1"):
        (tmp_path / f"{name}.jsonl").touch()
    assert journal.newest(tmp_path) == tmp_path / "20260103T000000Z-1.jsonl"


def test_an_open_journal_is_told_from_one_whose_writer_is_gone(
    written: journal.Journal,
) -> None:
    assert journal.is_open(written.path)
    os.close(os.dup(os.open(written.path, os.O_RDONLY)))  # readers take no lock away
    assert journal.is_open(written.path)


def test_following_ends_with_the_run(written: journal.Journal) -> None:
    seen = []
    for event in journal.follow(written.path):
        seen.append(event.kind)
        if event.kind == "run":
            append(written, {"event": "job", "job": "/a/0"})
        elif event.kind == "job":
            append(written, {"event": "end", "status": "completed"})
    assert seen == ["run", "job", "end"]


@pytest.mark.process
def test_following_ends_when_the_driver_is_killed(tmp_path: Path) -> None:
    code = (
        "from sf_quantum.journal import Journal\n"
        f"Journal({str(tmp_path)!r}).start('f', [], {{}})\n"
        "print(flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        path = journal.newest(tmp_path)
        assert path is not None
        seen = []
        for event in journal.follow(path):
            seen.append(event.kind)
            with path.open("a") as file:  # a line that the writer did not finish
                file.write(json.dumps({"time": 1, "event": "job"}))
            driver.kill()
    assert seen == ["run"]


def test_a_new_run_is_waited_for(tmp_path: Path) -> None:
    old = tmp_path / "old-7.jsonl"
    old.touch()
    (tmp_path / "other-17.jsonl").touch()  # of another driver
    new = tmp_path / "new-7.jsonl"
    answers = iter([True, True])

    def alive() -> bool:
        if next(answers, None) is None:
            new.touch()
        return True

    assert journal.await_new(tmp_path, 7, {old}, alive) == new
    assert journal.await_new(tmp_path, 7, {old, new}, lambda: False) is None


def _earlier(folder: Path, day: int, *ends: str, file: str = "f.yml") -> Path:
    """The journal of a run that came before, and that ended like this, or was killed."""
    path = folder / f"202001{day:02}T000000Z-1.jsonl"
    lines: list[Event] = [{"time": 1, "event": "run", "file": file}]
    lines += [{"time": 2, "event": "end", "status": status} for status in ends]
    return write(path, lines)


def _origin(folder: Path) -> str:
    run = journal.Journal(folder)
    run.start("f.yml", [], {})
    origin = run.origin
    run.close()
    return origin.rpartition(":")[2]


@pytest.mark.parametrize("ends", [(), ("cancelled",)], ids=["killed", "stopped"])
def test_a_run_takes_up_one_that_did_not_end_by_itself(
    tmp_path: Path, ends: tuple[str, ...]
) -> None:
    _earlier(tmp_path, 1, "completed")
    first = _earlier(tmp_path, 2, *ends)
    _earlier(tmp_path, 3)
    _earlier(tmp_path, 4, "completed", file="another.yml")
    (tmp_path / "20200105T000000Z-1.jsonl").write_text("no journal\n")
    assert _origin(tmp_path) == str(first)


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_a_run_that_ended_by_itself_is_over(tmp_path: Path, end: str) -> None:
    _earlier(tmp_path, 1)
    _earlier(tmp_path, 2, end)
    assert not Path(_origin(tmp_path)).name.startswith("2020")


def test_a_run_that_goes_on_is_not_taken_up(tmp_path: Path) -> None:
    path = _earlier(tmp_path, 1)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert _origin(tmp_path) != str(path)


def test_one_of_two_runs_that_resume_at_once_is_refused(tmp_path: Path) -> None:
    file = Path("f.yml")

    def resume() -> None:
        with journal.resuming(tmp_path, file):
            pass

    with ThreadPoolExecutor(1) as pool, closing(_begun(tmp_path)) as whole:
        # one may begin as a whole beside it
        with closing(journal.Journal(tmp_path)) as other:
            other.start("f.yml", [], {})
        whole.close()
        with journal.resuming(tmp_path, file):
            second = pool.submit(resume)
            with pytest.raises(TimeoutError):  # it waits
                second.result(0.1)
            first = _begun(tmp_path)
        with closing(first), pytest.raises(InputError, match=f"{first.run} goes on"):
            second.result()
        resume()


def _begun(folder: Path) -> journal.Journal:
    run = journal.Journal(folder, resumes=True)
    run.start("f.yml", [], {})
    return run


def test_the_run_shows_a_reason_once_and_its_log_each_text(
    written: journal.Journal, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = journal.Warnings({"Priority"})
    caplog.set_level(logging.INFO, "streamflow")
    for reason in ("Priority", "Licenses", "Licenses"):
        warnings.warn_of(reason, f"waits ({reason})", logging.INFO)
    assert [event["text"] for event in read(written.path)[1:]] == ["waits (Licenses)"]
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "INFO"]
