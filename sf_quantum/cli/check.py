"""``sfq check``: look a StreamFlow file over before it runs."""

from __future__ import annotations

import argparse
import importlib

from sf_quantum import cli
from sf_quantum.errors import InputError
from sf_quantum.files import JSON


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a StreamFlow file")


def run(args: argparse.Namespace) -> int:
    """Print one line for each thing that is wrong.

    :returns: 2 if there is any, else 0
    """
    # StreamFlow costs most of a second: not for --help
    from sf_quantum.check import look_over

    code = 0
    for file in args.files:
        findings = look_over(file, options)
        for problem in findings.problems:
            print(problem)
            code = InputError.exit_code
        if not findings.problems:
            counts = (
                _counted(findings.workflows, "workflow"),
                _counted(findings.deployments, "deployment"),
                *(f"{qpu} {why}" for qpu, why in findings.silent.items()),
            )
            print(f"{file}: fine ({', '.join(counts)})")
    return code


def options(command: str) -> dict[str, argparse.Action]:
    """The options of a command, by their flags; none if there is no such command."""
    if command not in cli.COMMANDS:
        return {}
    known = _Options()
    importlib.import_module(f"sf_quantum.cli.{command}").configure(known)
    return known.found


class _Options(argparse.ArgumentParser):
    """What a command adds, as it configures it."""

    def __init__(self) -> None:
        super().__init__(add_help=False)
        self.found: dict[str, argparse.Action] = {}

    def add_argument(  # type: ignore[override]
        self, *flags: str, **about: JSON
    ) -> argparse.Action:
        """Add an option, and remember it."""
        action = super().add_argument(*flags, **about)  # type: ignore[arg-type]
        self.found |= dict.fromkeys(flags, action)
        return action


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
