"""Argument types and options shared by several subcommands."""

from __future__ import annotations

import argparse
import math

from sf_quantum.clustering.silhouette import EXACT_UP_TO


def whole(text: str, least: int = 0) -> int:
    """:raises argparse.ArgumentTypeError: if ``text`` is not an integer >= ``least``"""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a whole number of at least {least}"
        )
    return number


def positive(text: str) -> int:
    """:raises argparse.ArgumentTypeError: if ``text`` is not an integer >= 1"""
    return whole(text, 1)


def number(text: str) -> float:
    """:raises argparse.ArgumentTypeError: if ``text`` is not a number (infinity is)"""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number")
    return value


def not_negative(text: str) -> float:
    """:raises argparse.ArgumentTypeError: if ``text`` is not a number >= 0"""
    value = number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of at least 0")
    return value


def whole_range(text: str) -> tuple[int, int]:
    """Parse ``4:10``.

    :raises argparse.ArgumentTypeError: if it is not an ascending range >= 1
    """
    low, _, high = text.partition(":")
    try:
        bounds = positive(low), positive(high or low)
    except argparse.ArgumentTypeError:
        bounds = 1, 0
    if bounds[0] > bounds[1]:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a range such as 4:10, the lower bound first"
        )
    return bounds


def number_range(text: str) -> tuple[float, float]:
    """Parse ``1.2:4.5``.

    :raises argparse.ArgumentTypeError: if it is not an ascending range > 0
    """
    low, _, high = text.partition(":")
    try:
        bounds = number(low), number(high or low)
    except argparse.ArgumentTypeError:
        bounds = 0.0, 0.0
    if not 0 < bounds[0] <= bounds[1] < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a range such as 1.2:4.5, the lower bound first"
        )
    return bounds


def add_points(parser: argparse.ArgumentParser) -> None:
    """Add ``--points``, ``--label`` and ``--exact-up-to``."""
    parser.add_argument(
        "--points",
        required=True,
        metavar="FILE",
        help="CSV or TSV with a header, or .npy: n points by d features",
    )
    parser.add_argument(
        "--label",
        metavar="COLUMN",
        help="a column with the ground truth, compared with the result",
    )
    parser.add_argument(
        "--exact-up-to",
        type=whole,
        default=EXACT_UP_TO,
        metavar="N",
        help="for more points, estimate silhouettes from a sample and report their "
        "standard error (default %(default)s)",
    )
