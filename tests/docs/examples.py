"""The examples of a documentation page, run in the order in which they stand there.

A page is a folder of its own with copies of ``deployments``, ``examples`` and
``workflows``, one shell and one Python namespace. By language:

``bash``     runs, and has to end with 0
``console``  each line after ``$`` runs, and prints what is below it; figures may differ,
             and ``...`` stands for anything
``python``   a doctest, or code that runs
others       with a caption or the comment ``file: NAME``, the block is that file; YAML
             without a name is a part of a StreamFlow file, of the service's configuration
             or of a binding, and is checked as such

A comment before a block (``<!-- ... -->``) says what is special:

``not run: REASON``    not run; the reason is counted by a test
``same as FILE``       has the text of that file, or of a part of it, as ``python -m
                       docs.generate`` writes it; not run
``background: TEXT``   goes on in the background once it has printed the text; a service of a
                       QPU also once it has asked its vendor, of which clients would speak
``with lab``           needs Slurm
``needs: NAMES``       is left out where one of these programs or Python packages is
                       missing
``checked by: COMMAND``  is written to the file of its caption and looked over by a command

Two of them are separated by a semicolon. The port 8642 of a site is another one for each of them.
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from streamflow.config.validator import SfValidator
from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser

from sf_quantum.net.transport import Client
from sf_quantum.service.config import Configuration, load
from tests.support import forking
from tests.support.folders import ROOT
from tests.support.forking import BIN

PAGES = [
    ROOT / "README.md",
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if "_build" not in page.relative_to(ROOT).parts
    ),
]
COPIED = ("deployments", "examples", "workflows")
# shown, but nothing that could run: drawings of files, formulas
SHOWN = ("lua", "text")
FILES = ("cwl", "yaml", "json", "toml", "csv", "ini", "python")
PORT = "8642"
SECONDS = 120
_COMMENT = re.compile(r"(?:^|\n)<!--\s*(\S[^\n]*?)\s*-->\s*\n+$")
_FIGURE = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    :param note: what the comment before it says
    :param file: the name that it has on the page
    """

    page: Path
    line: int
    language: str
    text: str
    note: str
    file: str | None
    example: Example

    @property
    def where(self) -> str:
        """How to find it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def not_run(self) -> str | None:
        """Why it is not run, if it is not."""
        found = re.match(r"not run: (.+)", self.note)
        return found and found[1]

    def option(self, name: str) -> str | None:
        """What the comment says after a word, if it says that."""
        found = re.search(rf"(?:^|; ){name}: ([^;]+)", self.note)
        return found and found[1]


def _is_starting(printed: str) -> bool:
    """Whether a QPU service has printed its URL and is not ready."""
    found = re.search(r'"url": "((?:unix:|http:)[^"]+)"', printed)
    return (
        found is not None
        and Client(found[1], {}).request("GET", "/v1/health/ready").status == 503
    )


def _is_there(name: str) -> bool:
    return bool(shutil.which(name) or importlib.util.find_spec(name))


class _AnyLanguage(CodeBlockParser):
    language = "any"

    def __call__(self, document: Document) -> Iterator[object]:  # type: ignore[override]
        for region in self.lexers(document):
            if region.lexemes["arguments"].startswith("{"):
                continue  # a directive of Sphinx, or one that another lexer has found
            region.parsed = region.lexemes["source"]
            region.evaluator = PythonEvaluator()
            yield region


def blocks(page: Path) -> list[Block]:
    """Find the blocks of a page; those that others include are theirs."""
    document = Document.parse(str(page), _AnyLanguage())  # type: ignore[arg-type]
    return [_block(page, document, example) for example in document.examples()]


def _block(page: Path, document: Document, example: Example) -> Block:
    comment = _COMMENT.search(document.text[: example.region.start])
    note = comment[1] if comment else ""
    lexemes = example.region.lexemes
    named = re.match(r"file: (.+)", note)
    caption = (lexemes.get("options") or {}).get("caption")
    return Block(
        page,
        example.line,
        lexemes["arguments"].strip(),
        str(example.parsed),
        note,
        named[1] if named else caption,
        example,
    )


class Page:
    """A page at work: its folder, its shell, and what it has started.

    :param lab: the environment of a Slurm, if there is one
    """

    def __init__(self, folder: Path, lab: dict[str, str] | None = None) -> None:
        self.folder = folder
        for name in COPIED:
            shutil.copytree(
                ROOT / name,
                folder / name,
                ignore=shutil.ignore_patterns(".streamflow", "results", "__pycache__"),
            )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        for path in folder.glob("deployments/*.*"):
            path.write_text(self._ported(path.read_text()))
        environment = {
            **os.environ,
            **(lab or {}),
            "PATH": f"{forking.stand_ins()}:{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": "",
            "HOME": str(folder),
            "TMPDIR": str(folder),
        }
        self._status, theirs = os.pipe()
        self._shell = subprocess.Popen(
            ["bash", "-e"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            pass_fds=[theirs],
            start_new_session=True,
        )
        self._fd = theirs

    def close(self) -> None:
        """End what the page has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGTERM)
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):
            self._shell.stdin.close()
        self._shell.wait(30)
        os.close(self._status)
        os.close(self._fd)

    def run(self, block: Block) -> None:
        """Do what a block says.

        :raises AssertionError: if it does not do what it shows
        """
        if not all(map(_is_there, (block.option("needs") or "bash").split(", "))):
            return
        match block.language:
            case "bash":
                self._bash(block)
            case "console":
                self._console(block)
            case "python" if block.file is None:
                self._python(block)
            case _ if block.file is not None:
                self._file(block)
            case "yaml":
                check_part(block)
            case _:
                raise AssertionError(f"{block.where}: what is {block.language}?")

    def _bash(self, block: Block) -> None:
        if until := block.option("background"):
            output = self.folder / f".background-{block.line}"
            output.touch()
            self.shell(f"{{\n{block.text}\n}} >{output} 2>&1 </dev/null &")
            deadline = time.monotonic() + SECONDS
            while until not in output.read_text() or _is_starting(output.read_text()):
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.02)
            return
        self.shell(block.text)

    def _console(self, block: Block) -> None:
        for command, wanted in commands(block.text):
            got = self.shell(command)
            checker = doctest.OutputChecker()
            assert checker.check_output(
                _by_job(_plain(wanted)),
                _by_job(_plain(got)),
                doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
            ), f"{block.where}: {command} prints\n{got}\nand not\n{wanted}"

    def _python(self, block: Block) -> None:
        if ">>>" not in block.text:
            block.example.evaluate()
            return
        test = doctest.DocTestParser().get_doctest(
            block.text,
            block.example.namespace,
            block.where,
            str(block.page),
            block.line,
        )
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        said: list[str] = []
        doctest.DocTestRunner(optionflags=options).run(
            test, out=said.append, clear_globs=False
        )
        assert not said, "".join(said)

    def _file(self, block: Block) -> None:
        path = self.folder / str(block.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._ported(block.text))
        if path.suffix in (".yml", ".yaml", ".cwl"):
            yaml.safe_load(block.text)
        if command := block.option("checked by"):
            self.shell(command)

    def shell(self, text: str) -> str:
        """Run commands in the page's shell.

        :returns: what they print
        :raises AssertionError: if they fail
        """
        output = self.folder / ".output"
        script = f"{{\n{self._ported(text)}\n}} >{output} 2>&1 </dev/null\n"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{script}echo done >&{self._fd}\n".encode())
        self._shell.stdin.flush()
        deadline = time.monotonic() + SECONDS
        os.set_blocking(self._status, False)
        while True:
            with suppress(BlockingIOError):
                os.read(self._status, 16)
                return output.read_text(errors="replace")
            ended = self._shell.poll()
            if ended is not None or time.monotonic() > deadline:
                raise AssertionError(
                    f"{text}\nended with {ended}:\n{output.read_text(errors='replace')}"
                )
            time.sleep(0.005)

    def _ported(self, text: str) -> str:
        return text.replace(PORT, self.port)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Take a console block apart: each command, and what it is shown to print."""
    command, shown = "", ""
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
        elif command.endswith("\\\n") and not shown:
            command += line
        else:
            shown += line
    if command:
        yield command, shown


def _by_job(text: str) -> str:
    """Sort the lines that `sfq run` prints by their jobs, which run at the same time."""
    of_jobs = re.compile(
        r"(?:^(?:running|completed|waiting|decided) +/.*\n)+", re.MULTILINE
    )

    def sort(lines: re.Match[str]) -> str:
        return "".join(
            sorted(lines[0].splitlines(True), key=lambda line: line.split()[1])
        )

    return of_jobs.sub(sort, text)


def _plain(text: str) -> str:
    return _FIGURE.sub("0", text)


def check_part(block: Block) -> None:
    """Check YAML that is a part of a StreamFlow file or of the service's configuration.

    :raises AssertionError: if it is neither
    """
    content = yaml.safe_load(block.text)
    assert isinstance(content, dict), block.where
    if content.keys() <= Configuration.model_fields.keys():
        load(
            None,
            {(key,): value for key, value in content.items()},
            {(key,): key for key in content},
        )
        return
    whole = {
        "version": "v1.0",
        "workflows": {"w": {"type": "cwl", "config": {"file": "w.cwl"}}},
    }
    if "bindings" in content:
        whole["workflows"]["w"]["bindings"] = content.pop("bindings")  # type: ignore[index]
    named = {key for key in content if key in PARTS}
    assert named or not content, f"{block.where}: no part of a file known here"
    SfValidator().validate({**whole, **content})


PARTS = (
    *("version", "workflows", "deployments", "bindingFilters", "failureManager"),
    *("scheduling", "database"),
)
