"""The parsing of pulse sequences in Pulser's abstract representation."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, check_nesting, unique
from sf_quantum.text import described, shortened

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from pulser import Sequence
    from pulser.devices._device_datacls import BaseDevice


def parse(text: str) -> Sequence[BaseDevice]:
    """Read a sequence.

    :raises InputError: if Pulser cannot read the sequence, or may misread a number
    """
    from jsonschema.exceptions import ValidationError
    from pulser import Sequence
    from pulser.exceptions.base import PulserError

    _check_numbers(text)
    try:
        return Sequence.from_abstract_repr(text)
    except ValidationError as error:
        raise InputError(_deepest(error)) from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {described(error)}") from error
    except (PulserError, ValueError, RuntimeError) as error:
        raise InputError(described(error)) from error
    except MemoryError:
        raise
    except Exception as error:
        detail = f"Pulser cannot parse the sequence ({type(error).__name__})"
        raise InputError(detail) from error


def _check_numbers(text: str) -> None:
    """Reject JSON with numbers that are not finite, which Python and Pulser would accept."""
    try:
        check_nesting(text)
        json.loads(
            text,
            parse_constant=_refuse,
            parse_float=_finite,
            object_pairs_hook=lambda pairs: _evaluated(unique(pairs)),
        )
    except json.JSONDecodeError:
        return  # Pulser reports the error
    except ValueError as error:
        raise InputError(f"not JSON: {shortened(str(error))}") from error


# Operations that Pulser computes exactly for integers, with any number of digits. Its other
# functions return floats.
_EXACT: Mapping[str, Callable[..., JSON]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
}


def _evaluated(content: dict[str, JSON]) -> JSON:
    """Reject an expression with a too large value; return the value if it has no variables.

    Inner expressions have already been evaluated, as floats for speed.
    """
    name = content.get("expression")
    if not isinstance(name, str):
        return content
    sides = [content[side] for side in ("lhs", "rhs") if side in content]
    if name == "index":
        return _indexed(*sides) if len(sides) == 2 else None
    if name not in _EXACT or not all(type(side) in (int, float) for side in sides):
        return None
    try:
        value = _EXACT[name](*(float(cast(float, side)) for side in sides))
    except OverflowError:
        value = math.inf
    except (ZeroDivisionError, TypeError):
        return None  # Pulser reports the error
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"the value of an expression ({name}) is too large")
    return value if isinstance(value, float) else None


def _indexed(values: JSON, index: JSON) -> JSON:
    if isinstance(values, list) and isinstance(index, int | float):
        with suppress(IndexError, OverflowError):
            return values[int(index)]
    return None


def _refuse(constant: str) -> float:
    raise InputError(f"{constant} is not a number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise InputError(f"{text:.40} is too large")
    return number


def _deepest(error: ValidationError) -> str:
    # The schema has alternatives: report the deepest error of the closest alternative.
    while error.context:
        branches: dict[str | int, list[ValidationError]] = {}
        for cause in error.context:
            branches.setdefault(cause.relative_schema_path[0], []).append(cause)
        closest = min(branches.values(), key=len)
        error = max(closest, key=lambda cause: len(cause.absolute_path))
    path = ".".join(str(part) for part in error.absolute_path)
    return f"{path}: {error.message:.200}".removeprefix(": ")
