"""``sfq check``: check a StreamFlow file before it runs."""

from __future__ import annotations

import argparse
import importlib

from sf_quantum import cli
from sf_quantum.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a StreamFlow file")


def run(args: argparse.Namespace) -> int:
    """Print the problems of each file, one per line; the status is 2 if there are any."""
    # StreamFlow takes most of a second to import, too long for --help
    from sf_quantum.check import check_file

    code = 0
    for file in args.files:
        findings = check_file(file, options)
        for problem in findings.problems:
            print(problem)
            code = InputError.exit_code
        if not findings.problems:
            counts = (
                _counted(findings.workflows, "workflow"),
                _counted(findings.deployments, "deployment"),
                *(f"{qpu} {why}" for qpu, why in findings.silent.items()),
            )
            print(f"{file}: OK ({', '.join(counts)})")
    return code


def options(command: str) -> dict[str, argparse.Action]:
    """The options of an ``sfq`` command, by their flags; empty if it does not exist."""
    if command not in cli.COMMANDS:
        return {}
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(f"sf_quantum.cli.{command}").configure(parser)
    return parser._option_string_actions


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
