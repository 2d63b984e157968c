"""The outputs of a run, from StreamFlow's log to a line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.reporting import outputs

BEFORE = """2026-11-27 18:56:27 INFO  EXECUTING step /a {
}
2026-11-27 18:56:28 INFO  COMPLETED workflow execution
"""
AFTER = "2026-11-27 18:56:29 INFO  UNDEPLOYING host\n"
FILE: JSON = {"class": "File", "path": "/elsewhere/a.json", "size": 3}


@pytest.mark.parametrize("told", [{}, {"a": FILE, "b": [{"c": "}\n{"}]}])
def test_outputs_are_found_in_the_log(tmp_path: Path, told: dict[str, JSON]) -> None:
    log = tmp_path / "log"
    text = json.dumps(told, sort_keys=True, indent=4)
    log.write_text(f"{BEFORE}{text}\n{AFTER}")
    assert outputs.read(log) == told


def test_a_log_without_outputs_has_none(tmp_path: Path) -> None:
    assert outputs.read(tmp_path / "log") == {}
    (tmp_path / "log").write_text(BEFORE)
    assert outputs.read(tmp_path / "log") == {}


def test_outputs_of_earlier_runs_that_are_left_are_named(tmp_path: Path) -> None:
    """Those that are gone, or were written again, are not."""

    def log(number: str, *names: str) -> None:
        files: list[JSON] = [
            {"class": "File", "path": str(tmp_path / name), "secondaryFiles": []}
            for name in names
        ]
        text = json.dumps({"out": files}, sort_keys=True, indent=4)
        (tmp_path / f"log{number}").write_text(f"{BEFORE}{text}\n{AFTER}")

    for name in ("again", "older", "old", "mine"):
        (tmp_path / name).touch()
    log(".2", "again", "older", "gone", "../elsewhere")
    (tmp_path.parent / "elsewhere").touch()
    log(".1", "again", "old")
    log("", "again")
    line = outputs.left_over(tmp_path / "log")
    names = f"{tmp_path / 'old'}, {tmp_path / 'older'}"
    assert line.endswith(f"of earlier runs that this run did not write: {names}")
    (tmp_path / "log").write_text(BEFORE)  # it has failed
    assert outputs.left_over(tmp_path / "log").endswith(
        f": {tmp_path / 'again'}, {names}"
    )
    log("", "again", "old", "older")
    assert outputs.left_over(tmp_path / "log") == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (FILE, "/elsewhere/a.json"),
        ({"class": "Directory", "path": f"{Path.cwd()}/d"}, "d"),
        (
            [FILE, FILE, FILE, FILE, 5],
            ", ".join(["/elsewhere/a.json"] * 3) + " and 2 more",
        ),
        (None, "null"),
        ([], "[]"),
        (0.5, "0.5"),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_an_output_is_one_line(value: JSON, shown: str) -> None:
    assert outputs.lines({"out": value}) == [f"out: {shown}"]


def test_a_long_value_is_cut() -> None:
    (line,) = outputs.lines({"out": "x" * 10_000})
    assert len(line) <= outputs.CHARACTERS + len("out: ")
