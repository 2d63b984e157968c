"""``sfq check`` of tools that call ``sfq``: argparse decides, with the command's parser."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from sf_quantum.checking import check_file
from sf_quantum.checking.cwl.processes import Position
from sf_quantum.checking.document import Document
from sf_quantum.checking.tools import command_lines
from sf_quantum.cli import parser_for
from sf_quantum.files import JSON, mapping

TOOLS = ("cluster", "qubo", "solve", "score", "plot")
NESTED = ("admin maintenance", "jobs cancel", "samplers", "lease", "usage")
# one of these is a value of any option
VALUES = ("1", "1:2", "a.png", "auto", "development", "x", "90s", "a=1")
WRONG = ("-", "nothing", "", "1.5.2", "-3", "x y", "-x y", "2:1")


@cache
def _parser_for(command: str) -> argparse.ArgumentParser:
    return parser_for([command])


def known_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of ``sfq`` for a command line, which takes 4 ms to make."""
    return _parser_for(next(word for word in words if not word.startswith("-")))


def faults(body: dict[str, JSON]) -> list[command_lines.Fault]:
    """What is wrong with the command line of a tool."""
    position = Position(Document("tool.cwl", body, {(): 1}), body, ())
    line = command_lines.read(position, known_parser)
    assert line is not None
    return line.faults


def accepted(words: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether argparse takes a command line of ``sfq``."""
    try:
        known_parser(words).parse_args(words)
    except SystemExit as error:
        return error.code == 0
    finally:
        capsys.readouterr()
    return True


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    parser = known_parser(command.split())
    for word in command.split():
        action = next(a for a in parser._actions if a.choices and not a.option_strings)
        assert isinstance(action, argparse._SubParsersAction)
        parser = action.choices[word]
    return parser


def value(action: argparse.Action) -> str:
    """A value that an option accepts."""
    if action.choices is not None:
        return str(next(iter(action.choices)))
    return next(v for v in VALUES if command_lines.rejection(action, v) is None)


def options_of(command: str) -> Iterator[tuple[str, argparse.Action]]:
    for flag, action in parser_of(command)._option_string_actions.items():
        if flag.startswith("--") and flag != "--help":
            yield flag, action


def right(command: str) -> list[list[str]]:
    """What a command needs, in parts of an option and its values."""
    parser = parser_of(command)
    parts = [
        [max(a.option_strings, key=len), value(a)]
        for a in parser._actions
        if a.required and a.option_strings
    ]
    parts += [
        [max(one.option_strings, key=len), value(one)]
        for group in parser._mutually_exclusive_groups
        for one in group._group_actions[:1]
        if group.required
    ]
    positional = [a for a in parser._actions if a.required and not a.option_strings]
    dashes = ["--"] if command == "lease" else []
    return [*parts, [*dashes, *(value(a) for a in positional)]]


def misspelt(word: str, rng: random.Random) -> str:
    """An option with one letter that is wrong, missing, doubled or exchanged."""
    at = rng.randrange(2, len(word))
    match rng.randrange(4):
        case 0:
            return word[:at] + rng.choice("qxz") + word[at + 1 :]
        case 1:
            return word[:at] + word[at + 1 :]
        case 2:
            return word[:at] + word[at] + word[at:]
        case _:
            return word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :]


@pytest.mark.parametrize("seed", range(24))
def test_the_verdict_is_that_of_argparse(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    command = rng.choice([*TOOLS, *NESTED])
    for _ in range(20):
        words = [*command.split(), *_changed(command, rng)]
        found = faults({"baseCommand": "sfq", "arguments": [*words]})
        assert bool(found) != accepted(words, capsys), (words, found)


def _changed(command: str, rng: random.Random) -> list[str]:
    """A command line that is right, with what may be a mistake."""
    parts, known = right(command), dict(options_of(command))
    for _ in range(rng.randrange(4)):
        flag = rng.choice([*known])
        given = [] if known[flag].nargs == 0 else [value(known[flag])]
        parts.insert(0, [flag, *given])
    part, change = rng.choice(parts), rng.randrange(8)
    if change == 0:
        parts.remove(part)
    elif change == 1 and part and len(part[0]) > 2 and part[0].startswith("--"):
        part[0] = misspelt(part[0], rng)
    elif change in (2, 3):
        part[len(part) - (change == 3) :] = [rng.choice(WRONG)]
    elif change == 4 and len(part) == 2:
        part[:] = ["=".join(part)]
    elif change == 5:
        rng.shuffle(parts)
    return [word for part in parts for word in part]


@pytest.mark.parametrize("command", TOOLS)
def test_each_misspelt_option_is_found_with_its_name(command: str) -> None:
    rng = random.Random(command)
    for flag, action in options_of(command):
        wrong = misspelt(flag, rng)
        while wrong in dict(options_of(command)):
            wrong = misspelt(flag, rng)
        given = [] if action.nargs == 0 else [value(action)]
        arguments = [word for part in right(command) for word in part]
        arguments += [wrong, *given]
        place = arguments.index(wrong)
        (fault,) = faults({"baseCommand": ["sfq", command], "arguments": [*arguments]})
        assert fault.where == ("arguments", place)
        assert fault.what == f"sfq {command} has no option {wrong}"
        assert fault.right == f"did you mean {flag}?"
        binding: JSON = {"type": "string", "inputBinding": {"prefix": wrong}}
        (fault,) = faults(
            {
                "baseCommand": ["sfq", command],
                "arguments": [*arguments[:place]],
                "inputs": {"x": binding},
            }
        )
        assert fault.where == ("inputs", "x", "inputBinding", "prefix")
        assert fault.right == f"did you mean {flag}?"


@pytest.mark.parametrize("command", TOOLS)
@pytest.mark.parametrize("form", ["behind", "equals", "prefix", "split"])
def test_each_value_of_a_wrong_type_is_found(command: str, form: str) -> None:
    for flag, action in options_of(command):
        wrong = "!nothing"
        if action.nargs == 0 or command_lines.rejection(action, wrong) is None:
            continue
        base = ["sfq", command]
        arguments: list[JSON] = [w for part in right(command) for w in part]
        place = len(arguments)
        where: tuple[str | int, ...] = ("arguments", place)
        match form:
            case "behind":
                arguments += [flag, wrong]
                where = ("arguments", place + 1)
            case "equals":
                arguments += [f"{flag}={wrong}"]
            case "prefix":
                arguments += [{"prefix": flag, "valueFrom": wrong}]
                where = (*where, "valueFrom")
            case _:
                base += [flag, wrong]
                where = ("baseCommand", 3)
        (fault,) = faults({"baseCommand": [*base], "arguments": arguments})
        assert fault.where == where
        assert wrong in fault.what
        assert f"{command} {flag}" in f"{fault.what} {fault.right}"


@pytest.mark.parametrize("command", TOOLS)
@pytest.mark.parametrize("form", ["$(inputs.x)", "a-$(inputs.x)", "input", "option"])
def test_an_expression_is_taken_for_any_value(command: str, form: str) -> None:
    arguments: list[JSON] = [w for part in right(command) for w in part]
    inputs: dict[str, JSON] = {}
    for number, (flag, action) in enumerate(options_of(command)):
        if action.nargs == 0:
            continue
        binding: JSON = {"prefix": flag}
        match form:
            case "input":
                inputs[f"i{number}"] = {"type": "string?", "inputBinding": binding}
            case "option":
                arguments += [f"{flag}=$(inputs.x)"]
            case _:
                arguments += [flag, form]
    body: dict[str, JSON] = {"baseCommand": ["sfq", command], "arguments": arguments}
    assert faults({**body, "inputs": inputs}) == []


CASES: dict[str, tuple[dict[str, JSON], list[str]]] = {
    "what may be an option": ({"arguments": ["--problem", "p", "$(inputs.more)", "3"]}, []),
    "a list of files": ({"arguments": ["$(inputs.x)"], "inputs": {"x": {"type": "File[]", "inputBinding": {"prefix": "--problem"}}}}, []),
    "a file without its option": ({"arguments": ["--problem", "p", "--output", "s"], "inputs": {"x": {"type": "File", "inputBinding": {}}}}, ["sfq solve takes no argument without an option"]),
    "a switch for a value": ({"arguments": ["--problem", "p", "--output", "s"], "inputs": {"x": {"type": "boolean", "inputBinding": {"prefix": "--seed"}}}}, ["sfq solve --seed has no value"]),
    "items with an option each": ({"arguments": ["--problem", "p", "--output", "s"], "inputs": {"x": {"type": ["null", {"type": "array", "items": "string", "inputBinding": {"prefix": "--sett"}}]}}}, ["sfq solve has no option --sett"]),
    "positions": ({"arguments": [{"position": 2, "valueFrom": "s"}, {"position": 1, "valueFrom": "--output"}, "--problem", "p"]}, []),
    "a position of an expression": ({"arguments": ["--problem", "p", {"position": "$(inputs.x)", "valueFrom": "--sead"}]}, []),
    "words of a shell": ({"requirements": {"ShellCommandRequirement": {}}, "arguments": ["--problem", "p", "--output", "s", {"shellQuote": False, "valueFrom": "| tee"}, "--all"]}, []),
}  # fmt: skip


@pytest.mark.parametrize(("body", "said"), CASES.values(), ids=CASES)
def test_words_are_those_of_the_engine(body: dict[str, JSON], said: list[str]) -> None:
    found = faults({"baseCommand": ["sfq", "solve"], "inputs": {}, **body})
    assert [fault.what for fault in found] == said


def test_the_command_under_a_lease_is_checked() -> None:
    words: list[JSON] = ["sfq", "lease", "--qpu", "q", "--", "sfq", "solve", "--sead"]
    (fault,) = faults({"baseCommand": words})
    assert (fault.what, fault.right) == (
        "sfq solve has no option --sead",
        "did you mean --seed?",
    )


def test_a_default_is_checked_where_it_is_the_value(tmp_path: Path) -> None:
    sampler: JSON = {"type": "string", "default": "nael"}
    bound: dict[str, JSON] = {"inputBinding": {"prefix": "--sampler"}}
    arguments: list[JSON] = ["--problem", "p", "--output", "s"]
    for place in ("tool", "step", "workflow", "settings"):
        tool: dict[str, JSON] = {
            "class": "CommandLineTool",
            "baseCommand": ["sfq", "solve"],
            "arguments": arguments,
            "inputs": {"s": {"type": "string", "default": "neal", **bound}},
            "outputs": {},
        }
        entry: JSON = {"default": "nael"} if place == "step" else "s"
        inputs: JSON = {"s": sampler if place != "step" else "string?"}
        if place == "tool":
            tool["inputs"] = {"s": {"type": "string", "default": "nael", **bound}}
            entry, inputs = {}, {}
        content: JSON = {
            "cwlVersion": "v1.2",
            "class": "Workflow",
            "inputs": inputs,
            "outputs": {},
            "steps": {"solve": {"run": tool, "in": {"s": entry}, "out": []}},
        }
        (tmp_path / "main.cwl").write_text(json.dumps(content))
        settings: JSON = {"s": "neal"} if place == "settings" else {}
        (tmp_path / "job.json").write_text(json.dumps(settings or {"none": 1}))
        config: JSON = {"file": "main.cwl", "settings": "job.json"}
        workflows: JSON = {"main": {"type": "cwl", "config": config}}
        file = tmp_path / "sf.yml"
        file.write_text(json.dumps({"version": "v1.0", "workflows": workflows}))
        lines = [str(problem) for problem in check_file(file, parser_for).problems]
        assert len(lines) == (place != "settings"), place
        assert all("unknown sampler 'nael'" in line for line in lines)


PROBLEM: JSON = {"type": "File", "inputBinding": {"prefix": "--problem"}}
RECORD: JSON = {"type": "record", "fields": {"problem": PROBLEM}}


@pytest.mark.parametrize(
    "declared",
    [
        RECORD,
        {"type": "record", "fields": [{"name": "problem", **mapping(PROBLEM)}]},
        ["null", RECORD],
        {"type": "array", "items": RECORD},
        "types.yml#problem",
        ["null", "types.yml#problem"],
    ],
)
def test_fields_of_a_record_may_be_options(declared: JSON) -> None:
    body: dict[str, JSON] = {
        "baseCommand": ["sfq", "solve", "--output", "samples.json"],
        "inputs": {"given": {"type": declared}},
    }
    assert faults(body) == []


@pytest.mark.parametrize(
    "word", ["$(inputs.flag)=$(inputs.v)", "$(inputs.flag)x", "$(inputs.a)$(inputs.b)"]
)
def test_a_word_that_begins_with_an_expression_may_be_an_option(word: str) -> None:
    words: list[JSON] = ["solve", "--output", "samples.json", "--problem", "p", word]
    assert faults({"baseCommand": "sfq", "arguments": words}) == []
