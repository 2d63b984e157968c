"""The command ``sfq``: each subcommand is one module with ``configure`` and ``run``.

``COMMANDS`` lists the subcommands and their folders: ``workflow`` for authors of workflows,
``tools`` for steps of a workflow, ``qpu`` for users and operators of QPUs, ``batch`` for a
site's batch system. ``arguments`` has the argument types and options that several subcommands
share. Modules are imported only when needed, so ``sfq --help`` starts quickly. No other
package imports this one.

Imports: clustering, journal, malleability, net, planning, protocol, qpu, reporting,
    samplers, service, service/domain, service/http, service/store, workflows.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from sf_quantum.cli.arguments import sentence
from sf_quantum.errors import QuantumError
from sf_quantum.text import escaped, one_line
from sf_quantum.version import __version__


class Command(NamedTuple):
    """A subcommand: the folder of its module in this package, and its help."""

    folder: str
    help: str


# A subcommand's module is imported only when the subcommand is called, so that ``sfq --help``
# and every step of a workflow start quickly.
COMMANDS = {
    "cluster": Command("tools", "cluster points with one method"),
    "qubo": Command(
        "tools", "build the QUBO whose optimum is the consensus of several clusterings"
    ),
    "solve": Command(
        "tools", "sample low-energy states of a problem on a QPU or a classical sampler"
    ),
    "score": Command(
        "tools", "score the consensus partitions, and decide whether the loop continues"
    ),
    "plot": Command(
        "tools", "draw the clusters, their inputs and the score by iteration"
    ),
    "serve": Command("qpu", "run the QPU service"),
    "token": Command("qpu", "create a bearer token for a user of the QPU service"),
    "lease": Command("qpu", "run a command under a lease of the QPUs it needs"),
    "slurm": Command(
        "batch", "acquire and release leases for a site's Slurm, as its plugins ask"
    ),
    "flux": Command("batch", "acquire and release leases for the held jobs of Flux"),
    "pbs": Command("batch", "acquire and release leases for the held jobs of OpenPBS"),
    "qpus": Command(
        "qpu", "list the usable kinds of QPU, and the status of given QPUs"
    ),
    "jobs": Command("qpu", "list, show, cancel and follow the jobs of a QPU service"),
    "leases": Command("qpu", "list and end the leases of a QPU service"),
    "usage": Command(
        "qpu", "report QPU usage and waiting times by user, project, lease, job or step"
    ),
    "admin": Command(
        "qpu", "open, drain or close a QPU, announce maintenance, run device operations"
    ),
    "samplers": Command(
        "tools", "list the installed samplers, and whether they can be used here"
    ),
    "init": Command("workflow", "write a small hybrid workflow that is ready to run"),
    "check": Command(
        "workflow",
        "check a StreamFlow file, a QPU service's or a workload before it runs",
    ),
    "plan": Command(
        "workflow", "predict what each allocation strategy costs, and recommend one"
    ),
    "run": Command(
        "workflow",
        "check and run a StreamFlow file, show its progress, and report on it",
    ),
    "report": Command(
        "workflow", "show a run's journal as a table, JSON or a timeline"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``sfq``.

    :param argv: arguments; by default ``sys.argv[1:]``
    :returns: exit status: 0 for success; 2 for bad input; 75 for QPU errors that may pass; 1
        for other errors
    """
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # also during a subcommand's imports
        return 128 + signal.SIGINT


def _main(arguments: list[str]) -> int:
    """Run a command, and print its error, if any; return the exit status."""
    _escape_output()
    parser = parser_for(arguments)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse(args.parser, unknown)
    try:
        return int(args.run(args))
    except BrokenPipeError:
        discard_output()
        return 0
    except Exception as error:
        if args.debug:
            raise
        code = 1
        text = f"unexpected {type(error).__name__}: {error} (--debug shows where)"
        lines = [one_line(text)]
        if isinstance(error, QuantumError):
            code, lines = error.exit_code, error.lines
    for line in lines:
        print(f"sfq {args.command}: {escaped(line)}", file=sys.stderr)
    return code


def _escape_output() -> None:
    """Make standard output escape characters that it cannot encode, like standard error."""
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper) and output.encoding.lower() != "utf-8":
        # Python cannot change the output to some pipes, which is then not escaped.
        with suppress(OSError):
            output.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discard further output, even at exit, since its reader (head, less) has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, and accepts no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Report an unknown argument, and suggest an option of a similar name."""
    # imported here, as only this error needs it
    from difflib import get_close_matches

    option = unknown[0].partition("=")[0]
    close = get_close_matches(option, parser._option_string_actions, 1, 0.75)
    hint = f"; did you mean {close[0]}?" if close else ""
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def parser_for(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of ``sfq``, with the options of only the called subcommand."""
    parser = _Parser(
        prog="sfq", description="Hybrid quantum and HPC workflows, step by step."
    )
    parser.add_argument("--version", action="version", version=f"sfq {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = next((word for word in arguments if not word.startswith("-")), None)
    for name, (folder, help_) in COMMANDS.items():
        sub = subparsers.add_parser(name, help=help_, description=sentence(help_))
        if name == called:
            module = importlib.import_module(f"{__name__}.{folder}.{name}")
            module.configure(sub)
            sub.set_defaults(run=module.run, parser=sub)
    _add_debug(parser)
    parser.set_defaults(debug=False)
    return parser


def _add_debug(parser: argparse.ArgumentParser) -> None:
    """Add ``--debug`` to a parser and to all its subcommands, at every level."""
    help_ = "show a traceback on errors"
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help=help_
    )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name in action.choices:
                _add_debug(action.choices[name])
