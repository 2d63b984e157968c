"""Argument types and options shared by several subcommands."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


def checked(
    parse: Callable[[str], Value],
    expected: str,
    accept: Callable[[Value], bool] = lambda _: True,
) -> Callable[[str], Value]:
    """Return a function that converts and checks an argument, for ``type`` in argparse.

    :param expected: description of the permitted values, for the error message
    :param accept: function that returns whether a value is permitted
    """

    def convert(text: str) -> Value:
        with suppress(
            ValueError, OverflowError, OSError
        ):  # datetime raises all of them
            value = parse(text)
            if accept(value):
                return value
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")

    return convert


def sentence(help_: str) -> str:
    """Return a subcommand's help as a sentence, for the top of its own ``--help``."""
    return f"{help_[0].upper()}{help_[1:]}."


def _pair(text: str, parse: Callable[[str], Value]) -> tuple[Value, Value]:
    low, _, high = text.partition(":")
    return parse(low), parse(high or low)


whole = checked(int, "a whole number of at least 0", lambda n: n >= 0)
positive = checked(int, "a whole number of at least 1", lambda n: n >= 1)
#: any number, including infinity
number = checked(float, "a number", lambda x: not math.isnan(x))
not_negative = checked(number, "a number of at least 0", lambda x: x >= 0)
seconds = checked(float, "a number of seconds", lambda s: 0 <= s < math.inf)
picture = checked(
    Path, "a .png or .svg file", lambda path: path.suffix.lower() in (".png", ".svg")
)
whole_range = checked(
    lambda text: _pair(text, int),
    "a range such as 4:10, the lower bound first",
    lambda pair: 1 <= pair[0] <= pair[1],
)
number_range = checked(
    lambda text: _pair(text, float),
    "a range such as 1.2:4.5, the lower bound first",
    lambda pair: 0 < pair[0] <= pair[1] < math.inf,
)


def add_points(parser: argparse.ArgumentParser) -> None:
    """Add ``--points``, ``--label`` and ``--exact-up-to``."""
    # Imported here, since this module imports numpy, which would slow down sfq lease.
    from sf_quantum.clustering.silhouette import EXACT_UP_TO

    add = parser.add_argument
    add(
        "--points",
        required=True,
        metavar="FILE",
        help="CSV or TSV with a header, or .npy: n points by d features",
    )
    add(
        "--label",
        metavar="COLUMN",
        help="a column with the ground truth, compared with the result",
    )
    add(
        "--exact-up-to",
        type=whole,
        default=EXACT_UP_TO,
        metavar="N",
        help="for more points, estimate silhouettes from a sample and report their "
        "standard error (default %(default)s)",
    )


def add_clusterings(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the clusterings to aggregate."""
    parser.add_argument(
        "clusterings",
        nargs="+",
        metavar="CLUSTERING",
        help="files written by sfq cluster",
    )
