"""``sfq run``: a run with its check, its progress and its reason."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sf_quantum
from sf_quantum.files import JSON
from tests.support import forking
from tests.support.waiting import SECONDS

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

Until = Callable[[Callable[[], object], str], None]


def test_a_run_shows_its_progress_and_its_report(project: Project) -> None:
    project.deployment("qpu", "sfq.emulator", timeScale=0)
    project.solve("solve", "qpu")
    with project.start_checked() as running:
        text, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, text
    lines = text.splitlines()
    assert lines[0] == "checking  streamflow.yml"
    assert "running   /solve/0 on qpu" in lines
    assert any(
        line.startswith("completed /solve/0 on qpu in ") and "with 1 QPU job (" in line
        for line in lines
    )
    assert any(
        line.split()[:1] == ["/solve/0"] and "completed" in line for line in lines
    )
    assert lines[-2] == "solve: out/out"
    assert lines[-1].startswith("outputs: out; log: out/streamflow.log; journal: ")
    assert (project.folder / "out" / "out").exists()


def test_a_run_shows_the_remarks_of_its_check(project: Project) -> None:
    project.deployment("host", "local")
    project.step("good", "true", "host")
    unused: JSON = {"type": "sfq.candidate", "config": {"onFailure": "fail"}}
    project.extra["bindingFilters"] = {"unused": unused}
    with project.start_checked() as running:
        text, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, text
    first, second, *_ = text.splitlines()
    assert first == "checking  streamflow.yml"
    assert "remark: " in second
    assert "unused" in second


def test_a_rerun_names_the_outputs_that_it_did_not_write(project: Project) -> None:
    project.deployment("host", "local")
    project.step("one", "echo > out", "host")
    for step in ("one", "two"):
        if step == "two":
            project.step("two", "exit 3", "host")
        with project.start_checked() as running:
            text, _ = running.communicate(timeout=SECONDS)
        remark = "remark: out has outputs of earlier runs that this run did not write: out/out"
        assert (running.returncode, remark in text) == (step == "two", step == "two")
    assert (project.folder / "out" / "out").exists()


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_no_run_has_written_is_kept(project: Project, kind: str) -> None:
    out, mine = project.folder / "out" / "out", project.folder / "mine"
    out.parent.mkdir()
    mine.write_text("mine")
    if kind == "link":
        out.symlink_to(mine)
    elif kind == "folder":
        out.mkdir()
        mine.rename(out / "mine")
    else:
        mine.rename(out)
    project.deployment("host", "local")
    project.step("one", "echo ours > out", "host")
    kept = out.with_name("out.~1~")
    for is_mine in (True, False):
        with project.start_checked() as running:
            text, _ = running.communicate(timeout=SECONDS)
        assert running.returncode == 0, text
        assert (f"{out} is not an output of this run" in text) == is_mine
        assert out.read_text() == "ours\n"
        assert (kept / "mine" if kind == "folder" else kept).read_text() == "mine"
        assert not out.with_name("out.~2~").exists()


WITH_INPUT = """\
cwlVersion: v1.2
class: Workflow
inputs: {{points: File}}
outputs:
  result: {{type: File, outputSource: {source}}}
steps:
  change:
    in: {{points: points}}
    out: [out]
    run:
      class: CommandLineTool
      baseCommand: [sed, s/mine/ours/]
      inputs: {{points: {{type: File, inputBinding: {{}}}}}}
      outputs: {{out: {{type: stdout}}}}
      stdout: {stdout}
"""
WITH_INPUT_FILE = """\
version: v1.0
workflows: {w: {type: cwl, config: {file: main.cwl, settings: job.yml}}}
database: {type: sqlite, config: {connection: one.db}}
scheduling: {scheduler: {type: sfq.journal, config: {}}}
"""


@pytest.mark.parametrize(
    ("source", "stdout", "expected"),
    [
        ("change/out", "points.csv", "points.csv is an input of this run"),
        ("change/out", "streamflow.log", "streamflow.log is a file of the run itself"),
        ("change/out", "out", None),
        ("points", "out", "points.csv is an input of this run"),
    ],
)
def test_inputs_in_the_folder_of_the_outputs_are_kept(
    tmp_path: Path, source: str, stdout: str, expected: str | None
) -> None:
    (tmp_path / "points.csv").write_text("mine\n")
    (tmp_path / "job.yml").write_text("points: {class: File, path: points.csv}\n")
    text = WITH_INPUT.format(source=source, stdout=stdout)
    (tmp_path / "main.cwl").write_text(text)
    (tmp_path / "f.yml").write_text(WITH_INPUT_FILE)
    for _ in range(2):
        done = subprocess.run(
            [f"{forking.stand_ins()}/sfq", "run", "f.yml", "--outdir", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == (expected is None), done
        assert expected is None or expected in done.stdout + done.stderr
        assert (tmp_path / "points.csv").read_text() == "mine\n"
        assert not [*tmp_path.glob("*~")]


def test_what_a_failed_run_has_written_is_overwritten(project: Project) -> None:
    out = project.folder / "out" / "out"
    project.deployment("host", "local")
    project.step("one", "echo > out", "host")
    line, log = f'WRITING output "{out}"', out.with_name("streamflow.log")
    wait = f"until grep -q '{line}' {log} && [ -s {out} ]; do sleep 0.1; done"
    project.step("two", f"{wait}; exit 3", "host")
    for _ in range(2):
        with project.start_checked() as running:
            text, _ = running.communicate(timeout=SECONDS)
        assert running.returncode == 1
        assert out.exists()
        assert "is not an output" not in text
        assert f"{line}\n" in log.read_text()


def test_a_run_that_fails_says_why(project: Project) -> None:
    project.deployment("host", "local")
    project.step("bad", "echo wrong >&2; exit 3", "host")
    with project.start_checked() as running:
        text, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 1
    assert "/bad/0 on host failed with exit code 3:\n  wrong\n" in text
    assert text.count("failed    /bad/0 on host") == 1
    assert "Traceback" not in text


def test_files_of_the_folder_stand_for_no_module(project: Project) -> None:
    for name in ("queue", "types", "yaml"):
        (project.folder / f"{name}.py").write_text("raise SystemExit('not this one')")
    project.deployment("host", "local")
    project.step("good", "true", "host")
    with project.start_checked() as running:
        text, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 0, text


def test_a_run_goes_on_without_a_reader(project: Project) -> None:
    """As of ``sfq run ... | head -1``, which ended the run, and with exit code 0."""
    go = project.folder / "go"
    project.deployment("host", "local")
    project.step("bad", f"until test -e {go}; do sleep 0.1; done; exit 3", "host")
    with project.start_checked() as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("checking")
        assert running.stdout.readline().startswith("running   /bad/0 ")
        running.stdout.close()
        go.touch()
        assert running.wait(SECONDS) == 1
    (failure,) = [one for one in project.events() if one["event"] == "failure"]
    assert failure["exit_code"] == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_run_ends_with_the_command(
    project: Project, until: Until, number: signal.Signals
) -> None:
    project.deployment("host", "local")
    project.step("long", "touch begun; sleep 1000", "host")
    with project.start_checked() as running:
        until(lambda: list(project.folder.rglob("begun")), "the step")
        running.send_signal(number)
        running.wait(timeout=SECONDS)
        until(lambda: not project.processes(), "the last process to end")
    assert running.returncode != 0
    end = project.events()[-1]
    assert end["status"] == "cancelled"
    # else the user has stopped it
    killed = "its sfq run was killed"
    assert end["reason"] == (killed if number == signal.SIGKILL else None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_burst_of_signals_ends_a_run_once(
    project: Project, until: Until, number: signal.Signals
) -> None:
    project.deployment("host", "local")
    project.step("long", "touch begun; sleep 1000", "host")
    with project.start_checked() as running:
        until(lambda: list(project.folder.rglob("begun")), "the step")
        while running.poll() is None:
            running.send_signal(number)
            time.sleep(0.001)
        text, _ = running.communicate()
        until(lambda: not project.processes(), "the last process to end")
    assert running.returncode == 128 + signal.SIGINT
    assert text.endswith("interrupted: the steps and their QPU jobs are cancelled\n")
    assert project.events()[-1]["status"] == "cancelled"


def test_what_is_wrong_is_found_before_anything_runs(project: Project) -> None:
    project.deployment("host", "local")
    project.step("good", "touch begun", "host")
    project.bindings["other"] = "host"
    with project.start_checked() as running:
        text, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 2
    assert "other" in text
    del project.bindings["other"]
    project.extra["scheduling"] = {"scheduler": {"type": "default", "config": {}}}
    with project.start_checked() as running:
        text, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 2
    assert "its runs have no journal; add scheduling: " in text
    assert not list(project.folder.rglob("begun"))


async def test_a_program_gets_the_run_or_the_reason(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a coroutine, since a notebook has an event loop."""
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    project.deployment("host", "local")
    project.step("good", "touch begun", "host")
    project.write()
    file, lines = project.folder / "streamflow.yml", list[str]()
    outdir = project.folder / "out"
    run = sf_quantum.run(file, outdir=outdir, progress=lines.append)
    assert run.status == "completed"
    assert [row["step"] for row in run.report()] == ["good"]
    assert "running   /good/0 on host" in lines
    project.step("bad", "echo wrong >&2; exit 3", "host")
    project.write()
    with pytest.raises(
        sf_quantum.RunFailed, match=r"/bad/0 on host.* code 3: wrong"
    ) as it:
        sf_quantum.run(file, outdir=outdir)
    assert it.value.run is not None
    assert it.value.run.path != run.path
    assert it.value.run.status == "failed"
    project.bindings["other"] = "host"
    project.write()
    with pytest.raises(sf_quantum.InputError, match="other"):
        sf_quantum.run(file, outdir=outdir)
