"""Sampler parameters: their defaults, checks, and seeds."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from dimod.core.sampler import Sampler

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.defaults import SEEDS


def check(name: str, value: JSON, least: int, most: int | None = None) -> None:
    """Check that a parameter is an integer within a range.

    :raises InputError: if the value is wrong; the message names the parameter and its range
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name}: {value!r:.40}: expected a whole number")
    if value < least or (most is not None and value > most):
        allowed = f"{least} or more" if most is None else f"from {least} to {most}"
        raise InputError(f"{name}: {value} is out of range, expected {allowed}")


def check_number(name: str, value: JSON, above: float) -> None:
    """Check that a parameter is a finite number above a limit.

    :raises InputError: if the value is wrong; the message names the parameter and the limit
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not above < value < float("inf")
    ):
        raise InputError(f"{name}: {value!r:.40}: expected a number above {above}")


def check_choice(name: str, value: JSON, allowed: Iterable[str]) -> None:
    """Check that a parameter is one of the allowed words.

    :raises InputError: if the value is wrong; the message names the parameter and the words
    """
    if value not in (choices := [*allowed]):
        raise InputError(f"{name}: {value!r:.40}: expected {' or '.join(choices)}")


def seeded(seed: int | None) -> int:
    """Check a seed, or draw one for ``None``.

    :raises InputError: if the seed is not between 0 and 2**31 - 1
    """
    if seed is None:
        return secrets.randbelow(SEEDS)
    check("seed", seed, 0, SEEDS - 1)
    return seed


def derived(seed: int, number: int) -> int:
    """Derive the seed of the part with a number; part 0 uses the seed itself.

    The result is the same on every machine.
    """
    if number == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % SEEDS


class CheckedSampler(Sampler):
    """A sampler that reads its parameters and defaults from the signature of ``sample``.

    :cvar checks: functions that raise an error for a wrong value, by parameter, except
        ``seed``
    :cvar more: additional entries of ``properties``
    :cvar packages: packages that ``sample`` imports
    :cvar missing: message if one of these packages is not installed
    """

    checks: ClassVar[Mapping[str, Callable[[str, JSON], None]]]
    more: ClassVar[Mapping[str, JSON]] = {}
    packages: ClassVar[tuple[str, ...]] = ()
    missing: ClassVar[str] = ""

    @classmethod
    def problem(cls) -> str | None:
        """Explain why the sampler cannot be used here; ``None`` if it can."""
        specs = map(importlib.util.find_spec, cls.packages)
        return None if all(specs) else cls.missing

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The keyword arguments of ``sample``, in dimod's format."""
        return {"seed": [], **{name: [] for name in self.checks}}

    @property
    def properties(self) -> dict[str, JSON]:
        """The defaults that are not ``None``, and :attr:`more`."""
        # the signature of a subclass may lack parameters that it passes on
        classes = (c for c in type(self).__mro__ if issubclass(c, CheckedSampler))
        declaring = next(c for c in classes if "checks" in vars(c))
        signature = inspect.signature(declaring.sample).parameters
        defaults = {name: signature[name].default for name in self.checks}
        named = {name: value for name, value in defaults.items() if value is not None}
        return named | {**self.more}

    @classmethod
    def check_parameters(cls, **parameters: JSON) -> None:
        """Check parameters of ``sample``, except the seed.

        :raises InputError: if a parameter is out of range
        """
        for name, value in parameters.items():
            if name not in cls.checks:
                raise TypeError(f"{name}: not a parameter of {cls.__name__}")
            cls.checks[name](name, value)
