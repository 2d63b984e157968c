"""The process in which StreamFlow runs."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest
from cwl_utils import parser
from cwl_utils.parser import utils
from schema_salad.exceptions import ValidationException

from sf_quantum.workflows.driver import begun, load_tools_once, started
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.process

LEFT = """
import threading
from sf_quantum.workflows import driver

driver.END_SECONDS = 0.1
threading.Thread(target=threading.Event().wait).start()
driver.end(3)
"""

CHECK = "from sf_quantum.workflows import driver; driver.main()"


def test_a_driver_ends_although_a_thread_waits() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], timeout=SECONDS, check=False)
    assert done.returncode == 3


def test_a_driver_gets_a_long_order_and_holds_its_locks_until_it_ends(
    tmp_path: Path,
) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"
    lock.touch()
    driver = begun()
    with lock.open("w") as ours, lock.open("w") as others:
        fcntl.flock(ours, fcntl.LOCK_EX)
        driver.process.send_signal(signal.SIGSTOP)
        driver.begin(["version"], {"LONG": "x" * 100_000}, log, [ours.fileno()])
        ours.close()
        with pytest.raises(BlockingIOError):
            fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
        driver.process.send_signal(signal.SIGCONT)
        assert driver.process.wait(SECONDS) == 0
        fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert version("streamflow") in log.read_text()


def test_a_driver_that_is_dismissed_ends() -> None:
    driver = begun()
    driver.dismiss()
    assert driver.process.returncode is not None


def test_a_driver_that_has_ended_is_no_check(tmp_path: Path) -> None:
    driver = begun()
    driver.process.kill()
    with pytest.raises(RuntimeError, match=r"sf\.yml: the process that checks it has"):
        driver.check(tmp_path / "sf.yml")
    driver.dismiss()


def test_an_error_of_the_check_itself_is_shown(tmp_path: Path) -> None:
    broken = (
        "import sys, types; sys.modules['sf_quantum.checking'] = types.ModuleType('x')"
    )
    driver = started([sys.executable, "-c", f"{broken}; {CHECK}"])
    (file := tmp_path / "sf.yml").write_text("version: v1.0\nworkflows: {}\n")
    with pytest.raises(
        RuntimeError, match="ImportError: cannot import name 'check_file'"
    ):
        driver.check(file)
    driver.dismiss()


#: one tool in two steps, of which one is scattered; its link to the third is right or wrong
LINKED = """
cwlVersion: v1.2
class: Workflow
requirements: {{ScatterFeatureRequirement: {{}}}}
inputs: {{words: 'string[]'}}
steps:
  many: {{run: tool.cwl, scatter: word, in: {{word: words}}, out: [said, count]}}
  one: {{run: tool.cwl, in: {{word: {{default: x}}}}, out: [said, count]}}
  last: {{run: tool.cwl, in: {{word: {{default: x}}, {link}}}, out: [said, count]}}
outputs:
  said: {{type: 'File[]', outputSource: many/said}}
"""
TOOL = """
cwlVersion: v1.2
class: CommandLineTool
baseCommand: echo
inputs: {word: string, file: File?, number: int?}
outputs: {said: stdout, count: {type: int, outputBinding: {outputEval: $(1)}}}
"""


@pytest.mark.parametrize(
    "link",
    ["file: one/said", "number: one/count", "file: many/said", "number: one/said"],
)
def test_links_are_checked_alike_with_each_tool_read_once(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool.cwl").write_text(TOOL)
    path = tmp_path / "main.cwl"
    path.write_text(LINKED.format(link=link))
    workflow = parser.load_document_by_uri(path)
    read = Mock(wraps=parser.load_document_by_uri)
    monkeypatch.setattr(parser, "load_document_by_uri", read)
    # set again, so that it is put back at the end
    monkeypatch.setattr(utils, "load_step", utils.load_step)
    before, often = _verdict(workflow), read.call_count
    read.reset_mock()
    load_tools_once()
    assert _verdict(workflow) == before
    assert read.call_count == 1 < often


def _verdict(workflow: parser.Workflow) -> str:
    try:
        utils.static_checker(workflow)
    except ValidationException as error:
        return str(error)
    return "valid"
