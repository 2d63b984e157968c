"""``sfq check``: look a StreamFlow file over before it runs."""

from __future__ import annotations

import argparse

from sf_quantum.errors import InputError


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
        findings = look_over(file)
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


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
