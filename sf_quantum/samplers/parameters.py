"""Checks of sampler parameters, and seeds."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from sf_quantum.errors import InputError
from sf_quantum.files import JSON

SEEDS = 2**31


def check(name: str, value: JSON, least: int, most: int | None = None) -> None:
    """Check that a parameter is an integer within a range.

    :raises InputError: naming the parameter and its range
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}: {value!r:.40}: expected a whole number")
    if value < least or (most is not None and value > most):
        allowed = f"{least} or more" if most is None else f"from {least} to {most}"
        raise InputError(f"{name}: {value} is out of range, expected {allowed}")


def check_number(name: str, value: JSON, above: float) -> None:
    """Check that a parameter is a finite number above a limit.

    :raises InputError: naming the parameter and the limit
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not above < value < float("inf")
    ):
        raise InputError(f"{name}: {value!r:.40}: expected a number above {above}")


def check_choice(name: str, value: JSON, known: Iterable[str]) -> None:
    """Check that a parameter is one of the known words.

    :raises InputError: naming the parameter and the words
    """
    if value not in (choices := [*known]):
        raise InputError(f"{name}: {value!r:.40}: expected {' or '.join(choices)}")


def seeded(seed: int | None) -> int:
    """Check a seed, or draw one for ``None``.

    :raises InputError: if it is not between 0 and 2**31 - 1
    """
    if seed is None:
        return secrets.randbelow(SEEDS)
    check("seed", seed, 0, SEEDS - 1)
    return seed


def derived(seed: int, number: int) -> int:
    """Derive the seed of the part ``number``; the first part uses the seed itself.

    The result is the same on every machine.
    """
    if number == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % SEEDS
