"""The results of earlier runs: their fingerprints, their contents, and what is said."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sf_quantum import journal
from sf_quantum.journal import contents, results
from sf_quantum.journal.events import Fingerprint, Result
from sf_quantum.journal.results import EarlierResult, difference
from sf_quantum.reporting import report
from tests.support.journals import Event, collect, event, line, progress, read, write

pytestmark = pytest.mark.process

RESULT = Result(
    time=1.0,
    job="/a/0",
    fingerprint=Fingerprint("c", {"log": {"": "i", "a": "j", "b": "k"}}, "t"),
    locations=["n1"],
    output="/o",
    local=True,
    exit_code=3,
    contents="d",
)


def by_shell(folder: str) -> str | None:
    script = ["sh", "-c", contents.digest_script(folder)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    return done.stdout.strip() or None


@pytest.fixture(params=[contents.digest, by_shell], ids=["here", "by a shell"])
def digest(request: pytest.FixtureRequest) -> Callable[[str], str | None]:
    made: Callable[[str], str | None] = request.param
    return made


def a_folder(path: Path) -> Path:
    (path / "in").mkdir(parents=True)
    (path / "in" / "a file").write_text("content")
    (path / "link").symlink_to("in/a file")
    (path / "away").symlink_to("/nowhere")
    return path


def test_equal_folders_have_equal_digests(
    tmp_path: Path, digest: Callable[[str], str | None]
) -> None:
    first, second = (str(a_folder(tmp_path / f"it's {n}")) for n in "12")
    assert digest(first) == digest(second)
    assert digest(first) is not None


def _append(folder: Path) -> None:
    with (folder / "in" / "a file").open("a") as file:
        file.write("!")


CHANGES: dict[str, Callable[[Path], object]] = {
    "changed": _append,
    "same size": lambda folder: (folder / "in" / "a file").write_text("cOntent"),
    "gone": lambda folder: (folder / "in" / "a file").unlink(),
    "renamed": lambda folder: (folder / "in").rename(folder / "out"),
    "another file": lambda folder: (folder / "another").touch(),
    "another folder": lambda folder: (folder / "another").mkdir(),
    "link gone": lambda folder: (folder / "away").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_the_digest(
    tmp_path: Path, digest: Callable[[str], str | None], change: str
) -> None:
    folder = a_folder(tmp_path / "folder")
    before = digest(str(folder))
    CHANGES[change](folder)
    assert digest(str(folder)) not in (before, None)


def test_what_a_link_leads_to_is_compared(
    tmp_path: Path, digest: Callable[[str], str | None]
) -> None:
    folder, model = a_folder(tmp_path / "folder"), tmp_path / "model" / "layers"
    model.mkdir(parents=True)
    (model / "weights").write_text("1")
    (folder / "model").symlink_to(model.parent)
    (model / "again").symlink_to(folder)  # around in a circle
    before = digest(str(folder))
    assert before == digest(str(folder))
    (model / "weights").write_text("2")
    assert digest(str(folder)) not in (before, None)


def test_a_missing_folder_has_no_digest(
    tmp_path: Path, digest: Callable[[str], str | None]
) -> None:
    assert digest(str(tmp_path / "none")) is None


def test_a_large_folder_has_no_digest(
    tmp_path: Path,
    digest: Callable[[str], str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contents, "ENTRIES", 3)
    assert digest(str(a_folder(tmp_path))) is None


@pytest.mark.parametrize("size", [0, 1, 2**26 + 1])
def test_a_file_with_its_size_and_time_restored_differs(
    tmp_path: Path, digest: Callable[[str], str | None], size: int
) -> None:
    file = tmp_path / "output"
    for end in (b"0", b"1"):
        with file.open("wb") as writing:
            writing.truncate(size)  # a hole, which takes no room
            writing.seek(size)
            writing.write(end)
        os.utime(file, (1e9, 1e9))
        if end == b"0":
            before = digest(str(tmp_path))
    assert digest(str(tmp_path)) != before


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert contents.digest(str(tmp_path)) is not None


def test_what_has_changed_is_told() -> None:
    known = RESULT.fingerprint
    assert difference(known, known) == ""
    command = difference(replace(known, command="new"), known)
    assert command == "its command or environment has changed"
    target = difference(replace(known, target="new"), known)
    assert target == "its target has changed"


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ({"": "i", "a": "x", "b": "k"}, "log has changed: file a changed"),
        ({"": "i", "b": "k"}, "log has changed: file a is gone"),
        ({"": "x", "a": "j", "b": "k", "c": "l"}, "log has changed: file c is new"),
        ({"": "x", "a": "j", "b": "k"}, "log has another value"),
        (None, "other has another value, and 1 more"),
    ],
)
def test_the_input_that_has_changed_is_named(
    now: dict[str, str] | None, reason: str
) -> None:
    known = RESULT.fingerprint
    inputs = {"log": now} if now is not None else {"other": {"": "i"}}
    changed = replace(known, inputs=inputs)
    assert difference(changed, known) == f"its input {reason}"


def _runs(folder: Path, *runs: list[Result]) -> None:
    """Journals of runs with results, the earliest first."""
    for day, found in enumerate(runs, start=1):
        lines: list[Event] = [{"time": 1, "event": "run", "file": "f.yml"}]
        for one in found:
            running = event(1.0, one.job, "0", "running")
            lines += [running, one.to_json()]
        write(folder / f"202001{day:02}T000000Z-1.jsonl", lines)


def test_results_are_those_of_earlier_runs_the_latest_first(tmp_path: Path) -> None:
    newer = replace(RESULT, output="/p")
    _runs(tmp_path, [RESULT, replace(RESULT, job="/b/0")], [newer], [])
    # nothing else of it is a result
    with (tmp_path / "20200103T000000Z-1.jsonl").open("a") as file:
        for name, status in (("/c/0", "running"), ("/d/0", "waiting")):
            file.write(line({"time": 2, "event": "job", "job": name, "status": status}))
    run = journal.Journal(tmp_path, resumes=True)
    run.start("f.yml", [], {})
    earlier = results.earlier(run)
    known, started = earlier.results, earlier.started
    run.close()
    first, second = (f"202001{day:02}T000000Z-1" for day in (1, 2))
    assert known["/a/0"] == [
        EarlierResult(second, newer),
        EarlierResult(first, RESULT),
    ]
    assert [one.run for one in known["/b/0"]] == [first]
    assert (started["/a/0"], started["/b/0"]) == (second, first)
    assert started["/c/0"] == "20200103T000000Z-1"
    assert "/d/0" not in started
    assert read(run.path)[0]["resumes"] is True


def test_a_run_that_resumes_takes_up_one_that_failed(tmp_path: Path) -> None:
    def first(resumes: bool) -> str:
        run = journal.Journal(tmp_path, resumes=resumes)
        run.start("f.yml", [], {})
        run.close()
        run.path.unlink()
        return run.first.name

    _runs(tmp_path, [], [])
    with (tmp_path / "20200102T000000Z-1.jsonl").open("a") as file:
        file.write(line({"time": 2, "event": "end", "status": "failed"}))
    assert first(resumes=True) == "20200101T000000Z-1.jsonl"
    assert not first(resumes=False).startswith("2020")


def test_reused_jobs_are_marked_and_cost_nothing() -> None:
    events: list[Event] = [
        {"time": 0.0, "event": "run", "run": "s"},
        event(0.0, "/loop/a", "0.0", "waiting"),
        {
            "time": 0.0,
            "event": "reuse",
            "job": "/loop/a/0.0",
            "run": "r",
            "reason": "s",
        },
        event(0.2, "/loop/a", "0.0", "reused"),
        event(1.0, "/loop/b", "0.0", "waiting"),
        {
            "time": 1.0,
            "event": "reuse",
            "job": "/loop/b/0.0",
            "run": None,
            "reason": "w",
        },
        event(1.0, "/loop/b", "0.0", "running"),
        event(3.0, "/loop/b", "0.0", "completed"),
        {"time": 3.5, "event": "end", "status": "completed"},
    ]
    assert list(progress(events)) == [
        "reused    /loop/a/0.0 on nodes/c1 from run r",
        "again     /loop/b/0.0: w",
        "running   /loop/b/0.0 on nodes/c1",
        "completed /loop/b/0.0 on nodes/c1 in 2.0 s (waited 0.0 s)",
        "run completed: 2 jobs, 1 of them reused, 0 retries, 0 QPU jobs; "
        "3.0 s elapsed, waited 0.2 s, ran 2.0 s",
    ]
    first, second = collect(events)
    assert (first.to_json()["reused_from"], second.to_json()["reused_from"]) == (
        "r",
        None,
    )
    assert (first.status, first.ran, first.qpu_jobs) == ("reused", 0.0, [])
    assert "from run r" in report.table([first])
