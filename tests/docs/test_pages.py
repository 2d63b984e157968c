"""Every example of the documentation and of the README does what the page says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from streamflow.ext.utils import load_extensions

from tests.docs.examples import FILES, PAGES, SHOWN, Block, Page, blocks
from tests.support import forking
from tests.support.folders import ROOT

# what cannot run in a test, or would run everything else; each says why on its page
NOT_RUN = 29
README_LINES = 200
DEVICE_LINES = 120


def running(page: Path) -> list[Block]:
    """The blocks of a page that are examples."""
    return [
        block
        for block in blocks(page)
        if block.language not in SHOWN and not block.note.startswith("same as ")
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


@pytest.fixture(scope="module", autouse=True)
def extensions() -> None:
    """StreamFlow knows our types."""
    load_extensions()


@pytest.mark.process
@pytest.mark.parametrize("path", [p for p in PAGES if running(p)], ids=name)
def test_examples_do_what_is_shown(
    path: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = f"{forking.stand_ins()}:{forking.BIN}"
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    # of StreamFlow, where a page's Python runs a workflow
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = running(path)
    lab = None
    if any(block.note == "with lab" for block in found):
        lab = request.getfixturevalue("lab").environment
    page = Page(tmp_path, lab)
    try:
        for block in found:
            if block.not_run is None:
                page.run(block)
    finally:
        page.close()


def test_what_is_not_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    left = [block for page in PAGES for block in running(page) if block.not_run]
    with capsys.disabled():
        print(f"\n{len(left)} blocks of the documentation are not run:")
        for block in left:
            print(f"  {block.where}: {block.not_run}")
    assert len(left) <= NOT_RUN


def test_every_block_names_a_language() -> None:
    known = {"bash", "console", "python", *FILES, *SHOWN}
    ours = re.compile(r"\{.*\}")
    assert not [
        (block.where, block.language)
        for page in PAGES
        for block in blocks(page)
        if block.language not in known and not ours.fullmatch(block.language)
    ]


# How `sfq run` shows a job of a QPU.
COMPLETED = re.compile(
    r"completed +/\S+ on \S*qpu\S* (\(attempt \d+\) )?in [\d.]+ s \(waited [\d.]+ s\) "
    r"with \d+ QPU jobs?( \(.*s on the QPU\))?( score [\d.]+)?"
)


def test_samples_of_a_run_have_what_is_shown_of_a_qpu() -> None:
    samples = [
        line
        for page in PAGES
        for block in blocks(page)
        for line in block.text.splitlines()
        if re.match(r"completed +/\S+ on \S*qpu", line) and not line.endswith("...")
    ]
    assert samples
    assert [line for line in samples if not COMPLETED.fullmatch(line)] == []


def test_pages_are_readable_without_sphinx() -> None:
    """A repository's own view shows MyST's comments, and no file that is included."""
    marks = re.compile(r"^(%.*|.*\{literalinclude\}.*)$", re.MULTILINE)
    assert not [
        (name(page), found)
        for page in PAGES
        for found in marks.findall(page.read_text(encoding="utf-8"))
    ]


def test_the_example_of_a_device_is_short() -> None:
    (module,) = [
        block.text
        for block in blocks(ROOT / "docs/howto/own-device.md")
        if block.file == "bench/bench_device.py"
    ]
    assert len(module.splitlines()) < DEVICE_LINES


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES


# A port of a shared host may belong to another user's service. That of a site is explained.
FIXED_PORT = re.compile(r"--port[ =][1-9]|\bhttps?://(127\.0\.0\.1|localhost):[1-9]")
SITE = ROOT / "docs" / "howto" / "production.md"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_no_example_but_that_of_a_site_uses_a_port(path: Path) -> None:
    lines = [line for block in blocks(path) for line in block.text.splitlines()]
    ports = [line for line in lines if FIXED_PORT.search(line)]
    assert bool(ports) == (path == SITE), ports


def test_no_shipped_file_uses_a_port() -> None:
    folders = ("deployments", "examples", "sf_quantum/templates")
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".yml", ".json", ".py", ".md", ".ipynb", ".sh", ".lua")
        and ".streamflow" not in path.parts
    }
    assert "url: unix:qpu.sock" in texts[ROOT / "deployments" / "rest.yml"]
    assert [path for path, text in texts.items() if FIXED_PORT.search(text)] == []
