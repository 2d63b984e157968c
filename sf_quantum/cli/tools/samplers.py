"""``sfq samplers``: the installed samplers, and whether they can be used here."""

from __future__ import annotations

import argparse
import json
import re

from sf_quantum import samplers
from sf_quantum.errors import InputError
from sf_quantum.reporting.aligned import align


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", help="one sampler: its parameters and their defaults")
    add("--json", action="store_true", help="print the rows of the table as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table, or one sampler's parameters."""
    heads = ("sampler", "usable", "description")
    if args.name is not None:
        heads = ("parameter", "default", "description")
        rows = _parameters(args.name)
    else:
        rows = [*map(_row, samplers.names())]
    if args.json:
        print(json.dumps([dict(zip(heads, row, strict=True)) for row in rows]))
    else:
        print(*align([heads, *rows]), sep="\n")
    return 0


def _row(name: str) -> tuple[str, ...]:
    """Return a sampler's row: name, whether it can be used, description."""
    problem = samplers.obstacle(name)
    usable = "yes" if problem is None else f"no: {problem}"
    try:
        docstring = (samplers.load(name).__doc__ or "").strip()
    except InputError:
        docstring = ""
    return name, usable, docstring.partition("\n")[0]


def _parameters(name: str) -> list[tuple[str, ...]]:
    sampler = samplers.load(name)()
    defaults = sampler.properties
    descriptions = _descriptions(sampler.sample.__doc__ or "")
    return [
        (parameter, str(defaults.get(parameter, "-")), descriptions.get(parameter, ""))
        for parameter in sorted(sampler.parameters)
    ]


def _descriptions(text: str) -> dict[str, str]:
    """Return each parameter's description in a docstring as one line, by parameter."""
    fields = re.split(r"^\s*:", text, flags=re.MULTILINE)[1:]
    matches = (re.match(r"param (\w+): (.*)", field, re.DOTALL) for field in fields)
    # The default is left out: the table has a column for it.
    return {
        match[1]: re.sub(r" \(default [^)]*\)|``", "", " ".join(match[2].split()))
        for match in matches
        if match
    }
