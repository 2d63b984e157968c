"""``sfq check``: check a StreamFlow file, a service's configuration or a workload."""

from __future__ import annotations

import argparse
import json

from sf_quantum.errors import InputError
from sf_quantum.text import escaped
from sf_quantum.workflows.checks import check


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A file is checked as the kind to which most of its keys belong: a StreamFlow "
        "file, the configuration of a QPU service with the files that it names (options "
        "of sfq serve need sfq serve --check), or a workload for sfq plan."
    )
    help_ = "a StreamFlow file, the configuration of a QPU service, or a workload"
    parser.add_argument("files", nargs="+", metavar="FILE", help=help_)
    help_ = "print the findings as JSON, with file, line and key of each"
    parser.add_argument("--json", action="store_true", help=help_)


def run(args: argparse.Namespace) -> int:
    """Print the findings in each file, one per line; return 2 if a file has a problem."""
    results = []
    for file in args.files:
        results.append(check(file))
        if not args.json:
            print(*map(escaped, results[-1].lines()), sep="\n", flush=True)
    if args.json:
        print(json.dumps({"files": [result.to_json() for result in results]}, indent=2))
    return 0 if all(result.ok for result in results) else InputError.exit_code
