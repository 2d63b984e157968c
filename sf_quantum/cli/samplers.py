"""``sfq samplers``: which samplers are installed, and whether they can be used here."""

from __future__ import annotations

import argparse

from sf_quantum import samplers
from sf_quantum.columns import align
from sf_quantum.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "name", nargs="?", help="one sampler: its parameters and their defaults"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table, or one sampler's parameters.

    :returns: 0
    :raises InputError: if no sampler has the name, or it cannot be loaded
    """
    if args.name is not None:
        print(*align([("parameter", "default"), *_parameters(args.name)]), sep="\n")
        return 0
    rows = map(_row, samplers.names())
    print(*align([("sampler", "usable", "what it is"), *rows]), sep="\n")
    return 0


def _row(name: str) -> tuple[str, ...]:
    problem = samplers.obstacle(name)
    usable = "yes" if problem is None else f"no: {problem}"
    try:
        told = (samplers.load(name).__doc__ or "").strip().splitlines()
    except InputError:
        told = []
    return name, usable, told[0] if told else ""


def _parameters(name: str) -> list[tuple[str, ...]]:
    sampler = samplers.load(name)()
    defaults = sampler.properties
    return [
        (parameter, str(defaults.get(parameter, "-")))
        for parameter in sorted(sampler.parameters)
    ]
