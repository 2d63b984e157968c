"""Commands in the comments of shipped files: their own parsers take them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sf_quantum import cli
from tests.support.folders import ROOT

FOLDERS = ("deployments", "examples", "workflows", "sf_quantum/templates")
# binary, or data
OTHERS = {".npy", ".ipynb", ".json", ".csv", ".png", ".svg", ".c"}
# what argparse says of a command that is named without all that it needs
INCOMPLETE = ("the following arguments are required", "expected one argument")
#: systemd's verbs that a comment may name
VERBS = ("enable", "reload", "restart", "edit", "status", "start", "stop")
# a program, then words up to the end of a sentence, or of the quotation marks
PROGRAMS = "sfq|streamflow|promtool|systemctl|apptainer|pip|python3?"
QUOTED = re.compile(rf"`((?:{PROGRAMS}) [^`]+)`")
BARE = re.compile(
    rf"(?<![`\w./-])((?:{PROGRAMS}) [^`#]*?)(?=[,;.:)]? *$|[,;:)]+ |\. |`)", re.M
)


def comments(text: str) -> str:
    """Return the comments of a file, of which consecutive lines are joined."""
    found, last = list[str](), -2
    for number, line in enumerate(text.splitlines()):
        match = re.search(r"(?:^|\s)#(?!!)\s?(.*)", line)
        if match is None:
            continue
        joined = number == last + 1 and line.lstrip().startswith("#")
        found.append(f"{' ' if joined else chr(10)}{match[1].strip()}")
        last = number
    return "".join(found)


def named() -> Iterator[tuple[str, str]]:
    """Yield the files with commands in their comments, and each of these commands."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            generated = {".streamflow", "__pycache__", "results"} & {*path.parts}
            if path.is_dir() or path.suffix in OTHERS or generated:
                continue
            text = comments(path.read_text())
            bare = QUOTED.sub("", text)
            commands = {*QUOTED.findall(text), *BARE.findall(bare)}
            for command in sorted(commands):
                yield str(path.relative_to(ROOT)), command


def sfq(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] not in cli.COMMANDS:  # the program, in a sentence
        assert not any(word.startswith("--") for word in words)
        return
    # words of a sentence may follow what is not quoted
    code, unknown = None, list[str]()
    try:
        _, unknown = cli.parser_for(words).parse_known_args(words)
    except SystemExit as exit_:
        code = exit_.code
    message = capsys.readouterr().err
    assert not code or any(part in message for part in INCOMPLETE), message
    assert not [word for word in unknown if word.startswith("-")]


def promtool(words: list[str], _: pytest.CaptureFixture[str]) -> None:
    assert words[0] == "check"
    path = ROOT / "deployments" / words[2]
    assert path.exists()
    if (program := shutil.which("promtool")) is not None:
        subprocess.run([program, *words[:2], str(path)], check=True)


def files_exist(words: list[str], _: pytest.CaptureFixture[str]) -> None:
    for word in words:
        if re.search(r"\.(def|py|cwl|yml)$", word):
            assert [*ROOT.rglob(Path(word).name)], word


def extras_exist(words: list[str], _: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[0] == "install"
    for extra in re.findall(r"sf-quantum\[(.*?)\]", " ".join(words)):
        assert {*extra.split(",")} <= {*project["optional-dependencies"]}


def systemd(words: list[str], _: pytest.CaptureFixture[str]) -> None:
    assert words[0] in VERBS


def streamflow(words: list[str], _: pytest.CaptureFixture[str]) -> None:
    parser = pytest.importorskip("streamflow.parser").parser
    parsed, unknown = parser.parse_known_args(words)
    assert not [word for word in unknown if word.startswith("-")], parsed


CHECKS: Mapping[str, Callable[[list[str], pytest.CaptureFixture[str]], None]] = {
    "sfq": sfq,
    "promtool": promtool,
    "apptainer": files_exist,
    "python": files_exist,
    "python3": files_exist,
    "pip": extras_exist,
    "systemctl": systemd,
    "streamflow": streamflow,
}


@pytest.mark.process
@pytest.mark.parametrize(("file", "command"), [*named()])
def test_a_command_in_a_comment_is_one(
    file: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = shlex.split(command)
    CHECKS[program](words, capsys)


def test_commands_are_found_in_comments() -> None:
    found = [*named()]
    assert len(found) > 10
    assert {file.split("/")[0] for file, _ in found} >= {"deployments", "examples"}
    assert (
        "deployments/prometheus.yml",
        "promtool check config prometheus.yml",
    ) in found


def test_an_option_that_does_not_exist_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(AssertionError):
        sfq("token prometheus --file tokens.yml".split(), capsys)
    with pytest.raises(AssertionError):
        sfq(["serve", "--vqpus", "many"], capsys)
