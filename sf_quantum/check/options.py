"""The inputs that reach our own tools, judged by the options they become."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from sf_quantum.check import cwl
from sf_quantum.check.document import Document, Problem, listing, mapping
from sf_quantum.files import JSON

OURS = "sfq"
AUTO = "auto"
#: the options of one of our commands, by their flags; none if there is no such command
Commands: TypeAlias = Callable[[str], Mapping[str, argparse.Action]]


def check(
    settings: Document, process: cwl.Process, commands: Commands
) -> Iterator[Problem]:
    """Look at each input that a tool of ours is given as it is written.

    :param settings: the file of inputs
    """
    for tool in process.tools:
        command = subcommand(tool)
        known = commands(command) if command else {}
        for flag, name in inputs(tool, process):
            value = settings.content.get(name)
            if flag in known and (wrong := _wrong(known[flag], value)):
                right = f"{tool.step} gives it to sfq {command} {flag}"
                yield settings.problem((name,), wrong, right)


def subcommand(tool: cwl.Tool) -> str | None:
    """Which command of ours a tool runs, if it does."""
    match listing(tool.body.get("baseCommand")):
        case [str(first), str(second), *_] if first == OURS:
            return second
    return None


def inputs(tool: cwl.Tool, process: cwl.Process) -> Iterator[tuple[str, str]]:
    """The workflow's inputs that a tool is given.

    :returns: each option of the tool, with the name of the input
    """
    for name, body in mapping(tool.body.get("inputs")).items():
        flag = mapping(mapping(body).get("inputBinding")).get("prefix")
        origin = process.origin(f"{tool.step.rstrip('/')}/{name}").removeprefix("/")
        if isinstance(flag, str) and origin in process.inputs:
            yield flag, origin


def _wrong(option: argparse.Action, value: JSON) -> str:
    """What an option says against a value; nothing if it takes it, or is not one value."""
    if not isinstance(value, str | int | float):
        return ""
    judge, choices = option.type, option.choices
    try:
        taken = judge(str(value)) if callable(judge) else value
    except argparse.ArgumentTypeError as error:
        return str(error)
    except ValueError:
        return f"{value!r:.40} does not fit"
    if choices is not None and taken not in choices:
        return f"{value!r:.40}: one of {', '.join(map(str, choices))} expected"
    return ""
