"""What samplers' parameters have in common: ranges, and seeds and what follows from them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from sf_quantum.errors import InputError
from sf_quantum.files import JSON

SEEDS = 2**31


def check(name: str, value: JSON, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number, or is out of its range.

    :raises InputError: naming the parameter and what it may be
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}: {value!r:.40}: expected a whole number")
    if value < least or (most is not None and value > most):
        allowed = f"{least} or more" if most is None else f"from {least} to {most}"
        raise InputError(f"{name}: {value} is out of range, expected {allowed}")


def check_number(name: str, value: JSON, above: float) -> None:
    """Refuse what is no finite number above a limit.

    :raises InputError: naming the parameter and what it may be
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not above < value < float("inf")
    ):
        raise InputError(f"{name}: {value!r:.40}: expected a number above {above}")


def check_choice(name: str, value: JSON, known: Iterable[str]) -> None:
    """Refuse what is not one of the known words.

    :raises InputError: naming the parameter and what it may be
    """
    if value not in (choices := [*known]):
        raise InputError(f"{name}: {value!r:.40}: expected {' or '.join(choices)}")


def seeded(seed: int | None) -> int:
    """Check a seed, or draw one.

    :raises InputError: if it is not from 0 to 2**31 - 1
    """
    if seed is None:
        return secrets.randbelow(SEEDS)
    check("seed", seed, 0, SEEDS - 1)
    return seed


def derived(seed: int, number: int) -> int:
    """Make the seed of a part of the work: the first has the seed itself.

    :returns: the same on every machine
    """
    if number == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % SEEDS
