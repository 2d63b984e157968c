"""``sfq check``: check a StreamFlow file, or a QPU service's, before it runs."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from sf_quantum import cli
from sf_quantum.errors import InputError
from sf_quantum.text import escaped

# keys of a StreamFlow file, which no service's configuration has
_STREAMFLOW = {"version", "workflows", "deployments"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A file with the keys of a QPU service's configuration is checked as one, with "
        "the files that it names; options of sfq serve need sfq serve --check."
    )
    help_ = "a StreamFlow file, or the configuration of a QPU service"
    parser.add_argument("files", nargs="+", metavar="FILE", help=help_)


def run(args: argparse.Namespace) -> int:
    """Print the problems of each file, one per line; the status is 2 if there are any."""
    code = 0
    for file in args.files:
        if (lines := _service_findings(Path(file))) is not None:
            print(*map(escaped, lines or [f"{file}: OK (QPU service)"]), sep="\n")
            code = max(code, InputError.exit_code if lines else 0)
            continue
        # StreamFlow takes most of a second to import, too long for --help
        from sf_quantum.check import check_file

        findings = check_file(file, options)
        for problem in findings.problems:
            print(escaped(str(problem)))
            code = InputError.exit_code
        if not findings.problems:
            counts = (
                _counted(findings.workflows, "workflow"),
                _counted(findings.deployments, "deployment"),
                *(f"{qpu} {why}" for qpu, why in findings.silent.items()),
            )
            print(f"{file}: OK ({', '.join(counts)})")
    return code


def _service_findings(path: Path) -> list[str] | None:
    """The findings in a service's configuration; ``None`` for any other file."""
    from sf_quantum.validation import ValidationErrors, read_yaml

    try:
        content = read_yaml(path, "configuration")
        if not isinstance(content, dict) or content.keys() & _STREAMFLOW:
            return None
        # the service takes a second to import
        from sf_quantum.service.check import check, is_service

        if not is_service(content):
            return None
        check(path, {}, {})
    except ValidationErrors as error:
        return error.lines
    except InputError:
        return None  # reported with a StreamFlow file's lines
    return []


def options(command: str) -> dict[str, argparse.Action]:
    """The options of an ``sfq`` command, by their flags; empty if it does not exist."""
    if command not in cli.COMMANDS:
        return {}
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(f"sf_quantum.cli.{command}").configure(parser)
    return parser._option_string_actions


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
