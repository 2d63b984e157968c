"""What ``import sf_quantum`` offers: exactly the documented names, at no cost."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

import sf_quantum
from sf_quantum.cli import main
from sf_quantum.workflows import runs
from sf_quantum.workflows.checks import check, refuse_problems
from sf_quantum.workflows.driver import Driver, started
from tests.support.journals import Event, a_run, event, line, write

HEAVY = {"dimod", "matplotlib", "numpy", "pandas", "pydantic", "streamflow", "yaml"}
VENDORS = {"dwave", "iqm", "neal", "perceval", "pulser", "qiskit", "qrmi"}


def test_only_what_is_public_is_shown() -> None:
    assert dir(sf_quantum) == sorted(sf_quantum.__all__)
    assert all(getattr(sf_quantum, name) is not None for name in dir(sf_quantum))
    # their submodules do not come with them
    assert dir(sf_quantum) == sorted(sf_quantum.__all__)
    with pytest.raises(AttributeError, match="no attribute 'checks'"):
        sf_quantum.checks  # noqa: B018


@pytest.mark.process
def test_the_import_is_light() -> None:
    code = "import sys, sf_quantum; dir(sf_quantum); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = done.stdout.split()
    assert not {name.partition(".")[0] for name in modules} & (HEAVY | VENDORS)
    assert [name for name in modules if name.startswith("sf_quantum")] == ["sf_quantum"]


def test_a_report_is_a_table(tmp_path: Path) -> None:
    report = sf_quantum.Run(write(tmp_path / "r.jsonl", a_run())).report()
    table = pd.DataFrame(report)
    assert list(table.step) == ["loop/a", "loop/b", "loop/b"]
    assert list(table.job) == ["/loop/a/0.0.1", "/loop/b/0.1", "/loop/b/0.1"]
    assert list(table.status) == ["completed", "failed", "completed"]
    assert table.ran.sum() == pytest.approx(6.9)
    used = table.groupby("location").qpu_jobs.sum()
    assert used.to_dict() == {"nodes/c1": 0, "qpu": 1}
    assert [row["attempt"] for row in report[1:]] == [1, 2]


def test_a_report_says_what_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = write(tmp_path / "r.jsonl", a_run())
    report = sf_quantum.Run(journal).report()
    main(["report", str(journal)])
    assert capsys.readouterr().out == f"{journal}\n\n{report}\n"
    main(["report", "--json", str(journal)])
    assert json.loads(capsys.readouterr().out) == report.to_json()


def test_a_run_in_progress_and_one_that_was_killed(tmp_path: Path) -> None:
    with pytest.raises(sf_quantum.InputError, match="no run is recorded"):
        sf_quantum.Run(tmp_path)
    path = write(tmp_path / ".streamflow/sfq/r.jsonl", a_run()[:5])
    run = sf_quantum.Run(tmp_path)
    assert run.path == path
    assert (run.status, run.report()[0]["status"]) == ("lost", "lost")
    write(path, a_run())
    assert run.status == "completed"


async def test_a_check_works_beside_an_event_loop(tmp_path: Path) -> None:
    """As in a notebook; the QPUs of a StreamFlow file are asked by another loop."""
    file = tmp_path / "streamflow.yml"
    file.write_text("""
version: v1.0
workflows:
  w:
    type: cwl
    config: {file: w.cwl}
    bindings:
      - {step: /solve, target: {deployment: qpu}}
      - {step: /score, target: {deployment: qpu}}
deployments:
  qpu: {type: sfq.rest, config: {url: "unix:nowhere.sock"}}
""")
    (tmp_path / "w.cwl").write_text("""
cwlVersion: v1.2
class: Workflow
inputs: {}
outputs: {}
steps:
  solve:
    in: {}
    out: []
    run: {class: CommandLineTool, baseCommand: [sfq, samplers], inputs: {}, outputs: {}}
""")
    result = sf_quantum.check(file)
    assert list(result.silent) == ["qpu"]
    assert list(pd.DataFrame(result.problems).file.unique()) == [str(file)]
    assert not result.ok
    assert str(result).splitlines() == result.lines()


def test_a_notebook_shows_a_table_and_a_picture(tmp_path: Path) -> None:
    report = sf_quantum.Run(write(tmp_path / "r.jsonl", a_run())).report()
    page = ElementTree.fromstring(f"<body>{closed(report._repr_html_())}</body>")
    rows = [[*row.itertext()] for row in page.iter("tr")]
    assert rows[0][:2] == ["job", "location"]
    assert [row[0] for row in rows[1:]] == [
        "/loop/a/0.0.1",
        "/loop/b/0.1",
        "/loop/b/0.1",
    ]
    (image,) = page.iter("img")
    data = image.attrib["src"].removeprefix("data:image/png;base64,")
    assert b64decode(data).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "$\\frac{1$", '"><script>', "a&lt;b"]
)
def test_names_of_others_are_text_alone(tmp_path: Path, name: str) -> None:
    events = [
        {**one, "step": f"/{name}", "deployment": name, "qpu": name}
        for one in a_run()
        if one["event"] in ("job", "qpu")
    ]
    report = sf_quantum.Run(write(tmp_path / "r.jsonl", events)).report()
    page = ElementTree.fromstring(f"<body>{closed(report._repr_html_())}</body>")
    tags = "body div p b table thead tbody tr th td pre img".split()
    assert {element.tag for element in page.iter()} <= {*tags}
    assert [*page.iter("tr")][1][0].text == f"/{name}/0"
    assert page[0].attrib == {"class": "tex2jax_ignore mathjax_ignore"}


def closed(text: str) -> str:
    """HTML whose only element without an end is an image, as XML."""
    start, image, rest = text.partition("<img ")
    return f"{start}{image}{rest.replace('>', '/>', 1)}" if image else start


def test_a_large_report_stays_small_in_a_notebook(tmp_path: Path) -> None:
    run = [{**one, "event": "job", "job": str(n)} for n in range(1100) for one in JOB]
    report = sf_quantum.Run(write(tmp_path / "r.jsonl", run)).report()
    text = report._repr_html_()
    assert text.count("<tr>") == 101
    assert "and 1,000 more attempts" in text
    assert "<img" not in text


JOB = [event(0.0, "/a", "0", "running"), event(1.0, "/a", "0", "completed")]


FILE = """\
version: v1.0
scheduling: {scheduler: {type: sfq.journal, config: {}}}
workflows: {main: {type: cwl, config: {file: main.cwl}}}
"""
TOOL = """\
{cwlVersion: v1.2, class: CommandLineTool, baseCommand: "true", inputs: {}, outputs: {}}
"""
DRIVER = """
from sf_quantum.journal import Journal
from sf_quantum.journal.events import parse
input()  # a journal that is there before the run begins is another run's
run = Journal(".streamflow/sfq")
run.start(FILE, [], {})
for line in LINES:
    run.write(parse(line))
run.close()
"""


@pytest.fixture
def written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[Event]], Path]:
    """Give a StreamFlow file whose driver only writes a journal with these events."""

    def write(events: list[Event]) -> Path:
        monkeypatch.chdir(tmp_path)
        file = tmp_path / "sf.yml"
        file.write_text(FILE)
        (tmp_path / "main.cwl").write_text(TOOL)
        lines = [line(one).encode() for one in events]
        given = {"FILE": str(file), "LINES": lines}
        begin = "".join(f"{name} = {value!r}\n" for name, value in given.items())
        driver = [sys.executable, "-c", begin + DRIVER]
        monkeypatch.setattr(runs, "begun", partial(started, driver))
        monkeypatch.setattr(
            Driver, "check", lambda _, file: refuse_problems(check(file))
        )
        return file

    return write


@pytest.mark.process
def test_an_interrupt_after_the_end_says_nothing_of_steps(
    written: Callable[[list[Event]], Path],
) -> None:
    file = written([{"event": "end", "status": "completed"}])
    lines: list[str] = []

    def progress(text: str) -> None:
        lines.append(text)
        if text.startswith("run completed"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sf_quantum.run(file, progress=progress)
    assert lines[-1].startswith("run completed")


@pytest.mark.process
def test_a_run_failed_by_its_journal_without_its_driver(
    written: Callable[[list[Event]], Path],
) -> None:
    """As when StreamFlow drops a job, and ends with exit code 0."""
    job = event(1.0, "/loop/a", "0.0.1", "failed")
    why: Event = {"event": "failure", "job": job["job"], "attempt": 1}
    failure: Event = {**why, "error": "dropped"}
    file = written([job, failure, {"event": "end", "status": "failed"}])
    lines: list[str] = []
    with pytest.raises(sf_quantum.RunFailed, match=r"/loop/a/0.0.1 .* failed: dropped"):
        sf_quantum.run(file, progress=lines.append)
    assert "/loop/a/0.0.1 on nodes/c1 failed:" in lines
