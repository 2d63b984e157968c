"""What people are told of a failed job."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path

import pytest

from sf_quantum.connectors.tracebacks import TracebackFilter, traceback_filter
from sf_quantum.journal import failures


@pytest.mark.parametrize(
    ("exit_code", "error", "expected"),
    [
        (1, "ModuleNotFoundError: No module named 'a.b'", "the module a.b for"),
        (127, "", "on the PATH there"),
        (None, "No suitable token processors in n_2:\nTried", "its output n_2 as"),
        (None, "Slurm job 7 is TIMEOUT after 60 s", "ToolTimeLimit"),
        (None, "Slurm job 7 is OUT_OF_MEMORY", "ramMin"),
        (75, "", "failureManager"),
        (1, "wrong", ""),
        (None, "", ""),
    ],
)
def test_remedies(exit_code: int | None, error: str, expected: str) -> None:
    remedy = failures.remedy(exit_code, error, "cluster/c1")
    assert expected in remedy
    assert bool(remedy) == bool(expected)


def test_a_failure_is_printed_without_control_characters() -> None:
    assert failures.described("/a/0.1", "", 3, "") == (
        "/a/0.1 failed with exit code 3, and printed nothing"
    )
    text = failures.described("a", "b", None, "x\x1b[2J\ny", ["more"])
    assert text.splitlines() == ["a on b failed:", "  x\\x1b[2J", "  y", "more"]


def test_the_end_of_a_long_text() -> None:
    text = "\n".join(map(str, range(100)))
    assert failures.last_lines(text).splitlines() == [*map(str, range(80, 100))]
    assert len(failures.last_lines("x" * 100_000)) == failures.LAST_CHARACTERS


def record(error: BaseException) -> logging.LogRecord:
    info = (type(error), error, None)
    return logging.LogRecord("x", logging.ERROR, "", 1, str(error), None, info)


def test_in_a_run_a_traceback_goes_to_the_log_once(tmp_path: Path) -> None:
    shortened, error = TracebackFilter(), ValueError("wrong")
    first, again = record(error), record(error)
    assert shortened.filter(first)
    assert first.exc_info
    shortened.shortens, shortened.log = True, tmp_path / "log"
    assert shortened.filter(first)
    assert first.getMessage() == "wrong"
    assert not first.exc_info
    assert not shortened.filter(again)
    assert not shortened.filter(record(asyncio.CancelledError()))
    assert shortened.log.read_text().count("ValueError: wrong") == 1
    # another one with the same words is another failure
    assert shortened.filter(record(ValueError("wrong")))


def test_the_end_of_a_run_is_replaced_by_its_conclusion(tmp_path: Path) -> None:
    shortened = TracebackFilter()
    shortened.shortens, shortened.conclusion = True, "because of this"
    last = record(RuntimeError("FAILED Workflow execution"))
    assert shortened.filter(last)
    assert last.getMessage() == "because of this"


async def test_what_a_task_left_behind_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traceback_filter(), "shortens", True)
    monkeypatch.setattr(traceback_filter(), "log", tmp_path / "log")

    async def fail() -> None:
        raise ValueError("wrong")

    task = asyncio.ensure_future(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    assert [one.getMessage() for one in caplog.records] == ["wrong"]
    assert "Traceback" not in caplog.text
    assert "Traceback" in (tmp_path / "log").read_text()


async def test_the_latest_error_is_that_of_the_task() -> None:
    shortened = TracebackFilter()

    async def fail(text: str) -> str:
        shortened.filter(record(ValueError(text)))
        await asyncio.sleep(0)
        return shortened.latest()

    assert [*await asyncio.gather(fail("a"), fail("b"))] == ["a", "b"]
    assert shortened.latest() == ""


KILLED = "Slurm job 33 is CANCELLED with signal 15 (SIGTERM) after 2 s"


@pytest.mark.parametrize("lines", [0, 3, 60])
def test_slurms_reason_is_told_however_much_a_job_printed(lines: int) -> None:
    printed = "".join(f"line {number}\n" for number in range(lines))
    error = failures.message_lines(f"{KILLED}; its last lines:\n{printed}Terminated")
    assert error.endswith("Terminated")
    assert error.count("\n") <= failures.LAST_LINES + 1
    assert failures.why(None, error) == KILLED


@pytest.mark.parametrize("error", ["first\nlast", "first\n\n  last \n", "last"])
def test_a_command_says_why_in_its_last_line(error: str) -> None:
    assert failures.why(3, error) == "last"


def test_nothing_printed_is_no_reason() -> None:
    assert failures.why(None, "") == failures.why(3, " \n") == ""


def test_a_message_of_one_long_line_is_cut() -> None:
    assert len(failures.message_lines("x" * 100_000)) <= 2 * failures.LAST_CHARACTERS


@pytest.mark.parametrize("text", ["boom \n", " \n boom", "boom\r\n"])
def test_a_message_of_one_line_is_that_line(text: str) -> None:
    assert failures.message_lines(text) == "boom"


@pytest.mark.parametrize(
    ("exit_code", "error"), [(1, "No module named 'dimod'"), (127, "sfq: not found")]
)
def test_a_remedy_names_the_environment_of_a_service(
    exit_code: int, error: str
) -> None:
    text = "`export` without ALL"
    assert text in failures.remedy(exit_code, error, "cluster/compute")
    assert text not in failures.remedy(exit_code, error, "local")
